"""A queue of Service Bus whose journal is away: what cannot be started now is put off, and hinders nothing else."""

import asyncio
import math

import pytest

from jobq.errors import AllPutBack
from jobq.settlement import Complete, Requeue
from jobq.task import Task
from tests.azure.emulator import Azurite, connection_string
from tests.azure.journal.journal_stage import written
from tests.azure.stage import eventually
from tests.emulators.service_bus.faults import Fault, Operation
from tests.sb.stage import NOW, Stage
from tests.sb.test_journal import PLACE, _journaled
from tests.support.http_proxy import ProxiedRequest, Strike

_BEHIND = 12  # deliveries that are put off: more than the pauses of an outage allow for in 10 s


async def test_l4_a_fresh_worker_comes_to_what_waits_behind_what_is_put_off(stage: Stage, azurite: Azurite) -> None:
    """It took the queue for broken, paused longer and longer, and ended with 75."""
    _, proxy = await _journaled(stage, azurite)
    await stage.pushed(_BEHIND)
    for _ in range(_BEHIND):
        delivery = await stage.take()
        await delivery.settle(Requeue(delivery.task.requeued(preemptions=1).counters, NOW))
    await stage.pushed(command="touch started")
    proxy.strike(Strike.BUSY, count=math.inf)
    signed = connection_string(1, table_port=proxy.port)
    worker = await stage.start("worker", "-n", "1", JOBQ_JOURNAL=PLACE, JOBQ_JOURNAL_CONNECTION_STRING=signed)
    await eventually((stage.folder / "started").exists, 60)
    assert worker.returncode is None


async def test_s6_what_is_put_off_leaves_no_original_beside_its_copy(
    stage: Stage, azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moment's refusal between its two steps: nobody died, and the task ended twice."""
    monkeypatch.setattr("jobq_azure.table_journal.backend._CHECKPOINT_SHARE", 0.5)  # the lock is short here
    queue, proxy = await _journaled(stage, azurite)
    await queue.push([Task.new(command="true")])
    (first,) = await queue.receive(1, None, NOW)
    await first.settle(Requeue(first.task.requeued(failures=1).counters, NOW))
    await written(queue)
    proxy.strike(Strike.BUSY, "GET", count=1)
    stage.emulator.faults.plan(Fault(503), Operation.COMPLETE, count=1)
    with pytest.raises(AllPutBack):
        await queue.receive(1, None, NOW)
    while queue._on_their_way:
        await asyncio.wait(queue._on_their_way)
    (left,) = stage.queue.messages()
    assert left.content.message_id
    assert len(stage.requests(Operation.COMPLETE)) >= 2


def _asks_where(request: ProxiedRequest) -> bool:
    return "RowKey eq 'l!" in request.query.get("$filter", "")


async def test_s11_what_is_put_off_costs_its_neighbours_nothing_of_their_leases(
    stage: Stage, azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was waited for, with a service that refuses for longer than a short lock lasts."""
    monkeypatch.setattr("jobq_azure.table_journal.backend._CHECKPOINT_SHARE", 0.5)
    queue, proxy = await _journaled(stage, azurite)
    await queue.push([Task.new(command="true")])
    (first,) = await queue.receive(1, None, NOW)
    await first.settle(Requeue(first.task.requeued(failures=1).counters, NOW))
    await queue.push([Task.new(command="true", id="fresh")])
    await written(queue)
    proxy.strike(Strike.BUSY, "GET", count=1, matches=_asks_where)
    stage.emulator.faults.plan(Fault(503), Operation.SEND, count=math.inf)
    (fresh,) = await queue.receive(2, None, NOW)
    assert fresh.id == "fresh"
    assert queue._on_their_way, "it is repeated still"
    await fresh.settle(Complete())
