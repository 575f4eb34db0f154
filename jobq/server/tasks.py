"""The endpoints of tasks: add, claim, look (S1); `deliveries.py` has what can be done with one that was claimed."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

from jobq.batches import check_batches
from jobq.errors import LockLost, MalformedTask
from jobq.formats import strict_json, wire_v3
from jobq.journal.wire import body_fields
from jobq.pausing import Pausable, mark_field
from jobq.racing import first_done
from jobq.resources.room import Room
from jobq.selecting import selecting
from jobq.servable import PAGE_BYTES, HeldDelivery, Kind, ListedTask
from jobq.server import answers, schemas
from jobq.server.deliveries import no_task
from jobq.server.endpoint import AFTER, LIMIT, Endpoints, Parameter, Reply
from jobq.server.request import RequestCall
from jobq.server.request_parsing import aside
from jobq.server.tokens import Scope
from jobq.settlement import Release
from jobq.task import Task, new_id

_PAGES: Final = {"answers": {200: answers.TaskPage}, "parameters": (AFTER, LIMIT), "is_large": True}
_STATE: Final = Parameter(
    name="state", schema={"type": "string", "enum": [str(kind) for kind in Kind]}, text="Which tasks."
)
ENDPOINTS: Final = Endpoints("/api/tasks")


@ENDPOINTS.add("POST", "", Scope.ENQUEUE, body=schemas.NewTasks, answers={202: answers.PushAnswer})
async def push(call: RequestCall) -> Reply:
    """Add tasks, durably: all of them or none."""
    tasks = await aside(
        call.size, lambda: [_task_of(call, fields, number) for number, fields in enumerate(call.body.tasks)]
    )
    backend = await call.backend()
    if any(task.batch or task.params for task in tasks):
        check_batches(backend)
    work = await aside(call.size, lambda: [task.fingerprint().hex() for task in tasks])
    # Before the push: its answer may be lost, and the tasks be queued all the same.
    call.audited |= {"ids": [task.id for task in tasks], "work": work, "count": len(tasks)}
    return 202, {"ids": await backend.push(tasks)}


def _task_of(call: RequestCall, fields: dict[str, Any], number: int) -> Task:
    given = dict(fields)
    version = given.pop("version", None)
    try:
        if version is not None:  # as jobq's own client writes it
            kept = {name: given.pop(name) for name in wire_v3.BOOKKEEPING & given.keys()}  # it stands beside the body
            return Task.decode(strict_json.dumps({"version": version, **given})).checked().with_bookkeeping(kept)
        if "id" not in given:
            given["id"] = new_id() if call.body.key is None else _id_of(call, number)
        return Task.new(**given)
    except MalformedTask as error:
        raise MalformedTask(error.what, f"tasks.{number}" + (f".{error.where}" if error.where else "")) from None
    except TypeError:
        raise MalformedTask("is no task", f"tasks.{number}") from None


def _plain(task: Task) -> dict[str, Any]:
    """Return a task's fields, of one that was signed too: for programs that speak JSON alone, and for people."""
    fields: dict[str, Any] = json.loads(task.copied({"work": None}).encode())
    return fields


def _id_of(call: RequestCall, number: int) -> str:
    """Return the id of a task that a key names: the same for each repetition, on every replica (S8)."""
    named = f"{call.caller} {call.queue} {call.body.key} {number}"
    return f"k-{hashlib.blake2b(named.encode(), digest_size=16).hexdigest()}"


@ENDPOINTS.add("POST", "/next", Scope.LEASE, body=schemas.ClaimRequest, answers={200: answers.ClaimAnswer})
async def claim(call: RequestCall) -> Reply:
    """Claim tasks, and stay for a first one.

    The lease counts from before the request was sent. What a lost answer has claimed is to be had again by a new call
    that names the key of the former one, whatever its room is. What does not fit in the answer is given back at once.
    """
    body: schemas.ClaimRequest = call.body
    backend = await call.backend()
    lease = None if body.lease_seconds is None else timedelta(seconds=body.lease_seconds)
    # Bound to the caller and the queue: a key that somebody else knows finds nothing of his.
    bound = [f"{call.caller} {call.queue} {key}" for key in (body.key or str(uuid4()), *body.former)]
    wait = timedelta(seconds=body.wait_seconds)
    more = {} if body.room is None or selecting(backend) is None else {"room": Room(body.room.model_dump())}
    for key in bound[1:]:  # whoever stands between may not pass on that its client has hung up
        if (gone := call.service.claiming.get(key)) is not None:
            gone.set()
    claiming = asyncio.ensure_future(backend.claim(body.max_tasks, lease, wait, key=bound[0], former=bound[1:], **more))
    call.service.claiming[bound[0]] = call.gone
    try:
        found: Sequence[HeldDelivery] = await (_unless_gone(call, claiming) if body.wait_seconds else claiming)
    finally:
        call.service.claiming.pop(bound[0], None)
    kept = 0 if call.gone.is_set() and not call.service.is_stopping else _fitting(found)
    call.audited["ids"] = [delivery.id for delivery in found]
    await _give_back(found[kept:])
    found = found[:kept]
    paused = await backend.paused() if not found and isinstance(backend, Pausable) else None
    call.answer_size = sum(len(delivery.body) for delivery in found)
    shown = await aside(call.answer_size, lambda: [_claimed(delivery, raw=body.raw) for delivery in found])
    return 200, {"tasks": shown, **mark_field(paused)}


