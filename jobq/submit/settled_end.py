"""Where the lines of a file end that another program may be appending to: half a line is no line."""

import os
import time
from collections.abc import Callable
from typing import Final

QUIET_SECONDS: Final = 3.0  # a last line without its end that was left alone for so long is all of it
_CHUNK_BYTES: Final = 64 * 1024


def settled_end(descriptor: int, say: Callable[[str], None]) -> int:
    """Return how much of a file is whole lines; a last one without line end counts once nobody writes any more.

    Args:
        descriptor: of a regular file; waits up to `QUIET_SECONDS` where it was just written and ends within a line.
        say: told before it waits.

    Raises:
        OSError: as reading a file does.
    """
    status = os.fstat(descriptor)
    end = _last_line_end(descriptor, status.st_size)
    wait = min(status.st_mtime + QUIET_SECONDS - time.time(), QUIET_SECONDS)  # a file server's clock may be ahead
    if end == status.st_size or wait <= 0:
        return status.st_size
    say(f"its last line has no line end, and was written just now: waiting {wait:.1f} s for the rest of it")
    time.sleep(wait)
    now = os.fstat(descriptor)
    if (now.st_size, now.st_mtime_ns) == (status.st_size, status.st_mtime_ns):
        return now.st_size
    return _last_line_end(descriptor, now.st_size)


def _last_line_end(descriptor: int, size: int) -> int:
    end = size
    while end:
        begin = max(0, end - _CHUNK_BYTES)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
