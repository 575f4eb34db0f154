"""Keeps a few lines at the bottom of a terminal while other lines scroll above them, from the writer's thread.

rich.live would write from its caller's thread, under a lock: one paused terminal (Ctrl-S, a stuck ssh) would stop the
event loop that renews leases (P1, L4). Here the loop only leaves behind how to draw the newest frame.
"""

import fcntl
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from jobq.cli.display.writer_thread import MAX_WAITING_BYTES, WriterThread

Draw = Callable[[int, int], list[str]]  # from columns and rows to lines that are no wider and no more
_FRAME_SECONDS: Final = 0.02  # between two frames: a task that prints line by line gets no frame for each
_FLOOD_BYTES: Final = 32 * 1024  # in one piece: then nothing waits
_TIOCGDEV: Final = 0x80045432  # Linux: the real number of a terminal, also for /dev/tty
_USUAL: Final = os.terminal_size((80, 24))
_NO_WRAP: Final = b"\x1b[?7l"  # should a terminal count a character wider than we do, the line is cut and not folded
_WRAP: Final = b"\x1b[?7h"
_CLEAR_BELOW: Final = b"\x1b[J"


class FrameWriter(WriterThread):
    """A writer that draws a frame below the lines of a terminal.

    A terminal that takes nothing gets no frame either: the newest one waits, and replaces the one before it.

    Args:
        dropped, on_fault: as for `WriterThread`.
        terminal: the descriptors that are the terminal; the frame is written to the first.
        max_bytes: as for `WriterThread`.
    """

    def __init__(
        self,
        dropped: Callable[[int], tuple[int, bytes]],
        *,
        terminal: frozenset[int],
        on_fault: Callable[[int, OSError], None] = lambda _descriptor, _error: None,
        max_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        super().__init__(dropped, on_fault=on_fault, max_bytes=max_bytes)
        self._terminal = terminal
        self._draw: Draw | None = None
        self._is_stale = False
        self._height = 0  # of the frame that is on the terminal
        self._drawn = 0.0  # when that was, by time.monotonic()

    def show(self, draw: Draw | None) -> None:
        """Draw this frame soon, with the thread's own time; None = none from now on. Never blocks."""
        with self._changed:
            self._draw = draw
            self._is_stale = True
            self._changed.notify()

    def stop(self, timeout_seconds: float) -> int:
        """Remove the frame, and do as `WriterThread.stop`."""
        self.show(None)
        return super().stop(timeout_seconds)

    def _has_work(self) -> bool:
        return self._is_stale or super()._has_work()

    def _take(self) -> tuple[int, bytes]:
        if super()._has_work():
            return super()._take()
        self._is_stale = False
        return max(self._terminal), b""

    def _dressed(self, descriptor: int, data: bytes) -> bytes:
        if descriptor not in self._terminal:
            return data
        if len(data) < _FLOOD_BYTES and (pause := self._drawn + _FRAME_SECONDS - time.monotonic()) > 0:
            time.sleep(pause)  # what comes meanwhile goes into one piece
        erase = b""
        if self._height:
            # A terminal that was made narrower may have folded the old frame: then the head of it stays, above. To go
            # further up would wipe out lines of tasks on all those terminals that do not fold.
            up = b"\x1b[%dA" % (self._height - 1) if self._height > 1 else b""
            erase = b"\r" + up + _CLEAR_BELOW
        lines = self._lines(size_of(descriptor))
        self._height = len(lines)
        self._drawn = time.monotonic()
        frame = _NO_WRAP + "\r\n".join(lines).encode("utf-8", "backslashreplace") + _WRAP if lines else b""
        return erase + data + frame

    def _lines(self, size: os.terminal_size) -> list[str]:
        draw = self._draw
        if draw is None:
            return []
        try:
            return draw(size.columns, size.lines)
        except Exception as error:  # noqa: BLE001 - a picture less is no reason to lose the lines of tasks
            return [f"jobq: the view cannot be drawn: {type(error).__name__}"]


def size_of(descriptor: int) -> os.terminal_size:
    """Return the size of a terminal, asked anew: SIGWINCH goes to the foreground only, and the worker is not in it."""
    try:
        size = os.get_terminal_size(descriptor)
    except OSError:  # it has gone
        return _USUAL
    return os.terminal_size((size.columns or _USUAL.columns, size.lines or _USUAL.lines))  # 0: nobody ever set it


def same_terminal(one: int, other: int) -> bool:
    """Return whether two descriptors are one terminal, though one may have been opened as /dev/tty."""
    return os.isatty(one) and os.isatty(other) and _device(one) == _device(other)


def _device(terminal: int) -> int:
    if sys.platform == "linux":
        with suppress(OSError):
            return int.from_bytes(fcntl.ioctl(terminal, _TIOCGDEV, bytes(4)), sys.byteorder)
    return os.fstat(terminal).st_rdev
