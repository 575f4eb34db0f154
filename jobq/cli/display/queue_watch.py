"""What `top` sees of a queue, look by look: all of it, or one of its batches."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from jobq.cli.display.time_left import TimeLeft
from jobq.errors import AccessDenied, BackendUnavailable, ConfigurationError, JobqError

if TYPE_CHECKING:
    from jobq.backend import Backend, QueueStats
    from jobq.batches import Batch
    from jobq.journal.records import JournalStats, TaskRecord
    from jobq.journal.store import Journal

MOST_BATCHES: Final = 5  # that are shown beside all else
_ANSWER_SECONDS: Final = 30.0
_MOST_ROWS: Final = 200
_HOUR_SECONDS: Final = 3600.0


@dataclass(frozen=True, kw_only=True)
class TopSnapshot:
    """What one look at a queue saw.

    Attributes:
        at: monotonic time in seconds.
        stats: where its tasks are.
        journal: what ended in the last hour, and how long the oldest waits; None = it keeps no journal.
        running: what runs; None = there is no journal that knows.
        batch: that is watched, counted; None = the whole queue is. `running` are its tasks then.
        batches: those that have not finished, the first by name; one more than are shown = there are more.
        left: about how long each of these takes, by how it went between looks, to be appended; by name.
        fault: why nothing was seen; the rest is of the look before.
    """

    at: float
    stats: "QueueStats"
    journal: "JournalStats | None" = None
    running: "list[TaskRecord] | None" = None
    batch: "Batch | None" = None
    batches: "Sequence[Batch]" = ()
    left: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""


class WatchedQueue:
    """A queue that is looked at, all of it or one batch.

    Args:
        backend: of the queue.
        name: of the batch; None = all.
    """

    def __init__(self, backend: "Backend", name: str | None) -> None:
        self.backend = backend
        self._name = name
        self._time_left: dict[str, TimeLeft] = {}

    async def look(self, before: TopSnapshot | None = None) -> TopSnapshot:
        """Look once; after the first time a fault is shown rather than raised: it may pass."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await (self._queue() if self._name is None else self._batch(self._name))
        except (JobqError, TimeoutError) as error:
            fault = str(error) or f"no answer within {_ANSWER_SECONDS:.3g} s"
            if before is None:
                raise error if isinstance(error, JobqError) else BackendUnavailable(fault) from None
            return replace(before, fault=fault)

    async def _queue(self) -> TopSnapshot:
        stats, journal = await self.backend.stats(), self._journal()
        batches = await unfinished_batches(self.backend)
        now = time.monotonic()
        seen = TopSnapshot(at=now, stats=stats, batches=batches, left=self._left(now, batches))
        if journal is None:
            return seen
        kept = await journal.stats(_HOUR_SECONDS)
        return replace(seen, at=time.monotonic(), journal=kept, running=await journal.running(_MOST_ROWS))

    async def _batch(self, name: str) -> TopSnapshot:
        from jobq.batches import batches_of  # noqa: PLC0415 - --help must not pay for it

        batch, stats, journal = await batches_of(self.backend).find(name), await self.backend.stats(), self._journal()
        running = None if journal is None else await journal.running(_MOST_ROWS, name)
        now = time.monotonic()
        return TopSnapshot(at=now, stats=stats, batch=batch, running=running, left=self._left(now, [batch]))

    def _journal(self) -> "Journal | None":
        from jobq.journal.store import KeepsJournal  # noqa: PLC0415 - as above

        return self.backend.journal if isinstance(self.backend, KeepsJournal) else None

    def _left(self, now: float, batches: "Sequence[Batch]") -> dict[str, str]:
        kept = {each.name: self._time_left.get(each.name, TimeLeft()) for each in batches}
        for each in batches:
            kept[each.name].note(now, each.unfinished)
        self._time_left = kept
        return {name: each.text() for name, each in kept.items()}


async def unfinished_batches(backend: "Backend") -> "Sequence[Batch]":
    """Return the batches that have not finished, one more at most than are shown; none where nobody here may know."""
    from jobq.batches import BatchState, KeepsBatches  # noqa: PLC0415 - as above

    if not (backend.capabilities.batches and isinstance(backend, KeepsBatches)):
        return ()
    try:
        found = await backend.batches.list("", MOST_BATCHES + 1, unfinished=True)
    except (AccessDenied, ConfigurationError):  # by a service that is older, or whose store keeps none
        return ()
    return [each for each in found if each.state is not BatchState.FINISHED]
