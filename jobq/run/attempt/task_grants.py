"""What the attempts of one worker hold of what it offers, from when a task is received until its tree is surely gone.

A store that cannot select hands out what comes first, whether it fits or not. So:
    - what this worker can never run goes back for a while, for another one (a misfit);
    - what only has no room now is kept under its lease, one at a time, and nothing else is taken until it has (a
      reservation), while that has idled no more than a share of the worker's life; else it goes back for a while, too.
"""

import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from jobq.backend import Delivery
from jobq.clock import Clock
from jobq.errors import MalformedTask
from jobq.flag import Flag
from jobq.racing import first_done, first_of, racing
from jobq.resources.grants import Grants, ResourceGrant
from jobq.resources.offer import Gpu, Offer, told_misfits
from jobq.resources.request import UNIT, Resources, described
from jobq.resources.room import Room, Space
from jobq.resources.variables import variables
from jobq.run.attempt.held_grant import HeldGrant
from jobq.run.attempt.neighbours import Admission, Placement
from jobq.task import Task

FIRST_DELAY_SECONDS: Final = 30.0  # doubling, for what does not fit
LONGEST_DELAY_SECONDS: Final = 600.0
LEAST_PATIENCE_SECONDS: Final = 10.0  # a reservation for less would be a delivery for nothing, again and again
MOST_IDLE_SECONDS: Final = 600.0  # of the whole machine, for one reservation
OVERTAKEN_SECONDS: Final = 3600.0  # before a store that selects hands out what has no room yet
IDLE_SHARE: Final = 0.05  # of its life that a worker's machine may idle to make room for a task that has none
SHORTEST_LIFE_SECONDS: Final = 600.0  # of which a younger worker has the share, too: else it could not begin with one
_GONE_SECONDS: Final = 10.0  # within which nothing lives of a tree that SIGKILL can end
_MOST_KNOWN: Final = 10_000
_log: Final = logging.getLogger(__name__)


def _space(cpus: int, mem: int, gpus: Sequence[Gpu]) -> Space:
    parts = sum(gpu.is_part for gpu in gpus)
    return Space(cpus=max(0, cpus), mem=max(0, mem), gpus=UNIT * (len(gpus) - parts), parts=UNIT * parts)


