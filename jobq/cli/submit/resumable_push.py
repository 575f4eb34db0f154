"""`push --resume NAME FILE`: a push that may be interrupted anywhere, and is finished by running it again.

The cursor is a named lease's: which line comes next, and what the file was. Each batch is pushed, then the cursor is
saved; so an interruption leaves one batch at most that is pushed again, under the same ids: they are made of NAME and
the line's offset, and a queue that knows ids again (S8) takes none twice.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from jobq.cli.display import terminal
from jobq.cli.display.progress_bar import Bar
from jobq.cli.submit.cursor_lease import CursorLease, push_under_cursor, saying_how_to_go_on
from jobq.cli.submit.push_given import HowToPush
from jobq.errors import MalformedTask
from jobq.lease.data_sources import Line
from jobq.lease.traversal import Page, Traversal
from jobq.submit.input_lines import TaskOptions
from jobq.submit.pusher import CHUNK_TASKS, Pusher
from jobq.submit.resumable_file import WalkedFile
from jobq.task import Task

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def push_file_resumably(how: HowToPush, name: str, file: str | None, *, accepts_changes: bool) -> int:
    """Queue what is left of a file; return the exit code."""
    if file is None or file == "-":
        raise click.UsageError("--resume reads a FILE, which it can read again from its middle; a pipe cannot be")
    check_resumable(how, accepts_changes=accepts_changes)
    walked = how.ctx.with_resource(WalkedFile(Path(file), terminal.say))

    def resumable(pusher: Pusher, cursor: CursorLease) -> Resumable:
        return Resumable(
            pusher=pusher,
            cursor=cursor,
            name=name,
            file=walked,
            template=how.template,
            accepts_changes=accepts_changes,
        )

    async def ids() -> list[str]:
        return await _ids_of(walked, how.template, name)

    return push_under_cursor(how, f"push:{name}", lambda pusher, cursor: resumable(pusher, cursor).run(), ids)


def check_resumable(how: HowToPush, *, accepts_changes: bool) -> None:
    """Raise UsageError for options that a push which goes on by itself cannot have."""
    if how.template.by_content:
        raise click.UsageError("--resume knows what it has queued by itself: leave out --dedup-by-content")
    if how.template.delay is not None:
        raise click.UsageError("--delay counts from when a line is read, so it cannot be the same again with --resume")
    if how.echo.kept is not None and accepts_changes:
        raise click.UsageError("--wait finds its tasks by what is read, which --accept-changes lets change")


@dataclass(kw_only=True)
class Resumable:
    """One push by lines, from its file to its exit code.

    Args:
        pusher: brings batches into the queue.
        cursor: where the cursor is kept.
        name: of the push.
        file: with the lines.
        template: makes tasks of lines.
        accepts_changes: whether lines that are not queued yet may be others than when it began.
    """

    pusher: Pusher
    cursor: CursorLease
    name: str
    file: WalkedFile
    template: TaskOptions
    accepts_changes: bool

    async def run(self) -> int:
        """Queue what is left of the file; return the exit code."""
        file = self.file
        source = {"options": _fingerprint(self.template), **self.cursor.source}
        walk = Traversal(self.cursor.lease, file.lines(), batch_size=CHUNK_TASKS, source=source)
        with saying_how_to_go_on(self.pusher):
            async with walk:
                was_done = walk.progress.is_done
                walk.progress = before = await file.continued(
                    walk.progress, f"push:{self.name}", accepts_changes=self.accepts_changes
                )
                if before.is_done:
                    await self.pusher.check_done(self.name)
                    terminal.say(f"{self.name} is done: all of {file.path} was queued before")
                    self._say_more()
                    return 0
                if file.position:
                    grown = ", which has grown," if was_done else ""
                    terminal.say(f"going on with {file.path}{grown} at line {before.after[1] + 1}")
                with Bar("queueing", file.size) as bar:
                    async for page in walk:
                        await self._push(page)
                        bar.show_rate(
                            file.position,
                            page.after[1],
                            "lines",
                            before=before.after[0] if before.after else 0,
                            earlier=before.after[1] if before.after else 0,
                        )
                if not self.accepts_changes:
                    file.check_unchanged(walk.progress)
        terminal.say(self.pusher.summary())
        self._say_more()
        return 0

    def _say_more(self) -> None:
        if self.file.has_more():
            terminal.say(
                f"{self.file.path} has more than when this began, or half a last line: run the same command again"
            )

    async def _push(self, page: Page[Line]) -> None:
        tasks: list[Task] = []
        for line in page.items:
            try:
                task = self._task(line)
            except MalformedTask as error:
                await self.pusher.push_all(tasks)  # with ids that are found again
                raise MalformedTask(
                    f"{self.file.path}, line {line.number}: {error}; mend it and go on with --accept-changes"
                ) from None
            if task is not None:
                tasks.append(task)
        await self.pusher.push_all(tasks)

    def _task(self, line: Line) -> Task | None:
        return _task_of(line, self.template, self.name)


async def _ids_of(file: WalkedFile, template: TaskOptions, name: str) -> list[str]:
    """Return the ids of all tasks of a file, also of those that an earlier run has queued."""
    found: list[str] = []
    fetch, after = file.lines(), None
    while True:
        page = await fetch(after, CHUNK_TASKS)
        found += [task.id for line in page.items if (task := _task_of(line, template, name)) is not None]
        if page.is_last:
            return found
        after = page.after


def _task_of(line: Line, template: TaskOptions, name: str) -> Task | None:
    content = line.content.removeprefix(_BYTE_ORDER_MARK) if line.offset == 0 else line.content
    return template.task_of_line(content, f"{name}.{line.offset}")


def _fingerprint(template: TaskOptions) -> str:
    # Not where it was pushed from: each run of a tracing program has another span.
    fields: dict[str, Any] = {**asdict(template), "delay": None, "trace_context": {}}
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=8).hexdigest()
