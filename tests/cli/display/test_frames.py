"""The lines at the bottom, written by a thread that may be stuck: order, pace, faults (P1)."""

import os
import time
from collections.abc import Callable

import pytest

from jobq.cli.display.live_frame import _FRAME_SECONDS, FrameWriter
from tests.cli.conftest import eventually

ERASE = b"\r\x1b[J"
FRAME = b"\x1b[?7l%s\x1b[?7h"


class Pipe:
    """A pipe that stands for a terminal."""

    def __init__(self) -> None:
        self.end, self.descriptor = os.pipe()
        self.writer = FrameWriter(lambda n: (self.descriptor, b"%d\n" % n), terminal=frozenset({self.descriptor}))
        self.writer.start()

    def put(self, line: bytes) -> None:
        self.writer.put(self.descriptor, line + b"\n")

    def read_until(self, wanted: Callable[[bytes], bool]) -> bytes:
        data = b""
        while not wanted(data):
            data += os.read(self.end, 65_536)
        return data

    def rest(self) -> bytes:
        """Stop the writer and return what it had left to write."""
        assert self.writer.stop(10) == 0
        os.close(self.descriptor)
        with os.fdopen(self.end, "rb") as reader:
            return reader.read()


def test_lines_go_above_the_frame() -> None:
    pipe = Pipe()
    pipe.writer.show(lambda columns, rows: [f"{columns}x{rows}", "two"])
    frame = FRAME % b"80x24\r\ntwo"
    assert pipe.read_until(lambda data: data.endswith(frame)) == frame
    pipe.put(b"line")
    wanted = b"\r\x1b[1A\x1b[Jline\n" + frame
    assert pipe.read_until(lambda data: data.endswith(frame)) == wanted
    pipe.writer.show(lambda _columns, _rows: ["one"])
    assert pipe.read_until(lambda data: data.endswith(FRAME % b"one")) == b"\r\x1b[1A\x1b[J" + FRAME % b"one"
    assert pipe.rest() == ERASE  # nothing of it stays


def test_lines_after_the_frame_has_gone() -> None:
    pipe = Pipe()
    pipe.writer.show(lambda _columns, _rows: ["frame"])
    pipe.read_until(lambda data: b"frame" in data)
    pipe.writer.show(None)
    pipe.put(b"line")
    data = pipe.rest()
    assert data.startswith(ERASE)
    assert data.endswith(b"line\n")
    assert b"frame" not in data


def test_a_task_that_prints_line_by_line_gets_no_frame_for_each() -> None:
    pipe = Pipe()
    pipe.writer.show(lambda _columns, _rows: ["frame"])
    began = time.monotonic()
    for n in range(1000):
        pipe.put(b"line %d" % n)
        if n % 100 == 0:
            time.sleep(_FRAME_SECONDS / 2)  # several pieces, however quick this machine is
    data = pipe.rest()
    assert data.count(b"frame") <= (time.monotonic() - began) / _FRAME_SECONDS + 2
    plain = data.replace(FRAME % b"frame", b"").replace(ERASE, b"")
    assert plain == b"".join(b"line %d\n" % n for n in range(1000))


def test_a_stuck_terminal_gets_the_newest_frame_only() -> None:
    pipe = Pipe()
    os.set_blocking(pipe.end, False)
    pipe.put(b"x" * 200_000)  # more than a pipe holds: the thread is stuck
    eventually(lambda: pipe.writer._busy)
    drawn: list[int] = []

    def show(number: int) -> None:
        def draw(_columns: int, _rows: int) -> list[str]:
            drawn.append(number)
            return [f"frame {number}"]

        pipe.writer.show(draw)

    began = time.monotonic()
    for number in range(1000):
        show(number)
    assert time.monotonic() - began < 5  # it never waited
    os.set_blocking(pipe.end, True)
    pipe.read_until(lambda data: b"frame 999" in data)
    assert set(drawn) == {999}
    pipe.rest()


def test_a_picture_that_fails_loses_no_line() -> None:
    pipe = Pipe()

    def draw(_columns: int, _rows: int) -> list[str]:
        raise ZeroDivisionError

    pipe.writer.show(draw)
    pipe.put(b"line")
    shown = pipe.read_until(lambda data: b"line\n" in data and data.endswith(b"\x1b[?7h"))
    assert b"cannot be drawn: ZeroDivisionError" in shown
    pipe.rest()


def test_a_terminal_that_has_gone_is_not_drawn_on() -> None:
    pipe = Pipe()
    os.close(pipe.end)
    drawn: list[int] = []
    pipe.put(b"lost")
    eventually(lambda: pipe.writer._gone)
    pipe.writer.show(lambda columns, _rows: [str(drawn.append(columns))])  # type: ignore[func-returns-value] # a note
    assert pipe.writer.stop(10) == 0
    assert drawn == []
    os.close(pipe.descriptor)


@pytest.mark.parametrize("text", ["\udcff \ud800", "gr\u00fc\u00dfe"])
def test_any_text_can_be_written(text: str) -> None:
    pipe = Pipe()
    pipe.writer.show(lambda _columns, _rows: [text])
    pipe.read_until(lambda data: data.endswith(b"\x1b[?7h"))
    pipe.rest()
