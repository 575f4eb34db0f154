"""A pseudo-terminal with a program in it and somebody who looks at the screen: what a user sees, not what was sent."""

import contextlib
import fcntl
import os
import select
import struct
import termios
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import pyte

from tests.cli.conftest import DEADLINE_SECONDS
from tests.fork_server import forked


class Terminal:
    """A program in a terminal; a context manager that ends both.

    Args:
        argv: the program.
        env: its environment; TERM is set unless it is there.
        cwd: where it runs.
        columns, rows: the size.
        stdout: where its standard output goes instead of to the terminal.
    """

    def __init__(
        self,
        argv: Sequence[str | bytes],
        env: dict[str, str],
        cwd: Path,
        *,
        columns: int = 80,
        rows: int = 24,
        stdout: int | None = None,
    ) -> None:
        self._screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self.raw = b""
        self._reading = threading.Event()
        self._reading.set()
        self._master, theirs = os.openpty()
        self._set_size(columns, rows)
        self.process = forked.PopenInTerminal[bytes](
            list(argv),
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
            env={"TERM": "xterm-256color", **env},
            cwd=cwd,
            start_new_session=True,
        )
        os.close(theirs)
        self._hung_up = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.wait()
        self.hang_up()

    @property
    def lines(self) -> list[str]:
        """What is on the screen, from its top."""
        with self._lock:
            return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def scrolled(self) -> str:
        """What has left the screen at its top, and what is on it."""
        with self._lock:
            columns = self._screen.columns
            above = [
                "".join(line[column].data for column in range(columns)).rstrip() for line in self._screen.history.top
            ]
            return "\n".join([*above, *(line.rstrip() for line in self._screen.display)])

    def colours(self) -> set[str]:
        with self._lock:
            return {character.fg for row in self._screen.buffer.values() for character in row.values()} - {"default"}

    def until(self, condition: Callable[[str], Any], what: str = "") -> str:
        """Return the screen once it is as wanted; fails with a picture of it when it is not in time."""
        end = time.monotonic() + DEADLINE_SECONDS
        while not condition(text := self.text):
            assert time.monotonic() < end, f"not in time {what}:\n{text}"
            time.sleep(0.02)
        return text

    def until_shows(self, *words: str) -> str:
        return self.until(lambda text: all(word in text for word in words), f"{words}")

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Change the size as xterm does: empty lines go at the bottom, others scroll out at the top."""
        with self._lock:
            screen = self._screen
            if rows < screen.lines:
                above, row = max(0, screen.cursor.y - rows + 1), screen.cursor.y
                screen.cursor.y = screen.lines - 1
                for _ in range(above):
                    screen.index()
                screen.cursor.y = row - above
                for line in range(rows, screen.lines):
                    screen.buffer.pop(line, None)
                screen.lines = rows  # pyte itself would cut at the top, and lose what was there
            screen.resize(rows, columns)
            screen.cursor.x = min(screen.cursor.x, columns - 1)
        self._set_size(columns, rows)

    def pause(self) -> None:
        """Take nothing any more, as after Ctrl-S."""
        self._reading.clear()

    def go_on(self) -> None:
        self._reading.set()

    def hang_up(self) -> None:
        """Go away, as a closed window or a lost connection does: SIGHUP, and every write fails."""
        if not self._hung_up:
            self._hung_up = True
            self._reading.set()
            self._thread.join()
            os.close(self._master)

    def wait(self) -> int:
        """Return how the program ended, with all it has shown on the screen."""
        code = self.process.wait(DEADLINE_SECONDS)
        if not self._hung_up:
            self._thread.join(DEADLINE_SECONDS)
        return code

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self) -> None:
        while not self._hung_up:
            self._reading.wait()
            if not select.select([self._master], [], [], 0.05)[0]:
                continue
            if not self._reading.is_set():
                continue
            try:
                data = os.read(self._master, 65_536)
            except OSError:  # EIO: nobody has it open any more
                return
            with self._lock:
                self.raw += data
                self._stream.feed(data)


def read_to_end(descriptor: int) -> bytes:
    """Return all that is written to the other side of a terminal, once that is closed."""
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while chunk := os.read(descriptor, 65_536):
            shown += chunk
    return shown