class TaskGrants:
    """Decides for one worker.

    Args:
        offer: what it offers.
        clock: for reservations.
        share: of the worker's life, that reservations may idle its machine for; 0 = there are none.
        chance: spreads delays.
        on_freed: called when something is free that was held.
    """

    def __init__(
        self,
        offer: Offer,
        clock: Clock,
        share: float = 0.0,
        *,
        chance: random.Random,
        on_freed: Callable[[], None] = lambda: None,
    ) -> None:
        self.offer: Final = offer
        self._grants = Grants(offer)
        self._clock = clock
        self._share = share
        self._chance = chance
        self._on_freed = on_freed
        self._held: dict[tuple[str, int], HeldGrant] = {}
        self._waiting: HeldGrant | None = None
        self._idle_seconds = 0.0  # of the whole machine, for reservations so far
        self._waits_since = 0.0  # boottime in seconds
        self._waits_idle = 0.0  # the share of the machine that idles meanwhile
        self._full = set[Resources]()  # what there was no room for, since something was freed
        self._full_until = 0.0  # boottime in seconds before which nothing is taken, unless something is freed
        self._freed = Flag()
        self._has_grown = False  # the room, since it was asked for
        total = _space(offer.cpus or 0, offer.mem or 0, offer.gpus or ())
        tags, counts_slots = sorted(offer.tags), offer.counts_slots
        self._room = Room(free=total, total=total, tags=tags, counts_slots=counts_slots)  # while nothing runs
        self._began = clock.boottime()
        self._misfits: dict[str, tuple[str, float]] = {}  # by the task's id: what it asks for, and until when it waits

    @property
    def free_slots(self) -> int:
        """How many tasks that ask for nothing fit, where these count as one processor each; 1 for a part of one."""
        return max(0, -(-self._grants.room.cpus // UNIT))

    def room(self, *, may_reserve: bool) -> Room:
        """Return what there is room for, as stores that select take it.

        Args:
            may_reserve: whether a task may wait here for room.
        """
        self._has_grown = False
        if not self._held:
            return self._room
        free = self._grants.room
        return self._room.copied(
            {
                "free": _space(free.cpus, free.mem, free.gpus),
                "reserves_after": OVERTAKEN_SECONDS if may_reserve and self._may_reserve() else None,
            }
        )

    def room_grows(self) -> Awaitable[object] | None:
        """Return what is done once something is freed; None = all of what is offered is free."""
        if not self._held:
            return None
        self._freed.clear()
        return self._freed.future()

    async def is_freed(self) -> bool:
        """Return whether there is more room than the last receive said; waits some seconds for what is over."""
        if self._has_grown:
            return True
        if (grows := self.room_grows()) is None:
            return False
        with racing(grows, self._clock.sleep_until(self._clock.boottime() + _GONE_SECONDS)) as futures:
            await first_done(*futures)
            return futures[0].done()

    @property
    def held(self) -> int:
        """How many attempts that are not over hold something, or wait for it."""
        return sum(not each.is_over for each in self._held.values())

    def place(self, delivery: Delivery, place: Placement, *, may_reserve: bool = True) -> Placement:
        """Decide what is done with a delivery, and grant it what it asks for.

        Args:
            delivery: what was received.
            place: what is done with it for other reasons.
            may_reserve: whether it may wait here for room.
        """
        if place.admission not in (Admission.START, Admission.ALONE):
            return place
        try:
            task = delivery.task
        except MalformedTask:
            return place
        offer = self.offer
        if task.resources is None and task.needs is None and not (offer.counts_slots or offer.gpus):
            return place
        place = self._placed(task, place, may_reserve=may_reserve)
        if place.grant is not None:
            self._held[delivery.id, delivery.deliveries] = place.grant
            self._misfits.pop(task.id, None)
        return place

    def _placed(self, task: Task, place: Placement, *, may_reserve: bool) -> Placement:
        if lacks := self.offer.misfit(task.resources, task.needs):
            return self._misfit(task, place, lacks)
        if self._waiting is not None:  # what is behind it must not take its room
            return replace(place, admission=Admission.BACK)
        held = HeldGrant(task, self.offer.asked(task.resources), self._forget)
        held.grant = self._grants.take(held.asked)
        if held.grant is None:
            return self._without_room(held, place, may_reserve=may_reserve)
        return replace(place, grant=held)

    def _without_room(self, held: HeldGrant, place: Placement, *, may_reserve: bool) -> Placement:
        """Decide what is done with what has no room now, and let it wait where it may."""
        if not self.held:  # the rest is withheld, perhaps for ever
            return self._misfit(held.task, place, described(held.task.resources, held.task.needs))
        self._waits_since, self._waits_idle = self._clock.boottime(), self._idle_share()
        if place.admission is Admission.START:
            patience = self._patience() if may_reserve else 0.0
            if patience < LEAST_PATIENCE_SECONDS:
                return self._too_full(held, place)
            held.wait_until(self._waits_since + patience)
            delay = self._delay(held.task.counters.given_back)
            place = replace(place, admission=Admission.RESERVED, patience=patience, delay=delay)
        self._waiting = held
        return replace(place, grant=held)

    def of(self, delivery: Delivery) -> HeldGrant | None:
        """Return what an attempt holds; None = nothing was asked for."""
        return self._held.get((delivery.id, delivery.deliveries))

    def variables(self, held: HeldGrant) -> dict[str, str]:
        """Return the variables that say so."""
        return variables(held.grant or ResourceGrant(), self.offer, held.task.env)

    def room_to_come(self) -> Awaitable[object] | None:
        """Return what is done when something may be taken again; None = now."""
        if self._waiting is not None:
            return self._waiting.settled.future()
        if self._full_until <= self._clock.boottime():
            return None
        self._freed.clear()
        return first_of(self._freed.future(), self._clock.sleep_until(self._full_until))

    def told_misfits(self) -> str:
        """Return which tasks wait that this worker cannot run, in words; empty = none was met."""
        now = self._clock.boottime()  # what is over somebody else has
        return told_misfits(Counter(shape for shape, until in self._misfits.values() if now < until))

    def _misfit(self, task: Task, place: Placement, lacks: str) -> Placement:
        delay = self._delay(task.counters.misfits)
        if task.id in self._misfits or len(self._misfits) < _MOST_KNOWN:
            self._misfits[task.id] = lacks, self._clock.boottime() + delay.total_seconds()
        return replace(place, admission=Admission.MISFIT, why=lacks, delay=delay)

    def _too_full(self, held: HeldGrant, place: Placement) -> Placement:
        """Put it off, since another shape may fit now; the same again keeps its place, and nothing more is taken."""
        now = self._clock.boottime()
        if self._full_until <= now and self._full_until:
            self._full.clear()
            self._full_until = 0.0
        if held.asked in self._full:
            self._full_until = now + FIRST_DELAY_SECONDS
            return replace(place, admission=Admission.BACK)
        self._full.add(held.asked)
        why = f"no room beside what runs: {described(held.asked, None)}"
        return replace(place, admission=Admission.FULL, why=why, delay=self._delay(held.task.counters.given_back))

    def _delay(self, times: int) -> timedelta:
        bound = min(FIRST_DELAY_SECONDS * 2 ** min(times, 32), LONGEST_DELAY_SECONDS)
        return timedelta(seconds=bound * self._chance.uniform(0.5, 1.0))

    def _may_reserve(self) -> bool:
        return self._waiting is None and self._patience_at(self._idle_share()) >= LEAST_PATIENCE_SECONDS

    def _idle_share(self) -> float:
        """Return the share of the machine that idles now, in the dimension where that is most."""
        room, offer = self._grants.room, self.offer
        return max(
            room.cpus / offer.cpus if offer.cpus else 0.0,
            room.mem / offer.mem if offer.mem else 0.0,
            len(room.gpus) / len(offer.gpus) if offer.gpus else 0.0,
        )

    def _patience(self) -> float:
        return self._patience_at(self._waits_idle)

    def _patience_at(self, idle: float) -> float:
        """Return for how many seconds from now on a reservation may last, if that share of the machine idles."""
        life = max(self._clock.boottime() - self._began, SHORTEST_LIFE_SECONDS)
        left = min(life * self._share - self._idle_seconds, MOST_IDLE_SECONDS)
        if not idle:  # it keeps nothing from anybody
            return MOST_IDLE_SECONDS if left > 0.0 else 0.0
        return left / idle

    def _forget(self, held: HeldGrant) -> None:
        self._held = {key: each for key, each in self._held.items() if each is not held}
        if held.grant is not None:
            self._grants.give_back(held.grant)
        self._serve(held)
        self._full.clear()
        self._full_until = 0.0
        self._has_grown = True
        self._freed.set()
        self._on_freed()

    def _serve(self, left: HeldGrant) -> None:
        """Grant what is waited for, if there is room now, or note that it waits no more."""
        waiting, now = self._waiting, self._clock.boottime()
        if waiting is None:
            return
        self._idle_seconds += (now - self._waits_since) * self._waits_idle
        self._waits_since = now
        if waiting is not left:
            waiting.grant = self._grants.take(waiting.asked)
            if waiting.grant is None:
                self._waits_idle = self._idle_share()
                waiting.wait_until(now + self._patience())
                return
        self._waiting = None
        waiting.settled.set()
