"""Who may run beside whom: the attempt whose crash would use up a task's budget runs alone on its worker (S7, S11).

The death of a worker charges a crash to each task that it held, since nobody can say which of them was the cause. So a
task that kills its worker again and again would take innocent neighbours to the dead letters. A task dies of a crash in
its last attempt, so that one has no neighbours: what ends it is the task itself, or the machine's own end.

That costs nothing where nothing else is to be done: a worker that runs nothing, and is given nothing else, starts such
a task and takes nothing beside it. Else it goes back uncharged, each time for longer, until a worker has room. From the
PATIENT-th time on a worker makes room: it takes nothing new, gives back uncharged what came together with it, and waits
for what runs, which is never interrupted. Both are bounded, and so is their share of a worker's time: where machines
vanish often, many tasks are suspected, and must not idle the slots of the others.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from jobq.backend import Delivery
from jobq.clock import Clock
from jobq.errors import MalformedTask
from jobq.run.attempt import retry

if TYPE_CHECKING:
    import asyncio

PATIENT: Final = 5  # so often it goes back before a worker makes room: with the default backoff, a minute and more
FIRST_WAIT_SECONDS: Final = 30.0  # for what runs; twice as long each time that it was in vain
LONGEST_WAIT_SECONDS: Final = 3600.0
SHARE: Final = 0.05  # of a worker's time that may go into making room, and into what runs alone then


class Admission(Enum):
    """What is done with a delivery."""

    START = "start"
    ALONE = "alone"  # it starts as soon as nothing else runs here
    LATER = "later"  # it goes back uncharged, for a while
    BACK = "back"  # it goes back uncharged, for whoever has room


@dataclass(frozen=True)
class Place:
    """What is done with one delivery.

    Attributes:
        admission: see there.
        others: with ALONE, what has to end first.
        patience: with ALONE, seconds after which it goes back all the same.
    """

    admission: Admission = Admission.START
    others: Collection["asyncio.Task[None]"] = ()
    patience: float = 0.0


class Neighbours:
    """Decides for one worker.

    Args:
        clock: for the share.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_turn = 0.0  # boottime in seconds before which no room is made
        self._made_room_at: float | None = None

    def places(
        self, deliveries: Sequence[Delivery], *, is_idle: bool, others: Collection["asyncio.Task[None]"]
    ) -> list[tuple[Delivery, Place]]:
        """Decide what is done with deliveries that came together; at most one is ALONE, and comes last.

        Args:
            deliveries: what was received.
            is_idle: whether all slots are free.
            others: the attempts of this worker that have not ended; those with a free slot are being settled.
        """
        last = {number: times for number, each in enumerate(deliveries) if (times := _last_attempt(each)) is not None}
        chosen = max(last, key=last.__getitem__, default=None)
        now = self._clock.boottime()
        if chosen is not None and not (is_idle and len(last) == len(deliveries)):
            if last[chosen] >= PATIENT and now >= self._next_turn:
                self._made_room_at = now
            else:
                chosen = None
        found = []
        for number, delivery in enumerate(deliveries):
            if number in last:
                found.append((delivery, Place(Admission.LATER)))
            else:
                found.append((delivery, Place(Admission.START if chosen is None else Admission.BACK)))
        if chosen is not None:
            doublings = max(0, last[chosen] - PATIENT)
            patience = min(FIRST_WAIT_SECONDS * 2 ** min(doublings, 32), LONGEST_WAIT_SECONDS)
            del found[chosen]
            found.append((deliveries[chosen], Place(Admission.ALONE, others, patience)))
        return found

    def have_room(self) -> None:
        """Take in that what was ALONE has ended, or has gone back."""
        if self._made_room_at is not None:
            now = self._clock.boottime()
            self._next_turn = now + (now - self._made_room_at) * (1 / SHARE - 1)
            self._made_room_at = None


def _last_attempt(delivery: Delivery) -> int | None:
    """Return how often a task has gone back uncharged whose next crash is its last; None = it has crashes left."""
    try:
        task = delivery.task
    except MalformedTask:
        return None
    return retry.times_given_back(task) if retry.is_one_crash_from_its_end(task, delivery.deliveries) else None
