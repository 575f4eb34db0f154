"""What a program gives that is no argument is refused by its name, in its own words, before anything is done."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import jobq
from jobq.errors import ConfigurationError, MalformedTask

Call = Callable[[Any], object]


@pytest.fixture
def queue() -> Iterator[jobq.sync.Queue]:
    with jobq.sync.connect("memory://arguments/demo") as found:
        found.push("true")
        yield found


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda queue: queue.push([6]), r"tasks\[0\] is of type int \(6\); give a task \(jobq.Task.new\) or a command"),
        (lambda queue: queue.push(["true", None]), r"tasks\[1\] is None; give a task"),
        (lambda queue: queue.push(n for n in (3,)), r"tasks\[0\] is of type int \(3\)"),
        (lambda queue: queue.push([["echo", "x"]]), r"tasks\[0\] is of type list \(\['echo', 'x'\]\)"),
        (lambda queue: queue.push(6), r"tasks is of type int \(6\); .*, or several of these"),
        (lambda queue: queue.push(None), "tasks is None"),
        (lambda queue: queue.push({"command": "true"}), r"tasks is of type dict \(\{'command': 'true'\}\)"),
        (lambda queue: queue.push(b"true"), "tasks is of type bytes"),
        (lambda queue: queue.cancel("some-id"), r"ids are several: write \['some-id'\] for one"),
        (lambda queue: queue.cancel([6]), r"ids\[0\] is of type int, and an id is a string"),
        (lambda queue: queue.redrive("some-id"), r"write \['some-id'\] for one"),
        (lambda queue: queue.purge_dead("some-id"), r"write \['some-id'\] for one"),
        (lambda queue: queue.pull_and_execute(wait=3), r"wait is a datetime.timedelta, .* not 3"),
        (lambda queue: queue.get(wait="3s").__enter__(), "wait is a datetime.timedelta, .* not '3s'"),
        (lambda queue: queue.lease("name", ttl=60), "ttl is a datetime.timedelta, .* not 60"),
        (lambda queue: queue.lease("name", wait=60), "wait is a datetime.timedelta, .* not 60"),
        (lambda queue: queue.task("some-id").result(timeout="1s"), "timeout is a number of seconds, .* not '1s'"),
    ],
)
def test_a_value_of_another_type(queue: jobq.sync.Queue, call: Call, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        call(queue)
    assert [found.body.count(b'"true"') for found in queue.peek(10)] == [1], "nothing was done"
    queue.clear()


def test_a_command_without_its_name() -> None:
    with pytest.raises(TypeError, match="each field by its name: command='echo hello'"):
        jobq.Task.new("echo hi")  # type: ignore[arg-type] # as it is typed in a notebook


def test_a_number_that_no_worker_has(queue: jobq.sync.Queue) -> None:
    with pytest.raises(ConfigurationError, match="num_workers: 0 is not a number from 1 to 4096"):
        queue.worker(num_workers=0)
    queue.clear()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"retries": 0}, r"retries: unknown field; it is a budget: budgets=\{'retries': 0\}"),
        ({"command": "true", "num_retries": 2}, r"num_retries: .* budgets=\{'retries': 2\}"),
        ({"command": "true", "max_crashes": 1}, r"max_crashes: .* budgets=\{'crashes': 1\}"),
        ({"cmd": "true"}, r"cmd: unknown field; did you mean command\?"),
        ({"command": "true", "args": ["x"]}, r"args: unknown field; did you mean argv\?"),
        ({"function": "a:b"}, r"did you mean call\?"),
        ({"command": "true", "time_out": 3}, r"time_out: unknown field; did you mean timeout\?"),
        ({"command": "true", "delay": 3}, r"delay: unknown field; not_before=time.time\(\) \+ SECONDS says it"),
        ({"command": "true", "colour": "red"}, "colour: unknown field; a task has command, argv, call, kwargs, "),
        ({"argv": "ls -l"}, r"argv: is a list of words, such as \['ls', '-l'\]; a line for the shell is a command"),
    ],
)
def test_a_field_that_no_task_has(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(MalformedTask, match=said):
        jobq.Task.new(**fields)


def test_a_time_out_says_what_was_awaited(queue: jobq.sync.Queue) -> None:
    handle = queue.push("true")
    for timeout in (0.01, timedelta(milliseconds=10)):
        with pytest.raises(TimeoutError, match=rf"task {handle} has not ended within 0.01 s; it goes on"):
            handle.result(timeout=timeout)
    assert queue.status(handle).state == "ready"
    queue.clear()
