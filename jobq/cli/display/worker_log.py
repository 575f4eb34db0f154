"""What a worker shows: logs on standard error, task output on standard output, as text or as JSON lines.

Subscribes to events, to task output and to Python's logging.
"""

import logging
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from jobq.cli.display import terminal
from jobq.cli.display.event_format import json_line, short_id, terminal_safe, text_line
from jobq.cli.display.output import DATA_BYTES, DATA_SECONDS, ERR, OUT, Output, colored, encoded
from jobq.cli.display.writer_thread import MAX_WAITING_BYTES, lines_in
from jobq.events import Event

if TYPE_CHECKING:
    from jobq.run.attempt.runner import OnBytes

LogFormat = Literal["auto", "text", "json"]


@dataclass
class _Printed:
    """What is known of the output of an attempt."""

    attempt: int
    dropped: int = 0  # lines


def _is_own_file(descriptor: int) -> bool:
    """Return whether standard output is a file, and standard error is another."""
    out, err = os.fstat(descriptor), os.fstat(ERR)
    return stat.S_ISREG(out.st_mode) and not os.path.samestat(out, err)


class WorkerLog(Output):
    """Shows a worker's events and its tasks' output.

    Args:
        common: fields of every JSON line, such as the queue's name.
        log_format: auto is text where standard error is a terminal, else JSON.
        echo_output: whether to show what tasks print: as it is, where standard output is a file for that alone, or
            with --quiet; else with its task's id.
        is_data: whether the events are what was asked for: then they go to standard output, as JSON.
        is_live: whether a frame is to be kept below the lines; see `show`.
    """

    def __init__(
        self,
        *,
        common: Mapping[str, str],
        log_format: LogFormat,
        echo_output: bool,
        is_data: bool = False,
        is_live: bool = False,
    ) -> None:
        self._events_to = OUT if is_data else ERR
        super().__init__(
            is_live=is_live, logs_to=self._events_to, max_bytes=DATA_BYTES if is_data else MAX_WAITING_BYTES
        )
        if is_data:
            self.flush_seconds = DATA_SECONDS
        self._printed: dict[str, _Printed] = {}  # of the attempts that run, by the ids of their tasks
        self._lines_dropped = 0
        self._common = dict(common)
        is_quiet = terminal.verbosity() is terminal.Verbosity.QUIET  # what is left are errors, for people
        is_read_by_programs = log_format == "json" or (log_format == "auto" and not os.isatty(ERR) and not is_quiet)
        self._as_json = is_data or is_read_by_programs
        self._echo_output = echo_output
        self._out_is_terminal = os.isatty(OUT)
        asked_for_json = is_data or log_format == "json"
        self._output_as_it_is = not asked_for_json and not self._out_is_terminal and (is_quiet or _is_own_file(OUT))

    def on_event(self, event: Event) -> None:
        """Show an event, if it is grave enough to be shown; a subscriber of `jobq.events.Events`."""
        event = self._with_drops(event)
        if event.level < self._least_level:
            return
        if event.name == "task.leased" and not self._as_json and self._least_level > logging.DEBUG:
            return  # for people, "started" says it with the next line
        self._err.put(self._events_to, self._formatted(event), important=True)

    def on_line(self, task_id: str, stream: str, line: str) -> None:
        """Show a line that a task printed among the log's own; `stream` is stdout or stderr."""
        if not self._echo_output:
            return
        printed = self._of(task_id)
        if self._as_json:  # an event of its own: what a task says never mixes with what jobq says of it
            fields = {"task_id": task_id, "attempt": printed.attempt, "stream": stream, "line": line}
            shown = self._formatted(Event(name="task.output", fields=fields))
        else:
            again = f".{printed.attempt}" if printed.attempt > 1 else ""
            shown = encoded(f"{short_id(task_id)}{again} | {terminal_safe(line) if self._out_is_terminal else line}")
        self._put(printed, shown)

    @property
    def on_bytes(self) -> "dict[str, OnBytes]":
        """What takes the bytes of both streams where they are passed on unchanged."""
        is_unchanged = self._echo_output and self._output_as_it_is
        return dict.fromkeys(("stdout", "stderr"), self._on_bytes) if is_unchanged else {}

    def _on_bytes(self, task_id: str, data: bytes) -> None:
        self._put(self._of(task_id), data)

    def _of(self, task_id: str) -> _Printed:
        return self._printed.setdefault(task_id, _Printed(0))  # 0 = of another task of this id, which has ended

    def _put(self, printed: _Printed, data: bytes) -> None:
        if not self._out.put(OUT, data):
            count = lines_in(data)
            printed.dropped += count
            self._lines_dropped += count

    def _with_drops(self, event: Event) -> Event:
        """Return an end with how many lines were dropped before it; notes which attempts run."""
        dropped = 0
        if event.name == "task.started":
            self._printed[event.fields["task_id"]] = _Printed(event.fields["attempt"])
        elif "duration_s" in event.fields:  # how an attempt ended
            printed = self._printed.pop(event.fields["task_id"], None)
            dropped = 0 if printed is None else printed.dropped
        elif event.name == "worker.stopped":
            dropped = self._lines_dropped
        return replace(event, fields={**event.fields, "lines_dropped": dropped}) if dropped else event

    def _on_record(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        fields = {"logger": record.name, "detail": text}
        self.on_event(Event(name="log", fields=fields, level=record.levelno, at=record.created))

    def _report(self, name: str, text: str, level: int) -> None:
        event = Event(name=name, fields={"detail": text}, level=level)
        if level < logging.ERROR:
            self.on_event(event)
        else:  # standard output cannot be written, wherever events go
            self._err.put(ERR, self._formatted(event), important=True)

    def _dropped(self, descriptor: int, count: int) -> tuple[int, bytes]:
        fields = {"detail": f"{count} lines dropped: their reader is too slow", "lines": count}
        return descriptor, self._formatted(Event(name="console.dropped", fields=fields, level=logging.WARNING))

    def _formatted(self, event: Event) -> bytes:
        if self._as_json:
            return encoded(json_line(event, **self._common))
        return encoded(colored(text_line(event), event.level))
