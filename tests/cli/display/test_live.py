"""The live view as a user sees it, on screens of several sizes, and when there is none."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from rich.cells import cell_len

from jobq.backend import QueueStats
from jobq.batch_plan import Plan
from jobq.cli.display import live_view, running_batch, slot_table
from jobq.cli.display.live_view import Depth, TaskCounts, of_worker
from jobq.cli.display.running_batch import RunningBatch
from jobq.cli.display.time_left import TimeLeft
from jobq.clock import SystemClock
from jobq.errors import AccessDenied
from jobq.events import Event, Events
from jobq.run.process.usage import UsageReading, UsageSampler
from jobq.settings import Settings
from jobq.task import Task
from jobq_memory import MemoryBackend, Router
from tests.cli.conftest import Jobq, eventually
from tests.cli.display.conftest import WAIT, Opened, release
from tests.cli.terminals import Terminal


def test_slots_and_counts_below_the_lines(jobq: Jobq, opened: Opened) -> None:
    jobq.fill(
        *(Task.new(command="echo quick") for _ in range(3)),
        Task.new(command="exit 3", budgets={"retries": 0}),
        Task.new(command=f"echo slow; {WAIT}"),
        Task.new(argv=["sh", "-c", f"echo other; {WAIT}"]),
    )
    with opened("demo", "worker", "-n", "3") as terminal:
        text = terminal.until_shows("3 done, 1 failed (1 given up)", "| slow", "| other", "2 leased", "1 dead")
        lines = terminal.lines
        title = next(n for n, line in enumerate(lines) if line.lstrip().startswith("slot"))
        assert lines[title].split() == ["slot", "task", "age", "cpu", "memory", "procs", "command"]
        rows = [line.split(maxsplit=6) for line in lines[title + 1 : title + 4]]
        assert [row[0] for row in rows] == ["1", "2", "3"]
        busy = [row for row in rows if row[1] != "idle"]
        assert sorted(row[6][:12] for row in busy) == ["echo slow; u", "sh -c echo o"]
        for row in busy:
            assert re.fullmatch(r"[0-9a-f]{8} [0-9ms]+ \d+% [0-9.]+M \d+", " ".join(row[1:6])), row
        assert re.search(r"done, 1 failed \(1 given up\), [0-9.]+/", text)
        assert lines[title + 5].startswith("queue: 0 visible, 2 leased")
        assert not any(lines[title + 6 :])  # the frame is at the bottom of what was written
        release(jobq)
        assert terminal.wait() == 0
        assert "memory" not in terminal.scrolled
        assert terminal.scrolled.count("| quick") == 3
        assert "worker stopped (succeeded=5, failed=1" in terminal.scrolled


def test_the_last_line_is_of_the_batch_that_it_works_at(jobq: Jobq, opened: Opened) -> None:
    """While all that runs is of it."""
    jobq("demo", "push", "--batch", "s7", "-c", "true", "-c", WAIT, "-c", WAIT)
    with opened("demo", "worker", "-n", "2") as terminal:
        terminal.until_shows("batch s7: sealed, 1 of 3, 2 running")
        assert [line for line in terminal.lines if line][-1].startswith("batch s7: ")
        release(jobq)
        assert terminal.wait() == 0


async def test_no_batch_is_named_where_not_all_that_runs_is_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor of a queue that has none, which is asked about one task and no more; a refusal is the last."""
    running = list[str]()
    monkeypatch.setattr(running_batch, "_ASK_SECONDS", 0.0)
    async with MemoryBackend(Router(SystemClock()), "demo") as queue:
        await queue.create()
        seen = RunningBatch(lambda: running)
        await seen.look(queue)
        await queue.batches.begin("s7", Plan())
        await queue.push([Task.new(command="true", id=id_, batch="s7") for id_ in ("a", "b")])
        await queue.push([Task.new(command="true", id="c")])
        for ids, lines in ((["c"], 0), (["a", "c"], 0), (["a"], 1), (["b", "a"], 1), ([], 1), (["c", "a"], 0), ([], 0)):
            running[:] = ids
            await seen.look(queue)
            assert seen.lines() == ["batch s7: open, 0 of 2"] * lines, ids
        running[:] = ["a"]
        refusals = list[str]()

        async def refuse(*_: object) -> None:
            refusals.append("")
            raise AccessDenied("by a token that may not look")

        monkeypatch.setattr(type(queue.batches), "find", refuse)
        for _ in range(3):
            await seen.look(queue)
            assert seen.lines() == []
        assert len(refusals) == 1


