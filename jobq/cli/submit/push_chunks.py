"""How `push` brings tasks into the queue: in batches, acknowledged one by one, and always knowing where to go on."""

import asyncio
import contextlib
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NoReturn

from jobq.backend import Backend
from jobq.cli.display import terminal
from jobq.cli.display.progress_bar import Bar
from jobq.cli.interrupts import Interrupted
from jobq.cli.submit.create_queue import create, ready_for_lease
from jobq.errors import DuplicateTask, JobqError, MalformedTask, PushUnknown, QueueNotFound
from jobq.submit.input_lines import Input, LineCutter, Template
from jobq.task import Task

BATCH_TASKS: Final = 500
_BATCH_BYTES: Final = 4 * 1024 * 1024
_LINGER_SECONDS: Final = 0.3  # how long the first task of a batch waits for company
_SHOWN_IDS: Final = 20
_FINISH_SECONDS: Final = 4.0  # what an interrupt leaves a batch that is under way, to be acknowledged
_TAKE_BACK_SECONDS: Final = 4.0  # and then, cancelled, to be taken back; together less than `docker stop` waits


class IdsLost(JobqError):
    """Tasks are queued, and nobody can read their ids."""


@dataclass(kw_only=True)
class Echo:
    """Prints acknowledged ids, until they cannot be written: the tasks are queued all the same."""

    ids: bool
    as_json: bool
    kept: list[str] | None = None  # where those are to be kept whose end is waited for
    wait_timeout: timedelta | None = None  # how long it is; None = as long as it takes
    _gone: terminal.OutputGone | None = None
    _lost: int = 0

    def acknowledged(self, ids: Sequence[str]) -> None:
        """Print the ids of one batch, if they were asked for, and keep them if they are waited for."""
        if self.kept is not None:
            self.kept += ids
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
        self._begun = False
        self.count = 0
        self.doubtful: tuple[str, ...] = ()  # ids of tasks of an interrupted push that may or may not be queued

    async def ready_for_lease(self, keeper: Backend, name: str) -> None:
        """See to it, before this lease is asked for, that there is where it is kept; raises QueueNotFound."""
        await ready_for_lease(keeper, name, creates=self._creates, tells=not self._echo.as_json)

    async def push(self, tasks: Sequence[Task]) -> None:
        """Queue all tasks or none; raises what `Backend.push` raises.

        When it is cancelled, it first sees to the end what it has begun: `count` and `doubtful` then tell what is.
        """
        pushing = asyncio.ensure_future(self._push_all(tasks))
        try:
            await asyncio.shield(pushing)
        except asyncio.CancelledError:
            await self._until_known(pushing, tasks)
            raise

    async def _until_known(self, pushing: "asyncio.Future[None]", tasks: Sequence[Task]) -> None:
        """Wait, not for long, for what becomes of a batch: of one that is cut off nobody could tell (S8)."""
        for seconds in (_FINISH_SECONDS, _TAKE_BACK_SECONDS):
            with contextlib.suppress(asyncio.CancelledError):  # interrupted again: on to the next step
                await asyncio.wait({pushing}, timeout=seconds)
            if pushing.done():
                break
            pushing.cancel()
        error = asyncio.CancelledError() if not pushing.done() or pushing.cancelled() else pushing.exception()
        pushing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # later, nobody asks for it
        if isinstance(error, PushUnknown):
            self.doubtful = error.ids
        elif error is not None and self._begun:  # not even what a backend has taken back is known
            self.doubtful = tuple(task.id for task in tasks)

    async def _push_all(self, tasks: Sequence[Task]) -> None:
        try:
            ids = await self._push(tasks)
        except QueueNotFound as missing:
            if not self._creates:
                raise
            await create(self._backend, missing)
            ids = await self._push(tasks)
        self.count += len(ids)
        self._echo.acknowledged(ids)

    async def _push(self, tasks: Sequence[Task]) -> list[str]:
        try:
            return await self._once(tasks)
        except PushUnknown as error:
            if not self._backend.capabilities.idempotent_push:
                raise self._in_doubt(error) from None
            doubtful = error
        try:
            return await self._once(tasks)  # the same ids: what is queued already stays as it is (S8)
        except PushUnknown as error:
            raise self._in_doubt(error) from None
        except JobqError as error:  # the repetition was not done: of the first nobody knows still
            self._begun = True
            doubtful.add_note(f"asked again: {error}")
            raise self._in_doubt(doubtful) from None

    async def _once(self, tasks: Sequence[Task]) -> list[str]:
        self._begun = True
        try:
            return await self._backend.push(tasks)
        except PushUnknown:
            raise
        except JobqError:  # none of them was added
            self._begun = False
            raise

    def _in_doubt(self, error: PushUnknown) -> PushUnknown:
        error.add_note(self.doubt(error.ids))
        return error

    def doubt(self, ids: Sequence[str]) -> str:
        """Return what to tell of tasks that may or may not be queued."""
        shown = ", ".join(ids[:_SHOWN_IDS]) + (", ..." if len(ids) > _SHOWN_IDS else "")
        if self._backend.capabilities.idempotent_push:
            advice = "pushing again with the same ids is safe, with new ones it may run them twice"
        else:
            advice = "pushing them again may run them twice; look with `jobq QUEUE peek` first"
        return f"in doubt: {len(ids)} task{'' if len(ids) == 1 else 's'} ({shown}); {advice}"

    def summary(self) -> str:
        """Return what to tell at the end."""
        return f"queued {self.count} task{'' if self.count == 1 else 's'} on {self._backend.name}"


