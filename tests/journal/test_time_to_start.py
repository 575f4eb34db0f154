"""How long a task waited for its start stands in its history: of its first attempt, from when it was due."""

from datetime import timedelta
from pathlib import Path

import pytest

from jobq.backend import Backend, hastening
from jobq.run.attempt.time_to_start import waited_seconds
from jobq.task import Task
from tests.cli.conftest import Jobq


@pytest.mark.parametrize(
    ("created", "not_before", "deliveries", "wanted"),
    [
        (100.0, None, 1, 7.25),
        (100.0, 105.0, 1, 2.25),
        (100.0, 50.0, 1, 7.25),
        (110.0, None, 1, 0.0),  # its pusher's clock is ahead
        (100.0, 3700.0, 1, None),  # it was hastened
        (100.0, None, 2, None),  # a retry, or one that was given back
        (None, None, 1, None),
    ],
)
def test_from_when(created: float | None, not_before: float | None, deliveries: int, wanted: float | None) -> None:
    task = Task.new(command="true").copied({"created": created, "not_before": not_before})
    assert waited_seconds(task, deliveries, 107.25) == wanted


def test_a_history_has_it(tmp_path: Path) -> None:
    """Not the time until it was due, and not that of a retry, nor of what was hastened."""
    jobq = Jobq(tmp_path)
    (later,) = [each["id"] for each in jobq("demo", "push", "--json", "--delay", "3s", "-c", "true").objects]
    fails = ("push", "--json", "--num-retries", "1", "-c", "false")
    (retried,) = [each["id"] for each in jobq("demo", *fails).objects]
    (hastened,) = [each["id"] for each in jobq("demo", "push", "--json", "--delay", "1h", "-c", "true").objects]

    async def hasten(backend: Backend) -> None:
        await hastening(backend).hasten([hastened])

    jobq.inside(hasten)
    jobq("demo", "worker", "--idle-timeout", "4s", "-n", "2", "--backoff", "100ms")
    (of_later,) = jobq("demo", "status", later, "--json").objects[0]["attempts"]
    assert 0 <= of_later["waited_s"] < 2.5, "it was due after three seconds"
    first, second = jobq("demo", "status", retried, "--json").objects[0]["attempts"]
    assert 0 <= first["waited_s"] < timedelta(minutes=1).total_seconds()
    assert second["waited_s"] is None
    (of_hastened,) = jobq("demo", "status", hastened, "--json").objects[0]["attempts"]
    assert of_hastened["waited_s"] is None
    assert ", waited " in jobq("demo", "status", later).out
    assert ", waited " not in jobq("demo", "status", hastened).out
