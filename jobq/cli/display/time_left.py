"""How long it takes until nothing is left, by how fast it became less in the last minutes."""

from collections import deque
from typing import Final

from jobq.formats import durations

_WINDOW_SECONDS: Final = 300.0
_LEAST_SECONDS: Final = 2.0  # of less nothing is foretold


class TimeLeft:
    """Takes in how much is left, and foretells. Whoever else works at it, or adds to it, counts by what is seen."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()  # when, and how much was left

    def note(self, now: float, left: int) -> None:
        """Take in how much is left; `now` is time.monotonic()."""
        while len(self._seen) > 1 and self._seen[1][0] <= now - _WINDOW_SECONDS:
            self._seen.popleft()
        self._seen.append((now, left))

    def text(self) -> str:
        """Return what to add to a line, such as ", about 12m left"; empty where it does not become less."""
        if not self._seen:
            return ""
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        if not 0 < last < first or ended - began < _LEAST_SECONDS:
            return ""
        return f", about {durations.show(round((ended - began) * last / (first - last)))} left"
