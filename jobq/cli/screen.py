"""What `run` and `pull` show: the tasks' own lines as they are, warnings, and on a terminal one line of progress.

Nothing here blocks the event loop or fails: see `writer`.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from typing import Final, Literal, Self

from jobq.cli.sentences import sentence, terminal_safe
from jobq.cli.terminal import paint, visible
from jobq.cli.writer import Writer
from jobq.events import Event

_OUT: Final = 1
_ERR: Final = 2
_REFRESH_SECONDS: Final = 0.5
_MAX_WAITING_BYTES: Final = 64 * 1024 * 1024  # task output is data here: much may wait before any of it is dropped
_FLUSH_SECONDS: Final = 60.0
_HURRIED_FLUSH_SECONDS: Final = 2.0
_CLEAR_LINE: Final = b"\r\x1b[K"
_YELLOW: Final = "33"
_USUAL_COLUMNS: Final = 80


class Screen:
    """Passes on what tasks print, line by line; a context manager that writes the rest at the end.

    Args:
        echo: where the tasks' standard output goes: "stdout" (and their standard error to ours), "stderr" (both, for
            standard output is the caller's), or "nowhere".
        status: returns the line of progress; None = no progress is shown.
    """

    def __init__(
        self, *, echo: Literal["stdout", "stderr", "nowhere"], status: Callable[[], str] | None = None
    ) -> None:
        self._descriptor_of = {"stdout": _OUT if echo == "stdout" else _ERR, "stderr": _ERR}
        self._echoes = echo != "nowhere"
        self._status = status if os.isatty(_ERR) and os.environ.get("TERM") != "dumb" else None
        self._status_shown = False
        self._is_terminal = {descriptor: os.isatty(descriptor) for descriptor in (_OUT, _ERR)}
        self._err = Writer(self._dropped, max_bytes=_MAX_WAITING_BYTES)
        self._out = self._err  # one thread where both go to one place, so that their order stays
        if not os.path.sameopenfile(_OUT, _ERR):
            self._out = Writer(self._dropped, max_bytes=_MAX_WAITING_BYTES)
        self._handler = _Handler(self.say)
        self.in_a_hurry = False  # whether a slow reader may be left without the last lines

    def __enter__(self) -> Self:
        for writer in {self._out, self._err}:
            writer.start()
        logging.getLogger().addHandler(self._handler)
        return self

    def __exit__(self, *exc_info: object) -> None:
        logging.getLogger().removeHandler(self._handler)
        if self._status_shown:
            self._err.put(_ERR, _CLEAR_LINE, important=True)
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
        """Show a warning of the worker; what befalls tasks is told at the end. A subscriber of `Events`."""
        if event.level >= logging.WARNING and not event.name.startswith("task."):
            self.say(sentence(event.name, event.fields))

    async def refresh(self) -> None:
        """Show the progress for ever, where somebody looks."""
        while self._status is not None:
            await asyncio.sleep(_REFRESH_SECONDS)
            self._status_shown = True
            self._err.put(_ERR, _CLEAR_LINE + self._status()[: _columns() - 1].encode())

    def say(self, text: str) -> None:
        """Show a warning."""
        self._put(_ERR, f"{paint('jobq: warning:', _YELLOW, sys.stderr)} {visible(text)}", important=True)

    def _put(self, descriptor: int, text: str, *, important: bool = False) -> None:
        writer = self._out if descriptor == _OUT else self._err
        clear = _CLEAR_LINE if self._status_shown and self._is_terminal[descriptor] else b""
        writer.put(descriptor, clear + text.encode("utf-8", "backslashreplace") + b"\n", important=important)

    @staticmethod
    def _dropped(count: int) -> tuple[int, bytes]:
        return _ERR, b"jobq: warning: %d lines of output dropped: their reader is too slow\n" % count


def _columns() -> int:
    try:
        return os.get_terminal_size(_ERR).columns or _USUAL_COLUMNS  # 0: a terminal that was never told
    except OSError:  # it has gone
        return _USUAL_COLUMNS


class _Handler(logging.Handler):
    """Passes on warnings and errors of Python's logging."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._say(self.format(record))
        except Exception:  # noqa: BLE001 - logging's rule: a record that cannot be shown harms nobody
            self.handleError(record)
