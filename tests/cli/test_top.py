"""`jobq top`: on a terminal a screen that follows the queue, elsewhere one look."""

import json
import time

from jobq.task import Task

from .conftest import Jobq
from .terminals import Terminal


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
