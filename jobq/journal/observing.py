"""Noting, every now and then, how a queue is: by its workers while they work, and by a service with a dashboard.

Whoever comes first in a minute has its turn: he notes the depth, counts what ended, and tidies up; who comes later
finds the mark, and has nothing to do. Nothing here is needed for a task: what fails is tried again half a minute later,
and a minute that nobody could note is a gap.
"""

from collections.abc import Callable, Sequence
from typing import Final

from jobq.clock import Clock
from jobq.journal.changes import change_key
from jobq.journal.minutes import HOUR, MINUTE, EndedAttempts, QueueDepth, start_of
from jobq.journal.notes import DEPTH_MARK, MOST_NOTES, NoteKind, QueueNote, time_key, time_of
from jobq.journal.observations import Observations
from jobq.journal.presence import FORGOTTEN_SECONDS, REPORT_SECONDS, WorkerPresence

MINUTES_KEPT: Final = 48 * HOUR  # then they are folded to hours
HOURS_KEPT: Final = 90 * 24 * HOUR
CHANGES_KEPT: Final = 400 * 24 * HOUR
_LATE: Final = (
    2  # minutes from the beginning of one to when it is counted: by then its lost leases are known, as a rule
)
_AGAIN: Final = 3  # minutes that are looked at with each turn: who had the last one may have been killed
_BACK: Final = 24 * 60  # minutes that a service looks back when it begins
_SHARE: Final = 0.01  # of the time that it takes for counting
_TIDY_SECONDS: Final = 600.0
_TIDIED: Final = 500  # notes of a kind in one step


