"""Whether tasks are started by the launcher (jobq/run/guardian/launcher.c) or forked by the guardian (architecture 6).

The launcher is started from the guardian's one thread, which waits until the kernel has read it: so it is used only
from a disk of this machine, where that cannot hang (P1). Whatever is in its way, the guardian forks instead.
"""

import os
import subprocess
from pathlib import Path
from typing import Final, Literal, NamedTuple

from jobq.run import guardian
from jobq.run.spawn.containment import UNGUARDED

Asked = Literal["auto", "off"]  # JOBQ_LAUNCHER
LAUNCHER: Final = "launcher"
FORK: Final = "fork"
PATH: Final = str(Path(guardian.__file__).with_name("launcher"))
_LOCAL: Final = frozenset(
    {  # linux/magic.h, and for the last two their own sources
        *(0xEF53, 0x58465342, 0x9123683E, 0xF2F52010),  # ext2 to ext4, XFS, Btrfs, F2FS
        *(0x794C7630, 0x01021994, 0x858458F6, 0x73717368, 0xE0F5E1E2),  # overlay, tmpfs, ramfs, squashfs, EROFS
        *(0x2FC12FC1, 0xCA451A4E),  # ZFS, bcachefs
    }
)
_NO_ARGUMENTS: Final = 127  # how it ends without any


class StartInUse(NamedTuple):
    """How tasks are started.

    Attributes:
        kind: "launcher" or "fork".
        why: where the launcher is, or why tasks are forked.
    """

    kind: str
    why: str


def find(asked: Asked, path: str = PATH) -> StartInUse:
    """Return how a guardian that is started here would start tasks.

    Args:
        asked: the setting.
        path: of the launcher.
    """
    if asked == "off":
        return StartInUse(FORK, "JOBQ_LAUNCHER=off")
    if not Path(path).exists():
        return StartInUse(FORK, "this jobq was installed without the launcher: no compiler was there")
    if not os.access(path, os.X_OK):
        return StartInUse(FORK, "the launcher may not be executed: its disk is mounted noexec, or its mode was changed")
    from jobq.run.process.kernel import file_system_of  # noqa: PLC0415 - Linux alone has what it imports

    if (kind := file_system_of(path)) not in _LOCAL:
        return StartInUse(FORK, f"the launcher lies on a disk that may hang (file system {kind:#x}, statfs(2))")
    return StartInUse(LAUNCHER, path)


def try_here(asked: Asked, *, is_guarded: bool, path: str = PATH) -> StartInUse:
    """Return what `find` does, and execute the launcher, which does nothing without arguments.

    Args:
        asked: the setting.
        is_guarded: whether tasks would be below a guardian.
        path: of the launcher.
    """
    if not is_guarded:
        return StartInUse(FORK, UNGUARDED)
    found = find(asked, path)
    if found.kind == FORK:
        return found
    try:
        code = subprocess.run([path], check=False, stdin=subprocess.DEVNULL).returncode
    except OSError as error:
        return StartInUse(FORK, f"the launcher cannot be executed: {error.strerror}")
    return found if code == _NO_ARGUMENTS else StartInUse(FORK, f"the launcher does not work here: it ends with {code}")


def guardian_options(asked: Asked) -> list[str]:
    """Return the guardian's option that names the launcher; none = it forks."""
    found = find(asked)
    return ["--launcher", found.why] if found.kind == LAUNCHER else []
