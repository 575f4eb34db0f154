"""What a queue is asked for its metrics: the counts of any service, the oldest age where there is a journal."""

import asyncio
import logging
from typing import Final, NamedTuple

from jobq.backend import Backend, QueueStats
from jobq.errors import JobqError
from jobq.journal.store import KeepsJournal

_log = logging.getLogger(__name__)
_JOURNAL_SECONDS: Final = 3.0  # a scrape waits for 5 s in all


class Look(NamedTuple):
    """What a queue told.

    Attributes:
        stats: how many tasks are where; None where the service cannot say.
        oldest_seconds: for how long the oldest ready task has waited; 0 = none waits, None = nobody can say.
    """

    stats: QueueStats
    oldest_seconds: float | None = None


async def look(backend: Backend) -> Look:
    """Ask a queue; raises what `Backend.stats` raises.

    A journal that does not answer costs the age alone: it may lie elsewhere than the queue, as in an Azure Table.
    """
    stats = await backend.stats()
    journal = backend.journal if isinstance(backend, KeepsJournal) else None
    if journal is None:
        return Look(stats)
    try:
        async with asyncio.timeout(_JOURNAL_SECONDS):
            return Look(stats, (await journal.stats(0.0)).oldest_ready_seconds or 0.0)
    except (JobqError, TimeoutError) as error:
        _log.debug("the age of the oldest task is not known: %s", error)
        return Look(stats)
