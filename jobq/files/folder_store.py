"""A folder, perhaps on a share: what is put there is whole and synced, or not there.

Its scratch folder is also its mark, made with the first file. A folder without it may be the empty place where the
share is not mounted, so what is not found there is not said to be gone.
"""

import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self, TypeVar

from jobq.errors import AccessDenied, BackendUnavailable
from jobq.files.threads import in_thread

T = TypeVar("T")
_SCRATCH: Final = ".jobq-scratch"
_STALE_SECONDS: Final = 86400.0  # what lies in the scratch folder for so long is of a worker that was killed
_NOT_MOUNTED: Final = f"it is not mounted, or all in it was removed: it has no {_SCRATCH}"
PATIENCE_SECONDS: Final = 600.0  # for one file; a share that hangs answers never


class FolderStore:
    """Files below one folder, for this user alone.

    Args:
        root: the folder; made when something is put there.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._mark = root / _SCRATCH
        self._device = 0

    async def scratch(self) -> Path | None:
        """Return a folder beside the files: moving from there is one step."""
        await self._do(self._ready)
        return self._mark

    async def __aenter__(self) -> Self:
        await self._do(self._open)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    def _open(self) -> None:
        if self._mark.is_dir():
            for left in os.scandir(self._mark):
                with suppress(OSError):
                    if time.time() - left.stat(follow_symlinks=False).st_mtime > _STALE_SECONDS:
                        Path(left.path).unlink()
        folder = self._made_part()
        self._device = folder.stat().st_dev
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def _made_part(self) -> Path:
        """Return the folder, or that above it which is there."""
        return next(each for each in (self._root.absolute(), *self._root.absolute().parents) if each.exists())

    def _ready(self) -> None:
        """Make the folder and its mark where they are missing, unless that is because the share is not mounted."""
        if not self._mark.is_dir():
            if self._made_part().stat().st_dev != self._device:
                raise OSError(errno.ENODEV, _NOT_MOUNTED)
            self._make(self._mark)

    def _make(self, folder: Path) -> None:
        """Make a folder, the root or one below it, and those between: for this user alone each of them."""
        if not folder.is_dir():
            self._root.parent.mkdir(parents=True, exist_ok=True)
            for each in (*reversed(folder.parents), folder):
                if each.is_relative_to(self._root):
                    each.mkdir(mode=0o700, exist_ok=True)

    async def put(self, name: str, source: Path) -> None:
        """Sync it, and rename it to its place."""
        await self._do(lambda: self._put(name, source))

    def _put(self, name: str, source: Path) -> None:
        self._ready()
        target = self._root / name
        self._make(target.parent)
        if source.stat().st_dev != self._root.stat().st_dev:
            copied = self._mark / secrets.token_hex(8)
            shutil.copyfile(source, copied)
            source = copied
        _sync(source)
        source.replace(target)
        _sync(target.parent)

    async def fetch(self, name: str, into: Path) -> Path:  # noqa: ARG002 - it is at hand
        """Return its own path."""

        def look() -> Path:
            if not (self._root / name).exists() and not self._mark.is_dir():
                raise OSError(errno.ENODEV, _NOT_MOUNTED)
            (self._root / name).stat()
            return self._root / name

        return await self._do(look)

    async def names(self, prefix: str) -> list[str]:
        """List them."""
        folder = prefix.rpartition("/")[0]

        def look() -> list[str]:
            with suppress(FileNotFoundError):
                found = (f"{folder}/{path.name}" if folder else path.name for path in (self._root / folder).iterdir())
                return [name for name in found if name.startswith(prefix)]
            return []

        return await self._do(look)

    async def remove(self, name: str) -> None:
        """Unlink it, and its folder with the last file."""

        def unlink() -> None:
            path = self._root / name
            path.unlink(missing_ok=True)
            with suppress(OSError):
                if path.parent != self._root:
                    path.parent.rmdir()

        await self._do(unlink)

    async def read(self, name: str, offset: int, most: int) -> bytes:
        """Read on."""

        def look() -> bytes:
            with (self._root / name).open("rb") as stream:
                stream.seek(offset)
                return stream.read(most)

        return await self._do(look)

    async def append(self, name: str, offset: int, chunk: bytes) -> None:
        """Write at the offset."""

        def write() -> None:
            path = self._root / name
            self._make(path.parent)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.seek(offset)
                stream.write(chunk)

        await self._do(write)

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await in_thread(work, f"files in {self._root}")
        except FileNotFoundError:
            raise
        except PermissionError as error:
            raise AccessDenied(f"{self._root}: {error.strerror}") from None
        except OSError as error:
            raise BackendUnavailable(f"{self._root}: {error.strerror}") from None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
