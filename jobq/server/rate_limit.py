"""How often a caller may call: one bucket each, so that one of them cannot crowd out the others (rules.md 3, A8)."""

import time
from collections import OrderedDict
from typing import Final

_MOST_CALLERS: Final = 10_000


class Rate:
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
