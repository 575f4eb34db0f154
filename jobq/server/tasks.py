"""The endpoints of tasks: add, claim, keep, settle, look (S1, S4, S5)."""

import asyncio
import contextlib
import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import wraps
from typing import Any, Final
from uuid import uuid4

from jobq.errors import JobqError, LockLost, MalformedTask
from jobq.formats import strict_json
from jobq.journal.wire import body_fields
from jobq.run.attempt import retry
from jobq.servable import HeldDelivery, Kind, ListedTask
from jobq.server import answers, journal_records, schemas
from jobq.server.endpoint import AFTER, LIMIT, Endpoints, Handler, Parameter, Reply
from jobq.server.error_responses import RequestRefused, refused_for
from jobq.server.request import RequestCall
from jobq.server.request_parsing import aside, malformed
from jobq.server.tokens import Scope
from jobq.settlement import TAIL_CHARACTERS, Complete, MoveToDeadLetters, Release, Requeue, Settlement, key_of
from jobq.task import WIRE_VERSION, Counters, Outcome, OutcomeKind, Task, TaskResult, new_id

_ACCEPTED: Final = {"accepted": True}
_DONE: Final = {"status": 202}
_SETTLED: Final = {202: answers.Accepted}
_PAGES: Final = {"answers": {200: answers.TaskPage}, "parameters": (AFTER, LIMIT)}
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
    ids = await backend.push(tasks)
    call.audited["ids"] = ids[:10]
    call.audited["work"] = [task.fingerprint().hex() for task in tasks[:10]]
    call.audited["count"] = len(ids)
    return 202, {"ids": ids}


def _task_of(call: RequestCall, fields: dict[str, Any], number: int) -> Task:
    given = dict(fields)
    version = given.pop("version", None)
    try:
        if version is not None:  # as jobq's own client writes it
            return Task.decode(strict_json.dumps({"version": version, **given}))
        if "id" not in given:
            given["id"] = new_id() if call.body.key is None else _id_of(call, number)
        return Task.new(**given)
    except MalformedTask as error:
        raise MalformedTask(error.what, f"tasks.{number}" + (f".{error.where}" if error.where else "")) from None
    except TypeError:
        raise MalformedTask("is no task", f"tasks.{number}") from None


def _plain(task: Task) -> dict[str, Any]:
    """Return a task's fields, of one that was signed too: for programs that speak JSON alone, and for people."""
    fields: dict[str, Any] = json.loads(task.model_copy(update={"work": None}).encode())
    return fields


def _id_of(call: RequestCall, number: int) -> str:
    """Return the id of a task that a key names: the same for each repetition, on every replica (S8)."""
    named = f"{call.caller} {call.queue} {call.body.key} {number}"
    return f"k-{hashlib.blake2b(named.encode(), digest_size=16).hexdigest()}"


@ENDPOINTS.add("POST", "/next", Scope.LEASE, body=schemas.ClaimRequest, answers={200: answers.ClaimAnswer})
async def claim(call: RequestCall) -> Reply:
    """Claim tasks, and stay for a first one.

    The lease counts from before the request was sent. What a lost answer has claimed is to be had again by a new call
    that names the key of the former one.
    """
    body: schemas.ClaimRequest = call.body
    backend = await call.backend()
    lease = None if body.lease_seconds is None else timedelta(seconds=body.lease_seconds)
    # Bound to the caller and the queue: a key that somebody else knows finds nothing of his.
    bound = [f"{call.caller} {call.queue} {key}" for key in (body.key or str(uuid4()), *body.former)]
    wait = timedelta(seconds=body.wait_seconds)
    claiming = asyncio.ensure_future(backend.claim(body.max_tasks, lease, wait, key=bound[0], former=bound[1:]))
    found: Sequence[HeldDelivery] = await (_unless_gone(call, claiming) if body.wait_seconds else claiming)
    call.audited["ids"] = [delivery.id for delivery in found]
    if found and call.gone.is_set() and not call.service.is_stopping:
        await _give_back(found)
        found = []
    return 200, {"tasks": [_claimed(delivery, raw=body.raw) for delivery in found]}


async def _unless_gone(call: RequestCall, claiming: "asyncio.Future[Sequence[HeldDelivery]]") -> Sequence[HeldDelivery]:
    """Return what is claimed, or nothing as soon as the client has hung up or the service stops."""
    gone = asyncio.ensure_future(call.gone.wait())
    both: set[asyncio.Future[Any]] = {claiming, gone}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
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


def fenced(handler: Handler) -> Handler:
    """Answer 404 instead of 409 where the task is not known at all."""

    @wraps(handler)
    async def checked(call: RequestCall) -> Reply:
        try:
            return await handler(call)
        except LockLost:
            if "\0" in call.path["id"] or await (await call.backend()).find(call.path["id"]) is None:
                raise _no_task(call) from None
            raise

    return checked


