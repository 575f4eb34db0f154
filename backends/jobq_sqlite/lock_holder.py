"""Who holds the write lock of a file, as far as the kernel shows it: Linux lists each lock with its process.

SQLite's locks are ranges of bytes (https://www.sqlite.org/walformat.html, https://www.sqlite.org/fileio.html).
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_LOCKS: Final = Path("/proc/locks")
_WRITER_BYTE: Final = 120  # of the -shm file: the one who writes the log
_MAIN_BYTES: Final = range(0x40000000, 0x40000002)  # of the file itself: who is about to write it, or writes it


def holder_of(path: Path) -> str:
    """Return the process that holds the write lock, such as `process 4711 (python3)`; empty when nobody sees it."""
    with suppress(OSError, ValueError):
        main, index = _inode(path), _inode(Path(f"{path.resolve()}-shm"))
        for line in _LOCKS.read_text().splitlines():
            words = line.split()
            if "->" in words or len(words) < 8 or words[3] != "WRITE":  # noqa: PLR2004 - who waits; a whole line has 8
                continue
            number, inode, first = int(words[4]), int(words[5].rpartition(":")[2]), int(words[6])
            is_held = (inode == index and first == _WRITER_BYTE) or (inode == main and first in _MAIN_BYTES)
            if is_held and number > 0:  # one outside of this namespace has none
                return f"process {number}{_name(number)}"
    return ""


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return -1


def _name(number: int) -> str:
    if number == os.getpid():
        return " (this one)"
    with suppress(OSError):
        return f" ({Path(f'/proc/{number}/comm').read_text().strip()})"
    return ""
