"""Time that a test moves: a virtual clock, and the real one behind the same verb `advance`."""

import asyncio
import heapq
import itertools
import threading
from typing import Final, NamedTuple, Protocol

from jobq.clock import Clock, SystemClock

_SETTLE_ROUNDS: Final = 25  # turns of the loop in which a chain of callbacks, woken by one instant, comes to rest


class SteppedClock(Clock, Protocol):
    """A clock that a test can move on."""

    async def advance(self, seconds: float) -> None:
        """Let this many seconds pass."""
        ...


class _Sleeper(NamedTuple):
    due: float
    number: int  # keeps sleepers of one instant in their order, and futures out of the comparison
    loop: asyncio.AbstractEventLoop
    woken: asyncio.Future[None]


class VirtualClock:
    """A clock that stands still until it is advanced; may be read and slept on from any thread.

    Args:
        boottime: seconds since boot at the start.
        wall: seconds since the epoch at the start.
    """

    def __init__(self, *, boottime: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._lock = threading.Lock()
        self._boottime = boottime
        self._wall_ahead = wall - boottime
        self._sleepers: list[_Sleeper] = []
        self._numbers = itertools.count()

    def boottime(self) -> float:
        """Return the virtual seconds since boot."""
        with self._lock:
            return self._boottime

    def wall(self) -> float:
        """Return the virtual seconds since the epoch."""
        with self._lock:
            return self._boottime + self._wall_ahead

    @property
    def sleeping_until(self) -> list[float]:
        """When those who sleep now will wake, in order."""
        with self._lock:
            return sorted(sleeper.due for sleeper in self._sleepers if not sleeper.woken.done())

    async def sleep_until(self, boottime: float) -> None:
        """Return once the clock has been advanced to the given value, in seconds."""
        loop = asyncio.get_running_loop()
        with self._lock:
            due = self._boottime < boottime
            if due:
                sleeper = _Sleeper(boottime, next(self._numbers), loop, loop.create_future())
                heapq.heappush(self._sleepers, sleeper)
        if due:
            await sleeper.woken
        else:
            await asyncio.sleep(0)  # a loop over sleep_until must let others run, as with the real clock

    async def advance(self, seconds: float) -> None:
        """Move on, waking each sleeper at its own instant and letting this loop come to rest in between.

        Sleepers of other loops are woken too, but nobody waits for them here.
        """
        if seconds < 0:
            raise ValueError(f"boottime never goes back, not even by {-seconds} s")
        await self._rest()  # what was just started registers its sleep first
        target = self.boottime() + seconds
        while self._step(target):
            await self._rest()

    def jump_wall(self, seconds: float) -> None:
        """Step the wall clock alone, forward or back, as an administrator or NTP would; wakes nobody."""
        with self._lock:
            self._wall_ahead += seconds

    def _step(self, target: float) -> bool:
        """Go to the next sleeper's instant, or to the target; return whether the target was still ahead."""
        with self._lock:
            self._sleepers = [sleeper for sleeper in self._sleepers if not sleeper.woken.done()]
            heapq.heapify(self._sleepers)
            is_next = bool(self._sleepers) and self._sleepers[0].due <= target
            if not is_next and self._boottime >= target:
                return False
            self._boottime = max(self._boottime, self._sleepers[0].due if is_next else target)
            woken: list[_Sleeper] = []
            while self._sleepers and self._sleepers[0].due <= self._boottime:
                woken.append(heapq.heappop(self._sleepers))
        for sleeper in woken:
            _wake(sleeper)
        return True

    async def _rest(self) -> None:
        for _ in range(_SETTLE_ROUNDS):
            await asyncio.sleep(0)


class RealTime(SystemClock):
    """The machine's clocks; `advance` really waits. For services that keep their own time."""

    async def advance(self, seconds: float) -> None:
        """Let this many real seconds pass."""
        await self.sleep_until(self.boottime() + seconds)


def _wake(sleeper: _Sleeper) -> None:
    if sleeper.loop is asyncio.get_running_loop():
        _finish(sleeper.woken)
    elif not sleeper.loop.is_closed():
        sleeper.loop.call_soon_threadsafe(_finish, sleeper.woken)


def _finish(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
