"""`jobq run`: each line is run once, none is lost, whatever interrupts it; nothing is left behind (P5, S1, S8)."""

import os
import pty
import re
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobq.cli.feed import id_for, line_of

from .conftest import Jobq, eventually

SHORT = {"JOBQ_VISIBILITY_TIMEOUT": "10s"}  # what a SIGKILL leaves leased comes back soon


@pytest.fixture(autouse=True)
def _leaves_nothing(jobq: Jobq, request: pytest.FixtureRequest) -> Iterator[None]:
    """P5: no temporary folder, no process of ours, whatever the test did."""
    temporary = jobq.folder / "tmp"
    temporary.mkdir()
    jobq.environment |= {"TMPDIR": str(temporary), "MARK": request.node.name}
    yield
    for process in jobq.running:
        process.wait(20)
    eventually(lambda: not _alive(f"MARK={request.node.name}"))
    assert list(temporary.iterdir()) == []


def _alive(mark: str) -> list[str]:
    """Return who has a variable in its environment, or hides it (worker and guardian do from other users only)."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


def _log(path: Path) -> list[list[str]]:
    head, *rest = path.read_text().splitlines()
    assert head.split("\t") == ["Seq", "Host", "Starttime", "JobRuntime", "Exitval", "Signal", "Command"]
    return [line.split("\t") for line in rest]


def test_all_succeed(jobq: Jobq) -> None:
    lines = ["echo 'a  b'", "", "# no", 'echo "grüße $((1 + 1))"', '{"argv": ["printf", "%s\\n", "x y"]}', "echo e >&2"]
    result = jobq("run", "-n", "2", stdin="\n".join(lines))
    assert sorted(result.lines) == ["a  b", "grüße 2", "x y"]
    assert re.fullmatch(r"e\n4 done, 0 failed in [0-9.m]+s\n", result.err)


def test_failures_are_listed_and_logged(jobq: Jobq) -> None:
    commands = [
        "echo fine",
        "echo why; exit 7",
        "kill -9 $$",
        '{"argv": ["no such program"], "id": "own"}',
        '{"command": "trap \\"exit 0\\" TERM; sleep 30 & wait", "timeout": 0.3}',
        '{"command": "true\\n\\ttrue"}',
    ]
    (jobq.folder / "commands").write_text("\n".join(commands))
    before = time.time()
    result = jobq("run", "-n", "3", "--joblog", "log", "commands", code=1)
    assert "failed: line 2 (exit code 7): echo why; exit 7\n        why\n" in result.err
    assert "failed: line 3 (ended by signal 9): kill -9 $$\n" in result.err
    assert "failed: line 4 (could not be started: " in result.err
    assert "failed: line 5 (killed after its time limit of 0.3 s)" in result.err
    assert "2 done, 4 failed in " in result.err
    rows = {int(row[0]): row for row in _log(jobq.folder / "log")}
    assert {line: (row[4], row[5]) for line, row in rows.items()} == {
        1: ("0", "0"), 2: ("7", "0"), 3: ("137", "9"), 4: ("127", "0"), 5: ("124", "0"), 6: ("0", "0"),
    }  # fmt: skip
    assert [rows[line][6] for line in (1, 4, 6)] == ["echo fine", "'no such program'", "true\\n\\ttrue"]
    assert all(before - 1 < float(row[2]) < time.time() for row in rows.values())
    assert 0.3 <= float(rows[5][3]) < 10


def test_more_failures_than_are_listed(jobq: Jobq) -> None:
    result = jobq("run", "-n", "4", "--json", stdin="exit 1\n" * 12, code=1)
    assert result.err.count("failed: line") == 10
    assert "... and 2 more" in result.err
    (summary,) = result.objects
    assert (summary["done"], summary["failed"], summary["left"], summary["exit_code"]) == (0, 12, 0, 1)
    assert len(summary["failures"]) == 10
    assert summary["failures"][0]["exit_value"] == 1


def test_retries_are_asked_for(jobq: Jobq) -> None:
    command = "echo run >> runs; exit 1\n"
    jobq("run", stdin=command, code=1)
    assert (jobq.folder / "runs").read_text() == "run\n"
    jobq("run", "--num-retries", "2", "--backoff", "0s", stdin=command, code=1)
    assert (jobq.folder / "runs").read_text() == "run\n" * 4


def test_breaker_leaves_the_rest(jobq: Jobq) -> None:
    result = jobq("run", "--max-consecutive-failures", "2", stdin="exit 1\n" * 9, code=1)
    assert "too many failures in a row" in result.err
    assert " left in " in result.err


def test_five_thousand_lines(jobq: Jobq) -> None:
    result = jobq("run", "-n", "8", "--joblog", "log", stdin="".join(f"echo {n}\n" for n in range(5000)))
    assert Counter(result.lines) == Counter(str(number) for number in range(5000))
    assert sorted(int(row[0]) for row in _log(jobq.folder / "log")) == list(range(1, 5001))


def test_work_begins_before_the_input_ends(jobq: Jobq) -> None:
    process = jobq.start("run")
    assert process.stdin is not None
    assert process.stdout is not None
    for word in (b"one", b"two"):
        process.stdin.write(b"echo " + word + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == word + b"\n"
        time.sleep(0.5)  # the queue is empty, the input is not
    process.stdin.close()
    assert process.wait(10) == 0


def test_empty_input(jobq: Jobq) -> None:
    assert "0 done, 0 failed" in jobq("run", stdin="").err
    assert "0 done, 0 failed" in jobq("run", stdin="\n# nothing\n").err


def test_reader_that_left_stops_no_work(jobq: Jobq) -> None:
    (jobq.folder / "commands").write_text("".join(f"echo {n}; touch done-{n}\n" for n in range(50)))
    process = jobq.start("run", "-n", "4", "commands")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(30) == 0
    assert len(list(jobq.folder.glob("done-*"))) == 50
    process = jobq.start("run", "--json", "commands")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(30) == 0


def test_bad_input_is_blamed_by_line(jobq: Jobq) -> None:
    result = jobq("run", "--queue-file", "queue", stdin='echo 1\n{"comand": "x"}\n', code=2)
    assert "standard input, line 2: comand: unknown field" in result.err
    assert "go on with: jobq run --resume --queue-file queue < FILE" in result.err
    assert "line 2" in jobq("run", stdin='{"command": "true", "id": "a"}\n{"command": "false", "id": "a"}', code=1).err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("demo", "run"), "a queue of its own"),
        (("run", "--resume"), "--resume needs --queue-file"),
        (("run", "no-such-file"), "cannot read no-such-file"),
        (("run", "-n", "0"), "-n"),
        (("run", "--timeout", "5x"), "not a duration"),
    ],
)
def test_usage(jobq: Jobq, arguments: tuple[str, ...], said: str) -> None:
    assert said in jobq(*arguments, code=2).err


def test_terminal_is_not_read(jobq: Jobq) -> None:
    ours, theirs = pty.openpty()
    try:
        for arguments in (("run",), ("run", "-")):
            process = jobq.start(*arguments, stdin=theirs)
            assert process.stderr is not None
            assert b"nothing to run" in process.stderr.read()
            assert process.wait(10) == 2
    finally:
        os.close(ours)
        os.close(theirs)


def test_progress_on_a_terminal(jobq: Jobq) -> None:
    (jobq.folder / "commands").write_text("echo 1\nsleep 2\n")
    ours, theirs = pty.openpty()
    try:
        process = jobq.start("run", "commands", stderr=theirs, env={"TERM": "xterm"})
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
        assert process.wait(10) == 0
    finally:
        os.close(ours)
    assert b"\r\x1b[K1 of 2" in shown
    assert process.stdout is not None
    assert process.stdout.read() == b"1\n"


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # EIO: the other side is closed
        return b""


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
    assert sorted(int(row[0]) for row in _log(jobq.folder / "log")) == list(range(1, 31))


@pytest.mark.parametrize("victim", ["worker", "guardian"])
def test_sigkill_then_resume(jobq: Jobq, victim: str) -> None:
    """S1, P2: what a killed run had begun dies with it and starts again once its lease has run out."""
    lines = [f"echo begin {n} >> runs; sleep 0.2; echo end {n} >> runs" for n in range(30)]
    (jobq.folder / "commands").write_text("\n".join(lines))
    named = ("run", "-n", "2", "--queue-file", "queue")
    process = jobq.start(*named, "commands", env=SHORT, stdout=subprocess.DEVNULL)
    eventually(lambda: (jobq.folder / "runs").exists() and "end 3" in (jobq.folder / "runs").read_text())
    os.kill(process.pid if victim == "guardian" else _worker_of(process.pid), signal.SIGKILL)
    process.communicate(timeout=20)
    assert process.returncode == (137 if victim == "worker" else -9)
    done = _done(jobq)
    jobq(*named, "--resume", "commands", env=SHORT)
    _check_runs(jobq, 30, done)


def _worker_of(guardian: int) -> int:
    for child in Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split():
        if b"jobq\0run" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise AssertionError("no worker")


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


def test_sigkill_of_a_temporary_run_leaves_nothing(jobq: Jobq) -> None:
    (jobq.folder / "commands").write_text("touch started; exec sleep 60\n")
    process = jobq.start("run", "commands")
    eventually((jobq.folder / "started").exists)
    os.kill(_worker_of(process.pid), signal.SIGKILL)
    assert process.wait(10) == 137


def test_sigterm_of_a_temporary_run_says_what_is_lost(jobq: Jobq) -> None:
    process = jobq.start("run")
    assert process.stdin is not None
    process.stdin.write(b"touch started; exec sleep 60\n" * 3)
    process.stdin.flush()  # and stays open
    eventually((jobq.folder / "started").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    assert process.stderr is not None
    said = process.stderr.read()
    assert b"0 done, 0 failed, 3 left in " in said
    assert b"with --queue-file PATH it could be resumed" in said


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
    jobq(*named, "--resume", stdin="echo 1 >> runs\necho 2 >> runs\n")
    assert (jobq.folder / "runs").read_text() == "1\n2\n"


def test_ids_tell_the_line() -> None:
    id_ = id_for(17, b"echo 1")
    assert line_of(id_) == 17
    assert id_ == id_for(17, b"echo 1")
    assert len({id_, id_for(18, b"echo 1"), id_for(17, b"echo 2")}) == 3
    assert line_of("mine") is None
    assert line_of("a-1") is None