@ENDPOINTS.add("PUT", "/{id}/heartbeat", Scope.LEASE, body=schemas.RenewRequest, answers={202: answers.Kept})
@fenced
async def heartbeat(call: RequestCall) -> Reply:
    """Renew the lease, from now."""
    body: schemas.RenewRequest = call.body
    delivery = await _held(call)
    lease = delivery.lease if body.lease_seconds is None else timedelta(seconds=body.lease_seconds)
    renewed = await delivery.renew(lease, journal_records.beat_of(body.told))
    return 202, _ACCEPTED | {"cancel": renewed.cancel}


@ENDPOINTS.add("PUT", "/{id}/complete", Scope.SETTLE, body=schemas.CompleteRequest, answers=_SETTLED)
@fenced
async def complete(call: RequestCall) -> Reply:
    """The task is done."""
    body: schemas.CompleteRequest = call.body
    result = TaskResult(
        exit_code=body.exit_code, value=body.value, duration=body.duration_seconds, output_tail=body.output
    )
    delivery = await _held(call)
    if body.attempt is not None:
        record = journal_records.record_of_report(body.attempt, "done", "canceled", "moved")
    else:
        record = journal_records.record_of(
            OutcomeKind.SUCCEEDED,
            "done",
            duration=body.duration_seconds,
            exit_code=body.exit_code,
            value=body.value,
            output=body.output,
        )
    await delivery.settle(Complete(result, then=record.attempt.then, record=record))
    return 202, _ACCEPTED


@ENDPOINTS.add("PUT", "/{id}/fail", Scope.SETTLE, body=schemas.FailRequest, answers=_SETTLED)
@fenced
async def fail(call: RequestCall) -> Reply:
    """The attempt failed: counted, and tried again or given up."""
    body: schemas.FailRequest = call.body
    # Distinguished by the request alone: what becomes of it depends on counters that the first one has changed (S5).
    said = key_of("fail", body.detail, body.output, body.duration_seconds, body.exit_code)
    delivery, task = await _held_body(call)
    if task is None:
        await delivery.settle(Release(), said)  # stale, or said before: the fence decides
        return 202, _ACCEPTED
    verdict = _verdict(task, body)
    record = journal_records.record_of(
        OutcomeKind.FAILED,
        "retry" if isinstance(verdict, Requeue) else "dead",
        task=task,
        duration=body.duration_seconds,
        detail=body.detail,
        exit_code=body.exit_code,
        output=body.output,
    )
    if isinstance(verdict, MoveToDeadLetters) and (tail := body.output[-TAIL_CHARACTERS:]):
        verdict = replace(verdict, description=f"{verdict.description}\n{tail}")
    await delivery.settle(replace(verdict, record=record), said)
    return 202, _ACCEPTED


def _verdict(record: ListedTask, body: schemas.FailRequest) -> Requeue | MoveToDeadLetters:
    outcome = Outcome(
        kind=OutcomeKind.FAILED, detail=body.detail, exit_code=body.exit_code, duration=body.duration_seconds
    )
    jitter = retry.Backoff(jitter=random.Random(body.receipt))  # noqa: S311 - no secret; the same for a repetition
    try:
        task = Task.decode(record.body or b"")
        verdict = retry.verdict(task, record.deliveries or 1, outcome, jitter)
        if isinstance(verdict, Requeue):
            task.counted(verdict.counters).encode()
            return verdict
    except MalformedTask as fault:
        return MoveToDeadLetters(retry.Reason.MALFORMED, f"{body.detail}; it cannot be put back: it {fault}")
    if isinstance(verdict, retry.SendOn):
        return retry.not_sent_on(verdict, outcome, "only a worker of jobq does that, and this one settled by `fail`")
    assert isinstance(verdict, MoveToDeadLetters)
    return verdict


@ENDPOINTS.add("PUT", "/{id}/release", Scope.SETTLE, body=schemas.ReleaseRequest, answers=_SETTLED)
@fenced
async def release(call: RequestCall) -> Reply:
    """Put back what was never started."""
    delivery, _ = await _held_body(call)
    await delivery.settle(Release())
    return 202, _ACCEPTED


@ENDPOINTS.add("PUT", "/{id}/requeue", Scope.SETTLE, body=schemas.RequeueRequest, answers=_SETTLED)
@fenced
async def requeue(call: RequestCall) -> Reply:
    """Put it back, counted by the caller."""
    body: schemas.RequeueRequest = call.body
    given = Task.decode(strict_json.dumps({"version": WIRE_VERSION, **body.task}))
    if given.id != call.path["id"]:
        raise RequestRefused(400, "malformed_request", "task.id: is another task's")
    said = key_of("requeue", given.encode(), body.delay_seconds)  # by the request alone, as in `fail`
    delivery, task = await _held_body(call)
    delay, record = timedelta(seconds=body.delay_seconds), None
    if body.attempt is not None:
        record = journal_records.record_of_report(body.attempt, "retry")
    elif task is not None:
        record = journal_records.record_of_requeue(task, given)
    settlement: Settlement = Release(delay)  # of what is no task, which has no counters; work stays the store's (S2)
    with contextlib.suppress(MalformedTask):
        settlement = Requeue(_counted(delivery.task.counters, given.counters), delay, record=record)
    await delivery.settle(settlement, said)
    return 202, _ACCEPTED


