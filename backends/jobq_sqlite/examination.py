"""What `jobq check` asks of the embedded queue: whether its file lies where it is safe, and is its owner's alone."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from jobq.examination import Finding, Verdict
from jobq_sqlite.private_file import opened_by_others
from jobq_sqlite.same_file import other_name

_MOUNTS: Final = Path("/proc/self/mountinfo")
# Whose locks and shared memory are not those of one machine, which write-ahead logging needs (sqlite.org/wal.html).
_SHARED: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"})
_MOUNT_POINT: Final = 4  # in mountinfo (proc(5))
_ROOM_BYTES: Final = 100 * 1024 * 1024


async def findings(path: Path) -> AsyncIterator[Finding]:
    """Look at the file; changes nothing.

    Args:
        path: of the file.
    """
    for finding in await asyncio.to_thread(_all, path):
        yield finding


def _all(path: Path) -> list[Finding]:
    import shutil  # noqa: PLC0415 - a start must not pay for it

    kind, room = _file_system(path.resolve().parent), shutil.disk_usage(path.resolve().parent).free
    is_shared = kind in _SHARED or kind.startswith("fuse.")
    advice = "keep the file on a disk of this machine; for several machines there is `jobq serve`" if is_shared else ""
    is_full = room < _ROOM_BYTES
    others, other = opened_by_others(path), other_name(path)
    return [
        Finding(
            what="the file system",
            found=kind or "not known",
            verdict=Verdict.DIFFERS if is_shared else Verdict.OK if kind else Verdict.UNKNOWN,
            advice=advice,
        ),
        Finding(
            what="room beside the file",
            found=f"{room // 2**20} MiB",
            verdict=Verdict.DIFFERS if is_full else Verdict.OK,
            advice="make room: a full disk refuses pushes and settlements" if is_full else "",
        ),
        Finding(
            what="the file is this user's alone",
            found="no" if others else "yes",
            verdict=Verdict.DIFFERS if others else Verdict.OK,
            advice="; ".join(others),
        ),
        Finding(
            what="the file has one name",
            found="no" if other else "yes",
            verdict=Verdict.DIFFERS if other else Verdict.OK,
            advice=other or "",
        ),
    ]


def _file_system(folder: Path) -> str:
    """Return the kind of the file system that a folder is on; empty where nobody says."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    kinds = {line.split()[_MOUNT_POINT]: line.partition(" - ")[2].split()[0] for line in lines}
    return next((kinds[str(each)] for each in (folder, *folder.parents) if str(each) in kinds), "")
