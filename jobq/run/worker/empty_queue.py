"""When an empty queue is worked off: not before what a worker gave back or lost has come again."""

import asyncio
import math
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Final

from jobq.backend import UNKNOWN_ID
from jobq.clock import Clock
from jobq.pausing import Pause
from jobq.run.worker.leftovers import Leftovers
from jobq.run.worker.receive import Receiving

_LONG_WAIT: Final = timedelta(seconds=20)  # one receive; a push ends it early
_LATE: Final = 1.0  # seconds by which a service may be late with what it is to show again
_LOOK_AGAIN: Final = timedelta(seconds=5)  # while a lease of another worker is waited for: it may be renewed
_DOUBTS: Final = 2  # leases after a doubt within which another one counts
_PAUSED_SECONDS: Final = 600.0  # for which a worker stays at a paused queue that has been told no time


class EmptyQueue:
    """Looks when a worker may end, and how long it is to stay for a task.

    Args:
        idle: how long an empty queue is watched; None = not at all.
        clock: for the moments.
        leftovers: what others gave back or lost.
        attempts: those that run now.
        on_pause: told once when the worker is found to stay only since the queue is paused, and, with None, when it is
            not paused any more.
    """

    def __init__(
        self,
        idle: timedelta | None,
        clock: Clock,
        leftovers: Leftovers,
        attempts: Collection[asyncio.Task[None]],
        on_pause: Callable[[Pause | None], None],
    ) -> None:
        self._idle = 0.0 if idle is None else idle.total_seconds()
        self._longest_pause = _PAUSED_SECONDS if idle is None else self._idle
        self._clock = clock
        self._leftovers = leftovers
        self._attempts = attempts
        self._due: dict[str, float] = {}  # boottime in seconds at which what was given back or lost comes again
        self._last_end = 0.0  # boottime in seconds at which the last attempt was settled
        self._since: float | None = None  # boottime in seconds of the look that found the queue empty
        self._doubted_since: float | None = None  # boottime in seconds of the first doubt since something came
        self._has_looked = False  # whether there was an answer since
        self._left_by_others: set[str] = set()  # those among the expected ones that another worker had
        self._mark: Pause | None = None
        self._paused_since: float | None = None  # boottime in seconds of the look that found it paused
        self._on_pause = on_pause

    def attempt_ended(self) -> None:
        """Note that an attempt has been settled."""
        self._last_end = self._clock.boottime()

    @property
    def expected_until(self) -> float:
        """Boottime in seconds until which a task may still come again."""
        return max(self._due.values(), default=-math.inf) + _LATE

    def expect(self, task_id: str, seconds: float) -> None:
        """Note that a task comes again after so long; a service may count in whole seconds, rounded up."""
        due = self._clock.boottime() + (math.ceil(seconds) + _LATE if seconds > 0 else 0.0)
        former = self._due.get(task_id, 0.0) if task_id == UNKNOWN_ID else 0.0  # which is of any number of tasks
        self._due[task_id] = max(former, due)

    def doubt(self, seconds: float) -> None:
        """Note that a receive without an answer may have leased tasks for so long, which nobody has.

        Where they are lost again and again and nothing comes, no such wait begins later than two leases after the
        first, which are enough for what was hidden by it to come and be lost once more; answers that are lost without
        one in between are one doubt. It is over with a look behind it that finds nothing.
        """
        now = self._clock.boottime()
        if self._doubted_since is None or not self._has_looked:
            self._doubted_since, self._has_looked = now, False
        if now <= self._doubted_since + _DOUBTS * seconds:
            self.expect(UNKNOWN_ID, seconds)

    def came(self, task_id: str) -> None:
        """Note that it is here."""
        self._doubted_since = None
        self._due.pop(task_id, None)

    def wait(self) -> timedelta:
        """Return how long to stay for a task; a first look after work is short, for others wait for its answer."""
        now = self._clock.boottime()
        if self._since is None:
            return timedelta(0)
        end = now + _LONG_WAIT.total_seconds()
        if not self._attempts:
            end = min(end, max(self._since + self._idle, now, *self._due.values()))
            if self._paused_since is not None and (stays := self._paused_since + self._longest_pause) > now:
                end = min(now + _LOOK_AGAIN.total_seconds(), stays)
        if self._left_by_others:
            end = min(end, now + _LOOK_AGAIN.total_seconds())
        return timedelta(seconds=end - now)

    async def is_worked_off(self, receiving: Receiving, *, empty: bool, looked_at: float) -> bool:
        """Return whether the queue is worked off: nothing came, nothing runs, nothing is to come back.

        An empty answer speaks of the moment it was asked for, not of what ended or fell due while it was on its way.
        """
        now = self._clock.boottime()
        self._has_looked = True
        # What was due by then and has not come, somebody else has.
        self._due = {task_id: due for task_id, due in self._due.items() if due > looked_at}
        if UNKNOWN_ID not in self._due:
            self._doubted_since = None
        if not empty:
            self._since = None
            self._is_paused(None, now)
            return False
        busy = bool(self._attempts) or self._last_end >= looked_at
        if self._since is None or busy:
            self._since = now
        if self._due and not busy and await receiving.is_bare():
            self._due.clear()
        is_over = not busy and now >= self._since + self._idle
        if is_over:
            mark, was_paused = await receiving.paused(self._mark), self._mark is not None
            if self._is_paused(mark, now) or (was_paused and mark is None):
                return False  # in the latter case its end came after the look that found nothing
        if is_over:
            await self._leftovers.end_leases_of_the_dead()
            if self._leftovers.last_ended >= looked_at:
                return False  # also where no journal shows what came back by that
        if is_over and (self._left_by_others or not self._due):
            await self._expect_what_others_left()
        return is_over and not self._due

    def _is_paused(self, mark: Pause | None, now: float) -> bool:
        """Return whether the worker is to stay since the queue is paused, which is no empty one."""
        was_paused, self._mark = self._mark is not None, mark
        if mark is None and was_paused:
            self._paused_since = None
            self._on_pause(None)
        elif mark is not None and not was_paused:
            self._paused_since = now
            self._on_pause(mark)
        return self._paused_since is not None and now < self._paused_since + self._longest_pause

    async def _expect_what_others_left(self) -> None:
        """Wait for what a worker that is gone had leased; one that lives is seen to renew, and is not waited for."""
        found = await self._leftovers.abandoned()
        for task_id in self._left_by_others - found.keys():
            self._due.pop(task_id, None)
        for task_id, seconds in found.items():
            self.expect(task_id, seconds)
        self._left_by_others = set(found)
