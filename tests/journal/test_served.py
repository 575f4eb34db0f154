"""Tasks that `jobq serve` hands out and settles: the same journal tells of them, and only what is true (S5)."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobq.backend import Backend
from jobq.errors import LockLost
from jobq.journal.records import Attempt, TaskState
from jobq.journal.store import journal_of
from jobq.servable import served
from jobq.server.journal_records import record_of
from jobq.settlement import Complete, Record, Requeue
from jobq.task import Task, TaskResult
from jobq.task_handle import result_of
from tests.cli.conftest import Jobq
from tests.service.server import running

from .conftest import Place

pytestmark = pytest.mark.check

LEASE, NOW = timedelta(seconds=60), timedelta(0)
GOOD = TaskResult(exit_code=0, value={"n": 1}, duration=2.0, output_tail="hello\n")


async def _claimed(backend: Backend, key: str, lease: timedelta = LEASE) -> Any:
    """Return a delivery as the service has it: found again by its receipt."""
    (delivery,) = await served(backend).claim(1, lease, NOW, key=key, former=())
    return await served(backend).held(delivery.id, delivery.receipt, delivery.body)


async def _fails_directly(backend: Backend) -> str:
    (id_,) = await backend.push([Task.new(command="true")])
    (delivery,) = await backend.receive(1, LEASE, NOW)
    attempt = Attempt(attempt=1, outcome="failed", then="retry", ended=time.time(), exit_code=3)
    await delivery.settle(Requeue(delivery.task.counters, NOW, record=Record(attempt)))
    return id_


def test_a_success_through_the_service_is_no_failure_of_an_earlier_attempt(place: Place) -> None:
    async def work(backend: Backend) -> None:
        await backend.create()
        id_ = await _fails_directly(backend)
        held = await _claimed(backend, "one")
        record_ = record_of("succeeded", "done", duration=2.0, exit_code=0, value={"n": 1}, output="hello\n")
        await held.settle(Complete(GOOD, record=record_))
        await held.settle(Complete(GOOD, record=record_))  # S5
        journal = journal_of(backend)
        (record,) = await journal.find([id_])
        result = await result_of(journal, record)
        assert (record.state, result.outcome, result.exit_code) == (TaskState.SUCCEEDED, "succeeded", 0)
        assert (result.value, result.output_tail, result.attempt) == ({"n": 1}, "hello\n", 2)
        assert result.duration == pytest.approx(2.0)
        told = [(one.attempt, one.outcome, one.then) for one in await journal.attempts(id_)]
        assert told == [(1, "failed", "retry"), (2, "succeeded", "done")]

    place.inside(work)


def test_what_a_worker_over_http_does_is_told(tmp_path: Path) -> None:
    """A success, a failure that is tried again, a give-back and a dead letter, by the service itself."""
    spec = f"sqlite://{tmp_path}/jobs.db/demo"
    with running(spec, tmp_path) as server:

        def ask(method: str, path: str, body: object) -> Any:
            status, value = server.ask(method, f"/api/tasks{path}?queue=demo", body)
            assert status in (200, 202), value
            return value

        (id_,) = ask("POST", "", {"tasks": [{"command": "true", "budgets": {"retries": 0}}]})["ids"]
        (again,) = ask("POST", "", {"tasks": [{"command": "true", "priority": -1}]})["ids"]
        for task, verb, fields in (
            (id_, "release", {}),
            (id_, "fail", {"detail": "exit code 4", "exit_code": 4}),
            (again, "fail", {"detail": "exit code 3", "exit_code": 3, "output": "no"}),
        ):
            (held,) = ask("POST", "/next", {})["tasks"]
            ask("PUT", f"/{task}/{verb}", {"receipt": held["receipt"], **fields})
        (good,) = ask("POST", "", {"tasks": [{"command": "true"}]})["ids"]
        (held,) = ask("POST", "/next", {})["tasks"]
        ask("PUT", f"/{good}/complete", {"receipt": held["receipt"], "exit_code": 0, "value": [1], "output": "fine"})

    async def work(backend: Backend) -> None:
        journal = journal_of(backend)
        told = [
            (one.attempt, one.outcome, one.then, one.exit_code)
            for each in (id_, again)
            for one in await journal.attempts(each)
        ]
        assert told == [(1, "released", "retry", None), (2, "failed", "dead", 4), (1, "failed", "retry", 3)]
        assert await journal.output(again) == (1, "no")
        dead, done = [(await journal.find([each]))[0] for each in (id_, good)]
        assert ((await result_of(journal, dead)).exit_code, dead.last and dead.last.started is not None) == (4, True)
        result = await result_of(journal, done)
        assert (result.exit_code, result.value, result.output_tail, result.attempt) == (0, [1], "fine", 1)

    Jobq(tmp_path).inside(work, spec)


def test_an_old_attempt_is_not_the_result_of_an_end_that_nobody_told(place: Place) -> None:
    """A worker without a journal completes what failed under one that has it."""

    async def fails(backend: Backend) -> str:
        await backend.create()
        return await _fails_directly(backend)

    id_ = place.inside(fails)
    place.work(env={"JOBQ_JOURNAL": "off"})

    async def result(backend: Backend) -> tuple[str, int | None]:
        journal = journal_of(backend)
        (record,) = await journal.find([id_])
        found = await result_of(journal, record)
        return found.outcome, found.exit_code

    assert place.inside(result) == ("succeeded", None)


def test_what_is_canceled_while_it_runs_is_not_put_back(place: Place) -> None:
    """The cancel request outlives the attempt that failed before it could hear of it."""

    async def work(backend: Backend) -> None:
        await backend.create()
        (id_,) = await backend.push([Task.new(command="true")])
        (held,) = await backend.receive(1, LEASE, NOW)
        journal = journal_of(backend)
        assert await journal.cancel([id_]) == ["stopping"]
        await held.settle(Requeue(held.task.requeued(failures=1).counters, NOW))
        assert await backend.receive(1, LEASE, NOW) == []
        (record,) = await journal.find([id_])
        assert record.state is TaskState.CANCELED

    place.inside(work)


def test_what_is_canceled_is_not_served_again(place: Place) -> None:
    """The cancel request outlives the worker that held it (S1)."""

    async def work(backend: Backend) -> None:
        await backend.create()
        (id_,) = await backend.push([Task.new(command="true")])
        held = await _claimed(backend, "one", timedelta(seconds=1))
        journal = journal_of(backend)
        assert await journal.cancel([id_]) == ["stopping"]
        await held.renew(timedelta(seconds=1))
        assert not await served(backend).claim(1, LEASE, timedelta(seconds=2.5), key="two", former=())
        (record,) = await journal.find([id_])
        assert record.state is TaskState.CANCELED
        try:
            await held.settle(Complete(GOOD))
        except LockLost:
            return
        raise AssertionError("S4")

    place.inside(work)


def test_who_takes_a_claim_over_hears_that_its_task_is_to_be_canceled(place: Place) -> None:
    """Its first answer was lost, and a cancel came meanwhile."""

    async def work(backend: Backend) -> None:
        await backend.create()
        (id_,) = await backend.push([Task.new(command="true")])
        await served(backend).claim(1, LEASE, NOW, key="one", former=())
        await journal_of(backend).cancel([id_])
        (delivery,) = await served(backend).claim(1, LEASE, NOW, key="two", former=("one",))
        assert delivery.id == id_
        assert delivery.cancel_requested
        await delivery.settle(Complete(GOOD))

    place.inside(work)
