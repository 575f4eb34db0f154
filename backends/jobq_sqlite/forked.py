"""Which files a process has open, so that a child that it forks keeps away from them.

SQLite keeps the locks of a process on a file in one table, and a forked child inherits that: a new connection of the
child believes to hold locks that it does not have, or waits for ones that nobody will ever give back. Another process
then takes the file's log away below the child, with what was acknowledged there (sqlite.org/howtocorrupt.html, 2.6).
"""

import os
from pathlib import Path
from typing import Final

from jobq.errors import StoreUnusable

_held: Final[dict[object, tuple[str, tuple[int, int] | None]]] = {}  # by who has it open: its path, and what lies there
_inherited: Final[set[object]] = set()  # likewise, of the process that this one was forked from


def _inherit() -> None:
    for path, mark in tuple(_held.values()):
        _inherited.update({path} if mark is None else {path, mark})
    _held.clear()


os.register_at_fork(after_in_child=_inherit)


def hold(who: object, path: Path) -> None:
    """Note that a file is open from now on; again once it is there for certain.

    Args:
        who: has it open; to be given to `let_go`.
        path: of the file.

    Raises:
        StoreUnusable: the process that this one was forked from had it open at that time.
    """
    place, mark = str(path.resolve()), _mark_of(path)
    if place in _inherited or mark in _inherited:
        raise StoreUnusable(
            f"{path} was open in the process that this one was forked from, and SQLite's locks do not outlast a fork:"
            " what was acknowledged here could vanish. Leave the queue before the fork, or start processes by spawn"
            " (multiprocessing.set_start_method('spawn'))"
        )
    _held[who] = place, mark


def let_go(who: object) -> None:
    """Note that it is closed."""
    _held.pop(who, None)


def _mark_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:  # who opens it says what is wrong
        return None
    return found.st_dev, found.st_ino
