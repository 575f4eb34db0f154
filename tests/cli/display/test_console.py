"""What is shown of events, and that showing never blocks, fails or forges."""

import json
import logging
import os
import re
import threading
import time

import pytest

from jobq.cli.display.event_format import json_line, sentence, terminal_safe, text_line
from jobq.cli.display.writer_thread import WriterThread
from jobq.clock import SystemClock
from jobq.events import Event
from tests.cli.conftest import eventually


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("task.started", {"task_id": "0123-456789ab", "attempt": 2}, "task 0123-456789ab started (attempt 2)"),
        (
            "task.failed",
            {"task_id": "x", "signal": 9, "duration_s": 61.0, "detail": "killed"},
            "task x failed (SIGKILL, after 1m1s): killed",
        ),
        ("task.retry_scheduled", {"task_id": "x", "delay_s": 2.5}, "task x will run again (in 2.5s)"),
        (
            "task.dead_lettered",
            {"task_id": "x", "reason": "failed"},
            "task x was given up (failed)",
        ),
        ("task.started", {"task_id": "monday.236"}, "task monday.236 started"),
        ("task.started", {"task_id": "a-name-of-many-letters.236"}, "task -of-many-letters.236 started"),
        ("task.started", {"task_id": "019ab1c2-0000-7000-8000-0000deadbeef"}, "task deadbeef started"),
        (
            "task.succeeded",
            {"task_id": "x", "duration_s": 2, "cpu_s": 3.5, "max_rss_bytes": 642_777_088, "processes": 5},
            "task x succeeded (after 2s, cpu 3.5s, peak 613 MiB, 5 processes)",
        ),
        ("task.succeeded", {"task_id": "x", "cpu_s": 0.1, "processes": 1}, "task x succeeded (cpu 0.1s)"),
        ("task.failed", {"task_id": "x", "max_rss_bytes": "?"}, "task x failed (max_rss_bytes=?)"),
        ("worker.stopped", {"succeeded": 3}, "worker stopped (succeeded=3)"),
        (
            "worker.stopped",
            {"dead_lettered": 2, "detail": "left in the queue: 1 task"},
            "worker stopped (dead_lettered=2): left in the queue: 1 task; 2 given up, see `jobq QUEUE dead list`",
        ),
        ("moon.has_risen", {"signal": 4711, "duration_s": "?"}, "moon has risen (signal 4711, duration_s=?)"),
        ("odd", {}, "odd"),
        ("", {}, ""),
    ],
)
def test_sentences(name: str, fields: dict[str, object], said: str) -> None:
    assert sentence(name, fields) == said


def test_a_lost_lease_is_told_in_the_time_of_the_log() -> None:
    """Seconds since boot are in no other log."""
    now, clock = time.time(), SystemClock()
    event = Event(name="task.lease_lost", fields={"task_id": "x", "last_success": clock.boottime()}, at=now)
    at, _, said = text_line(event).partition(" ")
    assert re.fullmatch(r"INFO +task x lost its lease and was stopped \(last renewed (\d\d:\d\d:\d\d)\)", said), said
    assert said[-9:-1] in (at, text_line(Event(name="x", fields={}, at=now + 1)).partition(" ")[0])
    fields = {"task_id": "x", "deadline": clock.boottime() + 3600}
    assert re.search(r"\(deadline \d\d:\d\d:\d\d\)", json_line(Event(name="task.lease_lost", fields=fields)))


def test_json_line_takes_anything() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    for value in (float("nan"), cycle, object(), b"\xff", {1: {2}}, "\ud800", {("a", "b"): 1}):
        line = json_line(Event(name="task.odd", fields={"value": value, "ts": "forged", "level": "forged"}), queue="q")
        decoded = json.loads(line)
        assert decoded["event"] == "task.odd"
        assert decoded["level"] == "info"
        assert decoded["ts"] != "forged"
        assert "value" in decoded