async def push_given(pusher: Pusher, tasks: list[Task]) -> int:
    """Queue tasks that came from the command line; return the exit code."""
    for start in range(0, len(tasks), BATCH_TASKS):
        try:
            await pusher.push(tasks[start : start + BATCH_TASKS])
        except JobqError as error:
            if start:
                error.add_note(f"the first {start} tasks are queued")
            raise
        except asyncio.CancelledError:
            told = [pusher.summary(), *([pusher.doubt(pusher.doubtful)] if pusher.doubtful else [])]
            raise Interrupted("; ".join(told), pusher.doubtful) from None
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
        self._next_line = 1  # the first that is not known to be queued or skipped, nor in doubt
        self._doubtful = ""  # what to tell of lines that are in doubt

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
            doubtful = self._pusher.doubtful
            told = [self._pusher.summary(), *([self._pusher.doubt(doubtful)] if doubtful else []), self._how_to_go_on()]
            raise Interrupted("; ".join(told), doubtful) from None
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
            await self._push(batch)
        except (DuplicateTask, MalformedTask):  # none of them was added: find the one that is to blame
            for number, task in batch:
                try:
                    await self._push([(number, task)])
                except (DuplicateTask, MalformedTask) as error:
                    self._refuse(number, error)

    async def _push(self, batch: list[tuple[int, Task]]) -> None:
        """Push these lines, and know afterwards, however that ended, which may be queued."""
        before = self._pusher.count
        try:
            await self._pusher.push([task for _, task in batch])
        except (DuplicateTask, MalformedTask):
            raise
        except JobqError as error:
            if isinstance(error, PushUnknown):
                self._doubt(batch, error.ids)
            error.add_note(self._how_to_go_on())
            raise
        except asyncio.CancelledError:
            if self._pusher.doubtful:
                self._doubt(batch, self._pusher.doubtful)
            elif self._pusher.count > before:
                self._next_line = batch[-1][0] + 1
            raise
        self._next_line = batch[-1][0] + 1

    def _doubt(self, batch: list[tuple[int, Task]], ids: Sequence[str]) -> None:
        """Keep what to tell of a batch of which some lines may be queued; the others of it are not (S8)."""
        unknown = set(ids)
        numbers = [number for number, task in batch if task.id in unknown]
        lines = f"the lines {batch[0][0]} to {batch[-1][0]}" if len(batch) > 1 else f"line {batch[0][0]}"
        if len(numbers) < len(batch):
            shown = ", ".join(map(str, numbers[:_SHOWN_IDS])) + (", ..." if len(numbers) > _SHOWN_IDS else "")
            self._doubtful = f"of {lines} none is queued, but for these, which may or may not be: {shown}"
        else:
            self._doubtful = f"{lines} may or may not be queued"
        self._next_line = batch[-1][0] + 1

    def _refuse(self, number: int, error: JobqError) -> NoReturn:
        refused = type(error)(f"{self._source.name}, line {number}: {error}")
        self._next_line = number
        refused.add_note(self._how_to_go_on())
        raise refused from None

    def _how_to_go_on(self) -> str:
        """Return which lines are queued, which may be, and how to queue those that come after."""
        file = "FILE" if self._source.path == "-" else shlex.quote(self._source.path)
        rest = f"go on with: tail -n +{self._next_line} {file} | {self._again}"
        if self._doubtful:
            done = f"the lines before those are queued; {self._doubtful}" if self._pusher.count else self._doubtful
            return f"{done}; after that {rest}"
        done = "no line is queued" if self._pusher.count == 0 else f"the lines before {self._next_line} are queued"
        return f"{done}; {rest}"
