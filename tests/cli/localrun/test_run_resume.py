"""`jobq run --queue-file`: what was done is not done again, what was not is, whatever interrupted it (S1, S8)."""

import os
import pty
import re
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from contextlib import closing

import pytest

from jobq.cli.localrun.input_feed import line_of
from tests.cli.conftest import Jobq, eventually, read_job_log
from tests.guardian.stage import guardian_below, worker_below

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("leaves_nothing")]
SHORT = {"JOBQ_VISIBILITY_TIMEOUT": "10s"}  # what a SIGKILL leaves leased comes back soon


def test_named_file_runs_each_line_once(jobq: Jobq) -> None:
    (jobq.folder / "commands").write_text("echo 1 >> runs\necho 2 >> runs\nexit 5\n")
    named = ("run", "--queue-file", "queue")
    jobq(*named, "commands", code=1)
    assert (
        "holds an earlier run, which is finished; go on with: jobq run --resume" in jobq(*named, "commands", code=2).err
    )
    assert "0 done, 0 failed, 1 failed earlier" in jobq(*named, "--resume", "commands", code=1).err
    with (jobq.folder / "commands").open("a") as more:
        more.write("echo 4 >> runs\n")
    assert "1 done, 0 failed, 1 failed earlier" in jobq(*named, "--resume", "commands", code=1).err
    result = jobq(*named, "--resume", "--timeout", "9s", "commands", code=1)
    assert "4 lines were queued before with other options" in result.err
    assert "0 done, 1 failed" in jobq(*named, "--resume-failed", code=1).err
    assert (jobq.folder / "runs").read_text() == "1\n2\n4\n"


def test_what_was_done_months_ago_is_not_done_again(jobq: Jobq) -> None:
    """Its ids were forgotten after 30 days."""
    (jobq.folder / "commands").write_text("echo 1 >> runs\necho 2 >> runs\n")
    named = ("run", "--queue-file", "queue", "--resume", "commands")
    jobq(*named)
    with closing(sqlite3.connect(jobq.folder / "queue", isolation_level=None)) as database:
        database.execute("UPDATE task SET finished_at = finished_at - 100 * 86400")
    for more in ("3", "4"):
        with (jobq.folder / "commands").open("a") as commands:
            commands.write(f"echo {more} >> runs\n")
        assert "1 done" in jobq(*named).err
    assert (jobq.folder / "runs").read_text() == "1\n2\n3\n4\n"


@pytest.mark.parametrize("option", ["--resume", "--resume-failed"])
def test_a_mistyped_queue_file_is_not_made(jobq: Jobq, option: str) -> None:
    named = ("run", "--queue-file", "typo.db", option)
    assert "nothing to resume: typo.db does not exist" in jobq(*named, stdin="", code=4).err
    process = jobq.start(*named, stdin=subprocess.DEVNULL)
    assert process.wait(20) == 4
    assert list(jobq.folder.glob("typo.db*")) == []


def test_resume_begins_what_is_not_begun_but_does_not_run_again_what_never_failed(jobq: Jobq) -> None:
    assert "does not exist" in jobq("run", "--queue-file", "queue", "--resume-failed", stdin="true\n", code=4).err
    assert not (jobq.folder / "queue").exists()
    lines = "".join(f"echo {number}\n" for number in range(50))
    assert len(jobq("run", "--queue-file", "queue", "--resume", stdin=lines).lines) == 50
    (jobq.folder / "commands").write_text(lines)
    assert len(jobq("run", "--queue-file", "other", "--resume", "commands").lines) == 50


