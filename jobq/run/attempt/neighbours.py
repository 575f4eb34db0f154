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
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Final

from jobq.backend import Delivery
from jobq.clock import Clock
from jobq.errors import MalformedTask
from jobq.run.attempt.retry import Backoff, is_one_crash_from_its_end

if TYPE_CHECKING:
    import asyncio

    from jobq.run.attempt.held_grant import HeldGrant

PATIENT: Final = 5  # so often it goes back before a worker makes room: with the default backoff, a minute and more
FIRST_WAIT_SECONDS: Final = 30.0  # for what runs; twice as long each time that it was in vain
LONGEST_WAIT_SECONDS: Final = 3600.0
SHARE: Final = 0.05  # of a worker's time that may go into making room, and into what runs alone then
LEAST_BACKOFF: Final = Backoff(first=timedelta(seconds=0.1), longest=timedelta(seconds=30))  # it must not come back hot


class Admission(Enum):
    """What is done with a delivery."""

    START = "start"
    ALONE = "alone"  # it starts as soon as nothing else runs here
    LATER = "later"  # it goes back uncharged, for a while
    BACK = "back"  # it goes back uncharged, for a worker that has room
    RESERVED = "reserved"  # it starts as soon as what it asks for is granted
    MISFIT = "misfit"  # it goes back uncharged, for a while: this worker can never run it
    FULL = "full"  # it goes back uncharged, for a while: there is no room beside what runs


@dataclass(frozen=True)
class Placement:
    """What is done with one delivery.

    Attributes:
        admission: see there.
        patience: with ALONE and RESERVED, seconds after which it goes back if there is still no room.
        others: the worker's other attempts, which have to end before what is ALONE starts; also those being settled.
        grant: what it holds of what the worker offers, or waits for; None = it asks for nothing.
        why: with MISFIT and FULL, what it asks for.
        delay: with these and RESERVED, for how long it goes back.
    """

    admission: Admission = Admission.START
    patience: float = 0.0
    others: Collection["asyncio.Task[None]"] = ()
    grant: "HeldGrant | None" = None
    why: str = ""
    delay: timedelta = timedelta(0)

    @property
    def has_grant(self) -> bool:
        """Whether it holds what it asks for."""
        return self.grant is None or self.grant.grant is not None


class Neighbours:
    """Decides for one worker.

    Args:
        clock: for the share.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_turn = 0.0  # boottime in seconds before which no room is made
        self._made_room_at: float | None = None

    def places(self, deliveries: Sequence[Delivery], *, is_idle: bool) -> list[tuple[Delivery, Placement]]:
        """Decide what is done with deliveries that came together; at most one is ALONE, and comes last.

        Args:
            deliveries: what was received while nothing was alone.
            is_idle: whether nothing runs here.
        """
        last = {number: times for number, each in enumerate(deliveries) if (times := _last_attempt(each)) is not None}
        alone = max(last, key=last.__getitem__, default=None)
        if alone is not None and not (is_idle and len(last) == len(deliveries)):
            alone = self._makes_room_for(alone, last[alone])
        beside = Placement(Admission.START if alone is None else Admission.BACK)
        found = [
            (each, Placement(Admission.LATER) if number in last else beside)
            for number, each in enumerate(deliveries)
            if number != alone
        ]
        if alone is not None:
            doublings = min(max(0, last[alone] - PATIENT), 32)
            patience = min(FIRST_WAIT_SECONDS * 2**doublings, LONGEST_WAIT_SECONDS)
            found.append((deliveries[alone], Placement(Admission.ALONE, patience)))
        return found

    def have_room(self) -> None:
        """Take in that what was ALONE has ended, or has gone back."""
        if self._made_room_at is not None:
            now = self._clock.boottime()
            self._next_turn = now + (now - self._made_room_at) * (1 / SHARE - 1)
            self._made_room_at = None

    def _makes_room_for(self, number: int, times: int) -> int | None:
        now = self._clock.boottime()
        if times < PATIENT or now < self._next_turn:
            return None
        self._made_room_at = now
        return number


def delay(times: int, backoff: Backoff) -> timedelta:
    """Return for how long a task goes back for this, its 1st or later, time: longer, even if no backoff is wanted."""
    longest = max(backoff.longest, LEAST_BACKOFF.longest)
    first = max(backoff.first, LEAST_BACKOFF.first)
    return Backoff(first=first, longest=longest, jitter=backoff.jitter).delay(times)


def _last_attempt(delivery: Delivery) -> int | None:
    """Return how often a task has gone back uncharged whose next crash is its last; None = it has crashes left."""
    try:
        task = delivery.task
    except MalformedTask:
        return None
    return task.counters.given_back if is_one_crash_from_its_end(task, delivery.deliveries) else None
