"""The file is its owner's alone: commands run on this machine by what it says, and tasks may hold secrets."""

import logging
import os
import shlex
import stat
import sys
from pathlib import Path
from typing import Final

_log: Final = logging.getLogger(__name__)
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OWNER: Final = stat.S_IRUSR | stat.S_IWUSR
_warned: Final = set[str]()  # once a process is enough


def make_folder(folder: Path) -> None:
    """Make a folder that is not there, for this user alone; raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=stat.S_IRWXU)


def make_file(path: Path) -> None:
    """Make an empty file where there is none, for this user alone; SQLite gives its log the same rights.

    What cannot be made is left to SQLite, whose error says more.
    """
    target = path.resolve()  # of a link that leads to nothing yet
    try:
        if sys.platform == "linux":
            # Not opened: to close it would let go of the locks that another thread's SQLite has on it (fcntl(2)).
            os.mknod(target, stat.S_IFREG | _OWNER)
        else:
            os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER))
    except OSError:
        return


def warn_of_others(path: Path) -> None:
    """Warn, with the command that mends it, when others than this user may read or change a file or replace it."""
    for text in opened_by_others(path):
        if text not in _warned:
            _warned.add(text)
            _log.warning("%s", text)


def opened_by_others(path: Path) -> list[str]:
    """Return what others than this user may do with a file, with the command that mends it."""
    target = path.resolve()
    try:
        file, folder = target.stat(), target.parent.stat()
    except OSError:  # it is gone, or its folder is closed to us: the next use of it says so
        return []
    found = []
    if file.st_uid != os.geteuid():
        found.append(f"{path} belongs to another user, who decides what runs by it: sudo -u '#{file.st_uid}' jobq ...")
    elif file.st_mode & _OTHERS:
        what = "change" if file.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else "read"
        names = f"{shlex.quote(str(target))}*"  # with its log
        found.append(f"other users may {what} {path} and what its tasks hold: chmod go= {names}")
    if folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX:
        found.append(f"any user may replace {path}: chmod o-w {shlex.quote(str(target.parent))}")
    return found