async def _unless_gone(call: RequestCall, claiming: "asyncio.Future[Sequence[HeldDelivery]]") -> Sequence[HeldDelivery]:
    """Return what is claimed, or nothing as soon as the client has hung up or the service stops."""
    gone = asyncio.ensure_future(call.gone.wait())
    both: set[asyncio.Future[Any]] = {claiming, gone}
    try:
        await first_done(*both)
        if not claiming.done():
            claiming.cancel()  # the backend gives back what it is granted yet
        return await claiming
    except asyncio.CancelledError:
        if not claiming.cancelled() or not call.gone.is_set():
            claiming.cancel()
            raise
        return []
    finally:
        gone.cancel()


def _fitting(found: Sequence[HeldDelivery]) -> int:
    """Return how many of these fit in an answer, which ends where a page would."""
    size = 0
    for number, delivery in enumerate(found):
        if size >= PAGE_BYTES:
            return number
        size += len(delivery.body)
    return len(found)


async def _give_back(found: Sequence[HeldDelivery]) -> None:
    for delivery in found:
        with contextlib.suppress(LockLost):  # a later claim of this client has it already
            await delivery.settle(Release())


def _claimed(delivery: HeldDelivery, *, raw: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": delivery.id,
        "receipt": delivery.receipt,
        "lease_seconds": delivery.lease.total_seconds(),
        "deliveries": delivery.deliveries,
        "checkpoint": delivery.checkpoint_value,
    }
    if raw:
        return shown | body_fields(delivery.body)
    shown["fencing"] = str(delivery.fencing)
    try:
        return shown | {"task": _plain(delivery.task)}
    except MalformedTask:
        return shown | body_fields(delivery.body)


@ENDPOINTS.add("GET", "", Scope.VIEW, **_PAGES | {"parameters": (AFTER, LIMIT, _STATE)})
async def page(call: RequestCall) -> Reply:
    """Show tasks, by id."""
    return await _page(call, Kind(_STATE.read(call.query) or Kind.ALL))


@ENDPOINTS.add("GET", "/started", Scope.VIEW, **_PAGES)
async def started(call: RequestCall) -> Reply:
    """Show the tasks that are leased."""
    return await _page(call, Kind.STARTED)


@ENDPOINTS.add("GET", "/processed", Scope.VIEW, **_PAGES)
async def processed(call: RequestCall) -> Reply:
    """Show the tasks that are done."""
    return await _page(call, Kind.PROCESSED)


@ENDPOINTS.add("GET", "/dead", Scope.VIEW, **_PAGES)
async def dead(call: RequestCall) -> Reply:
    """Show the tasks that were given up."""
    return await _page(call, Kind.DEAD)


async def _page(call: RequestCall, kind: Kind) -> Reply:
    limit, after = LIMIT.read(call.query), AFTER.read(call.query) or ""
    backend = await call.backend()
    found, behind = await backend.page(kind, after, limit)
    call.answer_size = sum(record.size for record in found)
    shown = await aside(call.answer_size, lambda: [_shown(record) for record in found])
    return 200, {"tasks": shown, "next": behind}


@ENDPOINTS.add("GET", "/{id}", Scope.VIEW, answers={200: answers.TaskShown})
async def show(call: RequestCall) -> Reply:
    """Show a task."""
    record = None if "\0" in call.path["id"] else await (await call.backend()).find(call.path["id"])
    if record is None:
        raise no_task(call)
    return 200, _shown(record)


def _shown(record: ListedTask) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": record.id,
        "state": record.state,
        "deliveries": record.deliveries,
        "due": record.due,
        "started": record.started,
        "last_heartbeat_at": record.last_heartbeat,
        "must_heartbeat_before": record.must_heartbeat_before,
        "processed": record.processed,
        "reason": record.reason,
        "description": record.description,
    }
    if (last := record.last) is not None:
        shown |= {"output": record.output, "exit_code": last.exit_code, "value": last.value}
        shown["duration_seconds"] = 0.0 if last.started is None else last.ended - last.started
    if record.body:
        with contextlib.suppress(MalformedTask):
            task = Task.decode(record.body)
            shown["created"] = task.created
            shown["task"] = _plain(task)
            # Values may be secrets (A5): that there is a variable is enough to know.
            shown["task"]["env"] = dict.fromkeys(task.env, "***")
    return shown
