"""A folder as one archive (tar, as it is), and back; neither trusts what it finds.

Regular files, folders and links are kept. Links are never followed: they are made last, when nothing is written any
more, so no member is written through one; on top of that each member must pass tarfile's own filter for data. What one
archive may hold is bounded alike when it is written and when it is read (`_Bounds`), so what was saved can be restored.
"""

import errno
import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, Self

from jobq.errors import ConfigurationError
from jobq.formats import sizes

_READ_BYTES: Final = 1024 * 1024
_MOST_DEEP: Final = 100  # each level costs a call, and a look at all above it
_MEMBER_BYTES: Final = 512  # of a header: many empty files are no small archive
# Headers that tarfile reads whole and keeps: what is too long for the 512 bytes, such as a name.
_EXTENDED: Final = frozenset(
    {
        *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
        *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    }
)
# What names that contradict each other come to: a file in a file, a link below itself. A full disk is another matter.
_OF_ITS_NAMES: Final = frozenset(
    {errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY}
)
_EXTENDED_BYTES: Final = 64 * 1024  # of one
_ALL_EXTENDED_BYTES: Final = 64 * 1024 * 1024
_NAME_BYTES: Final = 3900  # with the folder that it is restored to, whichever that is, a path has 4095


class ArchiveRefused(ConfigurationError):
    """A folder that cannot be saved, or an archive that cannot be restored; says why."""


class ArchiveTooLarge(ArchiveRefused):
    """It holds more than this worker takes; another one may take more."""


class _Bounds:
    """How much one archive may hold, when it is written and when it is read."""

    def __init__(self, most_bytes: int) -> None:
        self._most = self._left = most_bytes
        self._extended_left = _ALL_EXTENDED_BYTES

    def add(self, size: int) -> None:
        """Count a member; raise ArchiveTooLarge."""
        self._left -= size + _MEMBER_BYTES
        if self._left < 0:
            raise ArchiveTooLarge(
                f"the files of the checkpoint are more than {sizes.show(self._most)} (JOBQ_CHECKPOINT_MAX)"
            )

    def add_extended(self, size: int) -> None:
        """Count an extended header; raise ArchiveRefused."""
        self._extended_left -= max(0, size)
        if not 0 <= size <= _EXTENDED_BYTES or self._extended_left < 0:
            raise ArchiveRefused("the names of the files of the checkpoint are too long, each or all together")


def pack(folder: Path, target: Path, most_bytes: int) -> str:
    """Write an archive of what lies in a folder; return the first half of its SHA-256, in hexadecimal.

    Args:
        folder: what to save.
        target: the file to make, for this user alone.
        most_bytes: how much all of it may be.

    Raises:
        ArchiveRefused: it is more, or holds what cannot be kept: a pipe, a socket, a device, a link that leads out,
            names that are too long.
        OSError: the disk is full, or the folder changed meanwhile.
    """
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w+b") as stream:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
            bounds = _Bounds(most_bytes)
            for path in _below(folder, _MOST_DEEP):
                _add(archive, folder, path, bounds)
        stream.flush()
        stream.seek(0)
        return _digest(stream)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """Yield all that is in a folder, links to folders as links; what cannot be read is no empty folder."""
    if folder.is_symlink():  # put into the place of the folder itself: what is behind it was never the task's to keep
        raise ArchiveRefused("a link stands where the checkpoint folder was; nothing was saved")
    if not depth:
        raise ArchiveRefused(
            f"the checkpoint folder has folders more than {_MOST_DEEP} deep in each other; nothing was saved"
        )
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from _below(path, depth - 1)


def _add(archive: tarfile.TarFile, folder: Path, path: Path, bounds: _Bounds) -> None:
    """Add one entry; one that is larger than what is left is not written at all (S11)."""
    name = path.relative_to(folder).as_posix()
    if len(os.fsencode(name)) > _NAME_BYTES:
        raise ArchiveRefused(f"{name[:100]!a}... has a path of more than {_NAME_BYTES} bytes; nothing was saved")
    kind = path.lstat().st_mode
    if not stat.S_ISREG(kind):
        info = archive.gettarinfo(path, arcname=name)
        if info is None:
            raise ArchiveRefused(f"{name!a} in the checkpoint folder is no file that can be kept; nothing was saved")
        _check(info, folder)
        _count(archive, info, bounds)
        archive.addfile(info)
        return
    # Opened once and never through a link: it may be another file by now, or a pipe that would hold this thread.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        info = archive.gettarinfo(arcname=name, fileobj=stream)
        if info.islnk():  # the second name of a file: kept as a file of its own
            info.type, info.linkname, info.size = tarfile.REGTYPE, "", os.fstat(descriptor).st_size
        _check(info, folder)
        _count(archive, info, bounds)
        archive.addfile(info, stream)


