"""How `jobq run` brings its input into its own queue: line by line, under ids that another run finds again (S8)."""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Final

from jobq.backend import Backend
from jobq.cli.submit.push_chunks import BATCH_TASKS
from jobq.errors import DuplicateTask, JobqError, MalformedTask, PushUnknown
from jobq.submit.input_lines import Input, LineCutter, Template
from jobq.task import Task

_BATCH_BYTES: Final = 1024 * 1024


def line_of(id_: str) -> int | None:
    """Return the number of the line that an id was made for; None for an id that the line brought itself."""
    number, dash, _ = id_.partition("-")
    return int(number) if dash and number.isdecimal() else None


def id_for(number: int, line: bytes) -> str:
    """Return the id of the task in a line: the same line in the same place is the same task."""
    return f"{number}-{blake2b(line, digest_size=8).hexdigest()}"


class Feed:
    """Queues each line of an input once, however often it is read; memory is bounded by one batch.

    Args:
        backend: an entered backend with `idempotent_push`.
        source: where the lines come from.
        template: makes tasks of them.
        keeps_known: whether a task that is known with other options or content is left as it was queued; else it is
            an error.
        on_end: awaited with the input's size in bytes once all of it is queued.

    Attributes:
        queued: how many lines were handed in so far, known ones included.
        kept: how many of them are known with other options or content.
        is_done: whether all of the input is queued.
        line_of_own: the lines of those tasks that bring an id of their own.
    """

    def __init__(
        self,
        backend: Backend,
        source: Input,
        template: Template,
        *,
        keeps_known: bool,
        on_end: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self.source: Final = source
        self.queued = 0
        self.kept = 0
        self.is_done = False
        self.line_of_own: dict[str, int] = {}
        self._backend = backend
        self._template = template
        self._keeps_known = keeps_known
        self._on_end = on_end
        self._batch: list[tuple[int, Task]] = []
        self._bytes = 0

    async def run(self) -> None:
        """Queue everything that the source holds.

        Raises:
            MalformedTask, DuplicateTask: names the line; those before it are queued.
            InputUnreadable, BackendUnavailable: as they say.
        """
        cutter = LineCutter()
        chunk: bytes | None = None
        while chunk != b"":
            chunk = await self.source.read(None)
            for number, line in cutter.feed(chunk) if chunk is not None else ():
                await self._take(number, line)
            await self._flush()  # what came together is queued together, and nobody waits for company
        if self._on_end is not None:
            await self._on_end(self.source.bytes_read)
        self.is_done = True

    async def _take(self, number: int, line: bytes) -> None:
        id_ = id_for(number, line)
        try:
            task = self._template.task_of_line(line, id_)
        except MalformedTask as error:
            await self._flush()
            raise self._blamed(number, error) from None
        if task is None:
            return
        if task.id != id_:
            self.line_of_own[task.id] = number
        self._batch.append((number, task))
        self._bytes += len(line)
        if len(self._batch) >= BATCH_TASKS or self._bytes >= _BATCH_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        batch, self._batch, self._bytes = self._batch, [], 0
        if not batch:
            return
        try:
            await self._push([task for _, task in batch])
        except DuplicateTask:  # none of them was added: find those that are to blame, all in one transaction
            await asyncio.gather(*(self._push_one(number, task) for number, task in batch))
        self.queued += len(batch)

    async def _push_one(self, number: int, task: Task) -> None:
        try:
            await self._push([task])
        except DuplicateTask as error:
            if not self._keeps_known:
                raise self._blamed(number, error) from None
            self.kept += 1

    async def _push(self, tasks: list[Task]) -> None:
        try:
            await self._backend.push(tasks)
        except PushUnknown:
            await self._backend.push(tasks)  # the same ids: what is queued already stays as it is (S8)

    def _blamed(self, number: int, error: JobqError) -> JobqError:
        return type(error)(f"{self.source.name}, line {number}: {error}")
