"""What a worker on a Storage Queue can never run: counted in its message, at no price, and not for ever."""

import asyncio
import html
import json
import re
from datetime import timedelta

import pytest

from jobq.events import Event, Events
from jobq.run.stopping import Stopping
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from jobq.task import Task
from tests.azure.stage import SHORT, Stage, is_renewal, is_update, make_container
from tests.process.stage import QUICK

pytestmark = pytest.mark.check

_BOUND = 3


@pytest.mark.parametrize("command", ["echo ran", "echo ran #" + "x" * 100_000], ids=["message", "blob"])
async def test_s7_a_misfit_is_counted_in_the_request_that_puts_it_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("jobq.run.attempt.task_grants.FIRST_DELAY_SECONDS", 1.0)
    monkeypatch.setattr("jobq.run.attempt.retry.MOST_MISFITS", _BOUND)
    await make_container(stage)
    (task_id,) = await stage.backend.push([Task.new(command=command, needs=["a100"])])
    stage.proxy.requests.clear()
    stopping, names = Stopping(), list[str]()

    def hear(event: Event) -> None:
        names.append(event.name)
        if event.name == "task.dead_lettered":
            stopping.drain("the test has seen it")

    settings = Settings(**{**QUICK, "visibility_timeout": timedelta(seconds=8), "idle_timeout": timedelta(minutes=1)})
    async with asyncio.timeout(60):
        report = await Worker(stage.backend, settings, events=Events(hear), stopping=stopping).run()
    assert (report.dead_lettered, names.count("task.misfit")) == (1, _BOUND)

    received = [each for each in stage.proxy.seen("GET") if b"<MessageText>" in each.answer]
    updates = [each for each in stage.proxy.seen("PUT") if is_update(each)]
    assert len(received) == _BOUND
    counted = [each for each in updates if not is_renewal(each)]
    assert updates[0] is counted[0], "the receive and this are all that it costs"
    found = [re.findall(r'"misfits": ?(\d+)', html.unescape(each.body.decode())) for each in counted]
    assert found == [["1"], ["2"]]
    assert [each.query["visibilitytimeout"] for each in counted] == ["1", "2"], "twice as long"

    (letter,) = await stage.behind.dead_letters(2)
    assert (letter.id, letter.reason) == (task_id, "unplaceable")
    assert "(needs a100)" in letter.description
    retried = await stage.run("dead", "retry", "--all")
    assert retried.code == 0, retried
    shown = await stage.run("peek", "--json")
    counters = json.loads(shown.out)["task"]["counters"]
    assert counters["failures"] == counters.get("misfits", 0) == 0
    worked = await stage.run("worker", **SHORT, JOBQ_TAGS="a100")
    assert (worked.code, await stage.total()) == (0, 0), worked
