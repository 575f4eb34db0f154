"""`--quiet` and `--verbose`: on every command, before or after its name, with one meaning."""

import json

import click
import pytest

from jobq.cli.main import cli
from jobq.task import Task
from tests.cli.conftest import Jobq
from tests.cli.test_json import commands


def test_every_command_has_both() -> None:
    for name, command in [*commands(cli), ("jobq", cli)]:
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"-q", "--quiet", "-v", "--verbose"} <= options, name


@pytest.mark.parametrize("place", [("-q", "demo", "{}"), ("demo", "-q", "{}"), ("demo", "{}", "--quiet")])
def test_quiet_leaves_errors_and_data(jobq: Jobq, place: tuple[str, ...]) -> None:
    def line(command: str) -> list[str]:
        return [command if word == "{}" else word for word in place]

    pushed = jobq(*line("push"), "-c", "echo hello", "--ids")
    assert pushed.err == ""
    assert len(pushed.lines) == 1
    worked = jobq(*line("worker"), "--log-format", "text", env={"JOBQ_TYPO": "1"})
    assert worked.out == "hello\n"
    assert worked.err == ""
    jobq.fill(Task.new(command="exit 3", budgets={"retries": 0}))
    worked = jobq(*line("worker"), "--log-format", "json")
    assert {json.loads(told)["level"] for told in worked.err.splitlines()} == {"error"}
    assert "does not exist" in jobq(*["nowhere" if word == "demo" else word for word in line("size")], code=4).err


def test_quiet_run_and_pull_tell_failures_only(jobq: Jobq) -> None:
    assert jobq("run", "-q", stdin="echo hello\n").err == ""
    failed = jobq("-q", "run", stdin="echo hello\nexit 3\n", code=1)
    assert failed.out == "hello\n"
    assert failed.err == "failed: line 2 (exit code 3): exit 3\n"


@pytest.mark.parametrize("place", [("-v", "demo", "worker"), ("demo", "-v", "worker"), ("demo", "worker", "--verbose")])
def test_verbose_tells_debug_events(jobq: Jobq, place: tuple[str, ...]) -> None:
    jobq.fill(Task.new(command="true"))
    logs = [json.loads(line) for line in jobq(*place).err.splitlines()]
    assert ("task.completed", "debug") in {(log["event"], log["level"]) for log in logs}


def test_verbose_run_tells_what_befalls_each(jobq: Jobq) -> None:
    said = jobq("run", "-v", stdin="echo hello\n").err
    assert " started (attempt 1)" in said
    assert " completed" in said


def test_without_either_debug_events_are_not_told(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true"))
    assert "task.completed" not in jobq("demo", "worker").err


@pytest.mark.parametrize("line", [("-q", "-v", "demo", "size"), ("-q", "demo", "size", "-v"), ("demo", "size", "-vq")])
def test_both_contradict(jobq: Jobq, line: tuple[str, ...]) -> None:
    jobq.fill()
    assert "contradict" in jobq(*line, code=2).err


def test_a_program_keeps_its_own(jobq: Jobq) -> None:
    """What stands after `--` is not ours."""
    jobq("demo", "push", "--", "grep", "-q", "--quiet", "-v")
    (task,) = jobq.waiting()
    assert task.argv == ("grep", "-q", "--quiet", "-v")


def test_quiet_output_is_another_thing(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="echo hello"))
    result = jobq("demo", "worker", "--quiet-output", "--log-format", "text")
    assert result.out == ""
    assert "worker stopped" in result.err


def test_groups_take_them_too(jobq: Jobq) -> None:
    jobq.kill_tasks(Task.new(command="false"), Task.new(command="false"))
    assert jobq("demo", "dead", "-q", "list", "-n", "1").err == ""
    assert "more than 1" in jobq("demo", "dead", "list", "-n", "1").err
    assert isinstance(cli, click.Group)
