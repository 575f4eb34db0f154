"""What the journal records of the settles that come over HTTP: what their callers say, and nothing that nobody said."""

import time
from dataclasses import replace
from typing import Final

from pydantic import JsonValue

from jobq.errors import MalformedTask
from jobq.formats import strict_json
from jobq.journal.records import MAX_DETAIL_CHARACTERS, MAX_OUTPUT_BYTES, MAX_VALUE_BYTES, Attempt, Beat, end_of
from jobq.servable import ListedTask
from jobq.server import schemas
from jobq.server.error_responses import RequestRefused
from jobq.settlement import Record
from jobq.task import Counters, OutcomeKind, Task, Usage

_LOST: Final = "its value is not kept: {} bytes, at most {} are"


def record_of(
    outcome: str,
    then: str,
    *,
    task: ListedTask | None = None,
    duration: float = 0.0,
    detail: str = "",
    exit_code: int | None = None,
    value: JsonValue = None,
    output: str = "",
) -> Record:
    """Return what the journal is to record of an attempt, with the settle that is accepted (S5).

    Args:
        outcome: an OutcomeKind.
        then: what becomes of the task: `done`, `retry` or `dead`.
        task: as it stands, where it was looked up; else its row has the attempt's number.
        duration: seconds that it took, by its caller's word; 0 = it gave none.
        detail: what happened, for people.
        exit_code: likewise by its caller's word, as value and output are.
        value: what the task returned.
        output: the end of what it printed.
    """
    ended = time.time()
    size = 0 if value is None else len(strict_json.dumps(value))
    if size > MAX_VALUE_BYTES:
        value, detail = None, f"{detail}; {_LOST.format(size, MAX_VALUE_BYTES)}".removeprefix("; ")
    attempt = Attempt(
        attempt=0 if task is None else task.deliveries or 0,
        outcome=outcome,
        then=then,
        started=ended - duration if duration else None if task is None else task.started,
        ended=ended,
        detail=detail[:MAX_DETAIL_CHARACTERS],
        exit_code=exit_code,
        value=value,
    )
    return Record(attempt, end_of(output, MAX_OUTPUT_BYTES))


def record_of_report(sent: schemas.AttemptBody, *then: str) -> Record:
    """Return what a worker of jobq reports of an attempt; times are this clock's.

    Args:
        sent: the worker's report.
        then: what can become of the task by this settle; raises RequestRefused for anything else.
    """
    if sent.then not in then:
        raise RequestRefused(400, "malformed_request", f"attempt.then: {sent.then} does not go with this settle")
    record = record_of(
        sent.outcome, sent.then, detail=sent.detail, exit_code=sent.exit_code, value=sent.value, output=sent.output
    )
    attempt = replace(
        record.attempt,
        started=None if sent.running_seconds is None else record.attempt.ended - sent.running_seconds,
        host=sent.host,
        pid=sent.pid,
        signal=sent.signal,
        waited=sent.waited_seconds,
        usage=None if sent.usage is None else Usage(**sent.usage.model_dump()),
        program=sent.program,
    )
    return replace(record, attempt=attempt)


def beat_of(sent: schemas.BeatBody | None) -> Beat | None:
    """Return the beat that a running attempt sent with a renewal."""
    if sent is None:
        return None
    now = time.time()
    fields = sent.model_dump(exclude={"running_seconds"})
    return Beat(at=now, started=None if sent.running_seconds is None else now - sent.running_seconds, **fields)


def record_of_requeue(record: ListedTask, counters: Counters) -> Record | None:
    """Return it of a caller who counts by itself: the counter that it has raised says how the attempt ended."""
    try:
        before = Task.decode(record.body or b"")
    except MalformedTask:
        return None
    if counters.failures > before.counters.failures:
        return record_of(OutcomeKind.FAILED, "retry", task=record)
    if counters.preemptions > before.counters.preemptions:
        return record_of(OutcomeKind.PREEMPTED, "retry", task=record)
    return None
