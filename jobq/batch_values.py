"""What the tasks of a batch have returned, in the order of their ids, each once it has ended."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

from jobq.backend import Backend
from jobq.batches import MOST_LISTED, batches_of
from jobq.errors import TaskFailed, TaskNotFound
from jobq.journal.records import TaskRecord
from jobq.journal.store import Journal, journal_of
from jobq.task import JsonValue
from jobq.task_handle import result_of

_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 0.5
_UNENDED: Final = frozenset({"ready", "scheduled", "running", "expired"})
_LOOK_SECONDS: Final = 5.0  # between two looks at the batch, for what the journal does not say
_LATE_SECONDS: Final = 60.0  # for the word of an end, where the journal is beside the queue
_SHOWN: Final = 5


class BatchValues:
    """One walk over a batch.

    Args:
        backend: an entered backend.
        name: of the batch.
    """

    def __init__(self, backend: Backend, name: str) -> None:
        self._batches = batches_of(backend)
        self._journal = journal_of(backend)
        self._lags = backend.capabilities.journal_lags
        self._late_seconds = _LATE_SECONDS if self._lags else 0.0
        self._name = name
        self._unheard: dict[str, float] = {}  # since when the batch says that it has ended, by the monotonic clock
        self._gone: set[str] = set()  # of those: what the batch has no more
        self._looked = 0.0  # likewise: at the batch
        self._finished = 0.0  # likewise: since when it is seen that it has finished
        self._forgotten: list[str] = []

    async def each(self, on_each: Callable[[], object]) -> AsyncIterator[JsonValue]:
        """Yield the value of each; what has none known is passed over, and told at the end.

        Args:
            on_each: called once for each task that is done with.

        Raises:
            TaskFailed, TaskNotFound: see `BatchHandle.values`.
        """
        before = ""
        while page := [each.id for each in await self._batches.members(self._name, before, MOST_LISTED)]:
            async for record in self._ended(page, before):
                if record is not None and (value := await _value(self._journal, record)):
                    yield value[0]
                elif record is not None:
                    self._forgotten.append(record.id)
                on_each()
            before = page[-1]
        await self._tell()

    async def _ended(self, page: list[str], before: str) -> AsyncIterator[TaskRecord | None]:
        """Yield the record of each task of a page once it has ended; None = there is none, nor will there be."""
        left, pause, self._looked = list(page), _FIRST_PAUSE_SECONDS, 0.0
        while left:
            found = {record.id: record for record in await self._journal.find(left)}
            size = len(left)
            while left:
                record = found.get(left[0])
                if record is not None and record.state.is_final:
                    yield record
                elif self._is_given_up(left[0]):
                    self._forgotten += [left[0]] if left[0] not in self._gone else []
                    yield None
                else:
                    break
                before = left.pop(0)
            if left and (self._lags or left[0] not in found):
                await self._look(left, before)
            if left:
                pause = _FIRST_PAUSE_SECONDS if len(left) < size else min(2 * pause, _LONGEST_PAUSE_SECONDS)
                await asyncio.sleep(pause)

    def _is_given_up(self, task_id: str) -> bool:
        since = self._unheard.get(task_id)
        return since is not None and time.monotonic() >= since + self._late_seconds

    async def _look(self, left: list[str], before: str) -> None:
        """Look, now and then, which tasks have ended as the batch has it: after that the journal is asked again."""
        now = time.monotonic()
        if self._looked and now < self._looked + _LOOK_SECONDS:
            return
        self._looked = now
        states = {each.id: each.state for each in await self._batches.members(self._name, before, MOST_LISTED)}
        for id_ in left:
            if states.get(id_) in _UNENDED:  # perhaps again: a dead letter was put back
                self._unheard.pop(id_, None)
            else:
                self._unheard.setdefault(id_, now)
            if id_ not in states:
                self._gone.add(id_)
        if self._late_seconds and left[0] in self._unheard:
            finished = (await self._batches.find(self._name)).finished
            self._finished = self._finished or now if finished is not None else 0.0
            if finished is not None and now - self._finished > self._late_seconds:
                self._late_seconds = 0.0  # nothing of it is on its way any more

    async def _tell(self) -> None:
        """Raise TaskNotFound where not all values were there."""
        gone = (await self._batches.find(self._name)).counts["gone"]
        if self._forgotten:
            shown = ", ".join(self._forgotten[:_SHOWN]) + (", ..." if len(self._forgotten) > _SHOWN else "")
            also = f"; {gone} more were cleared or purged" if gone else ""
            raise TaskNotFound(
                f"of {len(self._forgotten)} tasks of batch {self._name} nobody knows what they have returned, for the"
                f" journal has forgotten them, or has never heard of their end: {shown}{also}",
                self._forgotten,
            )
        if gone:
            raise TaskNotFound(f"{gone} tasks of batch {self._name} were cleared or purged, or are forgotten")


async def _value(journal: Journal, record: TaskRecord) -> tuple[JsonValue] | None:
    """Return what a task has returned; None = it has succeeded, and of the attempt that did nothing is known."""
    result = record.result()
    if result.succeeded:
        is_known = record.last is not None and record.last.attempt == record.attempt
        return (result.value,) if is_known else None
    result = await result_of(journal, record)
    last = next((line for line in reversed(result.output_tail.splitlines()) if line.strip()), "")
    said = f"task {record.id}: {result.detail or result.outcome}" + (f": {last}" if last else "")
    raise TaskFailed(said, record.id, result)
