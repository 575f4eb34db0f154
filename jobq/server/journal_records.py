"""What the journal is told of the settles that come over HTTP: what their callers say, and nothing that nobody said."""

import time
from dataclasses import replace
from typing import Final

from pydantic import JsonValue

from jobq import strict_json
from jobq.errors import MalformedTask
from jobq.journal.page import page_of
from jobq.journal.records import (
    MAX_DETAIL_CHARACTERS,
    MAX_OUTPUT_BYTES,
    MAX_VALUE_BYTES,
    RELEASED,
    Attempt,
    Beat,
    end_of,
)
from jobq.servable import HeldDelivery, TaskRecord
from jobq.server import schemas
from jobq.server.error_responses import Refused
from jobq.task import OutcomeKind, Task, Usage

_LOST: Final = "its value is not kept: {} bytes, at most {} are"


def tell(
    delivery: HeldDelivery,
    outcome: str,
    then: str,
    *,
    record: TaskRecord | None = None,
    duration: float = 0.0,
    detail: str = "",
    exit_code: int | None = None,
    value: JsonValue = None,
    output: str = "",
) -> None:
    """Write what an attempt came to on its page: it goes into the journal with the settle that is accepted (S5).

    Args:
        delivery: whose.
        outcome: an OutcomeKind, or RELEASED.
        then: what becomes of the task: `done`, `retry` or `dead`.
        record: the task as it stands, where it was looked up; else its row tells the attempt's number.
        duration: seconds that it took, by its caller's word; 0 = it told none.
        detail: what happened, for people.
        exit_code: likewise by its caller's word, as value and output are.
        value: what the task returned.
        output: the end of what it printed.
    """
    page = page_of(delivery)
    if page is None:
        return
    ended = time.time()
    started = ended - duration if duration else None if record is None else record.started
    size = 0 if value is None else len(strict_json.dumps(value))
    if size > MAX_VALUE_BYTES:
        value, detail = None, f"{detail}; {_LOST.format(size, MAX_VALUE_BYTES)}".removeprefix("; ")
    page.attempt = Attempt(
        attempt=0 if record is None else record.deliveries or 0,
        outcome=outcome,
        then=then,
        started=None if outcome == RELEASED else started,
        ended=ended,
        detail=detail[:MAX_DETAIL_CHARACTERS],
        exit_code=exit_code,
        value=value,
    )
    page.output = end_of(output, MAX_OUTPUT_BYTES)


def tell_attempt(delivery: HeldDelivery, told: schemas.AttemptTold, *then: str) -> None:
    """Write what a worker of jobq tells of an attempt; times are this clock's.

    Args:
        delivery: whose.
        told: by the worker.
        then: what can become of the task by this settle; raises Refused for anything else.
    """
    if told.then not in then:
        raise Refused(400, "malformed_request", f"attempt.then: {told.then} does not go with this settle")
    page = page_of(delivery)
    if page is None:
        return
    tell(
        delivery,
        told.outcome,
        told.then,
        detail=told.detail,
        exit_code=told.exit_code,
        value=told.value,
        output=told.output,
    )
    assert page.attempt is not None
    usage = None if told.usage is None else Usage(**told.usage.model_dump())
    page.attempt = replace(
        page.attempt,
        started=None if told.running_seconds is None else page.attempt.ended - told.running_seconds,
        host=told.host,
        pid=told.pid,
        signal=told.signal,
        usage=usage,
        program=told.program,
    )


def tell_beat(delivery: HeldDelivery, told: schemas.Told | None) -> None:
    """Write what a running attempt tells of itself, with the renewal that is accepted."""
    page = page_of(delivery)
    if page is None or told is None:
        return
    now = time.time()
    fields = told.model_dump(exclude={"running_seconds"})
    started = None if told.running_seconds is None else now - told.running_seconds
    page.beat = lambda: Beat(at=now, started=started, **fields)


def is_canceled(delivery: HeldDelivery) -> bool:
    """Tell whether somebody wants the task to end, as the last renewal has heard."""
    page = page_of(delivery)
    return page is not None and page.cancel.is_set()


def tell_requeue(delivery: HeldDelivery, record: TaskRecord | None, task: Task) -> None:
    """Tell of a caller who counts by itself: the counter that it has raised says how the attempt ended."""
    try:
        before = None if record is None or record.body is None else Task.decode(record.body)
    except MalformedTask:
        before = None
    if before is None:
        return
    if task.counters.failures > before.counters.failures:
        tell(delivery, OutcomeKind.FAILED, "retry", record=record)
    elif task.counters.preemptions > before.counters.preemptions:
        tell(delivery, OutcomeKind.PREEMPTED, "retry", record=record)
