"""How a queue was in the last hour to the last month: its notes of minutes and hours, as the points of charts."""

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from jobq.dashboard.site import Site
from jobq.journal.minutes import HOUR, MINUTE, EndedAttempts, QueueDepth, SeriesPoint, in_steps, start_of
from jobq.journal.notes import MOST_NOTES, NoteKind, QueueNote, time_key, time_of
from jobq.journal.observing import MINUTES_KEPT
from jobq.journal.views import Views

_LATE: Final = 2 * MINUTE  # the minutes from there on are not counted yet (`jobq.journal.observing`)
_FRESH_SECONDS: Final = 15.0


class Span(NamedTuple):
    """A time that charts show.

    Attributes:
        seconds: of it.
        step: seconds of one point.
    """

    seconds: int
    step: int


SPANS: Final = {
    "1h": Span(HOUR, MINUTE),
    "6h": Span(6 * HOUR, 6 * MINUTE),
    "24h": Span(24 * HOUR, 24 * MINUTE),
    "7d": Span(7 * 24 * HOUR, 3 * HOUR),
    "30d": Span(30 * 24 * HOUR, 12 * HOUR),
}
DEFAULT_SPAN: Final = "1h"


async def points_shown(site: Site, queue: str, span: str) -> Sequence[SeriesPoint]:
    """Return the points of one of SPANS, looked up a while ago: they change each minute."""
    key = ("series", queue, span)
    return await site.snapshots.get(key, lambda: points_of(site.views, queue, SPANS[span], time.time()), _FRESH_SECONDS)


async def points_of(views: Views, queue: str, span: Span, now: float) -> Sequence[SeriesPoint]:
    """Return the points of a queue, the earliest first; the last one may be of a step that has only begun.

    Args:
        views: of its place.
        queue: its name.
        span: of the time until now.
        now: wall time, seconds since the epoch.
    """
    until = start_of(now) - _LATE
    since = start_of(until - 1, span.step) + span.step - span.seconds
    kinds: list[tuple[NoteKind, NoteKind]] = [(NoteKind.ENDED, NoteKind.DEPTH)]
    if span.seconds >= MINUTES_KEPT - HOUR:
        kinds.append((NoteKind.ENDED_OF_HOUR, NoteKind.DEPTH_OF_HOUR))
    ended: dict[int, EndedAttempts] = {}
    depth: dict[int, QueueDepth] = {}
    for of_ends, of_depths in kinds:
        for note in await _notes(views, queue, of_ends, since, until):
            if (told := EndedAttempts.decode(note.value)) is not None:
                ended[int(note.key)] = told
        for note in await _notes(views, queue, of_depths, since, until):
            if (seen := QueueDepth.decode(note.value)) is not None:
                depth[int(note.key)] = seen
    return in_steps(ended, depth, since, until, span.step)


async def _notes(views: Views, queue: str, kind: NoteKind, since: int, until: int) -> Sequence[QueueNote]:
    found: list[QueueNote] = []
    after = time_key(since - 1)
    while True:
        page = await views.notes(queue, kind, after, MOST_NOTES)
        found += [note for note in page if note.key < time_key(until) and time_of(note.key) is not None]
        if len(page) < MOST_NOTES:
            return found
        after = page[-1].key
