"""From a verdict to the backend: one settle, repeated only where that is safe, never past the lease (S4, S5)."""

import logging
from datetime import timedelta
from enum import StrEnum
from typing import Final

from jobq.backend import Capabilities, Delivery
from jobq.clock import Clock
from jobq.errors import BackendUnavailable, JobqError, LockLost, SettlementUnknown
from jobq.lease.keeper import LeaseKeeper
from jobq.run.retry import Complete, DeadLetter, Leave, Requeue, Verdict
from jobq.run.waiting import first_of
from jobq.task import Outcome, TaskResult

_log = logging.getLogger(__name__)
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0
_TAIL_CHARACTERS: Final = 4096  # of the output, in a dead letter (DESIGN section 11)


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
) -> Settled:
    """Tell the backend, and say what is known of it; never reports as settled what was not acknowledged.

    A refusal is repeated until the lease ends, for a lease that is kept costs nothing. A lost answer is repeated
    only where the backend answers a repetition like the first (`idempotent_settle`).

    Args:
        delivery: whose.
        keeper: keeps its lease meanwhile.
        verdict: what to tell.
        outcome: how the attempt ended; None when there was none.
        capabilities: the backend's.
        clock: spaces the repetitions.
        attempt: seconds one of them may take; None = as long as a renewal.
    """
    if isinstance(verdict, Leave):
        return Settled.LOST
    pause = _FIRST_PAUSE_SECONDS
    doubt = False
    while True:
        try:
            await keeper.settle(lambda: _send(delivery, verdict, outcome), attempt=attempt)
        except LockLost as error:
            _log.warning("task %s was not settled: %s", delivery.id, error)
            return Settled.UNKNOWN if doubt else Settled.LOST
        except SettlementUnknown as error:
            _log.warning("task %s: %s", delivery.id, error)
            doubt = True
            if not capabilities.idempotent_settle:
                return Settled.UNKNOWN
        except BackendUnavailable as error:
            _log.warning("task %s is not settled yet: %s", delivery.id, error)
        except JobqError as error:
            # Refused for a reason that may pass (rights, a full account): the deadline ends the attempts.
            _log.error("task %s cannot be settled: %s", delivery.id, error)
        else:
            return Settled.YES
        await first_of(clock.sleep_until(clock.boottime() + pause), keeper.lock_lost_event.wait())
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


async def _send(delivery: Delivery, verdict: Verdict, outcome: Outcome | None) -> None:
    match verdict:
        case Complete():
            await delivery.complete(_result(outcome))
        case Requeue(task, delay):
            await delivery.requeue(task, max(delay, timedelta(0)))
        case DeadLetter(reason, description):
            await delivery.dead_letter(reason, _with_output(description, outcome))


def _result(outcome: Outcome | None) -> TaskResult:
    if outcome is None:
        return TaskResult()
    return TaskResult(
        exit_code=outcome.exit_code, value=outcome.value, duration=outcome.duration, output_tail=outcome.output_tail
    )


def _with_output(description: str, outcome: Outcome | None) -> str:
    if outcome is None or not outcome.output_tail:
        return description
    return f"{description}\nlast output:\n{outcome.output_tail[-_TAIL_CHARACTERS:]}"
