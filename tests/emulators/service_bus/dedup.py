"""Duplicate detection: message ids that were seen lately."""

from jobq.clock import Clock


class Window:
    """Remembers message ids for a while.

    Args:
        seconds: how long, from the first time; 0 = nothing is remembered.
        clock: its wall is the service's time.
    """

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self._forgotten: dict[str, float] = {}  # message id -> when it is forgotten, in that order

    def has_seen(self, message_id: str | None) -> bool:
        """Return whether an id was seen within the window; if not, it is from now on."""
        now = self._clock.wall()
        while self._forgotten and (oldest := next(iter(self._forgotten))) and self._forgotten[oldest] <= now:
            del self._forgotten[oldest]
        if not self._seconds or message_id is None:
            return False
        if message_id in self._forgotten:
            return True
        self._forgotten[message_id] = now + self._seconds
        return False
