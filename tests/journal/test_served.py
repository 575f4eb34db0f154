"""Tasks that `jobq serve` hands out and settles: the same journal tells of them, and only what is true (S5)."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobq.backend import Backend
from jobq.journal.store import journal_of
from jobq.servable import served
from jobq.settlement import Complete
from jobq.task import Task, TaskResult
from jobq.task_handle import result_of
from tests.cli.conftest import Jobq
from tests.service.server import running

from .conftest import Place

pytestmark = pytest.mark.check

LEASE, NOW = timedelta(seconds=60), timedelta(0)
GOOD = TaskResult(exit_code=0)


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
