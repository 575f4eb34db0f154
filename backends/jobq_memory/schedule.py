"""Which entry comes next, by priority and by time.

Four heaps with lazy deletion: an item counts only while its stamp is still its entry's.
"""

import heapq
import itertools
from typing import Final

from jobq_memory.entry import Entry, State

_Item = tuple[float, int, Entry]  # when, stamp, what; stamps are unique, so entries are never compared
_Ranked = tuple[tuple[int, float, int], int, Entry]
_COMPACT_FROM: Final = 64


class Schedule:
    """The waiting and the leased entries of one queue, in order of time."""

    def __init__(self) -> None:
        self._stamps = itertools.count(1)
        self._ready: list[_Ranked] = []
        self._delayed: list[_Item] = []  # by boottime
        self._not_before: list[_Item] = []  # by wall time
        self._leases: list[_Item] = []  # by boottime
        self._compact_at = _COMPACT_FROM

    def place(self, entry: Entry, now: float, wall: float) -> None:
        """Make an entry wait: ready when its time has come, scheduled otherwise."""
        entry.stamp = next(self._stamps)
        entry.receipt = ""
        if entry.not_before is not None and entry.not_before > wall:
            entry.state = State.SCHEDULED
            heapq.heappush(self._not_before, (entry.not_before, entry.stamp, entry))
        elif entry.scheduled > now:
            entry.state = State.SCHEDULED
            heapq.heappush(self._delayed, (entry.scheduled, entry.stamp, entry))
        else:
            entry.state = State.READY
            heapq.heappush(self._ready, (entry.rank, entry.stamp, entry))

    def lease(self, entry: Entry) -> None:
        """Track a lease that was granted or renewed, until `entry.expires`."""
        entry.stamp = next(self._stamps)
        entry.state = State.LEASED
        heapq.heappush(self._leases, (entry.expires, entry.stamp, entry))
        if len(self._leases) > self._compact_at:  # renewals leave stale items, far ahead in time
            self.compact()

    def remove(self, entry: Entry, state: State) -> None:
        """Take an entry out of the schedule for good."""
        entry.stamp = next(self._stamps)
        entry.receipt = ""
        entry.state = state

    def ripen(self, now: float, wall: float) -> list[Entry]:
        """Let time take effect; return the entries whose lease has expired, which wait again."""
        expired = _popped(self._leases, now)
        for entry in expired + _popped(self._delayed, now) + _popped(self._not_before, wall):
            self.place(entry, now, wall)
        return expired

    def pop(self) -> Entry | None:
        """Return the next ready entry, taken out."""
        while self._ready:
            _, stamp, entry = heapq.heappop(self._ready)
            if entry.stamp == stamp:
                return entry
        return None

    def ready(self, limit: int) -> list[Entry]:
        """Return the ready entries, next first, left in place."""
        living = (item for item in self._ready if item[2].stamp == item[1])
        return [item[2] for item in heapq.nsmallest(limit, living)]

    def next_due(self, now: float, wall: float) -> float:
        """Return the boottime at which `ripen` can next find something; infinity for never."""
        delayed, leased = _first(self._delayed), _first(self._leases)
        return min(delayed, leased, now + max(0.0, _first(self._not_before) - wall))

    def compact(self) -> None:
        """Drop the stale items."""
        self._ready = [item for item in self._ready if item[2].stamp == item[1]]
        self._delayed, self._not_before, self._leases = (
            [item for item in heap if item[2].stamp == item[1]]
            for heap in (self._delayed, self._not_before, self._leases)
        )
        for heap in (self._delayed, self._not_before, self._leases):
            heapq.heapify(heap)
        heapq.heapify(self._ready)
        self._compact_at = max(_COMPACT_FROM, 2 * len(self._leases))


def _first(heap: list[_Item]) -> float:
    while heap and heap[0][2].stamp != heap[0][1]:
        heapq.heappop(heap)
    return heap[0][0] if heap else float("inf")


def _popped(heap: list[_Item], until: float) -> list[Entry]:
    found: list[Entry] = []
    while _first(heap) <= until:
        found.append(heapq.heappop(heap)[2])
    return found
