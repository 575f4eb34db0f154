"""What others hold when a worker finds nothing to do: leases that nobody renews come back, and all else is said."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

from jobq.backend import Backend, Delivery, SharesMachine
from jobq.clock import Clock
from jobq.errors import JobqError
from jobq.formats import durations
from jobq.journal.records import TaskRecord, TaskState
from jobq.journal.store import Journal, KeepsJournal
from jobq.resources.offer import Offer, told_misfits
from jobq.resources.room import Room
from jobq.run.spawn.dead_workers import without_survivors
from jobq.selecting import selecting

_log = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 1.0  # between two looks for workers of this machine that are dead
_AGAIN_SECONDS: Final = 5.0  # after a look that failed; twice as long after each more
_LONGEST_PAUSE_SECONDS: Final = 600.0
_MOST: Final = 100  # leases that are looked at
_ANSWER_SECONDS: Final = 3.0
_LATE_SECONDS: Final = 2.0  # by which a queue may hand out a task after its journal has seen the lease end
_GRAIN_SECONDS: Final = 0.5  # by which two looks may differ about one expiry


class Leftovers:
    """Watches the leases of others, as far as the queue's journal shows them.

    Args:
        backend: an entered backend.
        clock: for the moments.

    Attributes:
        last_ended: boottime in seconds at which leases of the dead were last ended.
    """

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self.last_ended = -math.inf
        self._backend = backend
        self._clock = clock
        self._expiries: dict[str, float] = {}  # boottime in seconds, by the former look
        self._renewed: set[str] = set()
        self._shares: SharesMachine | None = None
        self._holder = ""
        self._faults = 0  # in a row
        self._look_at = 0.0  # boottime in seconds

    def hold_as(self, holder: str | None) -> bool:
        """Have this worker's leases say who holds them; return whether others' leases are to be looked at.

        Args:
            holder: by which others can judge it; empty where they cannot, None where it cannot judge them either.
        """
        self._holder = holder or ""
        self._shares = self._backend if holder is not None and isinstance(self._backend, SharesMachine) else None
        return self._shares is not None

    async def receive(self, max_tasks: int, lease: timedelta, wait: timedelta, room: Room) -> list[Delivery]:
        """Receive what there is room for, where the store selects, with leases that `hold_as` speaks of."""
        if (selects := selecting(self._backend)) is not None:
            holder = self._holder if self._shares is not None else ""
            return await selects.receive_fitting(room, max_tasks, lease, wait, worker_id=holder)
        if self._shares is None or not self._holder:
            return await self._backend.receive(max_tasks, lease, wait)
        return await self._shares.receive_as(self._holder, max_tasks, lease, wait)

    async def take_from_the_dead(self) -> None:
        """Have the tasks of dead workers come back at once, again and again."""
        while True:
            await self.end_leases_of_the_dead()
            await self._clock.sleep_until(self._clock.boottime() + _LOOK_SECONDS)

    async def end_leases_of_the_dead(self) -> None:
        """End the leases of those workers of this machine of which nothing lives."""
        if self._shares is None or self._clock.boottime() < self._look_at:
            return
        try:
            holders = [each for each in await self._shares.holders() if each != self._holder]
            dead = await asyncio.to_thread(without_survivors, holders) if holders else []
            count = await self._shares.end_leases(dead) if dead else 0
        except (JobqError, OSError) as error:
            _log.debug("whether other workers are dead is not known: %r", error)  # their leases run out anyway
            return
        except Exception:  # noqa: BLE001 - logged; it is no reason to end the worker, nor what runs there (S11, L4)
            self._faults += 1
            pause = min(_AGAIN_SECONDS * 2.0**self._faults, _LONGEST_PAUSE_SECONDS)
            self._look_at = self._clock.boottime() + pause
            _log.exception("whether other workers are dead is not known; the next look comes in %.0f s", pause)
            return
        self._faults = 0
        if count:
            self.last_ended = self._clock.boottime()
            _log.warning("nothing lives of a worker that held leases: what it ran comes back now (%d)", count)

    async def abandoned(self) -> dict[str, float]:
        """Return which tasks come back by themselves, as far as is known, and in how many seconds.

        A lease counts until two looks show that somebody renews it; so it is waited for once at the most. One that is
        over counts no more: the queue has had no such task, whatever its journal has not heard.
        """
        now = self._clock.boottime()
        expiries = {each.id: now + each.lease_left for each in await self._leased() if each.lease_left is not None}
        for task_id, expiry in expiries.items():
            if expiry > self._expiries.get(task_id, expiry) + _GRAIN_SECONDS:
                self._renewed.add(task_id)
        self._expiries = expiries
        dues = {task_id: expiry + _LATE_SECONDS - now for task_id, expiry in expiries.items()}
        return {task_id: due for task_id, due in dues.items() if due > 0 and task_id not in self._renewed}

    async def described(self) -> str:
        """Return what is left in the queue, in words; empty when nothing is, or nobody can say."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                stats = await self._backend.stats()
        except (JobqError, TimeoutError):
            return ""
        if not stats.unfinished:
            return ""
        paused = "" if stats.paused is None else f"; the queue is {stats.paused}"
        if stats.leased is None or stats.scheduled is None:
            return f"{stats.unfinished} waiting, hidden or leased{paused}"
        counts = (
            (stats.visible, "waiting"),
            (stats.leased, f"leased{await self._holders()}"),
            (stats.scheduled, f"scheduled{await self._first_due() if stats.scheduled else ''}"),
        )
        return ", ".join(f"{count} {what}" for count, what in counts if count) + paused

    async def misfits(self, offer: Offer) -> str:
        """Return which tasks wait that a worker cannot run, in words; empty when there are none, or nobody can say.

        Args:
            offer: of the worker.
        """
        if (selects := selecting(self._backend)) is None:
            return ""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                found = await selects.waiting_shapes()
        except (JobqError, TimeoutError):
            return ""
        return told_misfits(Counter({offer.misfit(*each.request): each.count for each in found}))

    async def _holders(self) -> str:
        found = [each for each in await self._leased() if each.holder and (each.lease_left or 0.0) > 0.0]
        if not found:
            return ""
        first = found[0]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return f" by {first.holder} (for {durations.show(round(first.lease_left or 0.0))} unless it renews){more}"

    async def _first_due(self) -> str:
        """Return when the first that is scheduled is due, in words; empty where more are left than one look shows."""
        found = await self._asked(lambda journal: journal.unfinished("", _MOST))
        dues = [each.at for each in found if each.state is TaskState.SCHEDULED and each.at is not None]
        if not dues or await self._asked(lambda journal: journal.unfinished(found[-1].id, 1)):
            return ""
        first = datetime.fromtimestamp(min(dues)).astimezone()
        is_near = first - datetime.now().astimezone() < timedelta(hours=12)
        return f", the first at {first:%H:%M:%S}" if is_near else f", the first at {first.isoformat(' ', 'minutes')}"

    async def _leased(self) -> list[TaskRecord]:
        return await self._asked(lambda journal: journal.running(_MOST))

    async def _asked(self, question: Callable[[Journal], Awaitable[list[TaskRecord]]]) -> list[TaskRecord]:
        journal = self._backend.journal if isinstance(self._backend, KeepsJournal) else None
        if journal is None:
            return []
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await question(journal)
        except (JobqError, TimeoutError):
            return []  # nothing is known, so nothing is waited for
