"""`jobq run --grid` and `--each`: each point is run once, whatever interrupts it, and is told apart by its number."""

import shlex
import signal
from collections import Counter

import pytest

from tests.cli.conftest import Jobq, eventually, read_job_log

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("leaves_nothing")]


def test_points_are_run_with_words_or_variables(jobq: Jobq) -> None:
    (jobq.folder / "runs.jsonl").write_text('{"lr": 1e-5, "note": "a b; exit 3"}\n{"lr": 0.1, "note": "$(exit 4)"}\n')
    each = ("run", "-n", "2", "--grid", "seed=1,2", "--each", "runs.jsonl")
    result = jobq(*each, "--", "echo", "{index}:{seed}", "lr={lr}", "{note}")
    expected = [
        "0:1 lr=1e-5 a b; exit 3", "1:2 lr=1e-5 a b; exit 3", "2:1 lr=0.1 $(exit 4)", "3:2 lr=0.1 $(exit 4)",
    ]  # fmt: skip
    assert sorted(result.lines) == expected
    assert "4 done, 0 failed in " in result.err
    result = jobq(*each, "-c", 'echo "$PARAM_index:$PARAM_seed lr=$PARAM_lr $PARAM_note"')
    assert sorted(result.lines) == expected


def test_failures_and_the_job_log_say_which_point_it_was(jobq: Jobq) -> None:
    result = jobq("run", "--grid", "code=0,7", "--joblog", "log", "-c", 'exit "$PARAM_code"', code=1)
    assert """failed: index 1 (exit code 7): export PARAM_code=7 PARAM_index=1; exit "$PARAM_code"\n""" in result.err
    rows = {row[0]: row for row in read_job_log(jobq.folder / "log")}
    assert {number: row[4] for number, row in rows.items()} == {"1": "0", "2": "7"}
    assert rows["1"][6] == 'export PARAM_code=0 PARAM_index=0; exit "$PARAM_code"'


def test_what_is_done_is_not_done_again(jobq: Jobq) -> None:
    named = ("run", "--queue-file", "queue", "--joblog", "log")
    command = ("-c", 'echo "$PARAM_x" >> runs; exit "$PARAM_x"')
    jobq(*named, "--grid", "x=0..2", *command, code=1)
    assert "holds an earlier run" in jobq(*named, "--grid", "x=0..2", *command, code=2).err
    assert "0 done, 0 failed, 2 failed earlier" in jobq(*named, "--resume", "--grid", "x=0..2", *command, code=1).err
    more = jobq(*named, "--resume", "--grid", "x=0..3", *command, code=1)
    assert "0 done, 1 failed, 2 failed earlier" in more.err, "and points may be added at the end"
    result = jobq(*named, "--resume", "--timeout", "9s", "--grid", "x=0..3", *command, code=1)
    assert "4 points were queued before with other options" in result.err
    assert Counter((jobq.folder / "runs").read_text().split()) == Counter("0123")
    assert len(read_job_log(jobq.folder / "log")) == 4


def test_interrupted_it_is_resumed_with_the_line_that_it_names(jobq: Jobq) -> None:
    command = ('echo "$PARAM_x" >> runs; touch started; sleep 0.1',)
    named = ("run", "--queue-file", "queue", "-n", "2", "--grid", "x=1..40", "-c", *command)
    process = jobq.start(*named)
    eventually((jobq.folder / "started").exists)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    said = process.stderr.read().decode()
    assert process.wait(20) == 130
    program, *line = shlex.split(said.partition("go on with: ")[2])  # with the points, unless all of them were queued
    assert (program, line[:2]) == ("jobq", ["run", "--resume"])
    jobq(*line)
    assert {int(word) for word in (jobq.folder / "runs").read_text().split()} == set(range(1, 41))
    jobq(*named[:1], "--resume", "--queue-file", "queue")


def test_input_that_is_refused_names_the_place_and_how_to_go_on(jobq: Jobq) -> None:
    (jobq.folder / "f.csv").write_text("x\n" + "1\n" * 600 + "-1\n")
    result = jobq("run", "--queue-file", "queue", "-n", "2", "--each", "f.csv", "--", "true", "{x}", code=2)
    assert "f.csv:602: x: its value begins with a dash" in result.err
    done = int(result.err.split(" done")[0])
    assert "go on with: jobq run --resume --queue-file queue -n 2 --each f.csv -- true '{x}'" in result.err
    (jobq.folder / "f.csv").write_text("x\n" + "1\n" * 600 + "2\n")
    resumed = jobq("run", "--resume", "--queue-file", "queue", "-n", "2", "--each", "f.csv", "--", "true", "{x}")
    assert f"{601 - done} done, 0 failed" in resumed.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "--grid", "x=1,2"), "are for one command"),
        (("run", "--grid", "x=1,2", "commands", "-c", "true"), "a FILE of commands does not go with them"),
        (("run", "--grid", "x=1,2", "-c", "true", "--", "echo", "{x}"), "are for one command"),
        (("run", "-c", "true"), "uses none of its arguments"),
        (("run", "--dry-run"), "--dry-run goes with one command"),
        (("run", "--grid", "x", "-c", "true"), "write NAME=VALUES"),
        (("run", "--each", "missing.csv", "-c", "true"), "cannot read missing.csv"),
        (("run", "--each", "f.csv", "--joblog", "f.csv", "-c", "true"), "which it would destroy"),
    ],
)
def test_usage(jobq: Jobq, arguments: tuple[str, ...], said: str) -> None:
    (jobq.folder / "f.csv").write_text("x\n1\n")
    result = jobq(*arguments, code=None)
    assert result.code in (2, 3)
    assert said in result.err
    assert (jobq.folder / "f.csv").read_text() == "x\n1\n"


def test_a_dry_run_runs_nothing(jobq: Jobq) -> None:
    result = jobq("run", "--queue-file", "queue", "--dry-run", "--grid", "x=1..9", "--", "touch", "{x}")
    assert result.lines == ["touch 1", "touch 2", "touch 3"]
    assert "tasks: 9, in this order; nothing is queued" in result.err
    assert not {"queue", "1"} & {path.name for path in jobq.folder.iterdir()}


def test_what_stands_behind_two_dashes_is_a_program(jobq: Jobq) -> None:
    (jobq.folder / "-odd").write_text("echo one\n")
    assert jobq("run", "./-odd").out == "one\n"
    assert jobq("run", "--", "-odd", stdin="x\n", code=1).out == ""