def test_text_line_forges_nothing() -> None:
    event = Event(name="task.failed", fields={"detail": "one\n12:00:00 INFO forged\x1b[2J"}, level=logging.WARNING)
    first, second = text_line(event).split("\n")
    assert "WARNING task failed: one" in first
    assert second == "    12:00:00 INFO forged\\x1b[2J"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain\ttab", "plain\ttab"),
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m\x1b[0m"),
        ("\x1b[2J\x1b]0;title\x07\r\x9b31m", "\\x1b[2J\\x1b]0;title\\x07\\r\\x9b31m"),
        ("\u202eevil", "\\u202eevil"),
        ("rm\u200b \u200f-\ufeffr\xad\U000e0041", "rm\\u200b \\u200f-\\ufeffr\\xad\\U000e0041"),
    ],
)
def test_terminal_safe(line: str, shown: str) -> None:
    assert terminal_safe(line) == shown


class Pipe:
    """A pipe and a writer into it, whose reader decides how fast."""

    def __init__(self, max_bytes: int) -> None:
        self.end, self.descriptor = os.pipe()
        self.writer = WriterThread(lambda count: (self.descriptor, b"dropped %d\n" % count), max_bytes=max_bytes)
        self.writer.start()

    def lines(self) -> list[bytes]:
        """Read everything to the end while the writer is stopped; closes both ends."""
        stopper = threading.Thread(target=self._stop)
        stopper.start()
        with os.fdopen(self.end, "rb") as reader:
            found = reader.read()
        stopper.join()
        return found.splitlines()

    def _stop(self) -> None:
        self.writer.stop(10)
        os.close(self.descriptor)


def test_writer_keeps_order() -> None:
    pipe = Pipe(max_bytes=10_000_000)
    wanted = [b"line %d" % n for n in range(20_000)] + [b"end"]
    for line in wanted:
        pipe.writer.put(pipe.descriptor, line + b"\n")
    assert pipe.lines() == wanted


def test_writer_drops_and_tells_how_many() -> None:
    pipe = Pipe(max_bytes=10_000)
    for n in range(5_000):  # far more than the pipe and the queue hold; nobody reads
        pipe.writer.put(pipe.descriptor, b"%060d\n" % n)
    pipe.writer.put(pipe.descriptor, b"important\n", important=True)
    pipe.writer.put(pipe.descriptor, b"end\n", important=True)
    lines = pipe.lines()
    dropped = [int(line.split()[1]) for line in lines if line.startswith(b"dropped")]
    kept = [line for line in lines if line.startswith(b"0")]
    assert len(kept) + sum(dropped) == 5_000
    assert dropped
    assert b"important" in lines
    assert kept == sorted(kept)


def test_writer_gives_up_on_a_closed_pipe_only() -> None:
    gone = Pipe(max_bytes=10_000)
    open_end, open_descriptor = os.pipe()
    os.close(gone.end)
    for _ in range(100):
        gone.writer.put(gone.descriptor, b"lost\n")
    gone.writer.put(open_descriptor, b"kept\n")
    assert os.read(open_end, 100) == b"kept\n"
    assert gone.writer.stop(5) == 0
    for descriptor in (gone.descriptor, open_end, open_descriptor):
        os.close(descriptor)


def test_writer_stops_in_time_though_nobody_reads() -> None:
    pipe = Pipe(max_bytes=10_000_000)
    for _ in range(10_000):
        pipe.writer.put(pipe.descriptor, b"x" * 99 + b"\n")
    assert pipe.writer.stop(0.05) > 0
    os.close(pipe.end)  # frees the thread
    eventually(lambda: pipe.writer.stop(1) == 0)
    os.close(pipe.descriptor)


def test_writer_takes_a_non_blocking_descriptor() -> None:
    pipe = Pipe(max_bytes=10_000_000)
    os.set_blocking(pipe.descriptor, False)
    for _ in range(5_000):
        pipe.writer.put(pipe.descriptor, b"x" * 99 + b"\n")
    pipe.writer.put(pipe.descriptor, b"end\n")
    assert len(pipe.lines()) == 5_001