def _counted(counters: Counters, given: Counters) -> Counters:
    """Return what the caller has raised: who may settle lowers no count (S7)."""
    return Counters(**{name: max(count, getattr(given, name)) for name, count in counters})


@ENDPOINTS.add("PUT", "/{id}/dead-letter", Scope.SETTLE, body=schemas.DeadLetterRequest, answers=_SETTLED)
@fenced
async def dead_letter(call: RequestCall) -> Reply:
    """Give it up, counted by the caller."""
    body: schemas.DeadLetterRequest = call.body
    delivery = await _held(call)
    if body.attempt is not None:
        record = journal_records.record_of_report(body.attempt, "dead")
    else:
        task = await (await call.backend()).find(call.path["id"])
        detail = body.description.partition("\n")[0]
        record = journal_records.record_of(body.reason, "dead", task=task, detail=detail)
    await delivery.settle(MoveToDeadLetters(body.reason, body.description, record=record))
    return 202, _ACCEPTED


@ENDPOINTS.add("PUT", "/{id}/checkpoint", Scope.SETTLE, body=schemas.CheckpointRequest, answers=_SETTLED)
@fenced
async def checkpoint(call: RequestCall) -> Reply:
    """Save how far the task has come."""
    await (await _held(call)).checkpoint(call.body.value, call.body.number)
    return 202, _ACCEPTED


async def _held(call: RequestCall, body: bytes = b"") -> HeldDelivery:
    call.audited["ids"] = [call.path["id"]]
    backend = await call.backend()
    delivery: HeldDelivery = await backend.held(call.path["id"], call.body.receipt, body)
    return delivery


async def _held_body(call: RequestCall) -> tuple[HeldDelivery, ListedTask | None]:
    """Return a delivery with its body, and the task as it stands; None = it has none any more.

    Also under a lease that is over, since a clock set back may make it last (S1).
    """
    delivery = await _held(call)  # what is no receipt of this task is refused before it is looked for
    record = await (await call.backend()).find(call.path["id"])
    if record is None or record.body is None:
        return delivery, None
    return await _held(call, record.body), record


_SETTLES: Final = {
    "complete": complete,
    "fail": fail,
    "release": release,
    "requeue": requeue,
    "dead-letter": dead_letter,
}


# Each settle has its own line in the audit, and this none.
@ENDPOINTS.add(
    "POST", "/settle", Scope.SETTLE, body=schemas.SettleRequest, answers={200: answers.SettleAnswers}, changes=False
)
async def settle(call: RequestCall) -> Reply:
    """End several deliveries in one request."""
    backend = await call.backend()
    return 200, {"answers": await asyncio.gather(*(_settled(call, backend, item) for item in call.body.settles))}


async def _settled(several: RequestCall, backend: Any, item: Any) -> dict[str, Any]:
    if isinstance(item, schemas.MalformedItem):
        return _refusal(malformed(item.error))
    call, status = several.about(backend, item), 500
    try:
        status, _ = await _SETTLES[call.body.verb](call)
        return _DONE
    except RequestRefused as refused:
        status = refused.status
        return _refusal(refused)
    except JobqError as error:
        answer = refused_for(error)
        status = answer.status
        return _refusal(answer)
    finally:
        call.audit(f"settle {call.body.verb}", status)


def _refusal(refused: RequestRefused) -> dict[str, Any]:
    return {"status": refused.status, "error": {"code": refused.code, "message": refused.message}}


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
    found = await backend.page(kind, after, limit + 1)
    shown = [_shown(record) for record in found[:limit]]
    return 200, {"tasks": shown, "next": shown[-1]["id"] if len(found) > limit else None}


@ENDPOINTS.add("GET", "/{id}", Scope.VIEW, answers={200: answers.TaskShown})
async def show(call: RequestCall) -> Reply:
    """Show a task."""
    record = None if "\0" in call.path["id"] else await (await call.backend()).find(call.path["id"])
    if record is None:
        raise _no_task(call)
    return 200, _shown(record)


def _no_task(call: RequestCall) -> RequestRefused:
    return RequestRefused(404, "task_not_found", f"there is no task {call.path['id'][:100]!a}, or it is forgotten")


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
    if record.result is not None:
        result = json.loads(record.result)
        shown |= {name: result.get(name) for name in ("output", "exit_code", "value")}
        shown["duration_seconds"] = result.get("duration")
    if record.body:
        with contextlib.suppress(MalformedTask):
            task = Task.decode(record.body)
            shown["created"] = task.created
            shown["task"] = _plain(task)
            # Values may be secrets (A5): that there is a variable is enough to know.
            shown["task"]["env"] = dict.fromkeys(task.env, "***")
    return shown
