"""`jobq top`: on a terminal a screen that follows the queue, elsewhere one look."""

import json
import time

from jobq.task import Task
from tests.cli.conftest import Jobq
from tests.cli.terminals import Terminal


def test_a_screen_follows_the_queue(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="until [ -e go ]; do sleep 0.05; done", priority=1), Task.new(command="true"))
    jobq.start("demo", "worker", "--idle-timeout", "60s")
    argv = jobq.argv("demo", "top", "--interval", "100ms")
    with Terminal(argv, jobq.environment, jobq.folder, columns=160) as terminal:
        terminal.until_shows("1 visible", "1 leased", "until [ -e go ]")
        (jobq.folder / "go").touch()
        terminal.until_shows("2 succeeded", "nothing runs", "ending now")
        terminal.type("\x03")
        assert terminal.wait() == 130
    assert b"\x1b[?1049l" in terminal.raw  # the screen from before is back


def test_a_screen_follows_a_batch(jobq: Jobq) -> None:
    """The rest takes about as long as what has become less since it is watched says."""
    jobq("demo", "push", "--batch", "s7", "--grid", "n=1..30", "-c", "sleep 0.2; until [ -e go ]; do sleep 0.05; done")
    jobq("demo", "push", "-c", "echo other")
    argv = jobq.argv("demo", "top", "--batch", "s7", "--interval", "100ms")
    with Terminal(argv, jobq.environment, jobq.folder, columns=160) as terminal:
        terminal.until_shows("batch s7: sealed, 0 of 30", "30: 30 ready", "nothing runs")
        jobq.start("demo", "worker", "-n", "2", "--idle-timeout", "60s")
        terminal.until_shows("28 ready, 2 running", "until [ -e go ]")
        (jobq.folder / "go").touch()
        terminal.until_shows(", 2 running, about", "s left")
        terminal.until_shows("finished, 30 of 30")
        terminal.type("\x03")
        assert terminal.wait() == 130
    assert b"other" not in terminal.raw


def test_without_a_terminal_it_looks_once(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="echo \x1b[31mred"), Task.new(command="true"))
    jobq.hold()
    began = time.monotonic()
    shown = jobq("demo", "top").out
    assert time.monotonic() - began < 20
    assert "1 visible  1 leased  0 scheduled  0 dead" in shown
    assert "\x1b" not in shown
    (found,) = jobq("demo", "top", "--json").objects
    assert found["counts"] == {"visible": 1, "leased": 1, "scheduled": 0, "dead": 0}
    assert len(found["running"]) == 1
    assert found["fault"] is None


def test_a_queue_without_a_journal_shows_its_counts(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true"))
    shown = jobq("demo", "top", "--once", env={"JOBQ_JOURNAL": "off"}).out
    assert "1 visible" in shown
    assert "keeps no journal" in shown


def test_too_short_an_interval_is_refused(jobq: Jobq) -> None:
    assert "at least 0.1s" in json.loads(jobq("demo", "top", "--interval", "1ms", "--json", code=2).err)["message"]


def test_a_small_terminal_is_told_what_it_does_not_show_and_sigterm_restores_it(jobq: Jobq) -> None:
    jobq.fill(*(Task.new(command=f"echo {number}") for number in range(12)))
    for _ in range(10):
        jobq.hold()
    argv = jobq.argv("demo", "top", "--interval", "100ms")
    with Terminal(argv, jobq.environment, jobq.folder, columns=60, rows=9) as terminal:
        terminal.until_shows("2 visible", "10 leased", "ID", "... 8 more")
        terminal.process.terminate()
        assert terminal.wait() == 143
    assert terminal.raw.rindex(b"\x1b[?1049l") > terminal.raw.rindex(b"\x1b[?1049h")
    assert terminal.raw.rindex(b"\x1b[?25h") > terminal.raw.rindex(b"\x1b[?25l"), "the cursor is back"


def test_a_terminal_without_a_cursor_gets_one_look(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true"))
    with Terminal(jobq.argv("demo", "top"), jobq.environment | {"TERM": "dumb"}, jobq.folder) as terminal:
        assert terminal.wait() == 0
        terminal.until_shows("1 visible", "nothing runs")


def test_without_a_journal_the_counts_tell_the_pace(jobq: Jobq) -> None:
    """As on a Storage Queue that has none: what the counts tell, and how they change."""
    jobq.fill(Task.new(command="true"), Task.new(command="true"))
    argv = jobq.argv("demo", "top", "--interval", "100ms")
    with Terminal(argv, jobq.environment | {"JOBQ_JOURNAL": "off"}, jobq.folder, columns=100) as terminal:
        terminal.until_shows("2 visible", "+0 unfinished", "keeps no journal")
        jobq.inside(lambda backend: backend.clear())
        terminal.until_shows("0 visible", "-2 unfinished", "+0 dead")
        terminal.type("\x03")
        assert terminal.wait() == 130
