"""What is seen of a queue of the router from time to time, see `jobq.journal.observations`."""

from collections import Counter
from collections.abc import Sequence

from jobq.journal.minutes import MOST_SAMPLED, EndedAttempts
from jobq.journal.notes import NoteKind, QueueNote, Written, checked_notes
from jobq.journal.observations import checked_note
from jobq.journal.views import QueueLine
from jobq_memory.notes import notes_page
from jobq_memory.router import Router
from jobq_memory.views import MemoryViews


class MemoryObservations:
    """The notes of one queue.

    Args:
        router: holds the tasks.
        queue: the queue's name.
    """

    def __init__(self, router: Router, queue: str) -> None:
        self._router = router
        self._queue = queue

    async def line(self) -> QueueLine:
        """Look at the queue."""
        return await MemoryViews(self._router).queue(self._queue)

    async def ended(self, since: float, until: float) -> EndedAttempts:
        """Count: at all tasks that the router holds, as all else of it is."""
        with self._router.opened(self._queue) as store:
            found = [
                attempt
                for entry in store.entries.values()
                for attempt, _ in entry.attempts
                if since <= attempt.ended < until
            ]
        sample = found[:MOST_SAMPLED]
        ran = (max(0.0, each.ended - each.started) for each in sample if each.started is not None)
        waited = (each.waited for each in sample if each.waited is not None)
        return EndedAttempts.of(Counter(str(each.outcome) for each in found), ran, waited)

    async def put(
        self,
        kind: NoteKind,
        key: str,
        value: str,
        *,
        replaces: bool,
        seconds: float | None = None,  # noqa: ARG002 - it waits for nobody
    ) -> Written:
        """Keep a note."""
        checked_note(kind, key, value)
        now = self._router.clock.wall()
        with self._router.opened(self._queue) as store:
            is_kept = replaces or (kind, key) not in store.notes
            if is_kept:
                store.notes[kind, key] = value, now
        return Written(now, is_kept)

    async def page(self, kind: NoteKind, after: str, limit: int) -> Sequence[QueueNote]:
        """List notes."""
        return notes_page(self._router, self._queue, kind, after, limit)

    async def drop(self, kind: NoteKind, keys: Sequence[str]) -> None:
        """Delete notes."""
        checked_notes(len(keys))
        with self._router.opened(self._queue) as store:
            for key in keys:
                store.notes.pop((kind, key), None)
