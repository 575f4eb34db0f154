"""Files as another user reaches them: what a task of another user has made is read with that user's rights (A11).

Linux keeps these rights for each thread, and its own programs that serve files to many users do it like this
(setfsuid(2), capabilities(7)); libc's own `setgroups` would change the groups of all threads.
"""

import codecs
import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# System calls by architecture.
_SETGROUPS: Final = {"x86_64": 116, "aarch64": 159, "riscv64": 159}.get(platform.machine())
_PASS_OVER: Final = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
_NONE: Final = 2**32 - 1  # of setfsuid: changes nothing, and returns what it is


def is_possible() -> bool:
    """Return whether this machine's kernel can be asked for it."""
    return _SETGROUPS is not None and Path("/proc/thread-self/status").exists()


@contextmanager
def rights_of(uid: int, gid: int) -> Iterator[None]:
    """Reach files as another user while the context is entered, on this thread alone; for root.

    Args:
        uid: of that user.
        gid: its only group.

    Raises:
        PermissionError: this process may not; nothing was read.
    """
    for encoding in ("ascii", "utf-8"):  # that user may not be able to read where Python is: nothing is imported as it
        codecs.lookup(encoding)
    libc = ctypes.CDLL(None, use_errno=True)
    former, groups = (libc.setfsuid(_NONE), libc.setfsgid(_NONE)), os.getgroups()
    try:
        _set_groups(libc, [])
        libc.setfsgid(gid)
        libc.setfsuid(uid)  # takes the rights that pass over those of files, too
        status = Path("/proc/thread-self/status").read_text("ascii")
        effective = int(status.partition("CapEff:")[2].split(maxsplit=1)[0], 16)
        if (libc.setfsuid(_NONE), libc.setfsgid(_NONE)) != (uid, gid) or effective & _PASS_OVER:
            raise PermissionError("the files of another user cannot be read with its own rights")
        yield
    finally:
        libc.setfsuid(former[0])
        libc.setfsgid(former[1])
        _set_groups(libc, groups)


def _set_groups(libc: ctypes.CDLL, groups: list[int]) -> None:
    numbers = (ctypes.c_uint32 * len(groups))(*groups)
    if libc.syscall(ctypes.c_long(_SETGROUPS or -1), ctypes.c_size_t(len(groups)), numbers):
        raise PermissionError(ctypes.get_errno(), "the groups of a thread cannot be set")


def give_tree(folder: Path, uid: int, gid: int) -> None:
    """Give a folder with all below it to a user, links as links; nobody else is in it meanwhile."""
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(Path(path, name), uid, gid, follow_symlinks=False)
    os.chown(folder, uid, gid, follow_symlinks=False)
