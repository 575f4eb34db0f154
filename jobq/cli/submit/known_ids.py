"""Ids that a push names and its queue knows already: pushing these changes nothing (S8), which is worth saying."""

from collections.abc import Sequence
from contextlib import suppress

from jobq.backend import Backend
from jobq.cli.whole_ids import is_of_push
from jobq.errors import JobqError
from jobq.journal.store import KeepsJournal
from jobq.task import Task


async def known_ids(backend: Backend, tasks: Sequence[Task]) -> list[str]:
    """Return those that somebody chose and the queue's journal has; none where it keeps none, or takes repetitions.

    Args:
        backend: the queue's.
        tasks: not pushed yet; 500 at most.
    """
    named = [task.id for task in tasks if not is_of_push(task.id)]
    if not named or not backend.capabilities.deduplicates or not isinstance(backend, KeepsJournal):
        return []
    with suppress(JobqError):  # the push that follows says what is wrong, or that the queue is missing
        if (journal := backend.journal) is not None:
            return [str(record.id) for record in await journal.find(named)]
    return []
