"""What a queue has already of the tasks that are pushed: worth saying, and nothing that the push waits for in vain."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from jobq.backend import Backend
from jobq.cli.whole_ids import is_of_push
from jobq.errors import JobqError
from jobq.journal.records import TaskRecord
from jobq.journal.store import KeepsJournal
from jobq.task import Task

_PEEKED: Final = 10


async def known_ids(backend: Backend, tasks: Sequence[Task]) -> dict[str, TaskRecord]:
    """Return those that somebody chose and the queue's journal has: to push these changes nothing (S8).

    Args:
        backend: the queue's.
        tasks: not pushed yet; 500 at most.
    """
    return await _found(backend, [task.id for task in tasks if not is_of_push(task.id)])


async def still_known(backend: Backend, before: Mapping[str, TaskRecord]) -> int:
    """Return for how many of these a push has changed nothing indeed: an id whose time was over is a new task's now."""
    ended = {id_: record.at for id_, record in before.items() if record.state.is_final}
    now = await _found(backend, list(ended))
    return len(before) - sum(record.at != ended[id_] for id_, record in now.items())


async def _found(backend: Backend, named: Sequence[str]) -> dict[str, TaskRecord]:
    able = backend.capabilities
    if able.journal_lags:  # it knows ids that the queue beside it has long forgotten, and runs again
        return {}
    if not named or not able.deduplicates or not isinstance(backend, KeepsJournal):
        return {}
    with suppress(JobqError):  # the push that follows says what is wrong, or that the queue is missing
        if (journal := backend.journal) is not None:
            return {record.id: record for record in await journal.find(named)}
    return {}


async def waits_already(backend: Backend, tasks: Sequence[Task]) -> bool:
    """Return whether one of the tasks that are next to run is the same work as one of these, under another id."""
    if backend.capabilities.peeks_leased:  # Service Bus: a look needs another protocol, which may be closed to us
        return False
    new = {task.fingerprint() for task in tasks if is_of_push(task.id)}
    with suppress(JobqError):  # as above; and a mere sender may not look
        return any(Task.decode(found.body).fingerprint() in new for found in await backend.peek(_PEEKED))
    return False
