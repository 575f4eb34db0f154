"""The two clocks jobq reads, and how it waits.

Deadlines are kept on CLOCK_BOOTTIME, which goes on while the machine is suspended; asyncio's own clock
(CLOCK_MONOTONIC) stops then, so a wait for a deadline is cut into slices (rules.md 1.3 rule 1).
"""

import time
from typing import Final, NamedTuple, Protocol

_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS: monotonic, said in the docs
SLICE_SECONDS: Final = 1.0  # the longest that a wait may oversleep after a suspend


class Clock(Protocol):
    """Time as jobq sees it; `jobq.testing.clock.VirtualClock` is the other implementation."""

    def boottime(self) -> float:
        """Return seconds since boot, suspend included; for leases and every other deadline."""
        ...

    def wall(self) -> float:
        """Return seconds since the epoch; for people and for `not_before`, never for a lease."""
        ...

    async def sleep_until(self, boottime: float) -> None:
        """Return once `boottime()` has reached the given value, in seconds."""
        ...


class Moment(NamedTuple):
    """One moment on both clocks: only both show a freeze of the host after it (rules.md 1.3 rule 8).

    Attributes:
        boottime, wall: in seconds.
    """

    boottime: float
    wall: float

    @classmethod
    def of(cls, clock: "Clock") -> "Moment":
        """Return the present one."""
        return cls(clock.boottime(), clock.wall())


class SystemClock:
    """The machine's clocks.

    Attributes:
        is_stores: whether the store judges leases by this very clock, on this machine: then no lease runs out in a
            suspend, nor while the host freezes the machine, and the wall clock says nothing of it (rule 12).
    """

    is_stores = False

    def boottime(self) -> float:
        """Return CLOCK_BOOTTIME in seconds."""
        return time.clock_gettime(_BOOTTIME)

    def wall(self) -> float:
        """Return the wall clock in seconds since the epoch."""
        return time.time()

    async def sleep_until(self, boottime: float) -> None:
        """Wait in slices, so that a suspend delays the return by one slice at most."""
        import asyncio  # noqa: PLC0415 - short commands, which never sleep, start without it

        while (left := boottime - self.boottime()) > 0:  # noqa: ASYNC110 - the event awaited is the time itself
            await asyncio.sleep(min(left, SLICE_SECONDS))


class StoreClock(SystemClock):
    """The clocks of a machine whose own file is the store: what leases count on stands while the machine does."""

    is_stores = True

    def boottime(self) -> float:
        """Return CLOCK_MONOTONIC in seconds: suspends left out, for the store leaves them out, too."""
        return time.monotonic()


def clock_of(*, shares_machine: bool) -> SystemClock:
    """Return the clock that leases are kept by: the store's own where that is this machine's file.

    Args:
        shares_machine: as of `jobq.backend.Capabilities`.
    """
    return StoreClock() if shares_machine else SystemClock()
