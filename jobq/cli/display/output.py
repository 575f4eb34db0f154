"""Standard output and standard error, each written by a thread: what the logs of `worker` and `run` share.

Nothing here blocks the event loop or fails: see `writer_thread`.
"""

import logging
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from jobq.cli.display.live_frame import Draw, FrameWriter, same_terminal
from jobq.cli.display.logging_handler import LogRecords, least_event_level
from jobq.cli.display.terminal import cannot_write, paint
from jobq.cli.display.writer_thread import MAX_WAITING_BYTES, WriterThread, reader_has_gone

if TYPE_CHECKING:
    from collections.abc import Callable

OUT: Final = 1
ERR: Final = 2
_YELLOW: Final = "33"
_RED: Final = "31"
_FAINT: Final = "2"
# Where standard output is data: as much may wait for a slow reader, and so long at the end.
DATA_BYTES: Final = 64 * 1024 * 1024
DATA_SECONDS: Final = 60.0
_LAST_SECONDS: Final = 2.0
_UNWRITTEN: Final = "{} lines of output were not written: their reader is too slow"


class Output:
    """Takes lines; a context manager that writes what waits at its end, for a limited time.

    Args:
        is_live: whether a frame is to be kept below the lines; see `show`.
        logs_to: the descriptor of what is no task's output.
        max_bytes: how much may wait for a slow reader before lines are dropped.

    Attributes:
        flush_seconds: for how long lines are written at the end.
        lost_output: whether standard output could not be written, though somebody would have read it.
        on_reader_gone: called by a thread, once, when nobody reads standard output any more; must not block.
    """

    def __init__(self, *, is_live: bool, logs_to: int = ERR, max_bytes: int = MAX_WAITING_BYTES) -> None:
        is_same = os.path.sameopenfile(OUT, ERR) or same_terminal(OUT, ERR)
        is_one = logs_to == OUT or is_same
        dropped = partial(self._dropped, logs_to)
        writer = partial(WriterThread, on_fault=self._on_fault, max_bytes=max_bytes)
        framed = partial(FrameWriter, on_fault=self._on_fault, max_bytes=max_bytes)
        terminal = frozenset({OUT, ERR} if is_one else {ERR})
        self._frames = framed(dropped, terminal=terminal) if is_live else None
        self._err = self._frames or writer(dropped)
        # Two threads, so that a stuck reader of task output does not hide the logs; one where both go to one place,
        # so that their order stays.
        self._out = self._err if is_one else writer(partial(self._dropped, OUT))
        self._last_resort = None if is_same or logs_to == ERR else writer(partial(self._dropped, ERR))
        self._least_level = least_event_level()
        self._records = LogRecords(self._on_record)
        self.flush_seconds = 2.0
        self.lost_output = False
        self.on_reader_gone: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        for writer in {self._out, self._err}:
            writer.start()
        self._records.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._records.__exit__(*exc_info)
        if self._out is not self._err and (unwritten := self._out.stop(self.flush_seconds)):
            self._report("console.output_dropped", _UNWRITTEN.format(unwritten), logging.WARNING)
        if (unwritten := self._err.stop(self.flush_seconds)) and self._last_resort is not None:
            self._err = self._last_resort
            self._err.start()
            self._report("console.output_dropped", _UNWRITTEN.format(unwritten), logging.ERROR)
            self._err.stop(_LAST_SECONDS)

    @property
    def has_room(self) -> bool:
        """Whether lines can be handed in without being dropped; who has many asks before each of some."""
        return self._out.has_room and self._err.has_room

    def show(self, draw: Draw | None) -> None:
        """Show this frame below the lines, where there is one."""
        if self._frames is not None:
            self._frames.show(draw)

    def _on_fault(self, descriptor: int, error: OSError) -> None:
        if descriptor != OUT:  # of standard error there is nowhere to say it
            return
        if reader_has_gone(error, descriptor):
            self.on_reader_gone()
        else:
            self.lost_output = True
            self._report("console.output_lost", cannot_write(error), logging.ERROR)

    def _report(self, name: str, text: str, level: int) -> None:
        """Show what befell the output, by the name of its event."""
        raise NotImplementedError

    def _on_record(self, record: logging.LogRecord) -> None:
        """Show a record of Python's logging."""
        raise NotImplementedError

    def _dropped(self, descriptor: int, count: int) -> tuple[int, bytes]:
        """Return the line that says how many were dropped of those for a descriptor, and where it goes."""
        raise NotImplementedError


def encoded(line: str) -> bytes:
    """Return a line as it is written."""
    return line.encode("utf-8", "backslashreplace") + b"\n"


def colored(text: str, level: int) -> str:
    """Return what goes to standard error in the color of its level."""
    return paint(text, _RED if level >= logging.ERROR else _YELLOW if level >= logging.WARNING else _FAINT, sys.stderr)
