"""The live view on terminals that are slow, gone, strange or never told their size: no task may notice (P1, L4)."""

import os
import signal

import pytest

from jobq.task import Task
from tests.cli.conftest import Jobq, eventually
from tests.cli.display.conftest import WAIT, Opened, release
from tests.cli.terminals import Terminal

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("leaves_nothing")]


def test_terminal_that_takes_nothing_delays_no_task(jobq: Jobq, opened: Opened) -> None:
    """As after Ctrl-S: far more is printed than any buffer holds, and the worker goes on and ends by itself."""
    flood = "until test -e paused; do sleep 0.05; done; yes 0123456789012345678901234567890123456789 | head -n 200000"
    jobq.fill(Task.new(command=WAIT), Task.new(command=flood))
    jobq.fill(*(Task.new(command=f"touch done-{n}") for n in range(5)))
    with opened("demo", "worker", "-n", "2") as terminal:
        terminal.until_shows("visible")
        terminal.pause()
        (jobq.folder / "paused").touch()
        eventually(lambda: len(list(jobq.folder.glob("done-*"))) == 5)
        release(jobq)
        eventually(lambda: jobq("demo", "size", "--json").objects[0]["leased"] == 0)
        assert terminal.process.wait(20) == 0  # though what was to be shown at last still waits
        terminal.go_on()


@pytest.mark.parametrize("command", [("demo", "worker"), ("run", "commands")])
def test_terminal_that_goes_away_gives_the_work_back(jobq: Jobq, opened: Opened, command: tuple[str, ...]) -> None:
    """SIGHUP counts as SIGTERM, and writes that fail hide neither the end of the work nor its exit code."""
    jobq.fill(Task.new(command="touch started; exec sleep 60"))
    (jobq.folder / "commands").write_text("touch started; exec sleep 60\n")
    with opened(*command) as terminal:
        eventually((jobq.folder / "started").exists)
        terminal.until_shows("memory")
        terminal.hang_up()
        assert terminal.process.wait(20) == 143
    if command[0] == "demo":
        assert len(jobq.waiting()) == 1


def test_terminal_whose_session_survives_it(jobq: Jobq) -> None:
    """As below nohup, or in a terminal multiplexer that died: writes fail, no signal comes, the work is done."""
    jobq.fill(Task.new(command=f"touch started; {WAIT}; echo end"), Task.new(command="touch done"))
    ignoring = ["bash", "-c", 'trap "" HUP; exec "$@"', "bash", *map(os.fsdecode, jobq.argv("demo", "worker"))]
    with Terminal(ignoring, jobq.environment, jobq.folder) as terminal:
        eventually((jobq.folder / "started").exists)
        terminal.until_shows("memory")
        terminal.hang_up()
        release(jobq)
        code = terminal.process.wait(20)
    if code != 143:  # a worker hears SIGHUP whatever it inherited; both are right, lost work is not
        assert code == 0
        assert (jobq.folder / "done").exists()
    assert jobq("demo", "size", "--json").objects[0]["dead"] == 0


def test_strange_output_moves_no_frame(jobq: Jobq, opened: Opened) -> None:
    """Bytes that are no UTF-8, cursor movements, wide and combining characters, a command that holds them too."""
    strange = r"printf 'top\n\377\376\033[2J\033[5A\033]0;title\007\r\n'; printf '\xe2\x80\xae\xe6\xbc\xa2\n'; "
    jobq.fill(
        Task.new(command=strange + WAIT),
        Task.new(command="# \u6f22\u5b57 \U0001f52c e\u0301 \x1b[2J \x9b2J \u202e\n" + WAIT),
    )
    with opened("demo", "worker", "-n", "2") as terminal:
        text = terminal.until_shows("| top", "\\x1b[2J \\x9b2J", "2 leased")
        assert "\\x1b[2J\\x1b[5A\\x1b]0;title\\x07" in text
        lines = terminal.lines
        title = next(n for n, line in enumerate(lines) if line.lstrip().startswith("slot"))
        assert [line.split()[0] for line in lines[title + 1 : title + 3]] == ["1", "2"]
        assert lines[title + 3].startswith("0 done, 0 failed")
        assert text.count("memory") == 1
        release(jobq)
        assert terminal.wait() == 0
        assert "memory" not in terminal.scrolled  # the frame goes, the lines stay
        assert "| top" in terminal.scrolled
        assert "worker stopped" in terminal.scrolled


@pytest.mark.parametrize(("columns", "rows"), [(0, 0), (1, 1), (4, 3), (12, 60), (40, 8), (400, 200)])
def test_any_size(jobq: Jobq, opened: Opened, columns: int, rows: int) -> None:
    jobq.fill(*(Task.new(command=f"echo {n}; {WAIT}") for n in range(4)))
    with opened("demo", "worker", "-n", "4", columns=columns or 80, rows=rows or 24) as terminal:
        if not columns:
            terminal._set_size(0, 0)
        eventually(lambda: terminal.raw.count(b"\x1b[?7l") > 3)
        release(jobq)
        assert terminal.wait() == 0
        assert b"cannot be drawn" not in terminal.raw


def test_a_queue_that_cannot_be_counted_is_told(jobq: Jobq) -> None:
    """The view asks over a connection of its own: that it hangs, fails or answers late delays nothing."""
    program = """
import asyncio, sys, time
from jobq.backend import QueueStats
import jobq.cli.display.live_view as live
from jobq.errors import BackendUnavailable
from pathlib import Path
live._ASK_SECONDS = 0.1
live._ANSWER_SECONDS = 0.3
class Broken:
    def __init__(self): self.asked = 0
    async def __aenter__(self): return self
    async def __aexit__(self, *exc_info):
        await asyncio.sleep(3600)  # closing hangs too
    async def stats(self):
        self.asked += 1
        if self.asked == 1: return QueueStats(visible=7, leased=None, scheduled=0, dead=0)
        if self.asked == 2: raise BackendUnavailable("x" * 1000)
        await asyncio.sleep(3600)
live.resolve = lambda spec, settings: Broken()
from jobq.cli.main import main
main()
"""
    jobq.fill(Task.new(command=f"{WAIT}; echo end"))
    argv = [jobq.argv()[0], "-c", program, "demo", "worker", "--guardian", "off"]
    with Terminal(argv, jobq.environment, jobq.folder) as terminal:
        terminal.until_shows("queue: 7 visible")
        release(jobq)
        assert terminal.wait() == 0
        assert "| end" in terminal.scrolled


def test_sigkill_leaves_a_usable_terminal(jobq: Jobq, opened: Opened) -> None:
    """Nothing has to be undone: no hidden cursor, no scroll region, no other screen, no raw mode."""
    jobq.fill(Task.new(command="touch started; exec sleep 60"))
    with opened("demo", "worker") as terminal:
        eventually((jobq.folder / "started").exists)
        terminal.until_shows("memory", "visible")
        os.kill(terminal.process.pid, signal.SIGKILL)
        terminal.process.wait()
        for sequence in (b"\x1b[?25l", b"\x1b[?1049h", b"r\x1b[", b"\x1b[?47h"):
            assert sequence not in terminal.raw
        assert terminal.raw.count(b"\x1b[?7l") == terminal.raw.count(b"\x1b[?7h")
