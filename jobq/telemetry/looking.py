"""What a queue is asked for its metrics: the counts of any service, the oldest age where there is a journal."""

from typing import NamedTuple

from jobq.backend import Backend, QueueStats
from jobq.journal.store import KeepsJournal


class Look(NamedTuple):
    """What a queue told.

    Attributes:
        stats: how many tasks are where; None where the service cannot say.
        oldest_seconds: for how long the oldest ready task has waited; 0 = none waits, None = nobody can say.
    """

    stats: QueueStats
    oldest_seconds: float | None = None


async def look(backend: Backend) -> Look:
    """Ask a queue; raises what `Backend.stats` raises."""
    journal = backend.journal if isinstance(backend, KeepsJournal) else None
    if journal is None:
        return Look(await backend.stats())
    oldest = (await journal.stats(0.0)).oldest_ready_seconds
    return Look(await backend.stats(), oldest or 0.0)
