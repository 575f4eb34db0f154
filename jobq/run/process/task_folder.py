"""The folder of a worker: where its tasks write their results, and where they find its socket.

It is made when the first task starts, and again when a task or a cleaner of temporary files has removed it. Only this
user may enter it (A11). A lock on it says that its worker lives: who finds one without removes it, the guardian first
of all, so that nothing is left of a worker that was killed (P5). What a task writes there another task of the same user
could overwrite, as any file of this user.
"""

import errno
import fcntl
import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from jobq.files.remove_tree import remove_tree

PREFIX: Final = "jobq-tasks-"  # of no other folder of jobq: `sweep` removes what has no lock
_PATH_BYTES: Final = 100  # a Unix socket's path ends at 104 (macOS) or 108 (Linux)
_LONGEST_NAME: Final = "/12345678.json"
_PRIVATE: Final = 0o700  # as mkdtemp makes it
_TRIES: Final = 20
# Where TMPDIR is a long path, or nothing can be written there; mkdtemp makes it safe. A container has the second, even
# where all else is read-only.
_ELSEWHERE: Final = ("/tmp", "/dev/shm")  # noqa: S108
_held: Final[set[Path]] = set()  # by this process


class TaskFolder:
    """A worker's; made on first use."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock = -1

    @property
    def path(self) -> Path:
        """The folder; raises OSError when there is no room for one."""
        former = self._path
        if former is None or (self._lock >= 0 and not _is_at(former, self._lock)):
            self._release()
            sweep()
            self._path, self._lock = _made(former)
            _held.add(self._path)
            return self._path
        return former

    def new_file(self) -> Path:
        """Return a path for one attempt's result; the file is the task's to make."""
        return self.path / f"{secrets.token_hex(4)}.json"

    def written(self, content: bytes) -> Path:
        """Return a new file with this content, which no other user can read; raises OSError."""
        path = self.new_file()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        except OSError:
            path.unlink(missing_ok=True)  # on a full disk it would take what is left
            raise
        return path

    def new_folder(self) -> Path:
        """Return a new, empty folder in it; raises OSError."""
        path = self.path / secrets.token_hex(4)
        path.mkdir(mode=_PRIVATE)
        return path

    def close(self) -> None:
        """Remove it, at any time and any number of times."""
        if self._path is not None:
            remove_tree(self._path)
            self._release()

    def _release(self) -> None:
        if self._path is not None:
            _held.discard(self._path)
        if self._lock >= 0:
            os.close(self._lock)
        self._path, self._lock = None, -1


def remove_held() -> None:
    """Remove the folders of this process, which is about to kill itself; on any thread."""
    for path in tuple(_held):
        remove_tree(path)


def _made(former: Path | None) -> tuple[Path, int]:
    """Make a folder and lock it; anew where a sweep of another process came in between.

    Args:
        former: where it was until it was removed, and is again if it can be: running tasks know its path.
    """
    refused: OSError | None = None
    with suppress(OSError):
        if former is not None:
            former.mkdir(mode=_PRIVATE)
            return former, _locked(former)
    for place in _places():
        try:
            return _made_in(place)
        except OSError as error:  # read-only, full, not ours
            refused = refused or error
    raise refused or OSError(errno.ENAMETOOLONG, "no folder for temporary files has a path that is short enough")


def _places() -> list[str]:
    """Return where a folder may be, the first choice first: what leaves room for the path of a socket."""
    room = _PATH_BYTES - len(f"/{PREFIX}12345678{_LONGEST_NAME}")
    try:
        own = tempfile.gettempdir()
    except FileNotFoundError:  # it has tried some places, not all of these
        own = _ELSEWHERE[0]
    places = dict.fromkeys((own, *_ELSEWHERE))
    return [place for place in places if len(os.fsencode(place)) <= room]


def _made_in(place: str) -> tuple[Path, int]:
    for _ in range(_TRIES):
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        with suppress(OSError):
            return path, _locked(path)
    raise OSError(errno.EAGAIN, f"no folder in {place} stays")


def sweep() -> None:
    """Remove the folders of workers of this user that are dead."""
    for place in _places():
        with suppress(OSError):
            for entry in os.scandir(place):
                if entry.name.startswith(PREFIX) and _is_own_folder(entry):
                    _remove_if_dead(Path(entry.path))


def _is_own_folder(entry: "os.DirEntry[str]") -> bool:
    with suppress(OSError):
        found = entry.stat(follow_symlinks=False)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == _PRIVATE
    return False


def _is_at(folder: Path, descriptor: int) -> bool:
    with suppress(OSError):
        return os.path.samestat(folder.lstat(), os.fstat(descriptor))
    return False


def _locked(folder: Path) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(folder, descriptor):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove_if_dead(folder: Path) -> None:
    try:
        lock = _locked(folder)
    except OSError:  # its worker lives, or somebody else removes it just now
        return
    remove_tree(folder)
    os.close(lock)


def read_result(path: Path, max_bytes: int) -> bytes | None:
    """Return what a task wrote as its result and remove the file; None = nothing.

    It is a stranger's file: a link, a pipe or a device is not read, and of one that is too long a byte more than
    `max_bytes` is.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError:
        _remove(path)
        return None
    try:
        found = os.fstat(descriptor)
        return os.read(descriptor, max_bytes + 1) if stat.S_ISREG(found.st_mode) else None
    except OSError:
        return None
    finally:
        os.close(descriptor)
        _remove(path)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
