"""`push --resume NAME FILE`: a push that may be interrupted anywhere, and is finished by running it again.

The cursor is a named lease's: which line comes next, and what the file was. Each batch is pushed, then the cursor is
saved; so an interruption leaves one batch at most that is pushed again, under the same ids: they are made of NAME and
the line's offset, and a queue that knows ids again (S8) takes none twice.
"""

import asyncio
import hashlib
import json
import os
import stat
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from jobq.backend import Backend
from jobq.cli import terminal
from jobq.cli.batches import BATCH_TASKS, Pusher
from jobq.cli.lines import InputUnreadable, Template
from jobq.cli.progress import Bar
from jobq.cli.walking import walk_lease
from jobq.errors import JobqError, MalformedTask, SourceChanged
from jobq.lease import sources
from jobq.lease.sources import Line
from jobq.lease.traversal import Page, Progress, Traversal
from jobq.settings import Settings
from jobq.task import Task

_CHUNK_BYTES: Final = 1024 * 1024
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class Resumable:
    """One push by lines, from its file to its exit code.

    Args:
        pusher: brings batches into the queue.
        backend: whose queue it is; keeps the lease.
        settings: of the lease.
        name: of the push.
        path: of the file.
        template: makes tasks of lines.
        accepts_changes: whether lines that are not queued yet may be others than when it began.
    """

    def __init__(
        self,
        pusher: Pusher,
        backend: Backend,
        settings: Settings,
        *,
        name: str,
        path: Path,
        template: Template,
        accepts_changes: bool,
    ) -> None:
        self._pusher = pusher
        self._name = name
        self._path = path
        self._template = template
        self._accepts_changes = accepts_changes
        self._digest = Digest(path)
        self._pushed = hashlib.blake2b(digest_size=16)  # over what is queued
        self._position = 0  # how much that is, in bytes
        self._lease = walk_lease(backend, settings, f"push:{name}")

    async def run(self) -> int:
        """Queue what is left of the file; return the exit code."""
        size = _size_of(self._path)
        source = {"options": _fingerprint(self._template)}
        if not self._accepts_changes:
            source["file"] = await asyncio.to_thread(self._digest.of, size)
        walk = Traversal(self._lease, self._fetch, batch_size=BATCH_TASKS, source=source)
        try:
            await self._pusher.ready_for_lease(self._lease.name)
            async with walk:
                before = walk.progress
                await self._check_prefix(before)
                if before.is_done:
                    if self._position != size:
                        raise SourceChanged(f"{self._path} has grown since {self._name} was done; use another name")
                    terminal.tell(f"{self._name} is done: all of {self._path} was queued before")
                    return 0
                if self._position:
                    terminal.tell(f"going on with {self._path} at line {before.after[1] + 1}")
                with Bar("queueing", size) as bar:
                    async for page in walk:
                        await self._push(page)
                        bar.show_rate(
                            self._position,
                            page.after[1],
                            "lines",
                            before=before.after[0] if before.after else 0,
                            earlier=before.after[1] if before.after else 0,
                        )
                await self._check_unchanged(walk.progress, size)
        except asyncio.CancelledError:
            terminal.tell(f"{self._pusher.summary()}; run the same command again to go on")
            raise
        except JobqError as error:
            if not isinstance(error, SourceChanged):
                error.add_note(f"{self._pusher.count} tasks were queued; run the same command again to go on")
            raise
        terminal.tell(self._pusher.summary())
        return 0

    async def _fetch(self, after: Any, limit: int) -> Page[Line]:
        page = await sources.lines(self._path)(after, limit)
        # What is queued is known by its hash: a changed file is noticed when it is taken up again.
        hashed = await asyncio.to_thread(self._hash_up_to, page.after[0])
        return Page(page.items, page.after, page.is_last, mark=hashed)

    def _hash_up_to(self, offset: int) -> str:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                while self._position < offset:
                    chunk = file.read(min(_CHUNK_BYTES, offset - self._position))
                    if not chunk:
                        raise SourceChanged(f"{self._path} has become shorter; what is queued stays")
                    self._pushed.update(chunk)
                    self._position += len(chunk)
        except OSError as error:
            raise _unreadable(self._path, error) from None
        return self._pushed.hexdigest()

    async def _check_prefix(self, progress: Progress) -> None:
        """Refuse a file of which other lines were queued than it has now."""
        if progress.after is None:
            return
        offset = int(progress.after[0])
        if await asyncio.to_thread(self._hash_up_to, offset) != progress.mark:
            raise SourceChanged(
                f"{self._path} is not the file that {self._name} was begun with: its first {progress.after[1]} lines,"
                " which are queued, have changed; use another name"
            )

    async def _check_unchanged(self, progress: Progress, size: int) -> None:
        if not self._accepts_changes and (progress.after or [0])[0] != size:
            raise SourceChanged(f"{self._path} was changed while it was read; what it had then is queued")

    async def _push(self, page: Page[Line]) -> None:
        tasks: list[Task] = []
        for line in page.items:
            try:
                task = self._task(line)
            except MalformedTask as error:
                if tasks:
                    await self._pusher.push(tasks)  # with ids that are found again
                raise MalformedTask(
                    f"{self._path}, line {line.number}: {error}; mend it and go on with --accept-changes"
                ) from None
            if task is not None:
                tasks.append(task)
        if tasks:
            await self._pusher.push(tasks)

    def _task(self, line: Line) -> Task | None:
        content = line.content.removeprefix(_BYTE_ORDER_MARK) if line.offset == 0 else line.content
        return self._template.task_of_line(content, f"{self._name}.{line.offset}")


class Digest:
    """The fingerprint of a whole file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def of(self, size: int) -> str:
        """Return it; raises InputUnreadable."""
        found = hashlib.blake2b(digest_size=16)
        try:
            with self._path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    found.update(chunk)
        except OSError as error:
            raise _unreadable(self._path, error) from None
        return f"{size}:{found.hexdigest()}"


def _size_of(path: Path) -> int:
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(status.st_mode):
        raise InputUnreadable(f"{path} is no file that can be read again from its middle; --resume needs one")
    return status.st_size


def _fingerprint(template: Template) -> str:
    fields: dict[str, Any] = {**asdict(template), "delay": None}
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=8).hexdigest()


def _unreadable(path: Path, error: Exception) -> InputUnreadable:
    return InputUnreadable(
        f"cannot read {path}: {os.strerror(error.errno or 0) if isinstance(error, OSError) else error}"
    )
