"""Notes of one queue or of all that a viewer may see: workers, and who changed what."""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from jobq.dashboard.session import Viewer
from jobq.dashboard.site import Site, needs
from jobq.errors import QueueNotFound
from jobq.journal.notes import MOST_NOTES, NoteKind, QueueNote
from jobq.server.tokens import ALL_QUEUES, Scope

MOST_QUEUES: Final = 50  # that one page asks


class NoteOfQueue(NamedTuple):
    """A note, and whose."""

    queue: str
    note: QueueNote


async def notes_of(
    site: Site, viewer: Viewer, kind: NoteKind, queue: str = "", after: str = "", limit: int = MOST_NOTES
) -> Sequence[NoteOfQueue]:
    """Return the first notes of a kind, of each queue in its order of keys.

    Args:
        site: whose place it is.
        viewer: who looks; of queues whose tasks he may not see he is told nothing.
        kind: of the notes.
        queue: the only one to ask; "" = those of the place, up to MOST_QUEUES.
        after: the key that they are behind.
        limit: 1 to MOST_NOTES of each queue.

    Raises:
        RequestRefused: he may not see the tasks of that queue.
    """
    if queue:
        needs(viewer, Scope.VIEW, queue)
        names = [queue]
    elif ALL_QUEUES in viewer.token.queues:
        found = await site.snapshots.get(("queues", ""), lambda: site.views.queues("", MOST_QUEUES))
        names = [line.name for line in found.rows]
    else:
        names = sorted(viewer.token.queues)[:MOST_QUEUES]
    names = [name for name in names if viewer.may(Scope.VIEW, name)]

    async def asked(name: str) -> Sequence[QueueNote]:
        return await site.snapshots.get(
            ("notes", kind, name, after, limit), lambda: site.views.notes(name, kind, after, limit)
        )

    pages = await asyncio.gather(*(asked(name) for name in names), return_exceptions=not queue)
    notes: list[NoteOfQueue] = []
    for name, page in zip(names, pages, strict=True):
        if isinstance(page, QueueNotFound):  # it was deleted meanwhile, or not made yet
            continue
        if isinstance(page, BaseException):
            raise page
        notes += [NoteOfQueue(name, note) for note in page]
    return notes
