"""How far the batch is that a worker works at, where all that it runs is of one; for its live view."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from jobq.backend import Backend
from jobq.batches import Batch, KeepsBatches
from jobq.cli.display import format_batch, terminal
from jobq.cli.display.time_left import TimeLeft
from jobq.errors import AccessDenied, ConfigurationError, JobqError
from jobq.journal.store import MOST_IDS, KeepsJournal

_ASK_SECONDS: Final = 5.0  # between two looks, at least


class RunningBatch:
    """Looks at it every now and then.

    Args:
        running: returns the ids of what runs.
    """

    def __init__(self, running: Callable[[], Sequence[str]]) -> None:
        self._running = running
        self._batch: Batch | None = None
        self._ask_at = -math.inf  # time.monotonic()
        self._time_left = TimeLeft()

    async def look(self, backend: Backend) -> None:
        """Look if it is time to; a refusal is the last one."""
        ids = self._running()[:MOST_IDS]
        if time.monotonic() < self._ask_at or not (ids or self._batch):
            return
        self._ask_at = time.monotonic() + _ASK_SECONDS
        try:
            found = await self._found(backend, ids)
        except (AccessDenied, ConfigurationError):  # such as by the token of a worker, which may not look
            self._batch, self._ask_at = None, math.inf
            return
        except JobqError:
            found = None
        if found is None or self._batch is None or found.name != self._batch.name:
            self._time_left = TimeLeft()
        self._batch = found
        if found is not None:
            self._time_left.note(time.monotonic(), found.unfinished)

    async def _found(self, backend: Backend, ids: Sequence[str]) -> Batch | None:
        if not (
            isinstance(backend, KeepsBatches) and backend.capabilities.batches and isinstance(backend, KeepsJournal)
        ):
            return None
        if not ids:  # it waits for more, or for the end
            return None if self._batch is None else await backend.batches.find(self._batch.name)
        if (journal := backend.journal) is None:
            return None
        names = {record.batch for record in await journal.find(ids[:1])}  # of most queues, none is of a batch
        if len(ids) > 1 and names != {None}:
            names |= {record.batch for record in await journal.find(ids[1:])}
        name = names.pop() if len(names) == 1 else None
        return None if name is None else await backend.batches.find(name)

    def lines(self) -> list[str]:
        """Return one line, or none."""
        if self._batch is None:
            return []
        how_far = format_batch.how_far(self._batch, self._time_left.text())
        return [f"batch {terminal.visible(self._batch.name)}: {how_far}"]
