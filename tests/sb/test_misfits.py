"""What a worker on a Service Bus queue can never run: counted in the copy that replaces it, and not for ever."""

import asyncio
import json
from datetime import timedelta

import pytest

from jobq.events import Event, Events
from jobq.run.stopping import Stopping
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from tests.emulators.service_bus.faults import Operation
from tests.process.stage import QUICK
from tests.sb.stage import Stage

_BOUND = 3


async def test_s7_a_misfit_is_counted_in_the_copy_that_replaces_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobq.run.attempt.task_grants.FIRST_DELAY_SECONDS", 1.0)
    monkeypatch.setattr("jobq.run.attempt.retry.MOST_MISFITS", _BOUND)
    (task,) = await stage.pushed(needs=["a100"])
    begun = len(stage.emulator.gate.requests)
    stopping, delays = Stopping(), list[float]()

    def hear(event: Event) -> None:
        if event.name == "task.released":
            delays.append(event.fields["delay_s"])
        if event.name == "task.dead_lettered":
            stopping.drain("the test has seen it")

    quick = {**QUICK, "visibility_timeout": timedelta(seconds=5)}
    settings = Settings(**quick, idle_timeout=timedelta(minutes=1))
    async with asyncio.timeout(60):
        report = await Worker(stage.backend, settings, events=Events(hear), stopping=stopping).run()
    assert report.dead_lettered == 1
    assert 0.5 <= delays[0] <= 1.0 <= delays[1] <= 2.0

    made = [each.operation for each in list(stage.emulator.gate.requests)[begun:]]
    assert made[:4] == [Operation.RECEIVE, Operation.RENEW, Operation.SEND, Operation.COMPLETE], "all that it costs"
    assert (made.count(Operation.SEND), made.count(Operation.COMPLETE)) == (_BOUND - 1, _BOUND - 1)

    (letter,) = await stage.backend.dead_letters(2)
    assert (letter.id, letter.reason) == (task.id, "unplaceable")
    retried = await stage.run("dead", "retry", "--all")
    assert retried.code == 0, retried
    shown = await stage.run("peek", "--json")
    counters = json.loads(shown.out)["task"]["counters"]
    assert counters["failures"] == counters.get("misfits", 0) == 0
    report = await Worker(stage.backend, Settings(**quick, tags="a100")).run()
    assert report.succeeded == 1
