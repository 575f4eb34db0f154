"""A folder as one archive (tar, as it is), and back; neither trusts what it finds.

Regular files, folders and links are kept. Links are never followed: they are made last, when nothing is written any
more, so no member is written through one; on top of that each member must pass tarfile's own filter for data.
"""

import errno
import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
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


class ArchiveRefused(ConfigurationError):
    """A folder that cannot be saved, or an archive that cannot be restored; says why."""


def pack(folder: Path, target: Path, most_bytes: int, rights: AbstractContextManager[None] | None = None) -> str:
    """Write an archive of what lies in a folder; return the first half of its SHA-256, in hexadecimal.

    Args:
        folder: what to save.
        target: the file to make, for this user alone.
        most_bytes: how much all of it may be.
        rights: entered to read it; the target is this process's own.

    Raises:
        ArchiveRefused: it is more, or holds what cannot be kept: a pipe, a socket, a device, a link that leads out.
        OSError: the disk is full, or the folder changed meanwhile.
    """
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w+b") as stream:
        with rights or nullcontext(), tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
            left = most_bytes
            for path in _below(folder, _MOST_DEEP):
                left -= _add(archive, folder, path, left) + _MEMBER_BYTES
                if left < 0:
                    raise ArchiveRefused(
                        f"the checkpoint folder holds more than {sizes.show(most_bytes)} (JOBQ_CHECKPOINT_MAX);"
                        " nothing was saved"
                    )
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


def _add(archive: tarfile.TarFile, folder: Path, path: Path, left: int) -> int:
    """Add one entry, and return its size; one that is larger than what is left is not written at all (S11)."""
    name = path.relative_to(folder).as_posix()
    kind = path.lstat().st_mode
    if not stat.S_ISREG(kind):
        info = archive.gettarinfo(path, arcname=name)
        if info is None:
            raise ArchiveRefused(f"{name!a} in the checkpoint folder is no file that can be kept; nothing was saved")
        _check(info, folder)
        archive.addfile(info)
        return 0
    # Opened once and never through a link: it may be another file by now, or a pipe that would hold this thread.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        info = archive.gettarinfo(arcname=name, fileobj=stream)
        if info.islnk():  # the second name of a file: kept as a file of its own
            info.type, info.linkname, info.size = tarfile.REGTYPE, "", os.fstat(descriptor).st_size
        _check(info, folder)
        if info.size <= left:
            archive.addfile(info, stream)
        return info.size


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
        ArchiveRefused: it is not the archive that was saved, or would write elsewhere.
        OSError: the disk is full.
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
            if error.errno not in _OF_ITS_NAMES:
                raise
            raise ArchiveRefused(f"the archive of the checkpoint cannot be restored: {error.strerror}") from None


def _unpack(stream: IO[bytes], folder: Path, most_bytes: int) -> None:
    links: list[tarfile.TarInfo] = []
    left = most_bytes
    with tarfile.open(fileobj=stream, mode="r:", tarinfo=_bounded_headers()) as archive:
        for member in archive:
            _check(member, folder)
            left -= member.size + _MEMBER_BYTES
            if left < 0:
                raise ArchiveRefused(f"the archive of the checkpoint holds more than {sizes.show(most_bytes)}")
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


def _bounded_headers() -> type[tarfile.TarInfo]:
    """Return how one archive's headers are read: those that are too long are refused before."""
    left = _ALL_EXTENDED_BYTES

    class Header(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
            nonlocal left
            info = super().frombuf(buf, encoding, errors)
            if info.type in _EXTENDED:
                left -= max(0, info.size)
                if not 0 <= info.size <= _EXTENDED_BYTES or left < 0:
                    raise ArchiveRefused("the archive of the checkpoint has a header that is too long")
            return info

    return Header


def _digest(stream: IO[bytes]) -> str:
    hashed = hashlib.sha256()
    while chunk := stream.read(_READ_BYTES):
        hashed.update(chunk)
    return hashed.hexdigest()[:32]