def _count(archive: tarfile.TarFile, info: tarfile.TarInfo, bounds: _Bounds) -> None:
    bounds.add(info.size)
    header = len(info.tobuf(archive.format, archive.encoding, archive.errors))
    if header > _MEMBER_BYTES:
        bounds.add_extended(header - 2 * _MEMBER_BYTES)  # without the two headers of the extended one and the member


def _check(info: tarfile.TarInfo, folder: Path) -> None:
    if not (info.isreg() or info.isdir() or info.issym()) or info.issparse() or info.size < 0:
        raise ArchiveRefused(f"{info.name!a} is neither a file, a folder nor a link; it cannot be kept in a checkpoint")
    try:
        tarfile.data_filter(info, str(folder))
    except tarfile.FilterError as error:
        raise ArchiveRefused(f"{info.name!a} cannot be kept in a checkpoint: {error}") from None


def unpack(source: Path, folder: Path, most_bytes: int, digest: str) -> None:
    """Write what an archive holds into an empty folder.

    Args:
        source: the archive, a stranger's as far as this knows.
        folder: that nobody else writes to.
        most_bytes: how much may come out of it.
        digest: what `pack` returned.

    Raises:
        ArchiveTooLarge: more than that would come out of it.
        ArchiveRefused: it is not the archive that was saved, or would write elsewhere.
        OSError: the disk is full, or the folder is gone.
    """
    with source.open("rb") as stream:
        if _digest(stream) != digest:
            raise ArchiveRefused("the archive of the checkpoint is not what was saved: its hash differs")
        stream.seek(0)
        try:
            _unpack(stream, folder, most_bytes)
        except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:  # as tarfile reads what is none
            raise ArchiveRefused(f"the archive of the checkpoint cannot be restored: {error}") from None
        except OSError as error:
            if error.errno not in _OF_ITS_NAMES or not folder.is_dir():
                raise
            raise ArchiveRefused(f"the archive of the checkpoint cannot be restored: {error.strerror}") from None


def _unpack(stream: IO[bytes], folder: Path, most_bytes: int) -> None:
    links: list[tarfile.TarInfo] = []
    bounds = _Bounds(most_bytes)
    with tarfile.open(fileobj=stream, mode="r:", tarinfo=_bounded_headers(bounds)) as archive:
        for member in archive:
            _check(member, folder)
            bounds.add(member.size)
            if member.issym():
                links.append(member)
            else:
                archive.extract(member, folder, set_attrs=True, filter="data")
    made: set[str] = set()
    for link in links:
        parts = Path(link.name).parts
        if made & {"/".join(parts[:depth]) for depth in range(1, len(parts))}:
            raise ArchiveRefused(f"{link.name!a} in the archive of the checkpoint lies behind a link")
        (folder / link.name).symlink_to(link.linkname)
        made.add("/".join(parts))
    root = folder.resolve()
    for link in links:  # each alone stays inside, but the way through another may lead out: `a/..` is where a leads
        if not Path(os.path.realpath(folder / link.name)).is_relative_to(root):
            raise ArchiveRefused(f"{link.name!a} in the archive of the checkpoint leads out of its folder")


def _bounded_headers(bounds: _Bounds) -> type[tarfile.TarInfo]:
    """Return how one archive's headers are read: those that are too long are refused before."""

    class Header(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
            info = super().frombuf(buf, encoding, errors)
            if info.type in _EXTENDED:
                bounds.add_extended(info.size)
            return info

    return Header


def _digest(stream: IO[bytes]) -> str:
    hashed = hashlib.sha256()
    while chunk := stream.read(_READ_BYTES):
        hashed.update(chunk)
    return hashed.hexdigest()[:32]