def test_a_killed_worker_leaves_its_words_a_line_of_their_own(jobq: Jobq, opened: Opened) -> None:
    """They were glued to the end of the table."""
    jobq.fill(Task.new(command=WAIT))
    with opened("demo", "worker") as terminal:
        terminal.until_shows("1 leased")
        (running,) = jobq("demo", "ps", "--json").objects
        os.kill(int(running["worker"].rpartition(":")[2]), signal.SIGKILL)
        assert terminal.wait() == 137
        assert any(line.startswith("jobq guardian: the worker died by signal 9") for line in terminal.lines), (
            terminal.text
        )


def test_more_slots_than_lines(jobq: Jobq, opened: Opened) -> None:
    jobq.fill(*(Task.new(command=WAIT) for _ in range(20)))
    with opened("demo", "worker", "-n", "256") as terminal:
        text = terminal.until(lambda text: "(5 running)" in text and "visible" in text)
        assert "and 241 more (5 running)" in text
        assert len(terminal.lines) == 24
        assert sum(bool(re.match(r" +\d+  [0-9a-f]{8} ", line)) for line in terminal.lines) == 15
        release(jobq)
        assert terminal.wait() == 0


def test_narrow_terminal(jobq: Jobq, opened: Opened) -> None:
    jobq.fill(Task.new(command=f"# {'long ' * 50}\n{WAIT}"))
    with opened("demo", "worker", columns=40) as terminal:
        terminal.until_shows("memory", "visible", "# long")
        lines = terminal.lines
        title = next(n for n, line in enumerate(lines) if line.lstrip().startswith("slot"))
        assert lines[title].split() == ["slot", "age", "memory", "command"]
        assert lines[title + 1].endswith("...")
        assert lines[title + 2].startswith("0 done, 0 failed")
        assert max(map(len, lines[title:])) <= 39
        release(jobq)
        assert terminal.wait() == 0


def test_a_terminal_that_changes_its_size(jobq: Jobq, opened: Opened) -> None:
    """The frame follows, twice; one picture is left, and no line of a task is lost."""
    jobq.fill(*(Task.new(command=f"echo begins {n}; {WAIT}; echo ends {n}") for n in range(2)))
    with opened("demo", "worker", "-n", "2", columns=100, rows=30) as terminal:
        terminal.until_shows("procs", "| begins 0", "| begins 1", "visible")
        terminal.resize(40, 20)
        terminal.until(lambda text: "slot     age  memory  command" in text)
        terminal.resize(110, 30)
        terminal.until(lambda text: "procs  command" in text)
        assert terminal.text.count("memory") == 1
        release(jobq)
        assert terminal.wait() == 0
        shown = terminal.scrolled
        assert all(f"| {word} {n}" in shown for word in ("begins", "ends") for n in (0, 1))
        assert "procs" not in shown


def test_no_color(jobq: Jobq, opened: Opened) -> None:
    """NO_COLOR takes the colours, not the view."""
    jobq.fill(Task.new(command=f"exit 3 # {WAIT}", budgets={"retries": 0}), Task.new(command=WAIT))
    with opened("demo", "worker", "-n", "2", env={"NO_COLOR": "1"}) as terminal:
        terminal.until_shows("memory", "1 failed")
        release(jobq)
        assert terminal.wait() == 0
        assert terminal.colours() == set()
        assert not re.search(rb"\x1b\[[0-9;]*m", terminal.raw)


def test_colours(jobq: Jobq, opened: Opened) -> None:
    jobq.fill(Task.new(command="exit 3", budgets={"retries": 0}))
    with opened("demo", "worker") as terminal:
        assert terminal.wait() == 0
        assert "red" in terminal.colours()