def test_ctrl_c_then_resume(jobq: Jobq) -> None:
    """Given back on SIGINT, gone on with afterwards: what finished ran once, what did not runs to its end."""
    lines = [f"echo begin {n} >> runs; sleep 0.2; echo end {n} >> runs" for n in range(30)]
    (jobq.folder / "commands").write_text("\n".join(lines))
    named = ("run", "-n", "2", "--queue-file", "queue", "--joblog", "log")
    process = jobq.start(*named, "commands", stdout=subprocess.DEVNULL)
    eventually(lambda: (jobq.folder / "runs").exists() and "end 3" in (jobq.folder / "runs").read_text())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert re.search(rb"\d+ done, 0 failed, \d+ left in ", err)
    assert b"go on with: jobq run --resume --queue-file queue -n 2 --joblog log\n" in err
    assert "unfinished tasks of an earlier run" in jobq(*named, "commands", code=2).err
    done = _done(jobq)
    jobq(*named, "--resume")
    _check_runs(jobq, 30, done)
    assert sorted(int(row[0]) for row in read_job_log(jobq.folder / "log")) == list(range(1, 31))


@pytest.mark.night("kills anywhere in a run: 12 s")
@pytest.mark.parametrize("victim", ["worker", "guardian", "watcher"])
def test_sigkill_then_resume(jobq: Jobq, victim: str) -> None:
    """S1, P2: what a killed run had begun dies with it and starts again once its lease has run out."""
    lines = [f"echo begin {n} >> runs; sleep 0.2; echo end {n} >> runs" for n in range(30)]
    (jobq.folder / "commands").write_text("\n".join(lines))
    named = ("run", "-n", "2", "--queue-file", "queue")
    process = jobq.start(*named, "commands", env=SHORT, stdout=subprocess.DEVNULL)
    eventually(lambda: (jobq.folder / "runs").exists() and "end 3" in (jobq.folder / "runs").read_text())
    below = {"worker": worker_below, "guardian": guardian_below}
    os.kill(below[victim](process.pid) if victim in below else process.pid, signal.SIGKILL)
    process.communicate(timeout=20)
    assert process.returncode == (-9 if victim == "watcher" else 137)
    done = _done(jobq)
    jobq(*named, "--resume", env=SHORT)  # all of the input was queued, so it need not be given again
    _check_runs(jobq, 30, done)


def _done(jobq: Jobq) -> set[int]:
    """Return the lines that the queue knows to be done."""
    database = sqlite3.connect(jobq.folder / "queue")
    try:
        found = database.execute("SELECT id FROM task WHERE state = 'done'").fetchall()
    finally:
        database.close()
    return {line for (id_,) in found if (line := line_of(id_)) is not None}


def _check_runs(jobq: Jobq, count: int, done: set[int]) -> None:
    """None is lost; what was done ran once. What ran at the moment of the blow has begun twice."""
    runs = Counter((jobq.folder / "runs").read_text().splitlines())
    assert {line for line in runs if line.startswith("end")} == {f"end {number}" for number in range(count)}
    assert done
    assert {line for line in done if runs[f"begin {line - 1}"] != 1 or runs[f"end {line - 1}"] != 1} == set()
    assert runs.total() <= 2 * count + 4  # of the two that were running


def test_input_that_was_not_read_to_its_end_is_asked_for(jobq: Jobq) -> None:
    """S1: a resume must not call a run complete whose last lines nobody has read."""
    named = ("run", "--queue-file", "queue")
    process = jobq.start(*named)
    assert process.stdin is not None
    process.stdin.write(b"echo 1 >> runs\n")
    process.stdin.flush()
    eventually((jobq.folder / "runs").exists)
    time.sleep(0.5)  # settled
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    ours, theirs = pty.openpty()
    try:
        again = jobq.start(*named, "--resume", stdin=theirs)
        assert again.stderr is not None
        assert b"before it had read all of its input; give it again" in again.stderr.read()
        assert again.wait(10) == 2
    finally:
        os.close(ours)
        os.close(theirs)
    assert "give it again" in jobq(*named, "--resume", stdin="", code=2).err  # as from cron
    jobq(*named, "--resume", stdin="echo 1 >> runs\necho 2 >> runs\n")
    assert (jobq.folder / "runs").read_text() == "1\n2\n"
