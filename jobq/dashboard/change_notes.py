"""Who changed what, twice: as a line of the service's log, and as a note of the queue for the page Audit.

The note is written before anything is done, so that nothing is done without it, and once more with what came of it.
"""

import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.requests import Request

from jobq.backend import Backend
from jobq.dashboard.session import Viewer
from jobq.errors import JobqError
from jobq.journal.change_noting import ChangeSaid, noting
from jobq.journal.changes import QueueChange, new_change_key
from jobq.journal.notes import NoteKind
from jobq.journal.observations import observations_of
from jobq.server.tokens import TokenRecord, audit

_log = logging.getLogger("jobq.server")


def name_of(token: TokenRecord) -> str:
    """Return who changed something: the id of a token, and its name."""
    return f"{token.id} {token.name}".strip()


def is_of(change: QueueChange, viewer: Viewer) -> bool:
    """Return whether a change was made by the token of who looks."""
    return change.by.partition(" ")[0] == viewer.token.id


@asynccontextmanager
async def noted_change(
    root: Backend, viewer: Viewer, request: Request, did: str, queue: str, *, ids: Sequence[str] = (), query: str = ""
) -> AsyncIterator[ChangeSaid]:
    """Note that something is done to a queue, and what came of it.

    Args:
        root: the place's.
        viewer: who does it.
        request: by which.
        did: what, in a word or two.
        queue: to which.
        ids: to which tasks; of these the first are noted.
        query: the filter that took them, if they were not chosen one by one.

    Raises:
        JobqError: it cannot be noted; nothing is to be done then.
    """
    address = request.client.host if request.client else ""
    change = QueueChange(
        at=time.time(),
        by=name_of(viewer.token),
        address=address,
        did=did,
        count=len(ids) or None,
        ids=tuple(ids),
        filter=query,
    )
    key = new_change_key(change.at)
    async with noting(
        change,
        lambda begun: note(root, queue, begun, key),
        lambda ended: _note_end(root, queue, ended, key),
    ) as told:
        yield told


async def note(root: Backend, queue: str, change: QueueChange, key: str = "") -> None:
    """Write a change to the log, and to the queue's notes where any are kept.

    Args:
        root: the place's.
        queue: that was changed.
        change: what was done.
        key: of the note; "" = a new one.

    Raises:
        JobqError: the note cannot be written.
    """
    audit(
        f"ui {change.did}",
        caller=change.by.partition(" ")[0],
        address=change.address or "-",
        queue=queue,
        count=change.count,
        ids=list(change.ids),
        query=change.filter,
        state=change.state,
        said=change.said,
    )
    if (notes := observations_of(root, queue)) is not None:
        await notes.put(NoteKind.CHANGE, key or new_change_key(change.at), change.encode(), replaces=True)


async def _note_end(root: Backend, queue: str, change: QueueChange, key: str) -> None:
    try:
        await note(root, queue, change, key)
    except JobqError as error:  # it was done: that it began is noted, and how it ended stands in the log
        _log.warning("the end of %s on queue %r could not be noted: %s", change.did, queue, error)
