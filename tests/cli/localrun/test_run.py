"""`jobq run`: each line is run once, none is lost, whatever interrupts it; nothing is left behind (P5, S1, S8)."""

import os
import pty
import re
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from jobq.cli.localrun.input_feed import id_for, line_of
from jobq.cli.localrun.run_store import temporary_queue
from jobq.errors import ConfigurationError
from jobq.settings import Settings
from tests.cli.conftest import Jobq, eventually, read_job_log
from tests.cli.terminals import read_to_end
from tests.guardian.stage import worker_below

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("leaves_nothing")]


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
        '{"command": "exec sleep 30", "timeout": 0.2}',
    ]
    (jobq.folder / "commands").write_text("\n".join(commands))
    before = time.time()
    result = jobq("run", "-n", "3", "--joblog", "log", "commands", code=1)
    assert "failed: line 2 (exit code 7): echo why; exit 7\n        why\n" in result.err
    assert "failed: line 3 (ended by signal 9): kill -9 $$\n" in result.err
    assert "failed: line 4 (could not be started: " in result.err
    assert "failed: line 5 (killed after its time limit of 0.3 s)" in result.err
    assert "2 done, 5 failed in " in result.err
    rows = {int(row[0]): row for row in read_job_log(jobq.folder / "log")}
    assert {line: (row[4], row[5]) for line, row in rows.items()} == {
        1: ("0", "0"), 2: ("7", "0"), 3: ("137", "9"), 4: ("127", "0"), 5: ("124", "0"), 6: ("0", "0"),
        7: ("124", "15"),
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


def test_failures_that_trip_the_breaker_are_told(jobq: Jobq) -> None:
    """Their budgets are kept for --resume; what went wrong is no secret for that."""
    named = ("run", "--queue-file", "queue", "--joblog", "log", "--max-consecutive-failures", "2")
    result = jobq(*named, "--json", stdin="echo why; exit 7\nexit 8\ntrue\ntrue\n", code=1)
    (summary,) = result.objects
    assert (summary["done"], summary["failed"], summary["left"], summary["exit_code"]) == (0, 2, 4, 1)
    assert sorted((failure["line"], failure["exit_value"]) for failure in summary["failures"]) == [(1, 7), (2, 8)]
    assert "failed: line 1 (exit code 7): echo why; exit 7\n        why\n" in result.err
    rows = {(row[0], row[4]) for row in read_job_log(jobq.folder / "log")}
    assert rows == {("1", "7"), ("2", "8")}
    (summary,) = jobq(*named, "--resume", "--json", stdin="", code=1).objects
    # What succeeds first clears the machine.
    assert (summary["done"], summary["failed"], summary["left"]) in {(0, 2, 4), (2, 2, 0)}


@pytest.mark.parametrize("lines", [1000, pytest.param(5000, marks=pytest.mark.night)])
def test_thousands_of_lines(jobq: Jobq, lines: int) -> None:
    result = jobq("run", "-n", "8", "--joblog", "log", stdin="".join(f"echo {n}\n" for n in range(lines)))
    assert Counter(result.lines) == Counter(str(number) for number in range(lines))
    assert sorted(int(row[0]) for row in read_job_log(jobq.folder / "log")) == list(range(1, lines + 1))


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


def test_bad_input_is_blamed_by_line(jobq: Jobq) -> None:
    result = jobq("run", "--queue-file", "queue", stdin='echo 1\n{"comand": "x"}\n', code=2)
    assert "standard input, line 2: comand: unknown field" in result.err
    assert "go on with: jobq run --resume --queue-file queue < FILE" in result.err
    assert "line 2" in jobq("run", stdin='{"command": "true", "id": "a"}\n{"command": "false", "id": "a"}', code=1).err
    asks = jobq("run", stdin='true\n{"command": "true", "gpus": 1, "needs": ["eu"]}', code=2).err
    assert "line 2: asks for gpus=1 needs eu, which this run does not offer" in asks


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
        process = jobq.start("run", "--view", "live", "commands", stderr=theirs, env={"TERM": "xterm"})
        os.close(theirs)
        shown = read_to_end(ours)
        assert process.wait(10) == 0
    finally:
        os.close(ours)
    assert b"1 of 2" in shown
    assert process.stdout is not None
    assert process.stdout.read() == b"1\n"


def test_sigkill_of_a_temporary_run_leaves_nothing(jobq: Jobq) -> None:
    (jobq.folder / "commands").write_text("touch started; exec sleep 60\n")
    process = jobq.start("run", "commands")
    eventually((jobq.folder / "started").exists)
    os.kill(worker_below(process.pid), signal.SIGKILL)
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


def test_ids_tell_the_line() -> None:
    id_ = id_for(17, b"echo 1")
    assert line_of(id_) == 17
    assert id_ == id_for(17, b"echo 1")
    assert len({id_, id_for(18, b"echo 1"), id_for(17, b"echo 2")}) == 3
    assert line_of("mine") is None
    assert line_of("a-1") is None


def test_no_folder_is_made_for_a_queue_file(jobq: Jobq) -> None:
    result = jobq("run", "--queue-file", "no/where.db", stdin="true\n", code=3)
    assert "no does not exist; if that is no slip, make it: mkdir -p " in result.err
    assert not (jobq.folder / "no").exists()


async def test_no_temporary_folder_is_a_plain_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a traceback, on a machine whose root is read-only."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ConfigurationError, match="set TMPDIR"):
        async with temporary_queue(Settings()):
            pass
