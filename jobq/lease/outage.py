"""What is said of a service that does not answer: once for all who ask it, seldom while that lasts, and its end."""

import logging
from datetime import timedelta
from typing import Final

from jobq.clock import Clock
from jobq.formats import durations

_log: Final = logging.getLogger(__name__)
_FIRST_SECONDS: Final = 30.0  # until it is said again that it lasts; then twice as long each time
_LONGEST_SECONDS: Final = 600.0


class Outage:
    """Keeps count of who is not answered, so that two tasks and a receive make one line of one outage.

    Args:
        clock: times it.
        whom: who does not answer, for messages.
    """

    def __init__(self, clock: Clock, whom: str) -> None:
        self._clock = clock
        self._whom = whom
        self._failing: set[object] = set()
        self._since = self._again = 0.0  # boottime in seconds
        self._pause = _FIRST_SECONDS

    def failed(self, who: object) -> int:
        """Note that somebody was not answered; return the level at which that is worth a line.

        Args:
            who: asked; says `answered` or `left` later.
        """
        now = self._clock.boottime()
        is_news = not self._failing
        self._failing.add(who)
        if is_news:
            self._since, self._pause = now, _FIRST_SECONDS
        elif now >= self._again:
            self._pause = min(2 * self._pause, _LONGEST_SECONDS)
        else:
            return logging.DEBUG
        self._again = now + self._pause
        return logging.WARNING

    def answered(self, who: object) -> None:
        """Note that somebody was answered: that is the end of it for all who were not."""
        if who in self._failing:
            self._failing.clear()
            lasted = timedelta(seconds=round(self._clock.boottime() - self._since, 1))
            _log.warning("%s answers again, after %s", self._whom, durations.show(lasted))

    def left(self, who: object) -> None:
        """Note that somebody asks no more."""
        self._failing.discard(who)
