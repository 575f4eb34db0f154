"""The endpoints of queues: make, count, look, clear, and tend dead letters."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from jobq.backend import DeadLetter, Peeked, hastening
from jobq.clearing import Cleared, ClearsInSteps, clear_in_steps
from jobq.errors import ConfigurationError
from jobq.journal.wire import body_fields
from jobq.pausing import Pause, pausable
from jobq.selecting import WaitingShape, waiting_shapes
from jobq.servable import MOST_PEEKED
from jobq.server import answers, schemas
from jobq.server.endpoint import AFTER, LIMIT, Endpoints, Parameter, Reply
from jobq.server.error_responses import RequestRefused
from jobq.server.request import RequestCall
from jobq.server.tokens import Scope

_LIMIT: Final = Parameter(
    name="limit",
    schema={"type": "integer", "minimum": 1, "maximum": schemas.MAX_TASKS, "default": 100},
    text=LIMIT.text,
)
_BEHIND: Final = Parameter(
    name="after",
    schema={"type": "string", "maxLength": 300, "pattern": r"^([0-9]{1,18}:[^\x00]*)?$"},
    text=AFTER.text,
)
_SKIPPED: Final = Parameter(
    name="after", schema={"type": "integer", "minimum": 0, "maximum": MOST_PEEKED, "default": 0}, text=AFTER.text
)
_CLEAR_SECONDS: Final = 5.0  # of one request that has a cursor
_CURSOR: Final = Parameter(
    name="cursor",
    schema={"type": "string", "pattern": "^([0-9]{1,18}-[0-9]{1,18})?$"},
    text="Empty to begin, then the answer's; none = the answer comes when all is done, however long that takes.",
)
_EXIST_OK: Final = Parameter(
    name="exist_ok", schema={"type": "string", "enum": ["true", "false"]}, text="Whether it may exist already."
)
_RAW: Final = {"answers": {200: answers.RawPage}, "is_large": True}
_IDS: Final = {"body": schemas.Ids, "answers": {202: answers.FoundIds}}
ENDPOINTS: Final = Endpoints("/api/queues")


@ENDPOINTS.add("GET", "", None, answers={200: answers.QueueNames}, has_queue=False)
async def names(call: RequestCall) -> Reply:
    """Name the queues."""
    return 200, {"queues": [name for name in await call.service.places.names() if call.may(Scope.WATCH, name)]}


@ENDPOINTS.add("PUT", "/{queue}", Scope.ENQUEUE, answers={202: answers.QueueMade}, parameters=(_EXIST_OK,))
async def make(call: RequestCall) -> Reply:
    """Make a queue."""
    exist_ok = _EXIST_OK.read(call.query) != "false"
    try:
        await call.service.places.make(call.queue, exist_ok=exist_ok)
    except ConfigurationError:
        if exist_ok:
            raise
        raise RequestRefused(409, "exists", f"queue {call.queue!r} exists already") from None
    return 202, {"queue": call.queue}


@ENDPOINTS.add("GET", "/{queue}", Scope.WATCH, answers={200: answers.QueueCounts})
async def stats(call: RequestCall) -> Reply:
    """Count its tasks."""
    found = await (await call.backend()).stats()
    counts = {name: getattr(found, name) for name in ("visible", "leased", "scheduled", "dead")}
    paused = call.mark_of(found.paused, call.queue)
    return 200, counts | {"paused": None if paused is None else asdict(paused)}


@ENDPOINTS.add("GET", "/{queue}/shapes", None, answers={200: answers.WaitingShapes})
async def shapes(call: RequestCall) -> Reply:
    """Count what could be claimed by what it asks of a worker; refused where Jobq-Capabilities does not say selects.

    Scope: watch, or lease: a worker says at its end what it leaves.
    """
    if not call.may(Scope.LEASE, call.queue):
        call.needs(Scope.WATCH)
    found = await waiting_shapes(await call.backend())
    return 200, {"shapes": [_shape(each) for each in found]}


def _shape(found: WaitingShape) -> dict[str, Any]:
    resources, needs = found.request
    return {"count": found.count, "resources": resources and resources.as_dict(), "needs": needs}


@ENDPOINTS.add("PUT", "/{queue}/pause", Scope.OPERATE, body=schemas.QueuePause, answers={202: answers.PauseAnswer})
async def pause(call: RequestCall) -> Reply:
    """Hand out none of its tasks from now on; what runs goes on."""
    mark = Pause(at=time.time(), by=call.body.by, reason=call.body.reason)
    await pausable(await call.backend()).pause(mark)
    call.audited["reason"] = mark.reason
    return 202, {"paused": asdict(mark)}


@ENDPOINTS.add("DELETE", "/{queue}/pause", Scope.OPERATE, answers={202: answers.PauseAnswer})
async def resume(call: RequestCall) -> Reply:
    """Hand its tasks out again; the answer has the mark that was there."""
    former = await pausable(await call.backend()).resume()
    return 202, {"paused": None if former is None else asdict(former)}


@ENDPOINTS.add("POST", "/{queue}/hasten", Scope.OPERATE, body=schemas.Ids, answers={202: answers.HastenAnswer})
async def hasten(call: RequestCall) -> Reply:
    """Let tasks that are put off, until a time or for a retry, be due now; what is not put off is not touched."""
    ids: list[str] = call.body.ids
    call.audited |= {"ids": ids, "count": len(ids)}
    found = await hastening(await call.backend()).hasten(ids)
    return 202, {"hastened": [str(each) for each in found]}


@ENDPOINTS.add("GET", "/{queue}/peek", Scope.READ, parameters=(_LIMIT, _SKIPPED), **_RAW)
async def peek(call: RequestCall) -> Reply:
    """Show what could be claimed, as it is stored; variables with their values."""
    skipped, limit = _SKIPPED.read(call.query), _LIMIT.read(call.query)
    found, behind = await (await call.backend()).peek_page(skipped, min(limit, MOST_PEEKED - skipped))
    is_over = behind is None or behind >= MOST_PEEKED
    return 200, {"tasks": list(_raw(found)), "next": None if is_over else str(behind)}


@ENDPOINTS.add("GET", "/{queue}/dead-letters", Scope.READ, parameters=(_LIMIT, _BEHIND), **_RAW)
async def dead_letters(call: RequestCall) -> Reply:
    """Show dead letters, oldest first, as they are stored; variables with their values."""
    limit = _LIMIT.read(call.query)
    found, behind = await (await call.backend()).dead_page(_BEHIND.read(call.query) or "", limit)
    return 200, {"tasks": list(_raw(found)), "next": behind}


def _raw(found: list[Peeked] | list[DeadLetter]) -> Iterator[dict[str, Any]]:
    for each in found:
        shown: dict[str, Any] = {"id": each.id, "deliveries": each.deliveries, **body_fields(each.body)}
        if isinstance(each, DeadLetter):
            shown |= {"reason": each.reason, "description": each.description, "died": each.died}
            shown |= {} if each.batch is None else {"batch": each.batch}
        yield shown


@ENDPOINTS.add("POST", "/{queue}/clear", Scope.ADMIN, answers={202: answers.ClearAnswer}, parameters=(_CURSOR,))
async def clear(call: RequestCall) -> Reply:
    """Delete every task that waits or is leased."""
    backend = await call.backend()
    cursor = _CURSOR.read(call.query)
    if cursor is None or not isinstance(backend, ClearsInSteps):
        cleared = Cleared(await backend.clear(), None)
    else:
        cleared = await clear_in_steps(backend, begin=cursor, seconds=_CLEAR_SECONDS)
    call.audited["count"] = cleared.deleted
    return 202, {"cleared": cleared.deleted, "cursor": cleared.cursor}


@ENDPOINTS.add("POST", "/{queue}/redrive", Scope.OPERATE, **_IDS)
async def redrive(call: RequestCall) -> Reply:
    """Put dead letters back with fresh budgets."""
    return await _tend(call, "redrive")


@ENDPOINTS.add("POST", "/{queue}/purge", Scope.ADMIN, **_IDS)
async def purge(call: RequestCall) -> Reply:
    """Delete dead letters for good."""
    return await _tend(call, "purge_dead")


async def _tend(call: RequestCall, verb: str) -> Reply:
    call.audited["ids"] = call.body.ids  # what fails may have been done for some of them
    found = await getattr(await call.backend(), verb)(call.body.ids)
    call.audited |= {"ids": found, "count": len(found)}
    return 202, {"ids": found}
