"""What each task of a batch came to, as a row: flat, by names of columns."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from jobq.backend import Backend
from jobq.batches import MOST_LISTED, Member, batches_of
from jobq.journal.records import Attempt, TaskRecord
from jobq.journal.store import Journal, KeepsJournal
from jobq.task import JsonValue

Row = dict[str, Any]
FIXED: Final = {  # the kind of each: see `jobq.results.table`
    "id": "text",
    "state": "text",
    "outcome": "text",
    "exit_code": "integer",
    "signal": "integer",
    "attempts": "integer",
    "host": "text",
    "started": "number",
    "ended": "number",
    "seconds": "number",
    "cpu_seconds": "number",
    "max_rss_bytes": "integer",
    "detail": "text",
}
VALUE: Final = "value"  # what a task returned, where that is no object; and what has no column of its own
PARAM: Final = "param."
_MOST_DEPTH: Final = 32  # levels of a value that have columns of their own


async def rows(backend: Backend, name: str, *, all_attempts: bool = False) -> AsyncIterator[Row]:
    """Yield a row for each task of a batch, in the store's order of ids, or for each attempt that is recorded.

    Memory is bounded by a page, and no lock is held between two. Where the journal is off, what attempts tell is empty.

    Args:
        backend: an entered backend.
        name: of the batch.
        all_attempts: whether to show each attempt; one that has none has a row all the same.

    Raises:
        ConfigurationError: this queue keeps no batches.
        BatchNotFound: as it says.
    """
    journal = backend.journal if isinstance(backend, KeepsJournal) else None
    after = ""
    while page := await batches_of(backend).members(name, after, MOST_LISTED):
        records = await _records(journal, page)
        for member in page:
            record = records.get(member.id)
            attempts: Sequence[Attempt | None] = ()
            if all_attempts and journal is not None:
                attempts = await journal.attempts(member.id)
            for attempt in attempts or [None if record is None else _last(record)]:
                yield _row(member, record, attempt)
        after = page[-1].id


class Cost(NamedTuple):
    """What the attempts of a batch that are recorded have used: how many there are, and seconds of slots and of CPU."""

    attempts: int
    seconds: float
    cpu_seconds: float


async def cost_of(backend: Backend, name: str) -> Cost:
    """Add up what all recorded attempts of a batch have used; raises as `rows` does."""
    attempts, seconds, cpu_seconds = 0, 0.0, 0.0
    async for row in rows(backend, name, all_attempts=True):
        attempts += row["outcome"] is not None
        seconds += row["seconds"] or 0.0
        cpu_seconds += row["cpu_seconds"] or 0.0
    return Cost(attempts, seconds, cpu_seconds)


async def _records(journal: Journal | None, page: Sequence[Member]) -> Mapping[str, TaskRecord]:
    if journal is None:
        return {}
    return {record.id: record for record in await journal.find([member.id for member in page])}


def _last(record: TaskRecord) -> Attempt | None:
    """Return the attempt by which a task has ended, or the last one of a task that has not."""
    if not record.state.is_final:
        return record.last
    result = record.result()
    return Attempt(
        attempt=result.attempt,
        outcome=result.outcome,
        then="",
        started=result.started,
        ended=result.ended or 0.0,
        host=result.host,
        detail=result.detail,
        exit_code=result.exit_code,
        signal=result.signal,
        usage=result.usage,
        value=result.value,
    )


def _row(member: Member, record: TaskRecord | None, attempt: Attempt | None) -> Row:
    row: Row = dict.fromkeys(FIXED)
    row["id"], row["state"] = member.id, member.state
    if record is not None:
        row["attempts"] = record.attempt
    if attempt is not None:
        row |= {
            "outcome": attempt.outcome,
            "exit_code": attempt.exit_code,
            "signal": attempt.signal,
            "attempts": attempt.attempt or row["attempts"],
            "host": attempt.host or None,
            "started": attempt.started,
            "ended": attempt.ended or None,
            "seconds": max(0.0, attempt.ended - attempt.started) if attempt.started and attempt.ended else None,
            "detail": attempt.detail or None,
        }
        if attempt.usage is not None:
            row |= {"cpu_seconds": attempt.usage.cpu_seconds, "max_rss_bytes": attempt.usage.max_rss_bytes}
    for param, value in member.params.items():
        row[PARAM + param] = value
    if attempt is not None and attempt.value is not None:
        flatten(attempt.value, VALUE, row)
    return row


def flatten(value: JsonValue, name: str, row: Row, depth: int = 0) -> None:
    """Put a value into a row: an object by its keys, `value.a.b`; all else, lists too, as it is."""
    if isinstance(value, dict) and value and depth < _MOST_DEPTH:
        for key, held in value.items():
            flatten(held, f"{name}.{key}", row, depth + 1)
    else:
        row[name] = json.dumps(value) if isinstance(value, dict | list) else value
