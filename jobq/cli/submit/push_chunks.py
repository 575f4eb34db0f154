"""`push` of lines: always knowing what is queued, what is in doubt, and where to go on."""

import asyncio
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import click

from jobq.backend import Backend
from jobq.cli.common import Invocation
from jobq.cli.display import terminal
from jobq.cli.display.progress_bar import Bar
from jobq.cli.interrupts import Interrupted
from jobq.cli.submit.already_there import known_ids, still_known, waits_already
from jobq.cli.submit.push_given import HowToPush
from jobq.errors import DuplicateTask, JobqError, MalformedTask, PushUnknown
from jobq.submit.input_lines import Input, TaskOptions
from jobq.submit.line_chunks import NumberedTask, line_chunks
from jobq.submit.pusher import CHUNK_TASKS, Pusher
from jobq.task import Task

_LINGER_SECONDS: Final = 0.3  # how long the first task of a chunk waits for company
_SHOWN_LINES: Final = 20


def push_lines(how: HowToPush, path: str) -> int:
    """Queue the lines of a file, `-` = standard input; return the exit code."""
    again = _again(how.ctx)

    async def push(backend: Backend) -> int:
        return await LinePush(how.pusher(backend), source, how.template, again, backend).run()

    with _opened(path) as source:
        return how.connected(push, interruptible=True)


def _opened(path: str) -> Input:
    try:
        return Input(path)
    except JobqError as error:
        if not Path(path).exists():
            error.add_note(
                f"it was taken for a file of commands; a command is given with -c: push -c {shlex.quote(path)}"
            )
        raise


def _again(ctx: click.Context) -> str:
    """Return how this command line would read the rest of its file."""
    invocation = ctx.find_object(Invocation)
    given = [invocation.spec] if invocation and invocation.spec else []
    has_options = any(
        value not in (None, False, ()) for name, value in ctx.params.items() if name not in ("file", "commands")
    )
    return shlex.join(["jobq", *given, "push"]) + (" [the same options] -" if has_options else " -")


class LinePush:
    """Reads lines, queues them in chunks, and knows at any time from which line to go on.

    Args:
        pusher: brings chunks into the queue.
        source: where the lines come from.
        template: makes tasks of them.
        again: the command line that would read the rest from standard input, for messages.
        backend: the pusher's.
    """

    def __init__(self, pusher: Pusher, source: Input, template: TaskOptions, again: str, backend: Backend) -> None:
        self._pusher = pusher
        self._backend = backend
        self._source = source
        self._template = template
        self._again = again
        self._next_line = 1  # the first that is not known to be queued or skipped, nor in doubt
        self._doubtful = ""  # what to say of lines that are in doubt

    async def run(self) -> int:
        """Queue everything that the source holds."""

        def task_of(number: int, line: bytes) -> Task | None:
            if number == 1 and line.startswith(b"#!"):
                terminal.warn(
                    f"{self._source.name} begins as a script does (#!), and each of its lines becomes a task; to run"
                    " it as one: push -- ./SCRIPT"
                )
            return self._template.task_of_line(line)

        try:
            with Bar("queueing", self._source.size) as bar:
                async for chunk in line_chunks(self._source, task_of, self._refuse, linger_seconds=_LINGER_SECONDS):
                    await self._flush(chunk)
                    if self._pusher.count >= CHUNK_TASKS:
                        bar.show_rate(self._source.bytes_read, self._pusher.count, "tasks")
        except asyncio.CancelledError:
            summary = f"{self._pusher.summary()}; {self._how_to_go_on()}"
            raise Interrupted(summary, self._pusher.doubtful) from None
        terminal.say(self._pusher.summary())
        return 0

    async def _flush(self, chunk: list[NumberedTask]) -> None:
        if not self._pusher.count and await waits_already(self._backend, [task for _, task in chunk]):
            terminal.warn(
                f"tasks such as those of {self._source.name} wait on {self._backend.name} already; a file that is"
                " pushed twice is queued twice (`push --resume NAME FILE` queues each line once)"
            )
        try:
            await self._push(chunk)
        except (DuplicateTask, MalformedTask):  # none of them was added: find the one that is to blame
            for number, task in chunk:
                try:
                    await self._push([(number, task)])
                except (DuplicateTask, MalformedTask) as error:
                    self._refuse(number, error)

    async def _push(self, chunk: list[NumberedTask]) -> None:
        """Push these lines, and know afterwards, however that ended, which may be queued."""
        before = self._pusher.count
        known = await known_ids(self._backend, [task for _, task in chunk])
        try:
            await self._pusher.push_to_its_end([task for _, task in chunk])
        except (DuplicateTask, MalformedTask):
            raise
        except JobqError as error:
            if isinstance(error, PushUnknown):
                self._doubt(chunk, error.ids)
            error.add_note(self._how_to_go_on())
            raise
        except asyncio.CancelledError:
            if self._pusher.doubtful:
                self._doubt(chunk, self._pusher.doubtful)
            elif self._pusher.count > before:
                self._next_line = chunk[-1][0] + 1
            raise
        self._pusher.known += await still_known(self._backend, known)
        self._next_line = chunk[-1][0] + 1

    def _doubt(self, chunk: list[NumberedTask], ids: Sequence[str]) -> None:
        """Keep what to say of a chunk of which some lines may be queued; the others of it are not (S8)."""
        unknown = set(ids)
        numbers = [number for number, task in chunk if task.id in unknown]
        lines = f"the lines {chunk[0][0]} to {chunk[-1][0]}" if len(chunk) > 1 else f"line {chunk[0][0]}"
        if len(numbers) < len(chunk):
            shown = ", ".join(map(str, numbers[:_SHOWN_LINES])) + (", ..." if len(numbers) > _SHOWN_LINES else "")
            self._doubtful = f"of {lines} none is queued, but for these, which may or may not be: {shown}"
        else:
            self._doubtful = f"{lines} may or may not be queued"
        self._next_line = chunk[-1][0] + 1

    def _refuse(self, number: int, error: JobqError) -> NoReturn:
        refused = type(error)(f"{self._source.name}, line {number}: {error}")
        self._next_line = number
        refused.add_note(self._how_to_go_on(skipped=1))
        raise refused from None

    def _how_to_go_on(self, *, skipped: int = 0) -> str:
        """Return which lines are queued, which may be, and how to queue those that come after.

        Args:
            skipped: how many more to leave out: those that are refused.
        """
        file = "FILE" if self._source.path == "-" else shlex.quote(self._source.path)
        how = "go on behind it with" if skipped else "go on with"
        rest = f"{how}: tail -n +{self._next_line + skipped} {file} | {self._again}"
        if self._doubtful:
            done = f"the lines before those are queued; {self._doubtful}" if self._pusher.count else self._doubtful
            return f"{done}; after that {rest}"
        if self._pusher.count:
            return f"the lines before {self._next_line} are queued; {rest}"
        return f"no line is queued: mend it and push again, or {rest}" if skipped else f"no line is queued; {rest}"
