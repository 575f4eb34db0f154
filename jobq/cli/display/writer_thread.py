"""Writes lines from a thread of its own: a paused terminal or a full pipe must never stop the event loop (P1, L4)."""

import errno
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

MAX_WAITING_BYTES: Final = 4 * 1024 * 1024
_RESERVE_BYTES: Final = 1024 * 1024  # on top, for lines that matter more than what tasks print
_CHUNK_BYTES: Final = 64 * 1024
_OVERHEAD_BYTES: Final = 64  # of an entry: bounds how many empty lines wait


class WriterThread:
    """A bounded queue of lines and one daemon thread that writes them, in order, to file descriptors.

    When the queue is full new lines are dropped and counted, and their number is written as soon as there is room.
    A descriptor that cannot be written any more is given up: its reader has gone, or its disk is full.

    Args:
        dropped: makes the line that says how many were dropped, and the descriptor it goes to.
        on_fault: called by the thread, once for each descriptor, with why it cannot be written; must not block.
        max_bytes: how much may wait.
    """

    def __init__(
        self,
        dropped: Callable[[int], tuple[int, bytes]],
        *,
        on_fault: Callable[[int, OSError], None] = lambda _descriptor, _error: None,
        max_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self._dropped_line = dropped
        self._on_fault = on_fault
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._gone: set[int] = set()
        self._busy = False
        self._stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._main, name="jobq-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, descriptor: int, line: bytes, *, important: bool = False) -> bool:
        """Hand in one or more lines; never blocks. Important lines may use a reserve that others may not.

        Returns:
            Whether there was room for it.
        """
        cost = len(line) + _OVERHEAD_BYTES
        with self._changed:
            room = self._max_bytes + (_RESERVE_BYTES if important else 0) - self._waiting_bytes
            if cost > room:
                self._dropped += lines_in(line)
                return False
            # As long as the queue is over half full, each line that is let in would drag a note along.
            if self._dropped and self._waiting_bytes < self._max_bytes // 2:
                self._write_dropped()
            self._append(descriptor, line)
            self._changed.notify()
            return True

    @property
    def has_room(self) -> bool:
        """Whether less than half of what may wait does."""
        return self._waiting_bytes < self._max_bytes // 2

    def stop(self, timeout_seconds: float) -> int:
        """Write what waits, for at most this long; return how many lines were not written."""
        end = time.monotonic() + timeout_seconds
        with self._changed:
            if self._dropped:
                self._write_dropped()
            self._stopping = True
            self._changed.notify_all()
            while (self._has_work() or self._busy) and (rest := end - time.monotonic()) > 0:
                self._changed.wait(rest)
            return sum(lines_in(line) for _, line in self._waiting)

    def _append(self, descriptor: int, line: bytes) -> None:
        self._waiting.append((descriptor, line))
        self._waiting_bytes += len(line) + _OVERHEAD_BYTES

    def _write_dropped(self) -> None:
        count, self._dropped = self._dropped, 0
        self._append(*self._dropped_line(count))

    def _main(self) -> None:
        while chunk := self._next_chunk():
            descriptor, data = chunk
            if descriptor in self._gone:
                continue
            try:
                _write_all(descriptor, self._dressed(descriptor, data))
            except OSError as error:
                self._gone.add(descriptor)
                self._on_fault(descriptor, error)

    def _next_chunk(self) -> tuple[int, bytes] | None:
        """Return the next lines for one descriptor, as one piece; None at the end."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            while not self._has_work():
                if self._stopping:
                    return None
                self._changed.wait()
            self._busy = True
            return self._take()

    def _has_work(self) -> bool:
        return bool(self._waiting)

    def _take(self) -> tuple[int, bytes]:
        descriptor = self._waiting[0][0]
        lines: list[bytes] = []
        size = 0
        while self._waiting and self._waiting[0][0] == descriptor and size < _CHUNK_BYTES:
            _, line = self._waiting.popleft()
            self._waiting_bytes -= len(line) + _OVERHEAD_BYTES
            lines.append(line)
            size += len(line)
        return descriptor, b"".join(lines)

    def _dressed(self, descriptor: int, data: bytes) -> bytes:  # noqa: ARG002 - for those who derive from it
        """Return what is written for these lines; called by the thread, without the lock."""
        return data


def lines_in(data: bytes) -> int:
    """Return how many lines these bytes are, an unfinished one included."""
    return data.count(b"\n") + (not data.endswith(b"\n"))


def reader_has_gone(error: OSError, descriptor: int) -> bool:
    """Return whether nobody reads any more, as in `| head -1` or on a terminal that hung up: then nothing is lost."""
    if error.errno == errno.EIO:  # of a disk: a fault; a terminal that hung up is no longer one to isatty
        return stat.S_ISCHR(os.fstat(descriptor).st_mode)
    return error.errno == errno.EPIPE


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, however long that takes; raises OSError when the descriptor cannot be written any more."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # somebody who shares the descriptor made it non-blocking
            select.select([], [descriptor], [])
