"""What has ended, the newest first: the table's keys go forward in time, so it is looked at an hour at a time."""

import math
import re
from typing import Final

from jobq.journal.task_search import FoundTask, Key, Walked, no_place
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.client import Row
from jobq_azure.table_journal.looks import Looks, LooksUsedUp

_HOUR_SECONDS: Final = 3600.0
_WISHED: Final = 700  # rows of one look, which shows a thousand
_WIDER: Final = 8.0  # at most, from one look to the next
_FINAL: Final = "(" + " or ".join(f"Then eq '{then}'" for then in rows.FINAL) + ")"
_PLACE: Final = re.compile(r'i!\d{15}(![A-Za-z0-9._=~!-]{1,480})?|i"')
_FIRST, _END = rows.below("i")


class EndedWalk:
    """The looks of one view at what has ended.

    Args:
        looks: at the table.
        now: wall time.
    """

    def __init__(self, looks: Looks, now: float) -> None:
        self._looks = looks
        self._now = now
        self._seconds = 0.0  # that one look goes back; 0 = perhaps one shows all
        self._known: dict[tuple[str, str], Walked] = {}  # what lists of several states ask for again

    async def before(self, key: Key, newest: float, oldest: float) -> Walked:
        """Return the next ends of tasks, the newest first.

        Args:
            key: of the place to go on from; () = the newest.
            newest: wall time before which they ended; infinite = any.
            oldest: likewise, since when.

        Raises:
            ConfigurationError: that is no place.
            LooksUsedUp: it came no further than that.
        """
        if key and not (len(key) == 1 and _PLACE.fullmatch(key[0])):
            raise no_place()
        end = key[0] if key else _END if math.isinf(newest) else f"{rows.ended_from(newest)}!~"
        first = _FIRST if math.isinf(oldest) else rows.ended_from(oldest)
        if end <= first:
            return Walked()
        if (first, end) not in self._known:
            self._known[first, end] = await self._before(first, end)
        return self._known[first, end]

    async def _before(self, first: str, end: str) -> Walked:
        begun = end
        try:
            if not self._seconds:
                found, more = await self._looks.look(first, end, where=_FINAL)
                if more is None:
                    return _walked(found, None)
                self._seconds = _HOUR_SECONDS
            while True:
                start = max(first, rows.ended_from(min(_time_of(end), self._now) - self._seconds))
                found, more = await self._looks.look(start, end, where=_FINAL)
                if more is not None:
                    self._seconds = min(self._seconds / 2, _seconds_of(found))
                    continue
                self._seconds *= min(_WIDER, _WISHED / max(1, len(found)))
                if found or start <= first:
                    return _walked(found, None if start <= first else start)
                end = start
        except LooksUsedUp:
            if end == begun:
                raise
            return Walked(key=(end,), at=_time_of(end))


def _seconds_of(found: list[Row]) -> float:
    """Return in how many seconds as many ended as one look should show, as of the last ones of these."""
    middle, last = found[len(found) // 2], found[-1]
    return max(0.001, _WISHED * (_time_of(last["RowKey"]) - _time_of(middle["RowKey"])) / (len(found) / 2))


def _walked(found: list[Row], start: str | None) -> Walked:
    tasks = [FoundTask((row["RowKey"],), rows.listed_record(row), 0) for row in reversed(found)]
    if start is None:
        return Walked(tasks=tasks, looked_at=len(found))
    return Walked(tasks=tasks, looked_at=len(found), key=(start,), at=_time_of(start))


def _time_of(key: str) -> float:
    return math.inf if key == _END else int(key.split("!")[1]) / 1000