@pytest.mark.parametrize(
    ("options", "env"),
    [
        (("--view", "lines"), {}),
        ((), {"JOBQ_VIEW": "lines"}),
        ((), {"TERM": "dumb"}),
        (("--log-format", "json"), {}),
        (("--json",), {}),
        (("--quiet",), {}),
    ],
)
def test_lines_as_ever(jobq: Jobq, opened: Opened, options: tuple[str, ...], env: dict[str, str]) -> None:
    jobq.fill(Task.new(command="echo hello"))
    with opened("demo", "worker", *options, env=env) as terminal:
        assert terminal.wait() == 0
        assert "hello" in terminal.scrolled
        assert b"\x1b[J" not in terminal.raw
        assert b"\x1b[?7l" not in terminal.raw


def test_no_terminal_no_view(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="echo hello"))
    result = jobq("demo", "worker", "--view", "live", "--log-format", "text")
    assert "warning: no live view: standard error is no terminal" in result.err
    assert "\x1b" not in result.out + result.err
    assert "no live view" not in jobq("demo", "worker", "--log-format", "text").err


def test_output_in_a_file_and_the_view_on_the_terminal(jobq: Jobq, opened: Opened) -> None:
    jobq.fill(Task.new(command=f"echo hello; {WAIT}"))
    with (jobq.folder / "out").open("wb") as out, opened("demo", "worker", stdout=out.fileno()) as terminal:
        terminal.until_shows("memory", "started")
        eventually((jobq.folder / "out").read_bytes)
        release(jobq)
        assert terminal.wait() == 0
        assert "hello" not in terminal.scrolled.replace("echo hello", "")
    assert (jobq.folder / "out").read_text() == "hello\n"


@pytest.mark.parametrize(("view", "is_live"), [("auto", False), ("live", True)])
def test_what_reads_a_pipe_may_write_to_the_terminal_too(jobq: Jobq, view: str, is_live: bool) -> None:
    """`jobq demo worker | tee log`: a frame would wipe out what tee writes, so there is none unless it is asked for."""
    jobq.fill(Task.new(command="seq 50"))
    argv = [*map(os.fsdecode, jobq.argv("demo", "worker", "--view", view))]
    with Terminal(["bash", "-c", '"$@" | tee log', "bash", *argv], jobq.environment, jobq.folder) as terminal:
        assert terminal.wait() == 0
        assert (b"\x1b[?7l" in terminal.raw) is is_live
        assert is_live or all(f"| {n}\n" in terminal.scrolled for n in range(1, 51))
    assert len((jobq.folder / "log").read_text().splitlines()) == 50


def test_a_terminal_under_two_names_is_one(jobq: Jobq) -> None:
    jobq.fill(Task.new(command=f"seq 100; {WAIT}"))
    argv = [*map(os.fsdecode, jobq.argv("demo", "worker"))]
    with Terminal(["bash", "-c", '"$@" 2> /dev/tty', "bash", *argv], jobq.environment, jobq.folder) as terminal:
        terminal.until_shows("| 100", "memory", "visible")
        release(jobq)
        assert terminal.wait() == 0
        assert all(f"| {n}\n" in terminal.scrolled for n in range(1, 101))
        assert "memory" not in terminal.scrolled


def test_run_shows_what_runs(jobq: Jobq, opened: Opened) -> None:
    (jobq.folder / "commands").write_text(f"echo first\nexit 4\n{WAIT}; echo last\n")
    with opened("run", "-n", "2", "commands") as terminal:
        terminal.until_shows("slot", "until test", "2 of 3, 1 failed", "first")
        release(jobq)
        assert terminal.wait() == 1
        shown = terminal.scrolled
        assert "failed: line 2 (exit code 4): exit 4" in shown
        assert "2 done, 1 failed in" in shown
        assert "slot" not in shown


def test_run_says_how_long_it_will_take(jobq: Jobq, opened: Opened) -> None:
    (jobq.folder / "commands").write_text(f"sleep 2\n{WAIT}\n")
    with opened("run", "-n", "2", "commands") as terminal:
        terminal.until_shows("1 of 2, about ", " left")
        release(jobq)
        assert terminal.wait() == 0


def busy(number: int, what: str = "true") -> slot_table.Slot:
    reading = UsageReading(at=0, cpu_seconds=1, cores=12.34, rss_bytes=3 * 1024**3, processes=7)
    return slot_table.Slot(number=number, task_id=f"0000-{number:08}", what=what, age_seconds=3700, reading=reading)


