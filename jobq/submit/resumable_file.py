"""The file that `push --resume` or `fanout --lines` walks through: whether it is still the one that was begun with."""

import asyncio
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from jobq.errors import SourceChanged
from jobq.lease import data_sources
from jobq.lease.data_sources import Line
from jobq.lease.traversal import Fetch, Page, Progress
from jobq.submit.input_lines import InputUnreadable
from jobq.submit.settled_end import settled_end

_FILE: Final = "file"  # in what a walk knows of its source
_CHUNK_BYTES: Final = 1024 * 1024


class WalkedFile:
    """A file whose queued part is known by its hash, so that a change is noticed when it is taken up again.

    What stood there when this was made is walked through, and what is added meanwhile is not. A context manager.

    Args:
        path: of a regular file.
        say: told when this waits for another program to complete the last line; see `settled_end`.

    Attributes:
        size: where the last line ended when this was made, in bytes.
        position: how many bytes the hash covers.

    Raises:
        InputUnreadable: from all methods, as well.
        SourceChanged: from what reads, as well; another file stands there now.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path = path
        self._held = _opened(path)  # so that no other file can have its inode meanwhile
        try:
            self.size = settled_end(self._held, lambda text: say(f"{path}: {text}"))
        except OSError as error:
            raise _unreadable(path, error) from None
        self.position = 0
        self._queued = hashlib.blake2b(digest_size=16)
        self._noted: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go."""
        os.close(self._held)

    async def digest(self, size: int | None = None) -> str:
        """Return the fingerprint of the file, which is noted for `check_unchanged`, or of its first `size` bytes."""
        if size is not None:
            return await asyncio.to_thread(self._digest, size)
        self._noted = await asyncio.to_thread(self._digest, self.size)
        return self._noted

    async def mark_up_to(self, offset: int) -> str:
        """Return the fingerprint of all that is before an offset, which only rises; raises SourceChanged."""
        return await asyncio.to_thread(self._mark_up_to, offset)

    async def check_queued(self, progress: Progress, name: str) -> None:
        """Raise SourceChanged for a file of which other lines were queued than it has now, or that was done and grew.

        Args:
            progress: whose `after` is [offset, lines before it], and whose mark is `mark_up_to` of that offset.
            name: of the walk, for messages.
        """
        await self._check_beginning(progress, name)
        if progress.is_done and self.position != self.size:
            raise SourceChanged(f"{self.path} has grown since {name} was done; use another name")

    async def continued(self, progress: Progress, name: str, *, accepts_changes: bool) -> Progress:
        """Return the progress to go on from: a walk that was done goes on where lines were appended.

        Args:
            progress: as `check_queued` takes it.
            name: of the walk, for messages.
            accepts_changes: whether lines that are not queued may be others than before; else there may only be more.

        Raises:
            SourceChanged: of the lines that were there, queued ones or, unless that is accepted, others have changed.
        """
        await self._check_beginning(progress, name)
        former = progress.source.get(_FILE)
        if former is not None and not accepts_changes:
            size = int(former.partition(":")[0])
            changed = size > self._length() or await self.digest(size) != former
            if changed or (self.position >= size and await self._lengthens_line(size)):
                raise SourceChanged(
                    f"{name} was begun with another file: lines of {self.path} have changed; go on with the same, to"
                    " which lines may be added, or use another name"
                )
        is_done = progress.is_done and self.position == self.size
        if await self._lengthens_line(self.position):
            raise SourceChanged(
                f"line {progress.after[1]} of {self.path}, which is queued, is longer now: it had no line end; use"
                " another name"
            )
        return replace(progress, is_done=is_done, source={**progress.source, _FILE: await self.digest()})

    async def _check_beginning(self, progress: Progress, name: str) -> None:
        if progress.after is not None and int(progress.after[0]) > self._length():
            raise SourceChanged(
                f"{self.path} has become shorter than what {name} has queued, which stays; or it is another file:"
                " for that use another name"
            )
        if progress.after is not None and await self.mark_up_to(int(progress.after[0])) != progress.mark:
            raise SourceChanged(
                f"{self.path} is not the file that {name} was begun with: its first {progress.after[1]} lines,"
                " which are queued, have changed; use another name"
            )
        self.size = max(
            self.size, self.position
        )  # what was taken for its last line was one, and is not looked at again

    async def _lengthens_line(self, offset: int) -> bool:
        """Return whether an offset lies within a line."""
        return 0 < offset < self._length() and await asyncio.to_thread(self._is_within_line, offset)

    def lines(self) -> Fetch[Line]:
        """Return a fetch of its lines, of which each page is marked by all that is before its end."""

        async def fetch(after: Any, limit: int) -> Page[Line]:
            try:
                page = await data_sources.lines(self.path, end=self.size, opened=self.opened)(after, limit)
            except OSError as error:
                raise _unreadable(self.path, error) from None
            return replace(page, mark=await self.mark_up_to(page.after[0]))

        return fetch

    def check_unchanged(self, progress: Progress) -> None:
        """Raise SourceChanged when other lines were walked through than the file had at the beginning."""
        read = f"{self.position}:{self._queued.hexdigest()}"
        if (progress.after or [0])[0] != self.size or read != self._noted:
            raise SourceChanged(f"{self.path} was changed while it was read; what it had then is queued")

    def has_more(self) -> bool:
        """Return whether something stands behind what is walked through: added since, or a line without its end."""
        return self._length() > self.size

    def _length(self) -> int:
        return os.fstat(self._held).st_size

    def opened(self) -> BinaryIO:
        """Return the file, open to read; raises SourceChanged where another one stands there now."""
        file = self.path.open("rb")
        if os.path.samestat(os.fstat(file.fileno()), os.fstat(self._held)):
            return file
        file.close()
        raise SourceChanged(
            f"{self.path} was replaced by another file while it was read; what is queued, of the former, stays"
        )

    def _is_within_line(self, offset: int) -> bool:
        try:
            with self.opened() as file:
                file.seek(offset - 1)
                before, after = file.read(1), file.read(2)
        except OSError as error:
            raise _unreadable(self.path, error) from None
        return before != b"\n" and not after.startswith((b"\n", b"\r\n"))

    def _digest(self, size: int) -> str:
        found, left = hashlib.blake2b(digest_size=16), size
        try:
            with self.opened() as file:
                while chunk := file.read(min(_CHUNK_BYTES, left)):
                    found.update(chunk)
                    left -= len(chunk)
        except OSError as error:
            raise _unreadable(self.path, error) from None
        return f"{size}:{found.hexdigest()}"

    def _mark_up_to(self, offset: int) -> str:
        try:
            with self.opened() as file:
                file.seek(self.position)
                while self.position < offset:
                    chunk = file.read(min(_CHUNK_BYTES, offset - self.position))
                    if not chunk:
                        raise SourceChanged(f"{self.path} has become shorter; what is queued stays")
                    self._queued.update(chunk)
                    self.position += len(chunk)
        except OSError as error:
            raise _unreadable(self.path, error) from None
        return self._queued.hexdigest()


def _opened(path: Path) -> int:
    try:
        is_regular = stat.S_ISREG(path.stat().st_mode)  # first: to open a pipe waits for its writer
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if is_regular else -1
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _unreadable(path, error) from None
    if not is_regular:
        raise InputUnreadable(f"{path} is no file that can be read again from its middle; a walk needs one")
    return descriptor


def _unreadable(path: Path, error: Exception) -> InputUnreadable:
    return InputUnreadable(
        f"cannot read {path}: {os.strerror(error.errno or 0) if isinstance(error, OSError) else error}"
    )
