"""What `run` shows: the tasks' own lines as they are, warnings, and on a terminal a frame of progress."""

import logging
import os
from typing import TYPE_CHECKING, Final, Literal

from jobq.cli.display.event_format import sentence, terminal_safe
from jobq.cli.display.output import DATA_BYTES, DATA_SECONDS, ERR, OUT, Output, colored, encoded
from jobq.events import Event
from jobq.formats.visible_text import visible

if TYPE_CHECKING:
    from jobq.run.attempt.runner import OnBytes


class PassthroughLog(Output):
    """Passes on what tasks print: bytes as they are, and on a terminal line by line, made safe.

    Args:
        echo: where the tasks' standard output goes: "stdout" (and their standard error to ours), "stderr" (both, for
            standard output is the caller's), or "nowhere".
        is_live: whether a frame is to be kept below the lines; see `show`.
    """

    def __init__(self, *, echo: Literal["stdout", "stderr", "nowhere"], is_live: bool = False) -> None:
        super().__init__(is_live=is_live, max_bytes=DATA_BYTES)
        self.flush_seconds = DATA_SECONDS
        self._descriptor_of = {"stdout": OUT if echo == "stdout" else ERR, "stderr": ERR}
        self._echoes = echo != "nowhere"
        self.is_live: Final = is_live
        self._is_terminal = {descriptor: os.isatty(descriptor) for descriptor in (OUT, ERR)}

    @property
    def on_bytes(self) -> "dict[str, OnBytes]":
        """What takes the bytes of each stream that goes to no terminal: they are passed on unchanged."""
        return {stream: self._on_bytes(to) for stream, to in self._descriptor_of.items() if not self._is_terminal[to]}

    def _on_bytes(self, descriptor: int) -> "OnBytes":
        return lambda _task_id, data: self._put(descriptor, data)

    def on_line(self, _task_id: str, stream: str, line: str) -> None:
        """Show a line that a task printed on a terminal; `stream` is stdout or stderr."""
        self._put(self._descriptor_of[stream], encoded(terminal_safe(line)))

    def _put(self, descriptor: int, data: bytes) -> None:
        if self._echoes and not (self._out if descriptor == OUT else self._err).put(descriptor, data):
            self.lost_output = True

    def on_event(self, event: Event) -> None:
        """Show a warning of the worker; what befalls tasks is shown at the end. A subscriber of `Events`."""
        usual = event.level >= logging.WARNING and not event.name.startswith("task.")
        if usual or self._least_level == logging.DEBUG:
            self.say(sentence(event.name, event.fields), event.level)

    def say(self, text: str, level: int = logging.WARNING) -> None:
        """Show a warning, or what else was asked for."""
        if level >= self._least_level:
            head = colored("jobq: warning:" if logging.WARNING <= level < logging.ERROR else "jobq:", level)
            self._err.put(ERR, encoded(f"{head} {visible(text)}"), important=True)

    def _on_record(self, record: logging.LogRecord) -> None:
        self.say(self._records.format(record), record.levelno)

    def _report(self, _name: str, text: str, level: int) -> None:
        self.lost_output = True  # what tasks print is what was asked for here
        self.say(text, level)

    def _dropped(self, _descriptor: int, count: int) -> tuple[int, bytes]:
        return ERR, b"jobq: warning: %d lines of output dropped: their reader is too slow\n" % count
