"""How `jobq run` brings its input into its own queue: task by task, under ids that another run finds again (S8)."""

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NoReturn, Protocol

from jobq.backend import Backend
from jobq.errors import DuplicateTask, JobqError, MalformedTask
from jobq.resources.offer import Offer
from jobq.submit.grid import INDEX
from jobq.submit.input_lines import Input, TaskOptions
from jobq.submit.line_chunks import NumberedTask, line_chunks
from jobq.submit.pusher import CHUNK_TASKS, Pusher, chunks
from jobq.submit.record_sources import InputRecord
from jobq.submit.record_tasks import RecordTasks
from jobq.task import Task

_OF_LINE: Final = re.compile(r"([1-9][0-9]*)-[0-9a-f]{16}")  # as `id_for` makes them


def line_of(id_: str) -> int | None:
    """Return the number of the line that an id was made for; None for an id that the line brought itself."""
    match = _OF_LINE.fullmatch(id_)
    return int(match[1]) if match else None


def id_for(number: int, line: bytes) -> str:
    """Return the id of the task in a line: the same line in the same place is the same task."""
    return f"{number}-{blake2b(line, digest_size=8).hexdigest()}"


class RunInput(Protocol):
    """What a run reads: tasks in order, each with its number, counted from 1, which it has when it is read again.

    Attributes:
        path: of the file that is read; None = there is none, `-` = standard input.
        again: the words of a command line that give it again.
        what: its parts are called.
        size: how much of it was read; 0 = it is empty.
    """

    path: str | None
    again: str
    what: str

    @property
    def size(self) -> int:
        """See above."""
        ...

    async def is_empty(self) -> bool:
        """Return whether there is nothing in it at all."""
        ...

    def chunks(self, template: TaskOptions) -> AsyncIterator[list[NumberedTask]]:
        """Yield its tasks; raises MalformedTask, which says of which part."""
        ...

    def place(self, number: int) -> str:
        """Return what a part is called, with where it is read from."""
        ...

    def part(self, number: int) -> str:
        """Return what a part is called."""
        ...


class LineInput:
    """The lines of a file, pipe or terminal; see RunInput."""

    what = "lines"

    def __init__(self, source: Input) -> None:
        self.offer = Offer()
        self._source = source
        self.path: str | None = source.path
        self.again = "< FILE" if source.path == "-" else shlex.quote(source.path)

    @property
    def size(self) -> int:
        """How many bytes were read."""
        return self._source.bytes_read

    async def is_empty(self) -> bool:
        """Return whether a pipe has nothing; a file that is named is meant, whatever it holds."""
        return self.path == "-" and await self._source.is_empty()

    def chunks(self, template: TaskOptions) -> AsyncIterator[list[NumberedTask]]:
        """What came together is queued together, and nobody waits for company."""

        def task_of(number: int, line: bytes) -> Task | None:
            task = template.task_of_line(line, id_for(number, line))
            if task is not None and (lacks := self.offer.misfit(task.resources, task.needs)):
                raise MalformedTask(
                    f"asks for {lacks}, which this run does not offer: give the run --cpus, --gpus or --mem, or push it"
                    " to a worker that offers it"
                )
            return task

        return line_chunks(self._source, task_of, self._refuse, linger_seconds=0)

    def place(self, number: int) -> str:
        """Return the name of the file and the line."""
        return f"{self._source.name}, {self.part(number)}"

    def part(self, number: int) -> str:
        """Return the line."""
        return f"line {number}"

    def _refuse(self, number: int, error: JobqError) -> NoReturn:
        raise type(error)(f"{self.place(number)}: {error}") from None


class PointInput:
    """The points of a sweep; see RunInput.

    Args:
        tasks: makes them.
        again: the words that give it.
    """

    what = "points"

    def __init__(self, tasks: RecordTasks, again: Sequence[str]) -> None:
        file = tasks.records.file
        self.path = None if file is None else str(file.path)
        self.again = shlex.join(again)
        self.size = tasks.records.count or 0
        self._tasks = tasks

    async def is_empty(self) -> bool:
        """Return whether there are none."""
        return not self.size

    async def chunks(self, template: TaskOptions) -> AsyncIterator[list[NumberedTask]]:
        """Yield the tasks of all points."""
        self._tasks.options, self._tasks.id_of = template, _id_of_point
        number = 0
        async for page in self._tasks.records.pages(CHUNK_TASKS):
            for some in chunks(self._tasks.tasks(page.items, number)):
                yield list(enumerate(some, number + 1))
                number += len(some)

    def place(self, number: int) -> str:
        """Return which point it is."""
        return f"{INDEX} {number - 1}"

    part = place


def _id_of_point(_records: Sequence[InputRecord], position: int, filled: Mapping[str, Any]) -> str:
    return id_for(position + 1, json.dumps(list(filled.values())).encode())


class Feed:
    """Queues each task of an input once, however often that is read; memory is bounded by one chunk.

    Args:
        backend: an entered backend with `idempotent_push`.
        source: where they come from.
        template: what they all have.
        keeps_known: whether a task that is known with other options or content is left as it was queued; else it is
            an error.
        on_end: awaited with the input's size once all of it is queued.

    Attributes:
        queued: how many were handed in so far, known ones included.
        kept: how many of them are known with other options or content.
        is_done: whether all of the input is queued.
        line_of_own: the numbers of those tasks that bring an id of their own.
        on_numbers: told the numbers of tasks before they are queued.
    """

    def __init__(
        self,
        backend: Backend,
        source: RunInput,
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
        self.on_numbers: Callable[[list[int]], None] = lambda _numbers: None
        self._pusher = Pusher(backend, creates=False)
        self._template = template
        self._keeps_known = keeps_known
        self._on_end = on_end

    async def run(self) -> None:
        """Queue everything that the source holds.

        Raises:
            MalformedTask, DuplicateTask: names the place; what stands before it is queued.
            InputUnreadable, SourceChanged, BackendUnavailable: as they say.
        """
        async for chunk in self.source.chunks(self._template):
            for number, task in chunk:
                if line_of(task.id) != number:
                    self.line_of_own.setdefault(task.id, number)  # what comes twice runs once, in its first place
            self.on_numbers([number for number, task in chunk if self.line_of_own.get(task.id, number) == number])
            try:
                await self._pusher.push([task for _, task in chunk])
            except DuplicateTask:  # none of them was added: find those that are to blame, all in one transaction
                await asyncio.gather(*(self._push_one(*numbered) for numbered in chunk))
            self.queued += len(chunk)
        if self._on_end is not None:
            await self._on_end(self.source.size)
        self.is_done = True

    async def _push_one(self, number: int, task: Task) -> None:
        try:
            await self._pusher.push([task])
        except DuplicateTask as error:
            if not self._keeps_known:
                raise DuplicateTask(f"{self.source.place(number)}: {error}") from None
            self.kept += 1
