"""The endpoints of queues: make, count, look, clear, and tend dead letters."""

from collections.abc import Iterator
from typing import Any, Final

from jobq.backend import DeadLetter, Peeked
from jobq.clearing import Cleared, ClearsInSteps, clear_in_steps
from jobq.errors import ConfigurationError
from jobq.journal.wire import body_fields
from jobq.server import schemas
from jobq.server.endpoint import LIMIT, Call, Endpoint, Parameter, Reply, whole
from jobq.server.error_responses import Refused
from jobq.server.tokens import Scope


async def names(call: Call) -> Reply:
    """Name the queues."""
    return 200, {"queues": [name for name in await call.service.places.names() if call.may(Scope.WATCH, name)]}


async def make(call: Call) -> Reply:
    """Make a queue."""
    exist_ok = call.query.get("exist_ok", "true") != "false"
    try:
        await call.service.places.make(call.queue, exist_ok=exist_ok)
    except ConfigurationError:
        if exist_ok:
            raise
        raise Refused(409, "exists", f"queue {call.queue!r} exists already") from None
    return 202, {"queue": call.queue}


async def stats(call: Call) -> Reply:
    """Count."""
    found = await (await call.backend()).stats()
    counts = {name: getattr(found, name) for name in ("visible", "leased", "scheduled", "dead")}
    return 200, counts


async def peek(call: Call) -> Reply:
    """Show what could be claimed."""
    found = await (await call.backend()).peek(whole(call, "limit", 100, schemas.MAX_TASKS))
    return 200, {"tasks": list(_raw(found))}


async def dead_letters(call: Call) -> Reply:
    """Show dead letters with their bytes."""
    limit = whole(call, "limit", 100, schemas.MAX_TASKS)
    found, behind = await (await call.backend()).dead_page(call.query.get("after", ""), limit)
    return 200, {"tasks": list(_raw(found)), "next": behind}


def _raw(found: list[Peeked] | list[DeadLetter]) -> Iterator[dict[str, Any]]:
    for each in found:
        shown: dict[str, Any] = {"id": each.id, "deliveries": each.deliveries, **body_fields(each.body)}
        if isinstance(each, DeadLetter):
            shown |= {"reason": each.reason, "description": each.description, "died": each.died}
        yield shown


async def clear(call: Call) -> Reply:
    """Delete what waits or is leased: all of it, or for as long as one request should last, if it has a cursor."""
    backend = await call.backend()
    cursor = call.query.get("cursor")
    if cursor is None or not isinstance(backend, ClearsInSteps):
        cleared = Cleared(await backend.clear(), None)
    else:
        cleared = await clear_in_steps(backend, begin=cursor, seconds=_CLEAR_SECONDS)
    call.audited["count"] = cleared.deleted
    return 202, {"cleared": cleared.deleted, "cursor": cleared.cursor}


async def redrive(call: Call) -> Reply:
    """Put dead letters back."""
    return await _tend(call, "redrive")


async def purge(call: Call) -> Reply:
    """Delete dead letters."""
    return await _tend(call, "purge_dead")


async def _tend(call: Call, verb: str) -> Reply:
    if any("\0" in each for each in call.body.ids):
        raise Refused(400, "malformed_request", "ids: one holds a NUL")
    found = await getattr(await call.backend(), verb)(call.body.ids)
    call.audited |= {"ids": found[:10], "count": len(found)}
    return 202, {"ids": found}


_LIMIT: Final = Parameter(
    name="limit",
    schema={"type": "integer", "minimum": 1, "maximum": schemas.MAX_TASKS, "default": 100},
    text=LIMIT.text,
)
_BEHIND: Final = Parameter(
    name="after", schema={"type": "string", "maxLength": 300}, text="The `next` of the page before this one."
)
_CLEAR_SECONDS: Final = 5.0  # of one request that has a cursor
_CURSOR: Final = Parameter(
    name="cursor",
    schema={"type": "string", "maxLength": 40},
    text="Empty to begin, then the answer's; none = the answer comes when all is done, however long that takes.",
)
_EXIST_OK: Final = Parameter(
    name="exist_ok", schema={"type": "string", "enum": ["true", "false"]}, text="Whether it may exist already."
)


def _of_a_queue(method: str, verb: str, scope: Scope, **more: Any) -> Endpoint:
    return Endpoint(method=method, path=f"/api/queues/{{queue}}{verb}", scope=scope, changes=method != "GET", **more)


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/api/queues",
        scope=None,
        handler=names,
        answers={200: schemas.QueueNames},
        summary="Name the queues.",
        has_queue=False,
    ),
    _of_a_queue(
        "PUT",
        "",
        Scope.ENQUEUE,
        handler=make,
        answers={202: schemas.QueueMade},
        parameters=(_EXIST_OK,),
        summary="Make a queue.",
    ),
    _of_a_queue("GET", "", Scope.WATCH, handler=stats, answers={200: schemas.Counts}, summary="Count its tasks."),
    _of_a_queue(
        "GET",
        "/peek",
        Scope.READ,
        handler=peek,
        answers={200: schemas.RawTasks},
        parameters=(_LIMIT,),
        summary="Show what could be claimed, as it is stored; variables with their values.",
    ),
    _of_a_queue(
        "GET",
        "/dead-letters",
        Scope.READ,
        handler=dead_letters,
        answers={200: schemas.RawPage},
        parameters=(_LIMIT, _BEHIND),
        summary="Show dead letters, oldest first, as they are stored; variables with their values.",
    ),
    _of_a_queue(
        "POST",
        "/clear",
        Scope.ADMIN,
        handler=clear,
        answers={202: schemas.Cleared},
        parameters=(_CURSOR,),
        summary="Delete every task that waits or is leased.",
    ),
    _of_a_queue(
        "POST",
        "/redrive",
        Scope.OPERATE,
        handler=redrive,
        body=schemas.Ids,
        answers={202: schemas.FoundIds},
        summary="Put dead letters back with fresh budgets.",
    ),
    _of_a_queue(
        "POST",
        "/purge",
        Scope.ADMIN,
        handler=purge,
        body=schemas.Ids,
        answers={202: schemas.FoundIds},
        summary="Delete dead letters for good.",
    ),
)
