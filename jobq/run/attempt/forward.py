"""A task that goes on in another queue of the same location: pushed there first, settled here after (S1, S6).

Only to a queue that the worker's own configuration lists: else who may push to one queue could use the worker's rights
on all others.

Its id there is made of its life here, so a repetition after a crash in between is dropped where the other queue
deduplicates; on a Storage Queue it may run there twice. What cannot be pushed is no loss: it is a dead letter here.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from jobq.backend import Backend
from jobq.errors import BackendUnavailable, JobqError, PushUnknown
from jobq.formats.exit_rules import queues_of
from jobq.lease.keeper import LeaseKeeper
from jobq.racing import racing
from jobq.run.attempt import retry
from jobq.run.attempt.retry import Leave, SendOn
from jobq.run.attempt.settle import Patience
from jobq.settlement import MoveToDeadLetters, Requeue
from jobq.spec import sibling
from jobq.task import Outcome, Task

ONWARD: Final = "JOBQ_ONWARD_QUEUES (--onward-queues)"
_log: Final = logging.getLogger(__name__)
_PUSH_SECONDS: Final = 30.0  # one try; what was not answered by then is tried again
_FIRST_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 5.0


class OnwardQueues:
    """The queues to which one worker sends tasks on.

    Args:
        names: as its own configuration lists them.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self._warned: set[str] = set()

    def warn_of(self, task: Task) -> None:
        """Log, once for each, that a rule of this task names a queue that is not listed."""
        for name in sorted(queues_of(task.on_exit or ()) - self.names - self._warned):
            self._warned.add(name)
            _log.warning(
                "task %s may go on in queue %s by its rule, which %s does not list: it would be a dead letter here",
                task.id,
                name,
                ONWARD,
            )


async def sent_on(
    backend: Backend,
    verdict: SendOn,
    outcome: Outcome | None,
    keeper: LeaseKeeper,
    patience: Patience,
    onward: OnwardQueues,
) -> SendOn | MoveToDeadLetters | Requeue | Leave:
    """Push it, and return the verdict that is left to settle.

    Args:
        backend: the queue that it comes from.
        verdict: where it goes; the one returned says as what.
        outcome: how the attempt ended.
        keeper: keeps the lease meanwhile.
        patience: how long to try, less in a stop; after that it runs again here, later.
        onward: where this worker sends tasks on.
    """
    if verdict.queue == backend.name:
        return retry.not_sent_on(verdict, outcome, "its rule names the queue that it is in")
    if verdict.queue not in onward.names:
        return retry.not_sent_on(verdict, outcome, f"the worker's {ONWARD} does not list that queue")
    there = SendOn(verdict.queue, verdict.task.sent_on(verdict.queue, backend.name))
    pause = _FIRST_PAUSE_SECONDS
    while not keeper.lock_lost_event.is_set():
        try:
            await _pushed(backend, there, keeper, patience)
        except (BackendUnavailable, PushUnknown, TimeoutError) as error:
            # Unknown is tried again: settled here without being queued there it would be lost (S1).
            _log.warning("task %s is not in queue %s yet: %s", there.task.id, verdict.queue, str(error) or "no answer")
        except JobqError as error:
            return retry.not_sent_on(verdict, outcome, str(error))
        else:
            return there
        if patience.is_over():
            break
        await patience.pause(pause, keeper)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    return Leave() if keeper.lock_lost_event.is_set() else retry.not_sent_yet(verdict, outcome)


async def _pushed(backend: Backend, there: SendOn, keeper: LeaseKeeper, patience: Patience) -> None:
    """Push it once; raises TimeoutError where that takes longer than there is time, or than the lease is ours (S4)."""

    async def push() -> None:
        async with sibling(backend, there.queue) as other:
            await other.push([there.task])

    with racing(push(), keeper.lock_lost_event.future(), patience.over()) as (pushing, *ends):
        await asyncio.wait([pushing, *ends], timeout=_PUSH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not pushing.done():
            raise TimeoutError
        pushing.result()
