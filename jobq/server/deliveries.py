"""The endpoints of what was claimed: keep, settle, save a checkpoint; each write is fenced by the receipt (S4, S5)."""

import asyncio
import contextlib
import random
from dataclasses import replace
from datetime import timedelta
from functools import wraps
from typing import Any, Final

from jobq.errors import JobqError, LockLost, MalformedTask
from jobq.run.attempt import retry
from jobq.servable import HeldDelivery, ListedTask
from jobq.server import answers, journal_records, schemas
from jobq.server.endpoint import Endpoints, Handler, Reply
from jobq.server.error_responses import RequestRefused, refused_for
from jobq.server.request import RequestCall
from jobq.server.request_parsing import malformed
from jobq.server.tokens import Scope
from jobq.settlement import TAIL_CHARACTERS, Complete, MoveToDeadLetters, Release, Requeue, Settlement, key_of
from jobq.task import Counters, Outcome, OutcomeKind, Task, TaskResult

_ACCEPTED: Final = {"accepted": True}
_DONE: Final = {"status": 202}
_SETTLED: Final = {202: answers.Accepted}
ENDPOINTS: Final = Endpoints("/api/tasks")


def no_task(call: RequestCall) -> RequestRefused:
    """Return the answer where there is no such task."""
    return RequestRefused(404, "task_not_found", f"there is no task {call.path['id'][:100]!a}, or it is forgotten")


def fenced(handler: Handler) -> Handler:
    """Answer 404 instead of 409 where the task is not known at all."""

    @wraps(handler)
    async def checked(call: RequestCall) -> Reply:
        try:
            return await handler(call)
        except LockLost:
            if "\0" in call.path["id"] or await (await call.backend()).find(call.path["id"]) is None:
                raise no_task(call) from None
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
        record = journal_records.record_of_report(body.attempt, "done", "canceled")
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
    assert isinstance(verdict, MoveToDeadLetters)
    return verdict


@ENDPOINTS.add("PUT", "/{id}/release", Scope.SETTLE, body=schemas.ReleaseRequest, answers=_SETTLED)
@fenced
async def release(call: RequestCall) -> Reply:
    """Put back what was never started."""
    delivery, _ = await _held_body(call)
    await delivery.settle(Release(timedelta(seconds=call.body.delay_seconds), misfits=call.body.misfits))
    return 202, _ACCEPTED


@ENDPOINTS.add("PUT", "/{id}/requeue", Scope.SETTLE, body=schemas.RequeueRequest, answers=_SETTLED)
@fenced
async def requeue(call: RequestCall) -> Reply:
    """Put it back, counted by the caller."""
    body: schemas.RequeueRequest = call.body
    given = Counters(**body.counters.model_dump())
    said = key_of("requeue", given, body.delay_seconds)  # by the request alone, as in `fail`
    delivery, task = await _held_body(call)
    delay, record = timedelta(seconds=body.delay_seconds), None
    if body.attempt is not None:
        record = journal_records.record_of_report(body.attempt, "retry")
    elif task is not None:
        record = journal_records.record_of_requeue(task, given)
    settlement: Settlement = Release(delay)  # of what is no task, which has no counters; work stays the store's (S2)
    with contextlib.suppress(MalformedTask):
        settlement = Requeue(_counted(delivery.task.counters, given), delay, record=record)
    await delivery.settle(settlement, said)
    return 202, _ACCEPTED


def _counted(counters: Counters, given: Counters) -> Counters:
    """Return what the caller has raised: who may settle lowers no count (S7)."""
    return Counters(**{name: max(getattr(counters, name), getattr(given, name)) for name in Counters.FIELDS})


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
