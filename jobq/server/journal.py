"""The endpoints of a queue's journal, as `jobq.journal.store.Journal` has them: for jobq's own client."""

from collections.abc import Sequence
from typing import Final

from jobq.formats.task_ids import BATCH
from jobq.journal.records import TaskRecord
from jobq.journal.store import Journal, journal_of
from jobq.journal.wire import attempt_fields, record_fields
from jobq.server import answers, schemas
from jobq.server.endpoint import AFTER, LIMIT, NO_NUL, Endpoints, Parameter, Reply
from jobq.server.request import RequestCall
from jobq.server.request_parsing import aside
from jobq.server.tokens import Scope

_MOST_ATTEMPT: Final = 2**31 - 1
_ID: Final = Parameter(name="id", schema={"type": "string", "maxLength": 200, "pattern": NO_NUL}, text="Of the task.")
_PART: Final = Parameter(
    name="part", schema={"type": "string", "maxLength": 200, "pattern": NO_NUL}, text="Of the ids; none = all have it."
)
_ATTEMPT: Final = Parameter(
    name="attempt",
    schema={"type": "integer", "minimum": 1, "maximum": _MOST_ATTEMPT},
    text="Its number; none = the last that has ended.",
)
_WINDOW: Final = Parameter(
    name="window",
    schema={"type": "number", "minimum": 0, "maximum": schemas.MAX_DELAY_SECONDS, "default": 3600.0},
    text="Seconds of ends to count.",
)
_BATCH: Final = Parameter(
    name="batch", schema={"type": "string", "pattern": f"^{BATCH.pattern}$"}, text="Its tasks alone; none = all."
)
_RECORDS: Final = {
    "is_large": True,
    "answers": {200: answers.JournalRecords},
    "text": "Tasks as they are stored to a token that may read; else what runs, without variables.",
}
ENDPOINTS: Final = Endpoints("/api/queues/{queue}/journal")


async def _journal(call: RequestCall) -> Journal:
    return journal_of(await call.backend())


async def _shown(call: RequestCall, found: Sequence[TaskRecord]) -> Reply:
    is_whole = call.may(Scope.READ, call.queue)
    call.answer_size = sum(len(each.body) for each in found)
    shown = await aside(call.answer_size, lambda: [record_fields(each, is_whole=is_whole) for each in found])
    return 200, {"records": shown}


@ENDPOINTS.add("POST", "/find", Scope.VIEW, body=schemas.JournalIds, changes=False, **_RECORDS)
async def find(call: RequestCall) -> Reply:
    """Show where these tasks are."""
    return await _shown(call, await (await _journal(call)).find(call.body.ids))


@ENDPOINTS.add("GET", "/running", Scope.VIEW, parameters=(LIMIT, _BATCH), **_RECORDS)
async def running(call: RequestCall) -> Reply:
    """Show what is leased, the longest first."""
    return await _shown(call, await (await _journal(call)).running(LIMIT.read(call.query), _BATCH.read(call.query)))


@ENDPOINTS.add("GET", "/unfinished", Scope.VIEW, parameters=(LIMIT, AFTER), **_RECORDS)
async def unfinished(call: RequestCall) -> Reply:
    """Show what has not ended, by id."""
    limit = LIMIT.read(call.query)
    return await _shown(call, await (await _journal(call)).unfinished(AFTER.read(call.query) or "", limit))


@ENDPOINTS.add("GET", "/ids", Scope.VIEW, answers={200: answers.JournalMatches}, parameters=(_PART, LIMIT))
async def ids(call: RequestCall) -> Reply:
    """Show the ids in which a part stands."""
    limit = LIMIT.read(call.query)
    return 200, {"ids": await (await _journal(call)).ids_with(_PART.read(call.query) or "", limit)}


@ENDPOINTS.add("GET", "/attempts", Scope.VIEW, answers={200: answers.JournalAttempts}, parameters=(_ID,), is_large=True)
async def attempts(call: RequestCall) -> Reply:
    """Show the attempts of a task."""
    found = await (await _journal(call)).attempts(_ID.read(call.query) or "")
    return 200, {"attempts": [attempt_fields(each) for each in found]}


@ENDPOINTS.add("GET", "/output", Scope.VIEW, answers={200: answers.JournalOutput}, parameters=(_ID, _ATTEMPT))
async def output(call: RequestCall) -> Reply:
    """Show the end of what an attempt has printed."""
    attempt = _ATTEMPT.read(call.query)
    found = await (await _journal(call)).output(_ID.read(call.query) or "", attempt)
    return 200, {"attempt": None, "output": None} if found is None else {"attempt": found[0], "output": found[1]}


@ENDPOINTS.add("GET", "/stats", Scope.WATCH, answers={200: answers.JournalCounts}, parameters=(_WINDOW,))
async def stats(call: RequestCall) -> Reply:
    """Count tasks by state, and what ended lately."""
    found = await (await _journal(call)).stats(_WINDOW.read(call.query))
    return 200, {
        "states": dict(found.states),
        "oldest_ready_seconds": found.oldest_ready_seconds,
        "ended": dict(found.ended),
        "window_seconds": found.window_seconds,
        "first_ended_seconds": found.first_ended_seconds,
    }


@ENDPOINTS.add("POST", "/cancel", Scope.OPERATE, body=schemas.JournalIds, answers={202: answers.JournalCanceled})
async def cancel(call: RequestCall) -> Reply:
    """Cancel tasks: one that waits has ended with the answer, one that runs is stopped by its worker."""
    ids: list[str] = call.body.ids
    call.audited |= {"ids": ids, "count": len(ids)}
    found = await (await _journal(call)).cancel(ids)
    return 202, {"canceled": [str(each) for each in found]}
