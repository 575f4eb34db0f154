"""`cancel`: what waits will not run, what runs is stopped with the next heartbeat, and its submitter is told."""

import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.backend import Backend
from jobq.journal.records import TaskState
from tests.cli.conftest import Jobq, eventually

from .conftest import SHORT, Place, embedded, everywhere

pytestmark = pytest.mark.check


@everywhere
def test_what_waits_is_canceled(place: Place) -> None:
    one, two, later = *place.push("touch ran", "touch ran"), *place.push("touch ran", more=("--delay", "1h"))
    assert "canceled 2 tasks" in place("cancel", one, later).out
    assert place("cancel", one, "--json").objects == [{"id": one, "canceled": "canceled"}], "it may be repeated"
    if place.is_azure:  # only a worker can take it out of the queue, when it is due
        assert "ready, to be canceled" in place("status", one).out
    else:
        assert place.status(one)["state"] == place.status(later)["state"] == "canceled"
    assert place.status(two)["state"] == "ready"
    assert ("canceled 3 tasks" if place.is_azure else "canceled 1 task ") in place("cancel", "--all", "--yes").out
    place.work()
    assert not (place.jobq.folder / "ran").exists()
    assert place("dead", "list").out == "", "it is no dead letter"
    assert place("stats", "--json").objects[0]["states"]["canceled"] == (2 if place.is_azure else 3)


@everywhere
def test_what_runs_is_stopped_within_a_heartbeat_and_the_grace(place: Place) -> None:
    """Its tree too, though it ignores SIGTERM; the neighbour goes on (S11); whoever waits sees it."""
    place("create")
    place.start_worker("-n", "2")
    waiting = place.jobq.start(
        place.spec, "push", "--wait", "--json", "-c", "trap '' TERM; echo $$ > pid; setsid sleep 60; sleep 60"
    )
    assert waiting.stdout is not None
    id_ = place.until_line(waiting.stdout)
    (neighbour,) = place.push("sleep 3; touch done")
    place.until(id_, lambda record: record.beat is not None)
    place.until(neighbour, lambda record: record.state is TaskState.RUNNING)
    assert place("cancel", "--where", f"id={id_}", "--where", "state=running", "--json").objects == [
        {"id": id_, "canceled": "stopping"}
    ]
    asked = time.time()
    record = place.until(id_, lambda record: record.state is TaskState.CANCELED)
    assert record.last is not None
    assert record.last.ended - asked < 0.5 + 1 + 1, "a renewal, the grace, and what a busy machine takes"
    assert record.last.outcome == "canceled"
    out, _ = waiting.communicate(timeout=20)
    assert (waiting.returncode, b'"outcome": "canceled"' in out) == (128 + 9, True)
    place.until(neighbour, lambda record: record.state is TaskState.SUCCEEDED)
    assert (place.jobq.folder / "done").exists()


def test_a_worker_without_a_journal_hears_of_it(tmp_path: Path) -> None:
    """It got the wish with each renewal and threw it away: `batch cancel` stopped nothing that such a worker ran."""
    jobq = Jobq(tmp_path)
    jobq("demo", "push", "--id", "x", "-c", "touch runs; sleep 60")
    worker = jobq.start("demo", "worker", env=SHORT | {"JOBQ_JOURNAL": "off"}, stdin=-3, stdout=-3, stderr=-3)
    eventually((tmp_path / "runs").exists)
    assert "asked the worker" in jobq("demo", "cancel", "x").out
    assert worker.wait(20) == 0
    assert jobq("demo", "cancel", "x").err == "x was canceled already\n"


def test_what_was_asked_to_stop_and_runs_is_not_said_to_be_canceled(tmp_path: Path) -> None:
    jobq = Jobq(tmp_path)
    jobq("demo", "push", "--id", "x", "-c", "touch runs; sleep 60")
    worker = jobq.start(
        "demo", "worker", env={"JOBQ_JOURNAL": "off"}, stdin=-3, stdout=-3, stderr=-3
    )  # renews in minutes
    eventually((tmp_path / "runs").exists)
    jobq("demo", "cancel", "x")
    assert jobq("demo", "cancel", "x").err == "x still runs: its worker was asked to stop it already\n"
    worker.send_signal(signal.SIGINT)
    worker.send_signal(signal.SIGINT)
    worker.wait(20)


@embedded
def test_what_has_ended_stays(place: Place) -> None:
    (id_,) = place.push("true")
    place.work()
    told = place("cancel", id_, "no-such-id", code=4)
    assert "had ended already" in told.err
    assert "no-such-id" in told.err
    assert place.status(id_)["state"] == "succeeded"


@embedded
def test_conditions(place: Place) -> None:
    one, two = place.push("python train.py", "python eval.py")
    assert "is no condition" in place("cancel", "--where", "colour=red", code=3).err
    assert [found["id"] for found in place("cancel", "--where", "command=*train*", "--json").objects] == [one]
    assert place.status(two)["state"] == "ready"
    place("cancel", code=2)
    place("cancel", "--all", code=2)


@embedded
def test_what_nobody_can_promise_is_not_said(place: Place) -> None:
    """The worker that holds it may be gone, or of a version that does not ask."""
    (id_,) = place.push("true")
    place.jobq.inside(_hold, place.spec)
    said = place("cancel", id_).out
    assert said.startswith("canceled 0 tasks that waited; asked the worker of 1 that runs to stop it: ")


async def _hold(backend: Backend) -> None:
    await backend.receive(1, timedelta(seconds=60), timedelta(0))
