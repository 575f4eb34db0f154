"""The table of docs/costs.md, "What it costs": what a service bills, counted at the wire, verb by verb."""

import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.backend import Backend, Delivery
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.task import Task, TaskResult
from jobq_azure.service_bus.options import Options
from tests.azure import stage as storage
from tests.azure.emulator import Azurite
from tests.emulators.service_bus.faults import Operation
from tests.sb import stage as service_bus

from .files import ROOT

pytestmark = pytest.mark.check

NOW, LEASE = timedelta(0), timedelta(seconds=30)


async def _counted(backend: Backend, count: Callable[[], int]) -> dict[str, int]:
    """Return how many requests each thing takes, once connections and tokens are there."""
    found: dict[str, int] = {}

    async def cost(name: str, work: Awaitable[object]) -> object:
        before = count()
        result = await work
        found[name] = count() - before
        return result

    async def taken() -> Delivery:
        (delivery,) = await backend.receive(1, LEASE, NOW)
        return delivery

    await backend.push([Task.new(command="true")])  # opens what stays open
    await (await taken()).settle(Complete(TaskResult()))
    await backend.stats()
    await cost("push", backend.push([Task.new(command="true")]))
    delivery = await cost("receive", taken())
    assert isinstance(delivery, Delivery)
    await cost("renew", delivery.renew(LEASE))
    await cost("retry", delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW)))
    delivery = await taken()
    await cost("complete", delivery.settle(Complete(TaskResult())))
    await backend.push([Task.new(command="true")])
    delivery = await taken()
    await cost("dead letter", delivery.settle(MoveToDeadLetters("failed", "exit code 3")))
    await cost("look", backend.stats())
    return found


async def test_a_storage_queue_bills_what_is_printed(azurite: Azurite, tmp_path: Path) -> None:
    async with storage.staged(azurite, tmp_path) as stage:
        found = await _counted(stage.backend, lambda: len(stage.proxy.requests))
        before = len(stage.proxy.requests)
        await stage.backend.push([Task.new(command="true") for _ in range(8)])
        pushed = len(stage.proxy.requests)
        assert len(await stage.backend.receive(32, LEASE, NOW)) == 8
        assert (pushed - before, len(stage.proxy.requests) - pushed) == (8, 1), "a put each, one receive for all"
    assert found == {"push": 1, "receive": 1, "renew": 1, "retry": 1, "complete": 1, "dead letter": 3, "look": 2}
    assert _row("Storage Queue") == _printed(found)


async def test_a_service_bus_bills_what_is_printed(tmp_path: Path) -> None:
    async with service_bus.staged(tmp_path, options=Options(stats_seconds=60.0), lock_duration=60.0) as stage:
        free = {Operation.ATTACH, Operation.AUTHORIZE}

        def billed() -> int:
            return sum(each.operation not in free for each in stage.emulator.gate.requests)

        found = await _counted(stage.backend, billed)
        before = billed()
        await stage.backend.push([Task.new(command="true") for _ in range(8)])
        assert billed() - before == 1, "one send for many"
        looked = billed()
        assert await stage.backend.stats() == await stage.backend.stats()
        assert billed() - looked == 1, "a second look is answered from memory for a while"
    expected = {"push": 1, "receive": 1, "renew": 1, "complete": 1, "dead letter": 2, "look": 1}
    assert {name: found[name] for name in expected} == expected
    assert _row("Service Bus") == _printed(found)


def _printed(found: dict[str, int]) -> list[int]:
    """Return what the table's columns must begin with; a retry has to be received again."""
    task = found["push"] + found["receive"] + found["complete"]
    return [task, found["retry"] + found["receive"], found["dead letter"], found["look"]]


def _row(service: str) -> list[int]:
    """Return the numbers with which the columns of a service begin, but for those of hours."""
    page = (ROOT / "docs/costs.md").read_text()
    line = re.search(rf"^\| {service}[^|]*\|(.*)\|$", page, re.MULTILINE)
    assert line is not None
    columns = line[1].split("|")
    return [int(columns[at].split()[0].rstrip(":")) for at in (0, 1, 2, 5)]