@pytest.mark.parametrize("rows", [1, 5, 8, 12, 24, 60, 5000])
@pytest.mark.parametrize("columns", [1, 2, 10, 39, 60, 80, 400])
@pytest.mark.parametrize(("slots", "running"), [(1, 0), (3, 3), (4096, 0), (4096, 4096)])
def test_the_picture_fits(rows: int, columns: int, slots: int, running: int) -> None:
    what = "\u6f22" * 300 + "\x1b[2J"
    picture = slot_table.lines(
        slots, [busy(n + 1, what) for n in range(running)], ["x" * 500, "y" * 500], columns, rows
    )
    assert len(picture) <= max(1, rows - 2)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in picture]
    assert max(map(cell_len, plain)) <= max(0, columns - 1)


def test_busy_slots_come_before_idle_ones() -> None:
    picture = slot_table.lines(256, [busy(200), busy(256)], ["told"], 80, 12)
    numbers = [int(line.split()[0]) for line in picture[1:-2]]
    assert {200, 256} <= set(numbers)
    assert numbers == sorted(numbers)
    assert picture[-2] == f"and {256 - len(numbers)} more"
    assert picture[-1] == "told"


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0"), (999, "999"), (1000, "1.0K"), (1024**2, "1.0M"), (613 * 1024**2, "613M"), (1000 * 1024**4, "1000T")],
)
def test_memory(size: int, shown: str) -> None:
    assert slot_table.memory(size) == shown


def test_the_rate_is_that_of_the_last_minute() -> None:
    progress = TaskCounts()
    progress.rate(0.0)
    for _ in range(120):
        progress.on_event(Event(name="task.succeeded", fields={}))
    assert progress.rate(30.0) == 4.0
    assert progress.rate(60.0) == 2.0
    assert progress.rate(120.0) == 0.0
    assert progress.line(121.0).startswith("120 done, 0 failed, 0.0/min")


async def test_a_queue_of_this_machine_is_counted_all_the_time() -> None:
    """It was said for five seconds that 300 wait while 73 of them were done."""
    often = asyncio.Event()

    class Counting:
        looks = 0

        async def stats(self) -> QueueStats:
            self.looks += 1
            if self.looks == 3:
                often.set()
            return QueueStats(visible=3, leased=0, scheduled=0, dead=0)

    counting = Counting()

    @asynccontextmanager
    async def connect(*_: object) -> AsyncIterator[Counting]:
        yield counting

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_view, "resolve", connect)
        sampler = UsageSampler(None)
        async with asyncio.timeout(4), of_worker(lambda _draw: None, Events(), "demo", Settings(), sampler):
            await often.wait()


def test_the_queue_is_told_as_it_is_known() -> None:
    depth = Depth(lambda: (_ for _ in ()).throw(AssertionError))  # never connected
    assert depth.line(0.0) == "queue: ..."
    depth._trouble = "BackendUnavailable"
    assert depth.line(0.0) == "queue: unknown (BackendUnavailable)"
    depth._stats, depth._asked = QueueStats(visible=None, leased=2, scheduled=0, dead=None), 100.0
    assert depth.line(103.0) == "queue: ? visible, 2 leased, 3s ago (BackendUnavailable)"
    depth._trouble = ""
    assert depth.line(103.0) == "queue: ? visible, 2 leased"
    assert depth.line(160.0) == "queue: ? visible, 2 leased, 60s ago"
    for now, count in ((100.0, 60), (130.0, 20)):
        depth._time_left.note(now, count)
    assert depth.line(103.0) == "queue: ? visible, 2 leased, about 15s left"


def test_the_time_left_is_by_what_was_seen_to_go() -> None:
    left = TimeLeft()
    assert left.text() == ""
    left.note(0.0, 1000)
    left.note(1.0, 999)
    assert left.text() == "", "a second says nothing"
    left.note(100.0, 900)
    assert left.text() == ", about 15m left"
    left.note(200.0, 1100)
    assert left.text() == "", "it becomes more"
    left.note(550.0, 600)
    assert left.text() == ", about 7m left", "by the last five minutes, and what came before them"
    left.note(600.0, 0)
    assert left.text() == ""
