"""What tasks of a batch cost on a Service Bus, counted at the wire: as docs/batches.md and azure-service-bus.md say."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from jobq.backend import Delivery
from jobq.batch_plan import Plan
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.task import Task
from jobq.testing.harness import DONE
from jobq_azure.ledger.queue import LedgerQueue
from tests.azure.emulator import Azurite
from tests.azure.ledger.ledger_stage import NAME, finished, of_ledger
from tests.azure.ledger.sites import BusSite, sited
from tests.azure.stage import LEASE, NOW
from tests.support.http_proxy import ProxiedRequest

_COUNT: Final = 48
_SOME: Final = 8


@pytest.fixture
async def site(azurite: Azurite, tmp_path: Path) -> AsyncIterator[BusSite]:
    async with sited("service-bus", azurite, tmp_path) as found:
        assert isinstance(found, BusSite)
        yield found


class _Meter:
    """Counts what was sent since it was last read."""

    def __init__(self, site: BusSite) -> None:
        self._tables = site.tables
        self._gate = site.stage.emulator.gate

    def table(self) -> int:
        """Return how many requests there were of the ledger, but for looks whether the batch has ended."""
        found = [each for each in of_ledger(self._tables.requests) if not _looks(each)]
        self._tables.requests.clear()
        return len(found)

    def queue(self) -> Counter[str]:
        """Return the operations of the queue, of either protocol."""
        found = Counter(f"{each.via} {each.operation}" for each in self._gate.requests)
        self._gate.requests.clear()
        return found


def _looks(request: ProxiedRequest) -> bool:
    return request.method == "GET" and "m!" not in request.query.get("$filter", "")


async def _pushed(site: BusSite) -> tuple[LedgerQueue, _Meter]:
    queue, meter = await site.ledgered(), _Meter(site)
    await queue.batches.begin(NAME, Plan())
    meter.table()
    meter.queue()
    await queue.push([Task.new(command="true", batch=NAME, id=f"{NAME}.{number:03}") for number in range(_COUNT)])
    return queue, meter


async def _received(queue: LedgerQueue) -> list[Delivery]:
    found = await queue.receive(_SOME, LEASE, NOW)
    assert len(found) == _SOME
    return found


async def _all_run(queue: LedgerQueue) -> None:
    ran = 0
    while ran < _COUNT:
        for delivery in await queue.receive(_COUNT, LEASE, LEASE):
            await delivery.settle(Complete(DONE))
            ran += 1


async def test_a_push_enters_and_marks_each_of_its_partitions(site: BusSite) -> None:
    _, meter = await _pushed(site)
    assert meter.queue() == {"rest send": 1}, "48 tasks are one request"
    assert meter.table() == 2 * 16, "beside two looks at the batch"


async def test_a_task_is_three_requests_to_the_table_and_two_operations(site: BusSite) -> None:
    queue, meter = await _pushed(site)
    meter.table()
    meter.queue()
    for delivery in await _received(queue):
        await delivery.settle(Complete(DONE))
    assert meter.table() == 3 * _SOME, "a look, a start and an end"
    assert meter.queue() == {"rest receive": _SOME, "rest complete": _SOME}


async def test_a_retry_is_three_and_four_more(site: BusSite) -> None:
    queue, meter = await _pushed(site)
    meter.table()
    meter.queue()
    for delivery in await _received(queue):
        await delivery.settle(Requeue(delivery.task.counters.raised(failures=1)))
    assert meter.table() == 3 * _SOME, "a look, a start, and that it is put back"
    assert meter.queue() == {f"rest {what}": _SOME for what in ("receive", "renew", "send", "complete")}
    await _all_run(queue)
    assert meter.table() == 3 * _COUNT
    assert meter.queue()["rest complete"] == _COUNT


async def test_a_dead_letter_is_three_and_three(site: BusSite) -> None:
    queue, meter = await _pushed(site)
    meter.table()
    meter.queue()
    for delivery in await _received(queue):
        await delivery.settle(MoveToDeadLetters("failed", "by the test"))
    assert meter.table() == 3 * _SOME
    assert meter.queue() == dict.fromkeys(("rest receive", "rest renew", "amqp dead_letter"), _SOME)


async def test_the_end_of_a_batch(site: BusSite) -> None:
    queue, meter = await _pushed(site)
    await _all_run(queue)
    site.tables.requests.clear()
    meter.queue()
    await queue.batches.seal(NAME)
    await finished(queue)
    spent = len(of_ledger(site.tables.requests))
    print(f"{spent} requests to the table")
    assert spent <= 66, "about 60, as of a Storage Queue"
    assert meter.queue() == {}, "the queue is not asked"