class Observer:
    """Notes how one queue is.

    Args:
        observations: of the queue.
        clock: of this process; notes are dated by the store's.
        looks_back: whether the first steps count the minutes of the last day that nobody has.
    """

    def __init__(self, observations: Observations, *, clock: Clock, looks_back: bool = False) -> None:
        self._observations = observations
        self._clock = clock
        self._to_look_at = _BACK if looks_back else _AGAIN
        self._minute = 0
        self._tidy_at = 0.0
        self._worker_after = ""
        self._ahead: float | None = None  # seconds, of the store's clock, as of the last note

    async def step(self, presence: WorkerPresence | None = None) -> None:
        """Note what is to be noted now; to be called each REPORT_SECONDS.

        Args:
            presence: of the worker that calls it.
        """
        now = await (self._store_time() if presence is None else self.report(presence))
        if (minute := start_of(now)) == self._minute:
            if self._to_look_at > _AGAIN:
                await self._count_ends(minute)
            return
        mark = await self._observations.put(NoteKind.DEPTH, time_key(minute), DEPTH_MARK, replaces=False)
        self._ahead = mark.at - self._clock.wall()
        if mark.is_kept:
            depth = QueueDepth.of(await self._observations.line())
            await self._observations.put(NoteKind.DEPTH, time_key(minute), depth.encode(), replaces=True)
        if mark.is_kept or self._to_look_at > _AGAIN:
            await self._count_ends(minute)
        self._minute = minute
        if mark.is_kept and now >= self._tidy_at:
            self._tidy_at = now + _TIDY_SECONDS
            await self._tidy(now)

    async def _store_time(self) -> float:
        """Return the store's time, in seconds since the epoch: what is forgotten is dated by it, too."""
        if self._ahead is None:
            written = await self._observations.put(NoteKind.DEPTH, time_key(0), DEPTH_MARK, replaces=True)
            await self._observations.drop(NoteKind.DEPTH, [time_key(0)])
            self._ahead = written.at - self._clock.wall()
        return self._clock.wall() + self._ahead

    async def report(self, presence: WorkerPresence) -> float:
        """Note how a worker is; return the store's time, in seconds since the epoch."""
        return (await self._observations.put(NoteKind.WORKER, presence.holder, presence.encode(), replaces=True)).at

    async def _count_ends(self, minute: int) -> None:
        """Count minutes that nobody has, the latest first; what there is no time for, with the next step."""
        last = minute - _LATE * MINUTE
        first = last - (self._to_look_at - 1) * MINUTE
        found = await self._observations.page(NoteKind.ENDED, time_key(first - 1), MOST_NOTES)
        known = {note.key for note in found}
        ends = self._clock.boottime() + _SHARE * REPORT_SECONDS
        for at in range(last, first - 1, -MINUTE):
            if time_key(at) in known:
                continue
            if self._clock.boottime() >= ends:
                return
            ended = await self._observations.ended(at, at + MINUTE)
            await self._observations.put(NoteKind.ENDED, time_key(at), ended.encode(), replaces=False)
        self._to_look_at = _AGAIN

    async def _tidy(self, now: float) -> None:
        """Take one bounded step of each kind; who is killed between two leaves the rest to the next."""
        before = start_of(now - MINUTES_KEPT, HOUR)
        await self._fold(NoteKind.DEPTH, NoteKind.DEPTH_OF_HOUR, before, _depth_of)
        await self._fold(NoteKind.ENDED, NoteKind.ENDED_OF_HOUR, before, _ended_of)
        for kind in (NoteKind.DEPTH_OF_HOUR, NoteKind.ENDED_OF_HOUR):
            hours = await self._observations.page(kind, "", _TIDIED)
            await self._drop(kind, [note.key for note in hours if note.key < time_key(int(now - HOURS_KEPT))])
        workers = await self._observations.page(NoteKind.WORKER, self._worker_after, _TIDIED)
        self._worker_after = workers[-1].key if len(workers) == _TIDIED else ""
        await self._drop(NoteKind.WORKER, [note.key for note in workers if note.age > FORGOTTEN_SECONDS])
        changes = await self._observations.page(NoteKind.CHANGE, change_key(now - CHANGES_KEPT), _TIDIED)
        await self._drop(NoteKind.CHANGE, [note.key for note in changes])

    async def _fold(
        self, minutes: NoteKind, hours: NoteKind, before: int, folded: Callable[[Sequence[str]], str | None]
    ) -> None:
        """Make notes of hours of those of minutes; a repeat after a kill finds the hour noted, and deletes the rest.

        Args:
            minutes: the kind to fold.
            hours: what it becomes.
            before: whole hours up to there, seconds since the epoch.
            folded: makes one value of many; None = they say nothing.
        """
        oldest = await self._observations.page(minutes, "", 1)
        if not oldest or oldest[0].key >= time_key(before):
            return
        found = await self._observations.page(minutes, "", _TIDIED)
        by_hour: dict[int, list[QueueNote]] = {}
        unknown = list[str]()  # of no time: they are in nobody's way, and go
        for note in found:
            if note.key < time_key(before):
                if (at := time_of(note.key)) is None:
                    unknown.append(note.key)
                else:
                    by_hour.setdefault(start_of(at, HOUR), []).append(note)
        if len(found) == _TIDIED and found[-1].key < time_key(before):
            by_hour.pop(max(by_hour, default=0), None)  # it may not be whole
        for hour, notes in by_hour.items():
            if (value := folded([note.value for note in notes])) is not None:
                await self._observations.put(hours, time_key(hour), value, replaces=False)
            await self._drop(minutes, [note.key for note in notes])
        await self._drop(minutes, unknown)

    async def _drop(self, kind: NoteKind, keys: Sequence[str]) -> None:
        if keys:
            await self._observations.drop(kind, keys)


def _depth_of(values: Sequence[str]) -> str | None:
    known = [depth for value in values if (depth := QueueDepth.decode(value)) is not None]
    return QueueDepth.mean(known).encode() if known else None


def _ended_of(values: Sequence[str]) -> str | None:
    known = [ended for value in values if (ended := EndedAttempts.decode(value)) is not None]
    return EndedAttempts.sum(known).encode() if known else None
