"""From a verdict to the backend: one settle, repeated only where that is safe, never past the lease (S4, S5)."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import StrEnum
from typing import Final

from jobq.backend import Capabilities, Delivery
from jobq.clock import Clock
from jobq.errors import (
    AnswerLost,
    BackendUnavailable,
    JobqError,
    LockLost,
    MalformedTask,
    QueueNotFound,
    SettlementUnknown,
)
from jobq.lease.keeper import LeaseKeeper
from jobq.lease.outage import Outage
from jobq.racing import first_of
from jobq.run.attempt.retry import Cancel, Leave, Verdict, outgrown, unburied
from jobq.run.stopping import Stopping
from jobq.settlement import TAIL_CHARACTERS, Complete, MoveToDeadLetters, Record, Release, Settlement
from jobq.task import Outcome, TaskResult

_log = logging.getLogger(__name__)
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0
STOPPING_SECONDS: Final = 5.0  # for the repetitions once the worker has to stop
AT_ONCE_SECONDS: Final = 2.0  # and once it has to stop without grace
GIVE_BACK_SECONDS: Final = 5.0  # for those of giving back what was never started


class Settled(StrEnum):
    """What is known of a settle."""

    YES = "yes"
    LOST = "lost"
    UNKNOWN = "unknown"


async def settle(
    delivery: Delivery,
    keeper: LeaseKeeper,
    verdict: Verdict,
    outcome: Outcome | None,
    *,
    capabilities: Capabilities,
    clock: Clock,
    attempt: float | None = None,
    stopping: Stopping | None = None,
    record: Callable[[Verdict], Record | None] = lambda _verdict: None,
    outage: Outage | None = None,
) -> Settled:
    """Settle with the backend, and return what is known of that; never reports as settled what was not acknowledged.

    A refusal is repeated for one lease, for a lease that is kept costs nothing; then, or some seconds after a stop, the
    delivery is left to its lease: a store that refuses for good must hold up no worker. A lost answer is repeated only
    where the backend declares that a repetition has no second effect (`idempotent_settle`, `fenced_settle`).

    Args:
        delivery: whose.
        keeper: keeps its lease meanwhile.
        verdict: what to settle.
        outcome: how the attempt ended; None when there was none.
        capabilities: the backend's.
        clock: spaces the repetitions.
        attempt: seconds one of them may take; None = as long as a renewal.
        stopping: what shortens the repetitions; None = nothing does.
        record: makes what the journal is to record of it.
        outage: what else the service does not answer.
    """
    if isinstance(verdict, Leave):
        return Settled.LOST
    patience = Patience(clock, delivery.lease.total_seconds(), stopping)
    said = outage or Outage(clock, "the queue")

    async def settled_as(verdict: Verdict, patience: Patience = patience) -> Settled:
        settlement = _settlement(verdict, outcome, record(verdict))

        async def send() -> None:
            await keeper.settle(lambda: delivery.settle(settlement), attempt=attempt)

        return await _repeated(delivery, send, patience, keeper, said, repeats_doubt=_repeats_doubt(capabilities))

    try:
        settled = await settled_as(verdict)
    except MalformedTask as fault:  # the message has outgrown what the service takes, and will not shrink
        _log.error("task %s cannot be settled: it %s", delivery.id, fault)
        instead = outgrown(outcome, fault)
        return Settled.LOST if isinstance(instead, Leave) else await settled_as(instead)
    if settled is Settled.YES or not isinstance(verdict, MoveToDeadLetters) or keeper.lock_lost_event.is_set():
        return settled
    await _record(delivery, verdict, lambda record: settled_as(record, Patience(clock, AT_ONCE_SECONDS, stopping)))
    return settled


async def give_back(
    delivery: Delivery,
    keeper: LeaseKeeper,
    *,
    capabilities: Capabilities,
    clock: Clock,
    stopping: Stopping,
    outage: Outage | None = None,
) -> Settled:
    """Give back what was never started, and say what is known of it.

    Repeated like a settle, for some seconds: done by half, it would go on beside its copy (S6).

    Args:
        delivery: whose.
        keeper: keeps its lease meanwhile.
        capabilities: the backend's.
        clock: spaces the repetitions.
        stopping: what shortens the repetitions.
        outage: what else the service does not answer.
    """
    patience = Patience(clock, GIVE_BACK_SECONDS, stopping)

    async def send() -> None:
        await keeper.settle(lambda: delivery.settle(Release()))

    said = outage or Outage(clock, "the queue")
    try:
        return await _repeated(delivery, send, patience, keeper, said, repeats_doubt=_repeats_doubt(capabilities))
    except MalformedTask as fault:  # it has no room for one more count
        _log.error("task %s cannot be given back: it %s", delivery.id, fault)
        return Settled.LOST


def _repeats_doubt(capabilities: Capabilities) -> bool:
    return capabilities.idempotent_settle or capabilities.fenced_settle


async def _record(
    delivery: Delivery, verdict: MoveToDeadLetters, settle_as: Callable[[Verdict], Awaitable[Settled]]
) -> None:
    """Put back what cannot be buried, with its end recorded: it must not run again for that (S7)."""
    try:
        record = unburied(delivery.task, delivery.deliveries, verdict)
        if record is not None and await settle_as(record) is Settled.YES:
            _log.error("task %s is put back and will not run again: it waits for its burial", delivery.id)
    except MalformedTask as fault:  # it has no room for one more count
        _log.error("task %s cannot be put back: it %s", delivery.id, fault)


async def _repeated(
    delivery: Delivery,
    send: Callable[[], Awaitable[None]],
    patience: "Patience",
    keeper: LeaseKeeper,
    outage: Outage,
    *,
    repeats_doubt: bool,
) -> Settled:
    try:
        return await _until_settled(delivery, send, patience, keeper, outage, repeats_doubt=repeats_doubt)
    finally:
        outage.left(_who(delivery))


async def _until_settled(
    delivery: Delivery,
    send: Callable[[], Awaitable[None]],
    patience: "Patience",
    keeper: LeaseKeeper,
    outage: Outage,
    *,
    repeats_doubt: bool,
) -> Settled:
    pause = _FIRST_PAUSE_SECONDS
    doubt = hopeless = False
    while True:
        try:
            await send()
        except LockLost as error:
            _log.warning("task %s was not settled: %s", delivery.id, error)
            return Settled.UNKNOWN if doubt else Settled.LOST
        except SettlementUnknown as error:
            _log.log(outage.failed(_who(delivery)), "task %s: %s", delivery.id, error)
            doubt = True
            hopeless = not repeats_doubt
        except BackendUnavailable as error:
            _log.log(outage.failed(_who(delivery)), "task %s is not settled yet: %s", delivery.id, error)
            doubt = doubt or isinstance(error, AnswerLost)
        except MalformedTask:
            raise
        except JobqError as error:
            # Refused for a reason that may pass: rights, a full account. No waiting makes a place that is missing.
            _log.error("task %s cannot be settled: %s", delivery.id, error)
            hopeless = isinstance(error, QueueNotFound)
        else:
            outage.answered(_who(delivery))
            return Settled.YES
        if hopeless or patience.is_over():
            _log.error("task %s cannot be settled: it is left to its lease", delivery.id)
            return Settled.UNKNOWN if doubt else Settled.LOST
        await patience.pause(pause, keeper)
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


def _who(delivery: Delivery) -> str:
    return f"the end of {delivery.id}"  # not the delivery itself, which another's backend may have made unhashable


class Patience:
    """How long a settle is repeated: for some time, and much less once the worker has to stop."""

    def __init__(self, clock: Clock, seconds: float, stopping: Stopping | None) -> None:
        self._clock = clock
        self._end = clock.boottime() + seconds
        self._stopping = stopping or Stopping()
        self._hurried = self._pressed = False

    def is_over(self) -> bool:
        """Return whether it is time to give up."""
        now = self._clock.boottime()
        if self._stopping.interrupted.is_set() and not self._hurried:
            self._hurried, self._end = True, min(self._end, now + STOPPING_SECONDS)
        if self._stopping.at_once.is_set() and not self._pressed:
            self._pressed, self._end = True, min(self._end, now + AT_ONCE_SECONDS)
        return now >= self._end

    async def pause(self, seconds: float, keeper: LeaseKeeper) -> None:
        """Wait, but not for a lease that is lost nor into a stop that begins."""
        end = self._clock.sleep_until(min(self._clock.boottime() + seconds, self._end))
        await first_of(end, keeper.lock_lost_event.future(), *self._hurry())

    async def over(self) -> None:
        """Wait until it is time to give up."""
        while not self.is_over():
            await first_of(self._clock.sleep_until(self._end), *self._hurry())

    def _hurry(self) -> list[Awaitable[object]]:
        if self._pressed:
            return []
        return [(self._stopping.at_once if self._hurried else self._stopping.interrupted).future()]


def _settlement(verdict: Verdict, outcome: Outcome | None, record: Record | None) -> Settlement:
    match verdict:
        case Release():
            return verdict
        case MoveToDeadLetters(_, description):
            return replace(verdict, description=_with_output(description, outcome), record=record)
        case Complete() | Cancel():
            then = "canceled" if isinstance(verdict, Cancel) else "done"
            return Complete(_result(outcome), then=then, record=record)
        case Leave():
            raise ValueError("what is left to its lease is not settled")
    return replace(verdict, record=record)


def _result(outcome: Outcome | None) -> TaskResult:
    if outcome is None:
        return TaskResult()
    return TaskResult(
        exit_code=outcome.exit_code,
        value=None if outcome.value_lost else outcome.value,
        duration=outcome.duration,
        output_tail=outcome.output_tail,
    )


def _with_output(description: str, outcome: Outcome | None) -> str:
    if outcome is None or not outcome.output_tail:
        return description
    return f"{description}\nlast output:\n{outcome.output_tail[-TAIL_CHARACTERS:]}"
