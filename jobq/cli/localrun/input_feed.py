"""How `jobq run` brings its input into its own queue: line by line, under ids that another run finds again (S8)."""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Final, NoReturn

from jobq.backend import Backend
from jobq.errors import DuplicateTask, JobqError
from jobq.submit.input_lines import Input, TaskOptions
from jobq.submit.line_batches import line_batches
from jobq.submit.pusher import Pusher
from jobq.task import Task


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
        template: TaskOptions,
        *,
        keeps_known: bool,
        on_end: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self.source: Final = source
        self.queued = 0
        self.kept = 0
        self.is_done = False
        self.line_of_own: dict[str, int] = {}
        self._pusher = Pusher(backend, creates=False)
        self._template = template
        self._keeps_known = keeps_known
        self._on_end = on_end

    async def run(self) -> None:
        """Queue everything that the source holds.

        Raises:
            MalformedTask, DuplicateTask: names the line; those before it are queued.
            InputUnreadable, BackendUnavailable: as they say.
        """
        # What came together is queued together, and nobody waits for company.
        async for batch in line_batches(self.source, self._task, self._refuse, linger_seconds=0):
            try:
                await self._pusher.push([task for _, task in batch])
            except DuplicateTask:  # none of them was added: find those that are to blame, all in one transaction
                await asyncio.gather(*(self._push_one(*numbered) for numbered in batch))
            self.queued += len(batch)
        if self._on_end is not None:
            await self._on_end(self.source.bytes_read)
        self.is_done = True

    def _task(self, number: int, line: bytes) -> Task | None:
        id_ = id_for(number, line)
        task = self._template.task_of_line(line, id_)
        if task is not None and task.id != id_:
            self.line_of_own[task.id] = number
        return task

    async def _push_one(self, number: int, task: Task) -> None:
        try:
            await self._pusher.push([task])
        except DuplicateTask as error:
            if not self._keeps_known:
                self._refuse(number, error)
            self.kept += 1

    def _refuse(self, number: int, error: JobqError) -> NoReturn:
        raise type(error)(f"{self.source.name}, line {number}: {error}") from None
