"""What a queue is asked for its metrics: the counts of any service; the oldest age and what ended, with a journal."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from jobq.backend import Backend, QueueStats
from jobq.errors import JobqError
from jobq.journal.store import KeepsJournal

_log = logging.getLogger(__name__)
RECENT_SECONDS: Final = 900.0
_JOURNAL_SECONDS: Final = 3.0  # a scrape waits for 5 s in all


class QueueSnapshot(NamedTuple):
    """The counts of a queue.

    Attributes:
        stats: how many tasks are where; None where the service cannot say.
        oldest_seconds: for how long the oldest ready task has waited; 0 = none waits, None = nobody can say.
        ended: how many attempts ended within RECENT_SECONDS, by outcome; None as above. Unlike what workers count, it
            shows those that live shorter than two scrapes.
    """

    stats: QueueStats
    oldest_seconds: float | None = None
    ended: Mapping[str, int] | None = None


async def look(backend: Backend) -> QueueSnapshot:
    """Ask a queue; raises what `Backend.stats` raises.

    A journal that does not answer costs what it knows alone: it may lie elsewhere than the queue, as in an Azure Table.
    """
    stats = await backend.stats()
    journal = backend.journal if isinstance(backend, KeepsJournal) else None
    if journal is None:
        return QueueSnapshot(stats)
    try:
        async with asyncio.timeout(_JOURNAL_SECONDS):
            kept = await journal.stats(RECENT_SECONDS)
            return QueueSnapshot(stats, kept.oldest_ready_seconds or 0.0, kept.ended)
    except (JobqError, TimeoutError) as error:
        _log.debug("what the journal knows is not known: %s", error)
        return QueueSnapshot(stats)
