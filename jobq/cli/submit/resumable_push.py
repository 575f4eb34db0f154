"""`push --resume NAME FILE`: a push that may be interrupted anywhere, and is finished by running it again.

The cursor is a named lease's: which line comes next, and what the file was. Each batch is pushed, then the cursor is
saved; so an interruption leaves one batch at most that is pushed again, under the same ids: they are made of NAME and
the line's offset, and a queue that knows ids again (S8) takes none twice.
"""

import asyncio
import hashlib
import json
from dataclasses import asdict
from typing import Any, Final

from jobq.cli.display import terminal
from jobq.cli.display.progress_bar import Bar
from jobq.cli.submit.cursor_lease import Cursor
from jobq.errors import JobqError, MalformedTask, SourceChanged
from jobq.lease import data_sources
from jobq.lease.data_sources import Line
from jobq.lease.traversal import Page, Traversal
from jobq.submit.input_lines import Template
from jobq.submit.pusher import BATCH_TASKS, Pusher
from jobq.submit.resumable_file import WalkedFile
from jobq.task import Task

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


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

    def __init__(
        self,
        pusher: Pusher,
        cursor: Cursor,
        *,
        name: str,
        file: WalkedFile,
        template: Template,
        accepts_changes: bool,
    ) -> None:
        self._pusher = pusher
        self._name = name
        self._file = file
        self._template = template
        self._accepts_changes = accepts_changes
        self._cursor = cursor

    async def run(self) -> int:
        """Queue what is left of the file; return the exit code."""
        file = self._file
        source = {"options": _fingerprint(self._template), **self._cursor.source}
        if not self._accepts_changes:
            source["file"] = await file.digest()
        walk = Traversal(self._cursor.lease, file.lines(), batch_size=BATCH_TASKS, source=source)
        try:
            async with walk:
                before = walk.progress
                await file.check_queued(before, self._name)
                if before.is_done:
                    terminal.tell(f"{self._name} is done: all of {file.path} was queued before")
                    return 0
                if file.position:
                    terminal.tell(f"going on with {file.path} at line {before.after[1] + 1}")
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
                if not self._accepts_changes:
                    file.check_unchanged(walk.progress)
        except asyncio.CancelledError:
            terminal.tell(f"{self._pusher.summary()}; run the same command again to go on")
            raise
        except JobqError as error:
            if not isinstance(error, SourceChanged):
                error.add_note(f"{self._pusher.summary()}; run the same command again to go on")
            raise
        terminal.tell(self._pusher.summary())
        return 0

    async def ids(self) -> list[str]:
        """Return the ids of all tasks of the file, also of those that an earlier run has queued."""
        found: list[str] = []
        fetch, after = data_sources.lines(self._file.path), None
        while True:
            page = await fetch(after, BATCH_TASKS)
            found += [task.id for line in page.items if (task := self._task(line)) is not None]
            if page.is_last:
                return found
            after = page.after

    async def _push(self, page: Page[Line]) -> None:
        tasks: list[Task] = []
        for line in page.items:
            try:
                task = self._task(line)
            except MalformedTask as error:
                await self._pusher.push_all(tasks)  # with ids that are found again
                raise MalformedTask(
                    f"{self._file.path}, line {line.number}: {error}; mend it and go on with --accept-changes"
                ) from None
            if task is not None:
                tasks.append(task)
        await self._pusher.push_all(tasks)

    def _task(self, line: Line) -> Task | None:
        content = line.content.removeprefix(_BYTE_ORDER_MARK) if line.offset == 0 else line.content
        return self._template.task_of_line(content, f"{self._name}.{line.offset}")


def _fingerprint(template: Template) -> str:
    # Not where it was pushed from: each run of a tracing program has another span.
    fields: dict[str, Any] = {**asdict(template), "delay": None, "trace_context": {}}
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=8).hexdigest()
