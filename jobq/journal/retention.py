"""How much a journal may hold: the newest is kept, the output of the oldest goes first (JOBQ_JOURNAL_MAX).

What has ended is walked from the newest, in bounded steps. Once what was seen is more than the cap, all that is older
loses its output; once the records of these are more than a quarter of the cap, what is older still goes whole.
"""

from collections.abc import Sequence
from typing import Final

BYTES_AT_ONCE: Final = 4 * 1024 * 1024  # of outputs: reading them for their length takes time
PASS_SECONDS: Final = 60.0  # from the end of a walk to the next
_ROW_BYTES: Final = 100  # of a row beside its texts
_QUARTER: Final = 4


class JournalCap:
    """One process's walks over one queue's attempts.

    Args:
        most_bytes: what the journal of the queue may hold.

    Attributes:
        after: where the walk stands, as the store has it; None = before the newest.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._next = 0.0
        self.after: object = None
        self._kept = 0
        self._records = 0

    def is_due(self, now: float) -> bool:
        """Return whether there is a step to do; `now` is seconds of any clock that only rises."""
        return self.after is not None or now >= self._next

    def step(self, sizes: Sequence[tuple[int, int]], now: float, *, last: object) -> tuple[list[int], list[int]]:
        """Take in what comes next, the newest first; return which lose their output, and which go.

        Args:
            sizes: bytes of the record and of the output of each.
            now: as for `is_due`.
            last: where the walk stands after these; None = this was the end.
        """
        strip: list[int] = []
        drop: list[int] = []
        for number, (record, output) in enumerate(sizes):
            if self._kept <= self._most:
                self._kept += record + output + _ROW_BYTES
            if self._kept <= self._most:
                continue
            self._records += record + _ROW_BYTES
            if self._records > self._most // _QUARTER:
                drop.append(number)
            elif output:
                strip.append(number)
        self.after = last
        if last is None:
            self._kept = self._records = 0
            self._next = now + PASS_SECONDS
        return strip, drop
