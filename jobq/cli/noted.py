"""What a command changes, noted for the page Audit where the queue keeps notes; no command fails for want of it."""

import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from jobq.at_once import is_at_once
from jobq.errors import JobqError

if TYPE_CHECKING:
    from jobq.backend import Backend
    from jobq.journal.change_noting import ChangeSaid
    from jobq.journal.changes import QueueChange
    from jobq.journal.observations import Observations

_FROM: Final = "command line"
_SECONDS: Final = 0.5  # that a command waits for each of its two notes
_log = logging.getLogger(__name__)


@asynccontextmanager
async def noted(
    backend: "Backend", did: str, *, ids: Sequence[str] = (), meant: str = ""
) -> "AsyncIterator[ChangeSaid]":
    """Note that something is done to a queue, and what comes of it.

    Args:
        backend: of the queue.
        did: what, in a word or two.
        ids: to which tasks; of these the first are noted.
        meant: what takes them, if they are not named one by one.
    """
    from jobq.journal.change_noting import ChangeSaid, noting  # noqa: PLC0415 - --help must not pay for it; so below
    from jobq.journal.changes import QueueChange, new_change_key  # noqa: PLC0415
    from jobq.journal.observations import observations_of  # noqa: PLC0415
    from jobq.pausing import this_user  # noqa: PLC0415

    notes = observations_of(backend)
    if notes is None:
        yield ChangeSaid()
        return
    change = QueueChange(
        at=time.time(),
        by=this_user(),
        address=_FROM,
        did=did,
        count=len(ids) or None,
        ids=tuple(ids),
        filter=meant,
    )
    write = partial(_write, notes, new_change_key(change.at))
    async with noting(change, write, write) as said:
        yield said


def in_words(all_: bool, where: Sequence[str] = (), group: str | None = None) -> str:
    """Return what takes the tasks of a command, as it was given: `--all`, `--where` and `--group`; "" = their ids."""
    return ", ".join([*(["all"] if all_ else []), *where, *([] if group is None else [f"group {group}"])])


async def _write(notes: "Observations", key: str, change: "QueueChange") -> None:
    from jobq.journal.notes import NoteKind  # noqa: PLC0415

    put = notes.put(NoteKind.CHANGE, key, change.encode(), replaces=True, seconds=_SECONDS)
    try:
        if is_at_once():
            await put
            return
        import asyncio  # noqa: PLC0415 - short commands start without it

        async with asyncio.timeout(_SECONDS):
            await put
    except (JobqError, TimeoutError) as error:
        _log.debug("that %s %s is not in the audit: %s", change.did, change.state, error)
