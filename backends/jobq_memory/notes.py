"""The notes that a queue of the router holds, listed; see `jobq.journal.observations`."""

from collections.abc import Sequence

from jobq.journal.notes import MOST_NOTES, NoteKind, QueueNote, checked_notes
from jobq_memory.router import Router


def notes_page(router: Router, queue: str, kind: NoteKind, after: str, limit: int) -> Sequence[QueueNote]:
    """Return notes of a queue behind a key, up to so many (`MOST_NOTES`)."""
    checked_notes(limit)
    now = router.clock.wall()
    with router.opened(queue) as store:
        keys = sorted(key for of, key in store.notes if of == kind and key > after)
        return [
            QueueNote(key, value, max(0.0, now - at))
            for key in keys[: min(limit, MOST_NOTES)]
            for value, at in [store.notes[kind, key]]
        ]
