"""How often an idle worker asks a service that has no long poll: seldom, and at once again when work appears."""

import random
from typing import Final

_FIRST_SECONDS: Final = 0.25
_GROWTH: Final = 1.5
_SPREAD: Final = 0.25  # of a pause, either way: workers that started together shall not ask together


class PollInterval:
    """When the next look is due.

    Args:
        longest_seconds: between two looks.
    """

    def __init__(self, longest_seconds: float) -> None:
        self._longest = max(longest_seconds, _FIRST_SECONDS)  # a setting of nought would bill without end
        self._pause = 0.0
        self._singly_until = 0.0
        self._singly_finds = 0
        self.due = 0.0  # by the monotonic clock; 0 = at once

    def found(self) -> None:
        """Look again at once: where one task was there may be more."""
        self._pause = self.due = 0.0
        self._singly_finds = max(0, self._singly_finds - 1)

    def failed(self, asked: int) -> None:
        """Ask for one at a time for as many finds as a receive that the service failed may have hidden.

        Most such failures pass and have hidden nothing, so the price must be small. What they have hidden comes again
        when its lease has run out: looks that find nothing until then do not count.

        Args:
            asked: how many messages that receive was for.
        """
        self._singly_finds = max(self._singly_finds, asked) if asked > 1 else max(0, self._singly_finds - 1)

    def stumbled(self, now: float, lease_seconds: float) -> None:
        """Ask for one at a time, until what was hidden with a message that cannot be delivered has come again."""
        self._singly_until = now + 2 * lease_seconds

    def most(self, count: int, now: float) -> int:
        """Return how many to ask for: one message that cannot be delivered must not hide 31 others with it (L3)."""
        return 1 if self._singly_finds or now < self._singly_until else count

    def empty(self, now: float) -> None:
        """Wait longer than before."""
        self._pause = min(self._longest, max(_FIRST_SECONDS, self._pause * _GROWTH))
        self.due = now + self._pause * random.uniform(1 - _SPREAD, 1)  # noqa: S311 - spreads workers, keeps no secret
