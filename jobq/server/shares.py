"""The share of each caller, of requests and of large bodies: none of them crowds out the others (rules.md 3, A8)."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

_MOST_CALLERS: Final = 10_000


class RateShare:
    """A bucket of tokens for each caller.

    Args:
        per_second: how many calls a second each caller may make on the average.
        burst: how many at once.
    """

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, caller: str) -> float:
        """Count a call; return 0, or how many seconds it comes too early."""
        now = time.monotonic()
        left, at = self._buckets.get(caller, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        waits = 0.0 if left >= 1 else (1 - left) / self._per_second
        self._buckets[caller] = (left if waits else left - 1, now)
        self._buckets.move_to_end(caller)
        if len(self._buckets) > _MOST_CALLERS:
            self._buckets.popitem(last=False)
        return waits


@dataclass(eq=False, slots=True)
class _Waiter:
    caller: str
    size: int
    turn: asyncio.Future[None]


class FairShare:
    """What callers have at once, such as bytes of bodies: so many in all, and so many of each.

    Who wants more waits; a caller who holds his share waits for himself, and nobody waits behind him.

    Args:
        total: in all.
        each: of one caller; at least as many as are ever asked for at once.
    """

    def __init__(self, total: int, each: int) -> None:
        self._free = total
        self._each = each
        self._held: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []

    @asynccontextmanager
    async def taken(self, caller: str, size: int) -> AsyncIterator[None]:
        """Hold so many while the context is entered; waits until they are free."""
        waiter = _Waiter(caller, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._admit()
        try:
            await waiter.turn
            yield
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:
                self._hold(caller, -size)
            self._admit()

    def _admit(self) -> None:
        for waiter in list(self._waiting):
            if self._held[waiter.caller] + waiter.size > self._each or waiter.turn.cancelled():
                continue
            if waiter.size > self._free:
                return  # one that came later must not keep it from its turn
            self._waiting.remove(waiter)
            self._hold(waiter.caller, waiter.size)
            waiter.turn.set_result(None)

    def _hold(self, caller: str, size: int) -> None:
        self._free -= size
        self._held[caller] += size
        if not self._held[caller]:
            del self._held[caller]
