"""Calls at moments of a clock, from one task for all leases of a worker: most attempts end before their first."""

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable

from jobq.clock import Clock
from jobq.flag import Flag
from jobq.racing import first_done

_log = logging.getLogger(__name__)


class Call:
    """One call that is to come."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Never call it."""
        self.callback = None


class Ticker:
    """Makes the calls; its task ends by itself when none is to come.

    Args:
        clock: whose boottime the moments are of.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._calls: list[tuple[float, int, Call]] = []
        self._numbers = itertools.count()  # calls of one moment are made in the order in which they were asked for
        self._until = 0.0
        self._sooner = Flag()
        self._loop: asyncio.Task[None] | None = None

    def at(self, when: float, callback: Callable[[], None]) -> Call:
        """Call this at that time, in seconds of the clock's boottime; it must not block."""
        call = Call(callback)
        heapq.heappush(self._calls, (when, next(self._numbers), call))
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run(), name="lease ticker")
        elif when < self._until:
            self._sooner.set()
        return call

    def close(self) -> None:
        """Call nothing any more."""
        self._calls.clear()
        if self._loop is not None:
            self._loop.cancel()
            self._loop = None  # it is not over at once, and makes no call that is asked for from now on

    async def _run(self) -> None:
        while self._calls:
            self._until = self._calls[0][0]
            await self._sleep()
            now = self._clock.boottime()
            while self._calls and (self._calls[0][0] <= now or self._calls[0][2].callback is None):
                _, _, call = heapq.heappop(self._calls)
                if call.callback is not None:
                    try:
                        call.callback()
                    except Exception:  # noqa: BLE001 - one lease's trouble is no other's (S11)
                        _log.exception("a lease is watched no more; its guardian keeps the deadline")

    async def _sleep(self) -> None:
        self._sooner.clear()
        asleep = asyncio.ensure_future(self._clock.sleep_until(self._until))
        sooner = self._sooner.future()
        try:
            await first_done(asleep, sooner)
        finally:
            asleep.cancel()
            sooner.cancel()
