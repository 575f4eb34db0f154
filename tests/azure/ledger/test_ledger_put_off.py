"""A table that is away puts tasks off, again and again: no crash of theirs (S7), and a worker waits for them."""

import asyncio
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta

import pytest

from jobq.backend import Delivery
from jobq.batch_plan import Plan
from jobq.errors import AllPutBack
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from jobq.settlement import Complete
from jobq.task import Task, new_id
from jobq.testing.harness import DONE
from jobq_azure.ledger.queue import LedgerQueue
from tests.azure.ledger.ledger_stage import NAME, finished, ledgered
from tests.azure.payloads.payload_stage import large_task
from tests.azure.stage import LEASE, NOW, Stage, make_container
from tests.process.stage import QUICK
from tests.support.http_proxy import HttpProxy, Strike

pytestmark = pytest.mark.check

_TIMES = 8  # more than twice what a task may crash


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("strike", [Strike.BUSY, Strike.DENY, Strike.LOSE_ANSWER])
async def test_s7_what_is_put_off_costs_no_crash(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, strike: Strike, is_large: bool
) -> None:
    monkeypatch.setattr("jobq_azure.table_journal.backend._PUT_OFF", timedelta(0))
    queue = await ledgered(stage)
    await make_container(stage)
    id_ = f"{NAME}.{new_id()[-12:]}"
    task = large_task(batch=NAME, id=id_) if is_large else Task.new(command="true", batch=NAME, id=id_)
    await queue.batches.begin(NAME, Plan())
    await queue.push([task])
    await queue.batches.seal(NAME)
    stage.tables.strike(strike, count=math.inf)
    put_off, found = 0, list[Delivery]()
    while put_off < _TIMES and not found:
        try:
            found = await queue.receive(1, LEASE, NOW)
        except AllPutBack:
            put_off += 1
    assert not found, "nothing starts that the ledger does not know of"
    await stage.tables.heal()
    while not found:
        with suppress(AllPutBack):
            found = await queue.receive(1, LEASE, NOW)
    (delivery,) = found
    assert delivery.deliveries > _TIMES
    counters = delivery.task.counters
    assert delivery.deliveries - counters.ends == 1, "each but this has a recorded end"
    assert counters.failures == counters.preemptions == 0
    await delivery.settle(Complete(DONE))
    assert (await finished(queue)).counts["succeeded"] == 1


@pytest.mark.parametrize("away", ["tables", "blobs"])
async def test_a_worker_waits_for_what_was_put_off(stage: Stage, monkeypatch: pytest.MonkeyPatch, away: str) -> None:
    """It took the queue for an empty one, and ended with 0 while all of the batch was left."""
    monkeypatch.setattr("jobq_azure.table_journal.backend._PUT_OFF", timedelta(seconds=2))
    monkeypatch.setattr("jobq_azure.storage.backend._UNREADABLE_SECONDS", 2)
    queue = await ledgered(stage)
    await make_container(stage)
    await queue.batches.begin(NAME, Plan())
    await queue.push([large_task(batch=NAME, id=f"{NAME}.{new_id()[-12:]}") for _ in range(2)])
    await queue.batches.seal(NAME)
    proxy: HttpProxy = getattr(stage, away)
    proxy.strike(Strike.BUSY, count=math.inf)
    put_off = asyncio.Event()
    take = type(queue).take_put_off

    def took(queue: LedgerQueue) -> Mapping[str, float]:
        if found := take(queue):
            put_off.set()
        return found

    monkeypatch.setattr(type(queue), "take_put_off", took)
    working = asyncio.create_task(Worker(queue, Settings(**{**QUICK, "num_workers": 2})).run())
    first, _ = await asyncio.wait({working, asyncio.create_task(put_off.wait())}, return_when="FIRST_COMPLETED")
    assert working not in first
    await proxy.heal()
    assert (await working).succeeded == 2
    assert (await finished(queue)).counts["succeeded"] == 2
