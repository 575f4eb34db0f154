"""Is what a connection speaks to still what stands under its path?

A file that is deleted, moved away or replaced lives on for those who have it open, and so does its log. One who opens
the path then finds another queue: what the former is sent reaches nobody, and its leases keep nobody from anything.
"""

import os
import shlex
import sqlite3
import sys
from pathlib import Path
from typing import Final, NamedTuple

from jobq.errors import StoreUnusable
from jobq_sqlite.errors import StoreReplaced

_BESIDE: Final = ("-wal", "-shm")  # SQLite's log and its index; both stand there while anyone has the file open


class _Mark(NamedTuple):
    device: int
    inode: int


class SameFile:
    """Remembers what was opened, and compares: four calls of the kernel and a row in the cache, about 25 us.

    Args:
        path: as it was opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beside = [f"{path.resolve()}{ending}" for ending in _BESIDE]  # beside what a link points to
        self._is_nameless = False
        self._marks: tuple[_Mark | None, ...] = ()
        self._changed: tuple[int, int] = (0, 0)  # length, and time of the latest write
        self._links = 1

    def remember(self, database: sqlite3.Connection) -> None:
        """Take what stands there now for what this connection has open; it has read, so that all of it stands there."""
        self._marks = self._look()
        if self._marks[0] is None:
            raise self._replaced("is gone")
        (self._identity,) = database.execute("SELECT identity FROM host").fetchone()
        self.confirm()

    @property
    def known(self) -> tuple[object, ...]:
        """What was remembered."""
        return self._marks, self._identity

    def compare(self, other: "SameFile") -> None:
        """Raise StoreReplaced unless both remember the same."""
        if self.known != other.known:
            raise self._replaced("is another file than was opened")

    def check(self, database: sqlite3.Connection) -> None:
        """Raise StoreReplaced for a connection whose file is no longer there or is another one, and refuse a link."""
        changed = self._changed
        self.confirm()
        if self._links > 1:
            raise StoreUnusable(_linked(self._path))
        if self._changed != changed:
            # Written past the log: by SQLite, which moves the log's pages there, or by a copy over it. What was read
            # before says nothing of a copy.
            database.execute("PRAGMA shrink_memory")
        if database.execute("SELECT identity FROM host").fetchone() != (self._identity,):
            raise self._replaced("holds another queue now")

    def go_nameless(self) -> None:
        """Look no more: the connection that has the file open deletes it, so that nothing of it is left behind."""
        self._is_nameless = True

    def confirm(self) -> None:
        """Raise StoreReplaced when the path leads elsewhere; reads nothing of the file."""
        if self._is_nameless:
            return
        for found, mark, name in zip(self._look(), self._marks, (str(self._path), *self._beside), strict=True):
            if found != mark:
                raise self._replaced(f"has lost {name}" if found is None else f"has another {name} than was opened")

    def _look(self) -> tuple[_Mark | None, ...]:
        found = _stat(str(self._path))
        if found is not None:
            if not found.st_size:
                raise self._replaced("is empty")
            self._changed = found.st_size, found.st_mtime_ns
            self._links = found.st_nlink
        return tuple(
            None if each is None else _Mark(each.st_dev, each.st_ino) for each in (found, *map(_stat, self._beside))
        )

    def _replaced(self, what: str) -> StoreReplaced:
        return StoreReplaced(
            f"{self._path} {what}: it was deleted, emptied or replaced while it was in use, and nothing that is said to"
            " it is kept. Start again; to put a backup in its place, stop all that use it first and take its -wal and"
            " -shm away with it"
        )


def other_name(path: Path) -> str | None:
    """Return what is wrong where a file may have another name, with what to do; None = it has one, or is not there.

    Each name has a log and locks of its own (sqlite.org/howtocorrupt.html, 2.5): who opens one sees nothing of what
    others do by the other, takes what they have leased (S3), and writes over what they were acknowledged (S1).
    """
    found, target = _stat(str(path)), path.resolve()
    if found is None:
        return None
    if found.st_nlink > 1:
        return _linked(path)
    if _mount(target) == _mount(target.parent):
        return None
    return (
        f"{path} is mounted alone, without its folder: whoever opens it elsewhere has another log, so that tasks are"
        " lost and run twice. Mount the folder that it lies in (docker run -v FOLDER:/data, not FOLDER/queues.db:...)"
    )


def _linked(path: Path) -> str:
    where = shlex.quote(str(path))
    return (
        f"{path} has another name, a hard link, and each has a log of its own: who opens both loses tasks and"
        f" runs them twice. Remove the other one (find / -samefile {where}); copy it by: sqlite3 {where}"
        ' ".backup copy.db"'
    )


def _mount(path: Path) -> str | None:
    """Return which mount a path is on (proc(5)); the device says it not. None where nobody tells."""
    if sys.platform != "linux":
        return None
    try:
        # No file is opened by that: closing one would let go of the locks that SQLite has on it in this process.
        descriptor = os.open(path, os.O_PATH)
    except OSError:
        return None
    try:
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return next((line for line in lines if line.startswith("mnt_id:")), None)


def is_kept(path: Path, file: Path) -> bool:
    """Return whether a path leads to a queue's file, or to what SQLite keeps beside it; none of them need be there."""
    return any(_is_same(path, Path(f"{file.resolve()}{ending}")) for ending in ("", "-journal", *_BESIDE))


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:  # one of them is missing
        return path.resolve() == other


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - a third of the time of Path.stat, and made three times with each commit
    except (FileNotFoundError, NotADirectoryError):
        return None
