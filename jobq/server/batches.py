"""The endpoints of a queue's batches, as `jobq.batches.Batches` has them."""

from collections.abc import Callable
from typing import Any, Final

from jobq.batch_plan import Plan
from jobq.batches import MOST_LISTED, Batch, Batches, batches_of, checked_name, findable_name
from jobq.server import answers, schemas
from jobq.server.endpoint import AFTER, LIMIT, Endpoints, Parameter, Reply
from jobq.server.request import RequestCall
from jobq.server.request_parsing import aside
from jobq.server.tokens import Scope

_LIMIT: Final = Parameter(
    name="limit",
    schema={"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": 100},
    text=LIMIT.text,
)
_STATE: Final = Parameter(
    name="state", schema={"type": "string", "enum": ["dead"]}, text="dead = those alone; none = all."
)
_UNFINISHED: Final = Parameter(
    name="unfinished",
    schema={"type": "string", "enum": ["true"]},
    text="true = those alone that have not finished; none = all.",
)

_SHOWN: Final = {"answers": {200: answers.BatchShown}}
_CHANGED: Final = {"answers": {202: answers.BatchShown}}
ENDPOINTS: Final = Endpoints("/api/queues/{queue}/batches")


@ENDPOINTS.add("GET", "", Scope.VIEW, answers={200: answers.BatchPage}, parameters=(AFTER, _LIMIT, _UNFINISHED))
async def page(call: RequestCall) -> Reply:
    """Show batches with their counts, by name."""
    limit = _LIMIT.read(call.query)
    unfinished = _UNFINISHED.read(call.query) == "true"
    found = await batches_of(await call.backend()).list(AFTER.read(call.query) or "", limit, unfinished=unfinished)
    return 200, {"batches": [_shown(call, each) for each in found], "next": _next([each.name for each in found], limit)}


@ENDPOINTS.add("GET", "/{name}", Scope.VIEW, **_SHOWN)
async def show(call: RequestCall) -> Reply:
    """Show a batch, counted."""
    batches, name = await _named(call)
    return 200, _shown(call, await batches.find(name))


@ENDPOINTS.add("PUT", "/{name}", Scope.ENQUEUE, body=schemas.BatchPlan, **_CHANGED)
async def begin(call: RequestCall) -> Reply:
    """Open a batch, or say more of one that is open.

    The answer shows it as it is then, perhaps sealed or finished. The same request again changes nothing.
    """
    batches, name = await _named(call, checked_name)
    plan, work = await aside(call.size, lambda: _plan(call.body, name))
    if work:  # who adds a task is found by what it runs, as after a push
        call.audited["work"] = work
    return 202, _shown(call, await batches.begin(name, plan))


@ENDPOINTS.add("POST", "/{name}/seal", Scope.ENQUEUE, **_CHANGED)
async def seal(call: RequestCall) -> Reply:
    """Let it take no more tasks; it has finished when all of them have ended."""
    batches, name = await _named(call)
    return 202, _shown(call, await batches.seal(name))


@ENDPOINTS.add("POST", "/{name}/reopen", Scope.OPERATE, **_CHANGED)
async def reopen(call: RequestCall) -> Reply:
    """Let it take tasks again, in its next round if this one has finished."""
    batches, name = await _named(call)
    return 202, _shown(call, await batches.reopen(name))


@ENDPOINTS.add("POST", "/{name}/cancel", Scope.OPERATE, **_CHANGED)
async def cancel(call: RequestCall) -> Reply:
    """Seal it, end what waits, and ask what runs to end.

    It ends some hundreds a request: the counts say whether more of them wait, which the same request again ends.
    """
    batches, name = await _named(call)
    return 202, _shown(call, await batches.cancel(name))


@ENDPOINTS.add(
    "GET", "/{name}/tasks", Scope.VIEW, answers={200: answers.BatchMembers}, parameters=(AFTER, _LIMIT, _STATE)
)
async def members(call: RequestCall) -> Reply:
    """Show its tasks, by id, with what they were pushed with for a table of results."""
    batches, name = await _named(call)
    limit = _LIMIT.read(call.query)
    found = await batches.members(name, AFTER.read(call.query) or "", limit, _STATE.read(call.query))
    shown = [{"id": each.id, "state": each.state, "params": dict(each.params)} for each in found]
    return 200, {"tasks": shown, "next": _next([each.id for each in found], limit)}


def _plan(body: schemas.BatchPlan, name: str) -> tuple[Plan, list[str]]:
    """Return what is said of a batch, and a hash of each task that is added at its end; raises MalformedTask."""
    plan = Plan(template=body.template, then=tuple(body.then)).checked(name)
    return plan, [task.fingerprint().hex() for task in plan.tasks(name, 1)]


async def _named(call: RequestCall, read: Callable[[str], str] = findable_name) -> tuple[Batches, str]:
    """Return the queue's batches, and the name of the one that the call is about, which the audit has."""
    name = call.audited["batch"] = read(call.path["name"])
    return batches_of(await call.backend()), name


def _shown(call: RequestCall, batch: Batch) -> dict[str, Any]:
    """Return its fields; who may push or operate, and not look, needs no more of it than how it stands."""
    fields = batch.as_fields()
    if not call.may(Scope.VIEW, call.queue):
        fields |= {"template": "", "rounds": []}
        if not call.may(Scope.OPERATE, call.queue):
            fields |= {"counts": {}, "total": None}
    return fields


def _next(names: list[str], limit: int) -> str | None:
    return names[-1] if len(names) == limit else None
