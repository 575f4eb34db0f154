"""What `run` and `pull` show: the tasks' own lines as they are, warnings, and on a terminal a frame of progress.

Nothing here blocks the event loop or fails: see `writer_thread`.
"""

import logging
import os
import sys
from functools import partial
from typing import Final, Literal, Self

from jobq.cli.display.event_format import sentence, terminal_safe
from jobq.cli.display.live_frame import Draw, FrameWriter, same_terminal
from jobq.cli.display.logging_handler import Records, least_event_level
from jobq.cli.display.terminal import cannot_write, paint, visible
from jobq.cli.display.writer_thread import Writer
from jobq.events import Event

_OUT: Final = 1
_ERR: Final = 2
_MAX_WAITING_BYTES: Final = 64 * 1024 * 1024  # task output is data here: much may wait before any of it is dropped
_FLUSH_SECONDS: Final = 60.0
_HURRIED_FLUSH_SECONDS: Final = 2.0
_YELLOW: Final = "33"
_RED: Final = "31"
_FAINT: Final = "2"


class Screen:
    """Passes on what tasks print, line by line; a context manager that writes the rest at the end.

    Args:
        echo: where the tasks' standard output goes: "stdout" (and their standard error to ours), "stderr" (both, for
            standard output is the caller's), or "nowhere".
        is_live: whether a frame is to be kept below the lines; see `show`.

    Attributes:
        lost_output: whether standard output could not be written, though somebody would have read it.
        in_a_hurry: whether a slow reader may be left without the last lines.
    """

    def __init__(self, *, echo: Literal["stdout", "stderr", "nowhere"], is_live: bool = False) -> None:
        self._descriptor_of = {"stdout": _OUT if echo == "stdout" else _ERR, "stderr": _ERR}
        self._echoes = echo != "nowhere"
        self.is_live: Final = is_live
        self._is_terminal = {descriptor: os.isatty(descriptor) for descriptor in (_OUT, _ERR)}
        is_one = os.path.sameopenfile(_OUT, _ERR) or same_terminal(_OUT, _ERR)
        terminal = frozenset({_OUT, _ERR} if is_one else {_ERR})
        writer = partial(Writer, self._dropped, on_fault=self._on_fault, max_bytes=_MAX_WAITING_BYTES)
        framed = partial(FrameWriter, self._dropped, on_fault=self._on_fault, max_bytes=_MAX_WAITING_BYTES)
        self._frames = framed(terminal=terminal) if is_live else None
        self._err = self._frames or writer()
        # One thread where both go to one place, so that their order stays.
        self._out = self._err if is_one else writer()
        self._least_level = least_event_level()
        self._records = Records(self._on_record)
        self.in_a_hurry = False
        self.lost_output = False

    def __enter__(self) -> Self:
        for writer in {self._out, self._err}:
            writer.start()
        self._records.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._records.__exit__(*exc_info)
        seconds = _HURRIED_FLUSH_SECONDS if self.in_a_hurry else _FLUSH_SECONDS
        if self._out is not self._err and (unwritten := self._out.stop(seconds)):
            self.say(f"{unwritten} lines of output were not written: their reader is too slow")
        self._err.stop(seconds)

    def on_line(self, _task_id: str, stream: str, line: str) -> None:
        """Pass on a line that a task printed; `stream` is stdout or stderr."""
        if self._echoes:
            descriptor = self._descriptor_of[stream]
            shown = terminal_safe(line) if self._is_terminal[descriptor] else line
            self._put(descriptor, shown)

    def on_event(self, event: Event) -> None:
        """Show a warning of the worker; what befalls tasks is shown at the end. A subscriber of `Events`."""
        usual = event.level >= logging.WARNING and not event.name.startswith("task.")
        if event.level >= self._least_level and (usual or self._least_level == logging.DEBUG):
            self.say(sentence(event.name, event.fields), event.level)

    def show(self, draw: Draw | None) -> None:
        """Show this frame below the lines, where there is one."""
        if self._frames is not None:
            self._frames.show(draw)

    def say(self, text: str, level: int = logging.WARNING) -> None:
        """Show a warning, or what else was asked for."""
        if level < self._least_level:
            return
        if level >= logging.ERROR:
            head = paint("jobq:", _RED, sys.stderr)
        elif level >= logging.WARNING:
            head = paint("jobq: warning:", _YELLOW, sys.stderr)
        else:
            head = paint("jobq:", _FAINT, sys.stderr)
        self._put(_ERR, f"{head} {visible(text)}", important=True)

    def _on_record(self, record: logging.LogRecord) -> None:
        self.say(self._records.format(record), record.levelno)

    def _put(self, descriptor: int, text: str, *, important: bool = False) -> None:
        writer = self._out if descriptor == _OUT else self._err
        writer.put(descriptor, text.encode("utf-8", "backslashreplace") + b"\n", important=important)

    def _on_fault(self, descriptor: int, error: OSError) -> None:
        if descriptor == _OUT:  # of standard error there is nowhere to say it
            self.lost_output = True
            self.say(cannot_write(error), logging.ERROR)

    @staticmethod
    def _dropped(count: int) -> tuple[int, bytes]:
        return _ERR, b"jobq: warning: %d lines of output dropped: their reader is too slow\n" % count
