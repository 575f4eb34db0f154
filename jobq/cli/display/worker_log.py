"""What a worker shows: logs on standard error, task output on standard output, as text or as JSON lines.

Subscribes to events, to task output and to Python's logging. Nothing here blocks or fails: see `writer_thread`.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Literal, Self

from jobq.cli.display.event_format import json_line, short_id, terminal_safe, text_line
from jobq.cli.display.live_frame import Draw, FrameWriter, same_terminal
from jobq.cli.display.logging_handler import Records, least_event_level
from jobq.cli.display.terminal import cannot_write, paint
from jobq.cli.display.writer_thread import MAX_WAITING_BYTES, Writer
from jobq.events import Event

LogFormat = Literal["auto", "text", "json"]
_OUT: Final = 1
_ERR: Final = 2
_FLUSH_SECONDS: Final = 2.0
_YELLOW: Final = "33"
_RED: Final = "31"
_FAINT: Final = "2"


class Console:
    """Shows a worker's events and its tasks' output; a context manager that flushes at the end, for a limited time.

    Args:
        common: fields of every JSON line, such as the queue's name.
        log_format: auto is text where standard error is a terminal, else JSON.
        echo_output: whether to show what tasks print.
        is_data: whether the events are what was asked for: then they go to standard output, as JSON.
        is_live: whether a frame is to be kept below the lines; see `show`.
        max_waiting_bytes: how much may wait for a slow reader before lines are dropped.

    Attributes:
        lost_output: whether standard output could not be written, though somebody would have read it.
    """

    def __init__(
        self,
        *,
        common: Mapping[str, str],
        log_format: LogFormat,
        echo_output: bool,
        is_data: bool = False,
        is_live: bool = False,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self._common = dict(common)
        self._as_json = is_data or log_format == "json" or (log_format == "auto" and not os.isatty(_ERR))
        self._events_to = _OUT if is_data else _ERR
        self._least_level = least_event_level()
        self._echo_output = echo_output
        self._out_is_terminal = os.isatty(_OUT)
        is_one = is_data or os.path.sameopenfile(_OUT, _ERR) or same_terminal(_OUT, _ERR)
        dropped = partial(self._dropped, self._events_to)
        writer = partial(Writer, on_fault=self._on_fault, max_bytes=max_waiting_bytes)
        framed = partial(FrameWriter, on_fault=self._on_fault, max_bytes=max_waiting_bytes)
        terminal = frozenset({_OUT, _ERR} if is_one else {_ERR})
        self._frames = framed(dropped, terminal=terminal) if is_live else None
        self._logs = self._frames or writer(dropped)
        # Two threads, so that a stuck reader of task output does not hide the logs; one where both go to one place,
        # so that their order stays.
        self._output = self._logs if is_one else writer(partial(self._dropped, _OUT))
        self.lost_output = False
        self._records = Records(self.on_record)

    def __enter__(self) -> Self:
        for writer in {self._logs, self._output}:
            writer.start()
        self._records.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._records.__exit__(*exc_info)
        if self._output is not self._logs and (unwritten := self._output.stop(_FLUSH_SECONDS)):
            text = f"{unwritten} lines of output were not written: their reader is too slow"
            self._say("console.output_dropped", text, logging.WARNING)
        self._logs.stop(_FLUSH_SECONDS)

    @property
    def show(self) -> Callable[[Draw | None], None]:
        """Takes the frame below the lines; for a live console only."""
        assert self._frames is not None
        return self._frames.show

    def on_event(self, event: Event) -> None:
        """Show an event, if it is grave enough to be shown; a subscriber of `jobq.events.Events`."""
        if event.level < self._least_level:
            return
        if event.name == "task.leased" and not self._as_json and self._least_level > logging.DEBUG:
            return  # for people, "started" says it with the next line
        self._logs.put(self._events_to, self._formatted(event), important=True)

    def on_line(self, task_id: str, stream: str, line: str) -> None:
        """Show a line that a task printed; `stream` is stdout or stderr."""
        if not self._echo_output:
            return
        if self._as_json:  # an event of its own: what a task says never mixes with what jobq says of it
            fields = {"task_id": task_id, "stream": stream, "line": line}
            shown = self._formatted(Event(name="task.output", fields=fields))
        else:
            shown = _encoded(f"{short_id(task_id)} | {terminal_safe(line) if self._out_is_terminal else line}")
        self._output.put(_OUT, shown)

    def on_record(self, record: logging.LogRecord) -> None:
        """Show a record of Python's logging."""
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self._say("log", text, record.levelno, at=record.created, logger=record.name)

    def _say(self, name: str, text: str, level: int, *, at: float | None = None, **fields: str) -> None:
        fields["detail"] = text
        self.on_event(Event(name=name, fields=fields, level=level, at=time.time() if at is None else at))

    def _on_fault(self, descriptor: int, error: OSError) -> None:
        if descriptor == _OUT:  # of standard error there is nowhere to say it
            self.lost_output = True
            event = Event(name="console.output_lost", fields={"detail": cannot_write(error)}, level=logging.ERROR)
            self._logs.put(_ERR, self._formatted(event), important=True)

    def _dropped(self, descriptor: int, count: int) -> tuple[int, bytes]:
        fields = {"detail": f"{count} lines dropped: their reader is too slow", "lines": count}
        return descriptor, self._formatted(Event(name="console.dropped", fields=fields, level=logging.WARNING))

    def _formatted(self, event: Event) -> bytes:
        if self._as_json:
            return _encoded(json_line(event, **self._common))
        color = _RED if event.level >= logging.ERROR else _YELLOW if event.level >= logging.WARNING else _FAINT
        return _encoded(paint(text_line(event), color, sys.stderr))


def _encoded(line: str) -> bytes:
    return line.encode("utf-8", "backslashreplace") + b"\n"
