"""How `push` brings tasks into the queue: in batches, acknowledged one by one, and always knowing where to go on."""

import asyncio
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from jobq.backend import Backend
from jobq.cli import terminal
from jobq.cli.lines import Input, LineCutter, Template
from jobq.cli.progress import Bar
from jobq.errors import AccessDenied, DuplicateTask, JobqError, MalformedTask, PushUnknown, QueueNotFound
from jobq.task import Task

BATCH_TASKS: Final = 500
_BATCH_BYTES: Final = 4 * 1024 * 1024
_LINGER_SECONDS: Final = 0.3  # how long the first task of a batch waits for company
_SHOWN_IDS: Final = 20


class IdsLost(JobqError):
    """Tasks are queued, and nobody can read their ids."""


@dataclass(kw_only=True)
class Echo:
    """Prints acknowledged ids, until they cannot be written: the tasks are queued all the same."""

    ids: bool
    as_json: bool
    _gone: terminal.OutputGone | None = None
    _lost: int = 0

    def acknowledged(self, ids: Sequence[str]) -> None:
        """Print the ids of one batch, if they were asked for."""
        if not (self.ids or self.as_json):
            return
        if self._gone is None:
            try:
                for id_ in ids:
                    if self.as_json:
                        terminal.put_json({"id": id_})
                    else:
                        terminal.put(id_)
                terminal.flush()
            except terminal.OutputGone as gone:
                terminal.discard_stdout()
                self._gone = gone
                if gone.is_fault:
                    terminal.complain(str(gone))
        if self._gone is not None:
            self._lost += len(ids)

    def check(self) -> None:
        """Raise IdsLost when ids are missing that somebody would have read."""
        if self._gone is not None and self._gone.is_fault:
            are = "1 task is queued, but its id" if self._lost == 1 else f"{self._lost} tasks are queued, but their ids"
            raise IdsLost(f"{are} could not be written")


class Pusher:
    """Pushes batches: makes a queue that is missing, repeats once what may safely be repeated, counts.

    Args:
        backend: an entered backend.
        echo: prints ids.
        creates: whether to make a missing queue, for which a mere sender has no right.
    """

    def __init__(self, backend: Backend, echo: Echo, *, creates: bool = True) -> None:
        self._backend = backend
        self._echo = echo
        self._creates = creates
        self.count = 0

    async def push(self, tasks: Sequence[Task]) -> None:
        """Queue all tasks or none; raises what `Backend.push` raises."""
        try:
            ids = await self._push(tasks)
        except QueueNotFound as missing:
            if not self._creates:
                raise
            try:
                await self._backend.create(exist_ok=True)
            except AccessDenied as error:
                error.add_note(str(missing))
                raise
            terminal.tell(f"created queue {self._backend.name}")
            ids = await self._push(tasks)
        self.count += len(ids)
        self._echo.acknowledged(ids)

    async def _push(self, tasks: Sequence[Task]) -> list[str]:
        try:
            return await self._backend.push(tasks)
        except PushUnknown as error:
            if not self._backend.capabilities.idempotent_push:
                raise _in_doubt(
                    error, "pushing them again may run them twice; look with `jobq QUEUE peek` first"
                ) from None
        try:
            return await self._backend.push(tasks)  # the same ids: what is queued already stays as it is (S8)
        except PushUnknown as error:
            raise _in_doubt(
                error, "pushing again with the same ids is safe, with new ones it may run them twice"
            ) from None

    def summary(self) -> str:
        """Return what to tell at the end."""
        return f"queued {self.count} task{'' if self.count == 1 else 's'} on {self._backend.name}"


def _in_doubt(error: PushUnknown, advice: str) -> PushUnknown:
    shown = ", ".join(error.ids[:_SHOWN_IDS]) + (", ..." if len(error.ids) > _SHOWN_IDS else "")
    error.add_note(f"in doubt: {len(error.ids)} tasks ({shown}); {advice}")
    return error


async def push_given(pusher: Pusher, tasks: list[Task]) -> int:
    """Queue tasks that came from the command line; return the exit code."""
    for start in range(0, len(tasks), BATCH_TASKS):
        try:
            await pusher.push(tasks[start : start + BATCH_TASKS])
        except JobqError as error:
            if start:
                error.add_note(f"the first {start} tasks are queued")
            raise
    terminal.tell(pusher.summary())
    return 0


class Stream:
    """Reads lines, queues them in batches, and knows at any time from which line to go on.

    Args:
        pusher: brings batches into the queue.
        source: where the lines come from.
        template: makes tasks of them.
        again: the command line that would read the rest from standard input, for messages.
    """

    def __init__(self, pusher: Pusher, source: Input, template: Template, again: str) -> None:
        self._pusher = pusher
        self._source = source
        self._template = template
        self._again = again
        self._batch: list[tuple[int, Task]] = []
        self._bytes = 0
        self._due = 0.0
        self._next_line = 1  # the first that is not known to be queued or skipped

    async def run(self) -> int:
        """Queue everything that the source holds."""
        cutter = LineCutter()
        try:
            with Bar("queueing", self._source.size) as bar:
                chunk: bytes | None = None
                while chunk != b"":
                    wait = max(0.0, self._due - time.monotonic()) if self._batch else None
                    chunk = await self._source.read(wait)
                    for number, line in cutter.feed(chunk) if chunk is not None else ():
                        await self._take(number, line)
                    if self._batch and time.monotonic() >= self._due:
                        await self._flush()
                    if self._pusher.count >= BATCH_TASKS:
                        bar.show(self._source.bytes_read, f"{self._pusher.count} tasks")
                await self._flush()
        except asyncio.CancelledError:
            terminal.tell(f"{self._pusher.summary()}; {self._how_to_go_on(self._next_line)}")
            raise
        terminal.tell(self._pusher.summary())
        return 0

    async def _take(self, number: int, line: bytes) -> None:
        try:
            task = self._template.task_of_line(line)
        except MalformedTask as error:
            await self._flush()
            self._refuse(number, error)
        if task is not None:
            if not self._batch:
                self._due = time.monotonic() + _LINGER_SECONDS
            self._batch.append((number, task))
            self._bytes += len(line)
        if len(self._batch) >= BATCH_TASKS or self._bytes >= _BATCH_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        batch, self._batch, self._bytes = self._batch, [], 0
        if not batch:
            return
        try:
            await self._pusher.push([task for _, task in batch])
        except (DuplicateTask, MalformedTask):  # none of them was added: find the one that is to blame
            await self._push_singly(batch)
        except JobqError as error:
            error.add_note(self._how_to_go_on(batch[0][0]))
            raise
        self._next_line = batch[-1][0] + 1

    async def _push_singly(self, batch: list[tuple[int, Task]]) -> None:
        for number, task in batch:
            try:
                await self._pusher.push([task])
            except (DuplicateTask, MalformedTask) as error:
                self._refuse(number, error)
            except JobqError as error:
                error.add_note(self._how_to_go_on(number))
                raise

    def _refuse(self, number: int, error: JobqError) -> NoReturn:
        refused = type(error)(f"{self._source.name}, line {number}: {error}")
        refused.add_note(self._how_to_go_on(number))
        raise refused from None

    def _how_to_go_on(self, number: int) -> str:
        done = "no line is queued" if self._pusher.count == 0 else f"the lines before {number} are queued"
        file = "FILE" if self._source.path == "-" else shlex.quote(self._source.path)
        return f"{done}; go on with: tail -n +{number} {file} | {self._again}"
