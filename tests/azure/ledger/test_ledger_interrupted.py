"""Pushes, seals and cancels that were cut off, and what another one of the same makes of them."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from jobq.batch_plan import Plan
from jobq.batches import BatchState
from jobq.errors import BackendUnavailable, BatchSealed, JobqError
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.task import Task
from jobq.testing.harness import DONE
from jobq_azure.ledger import finishing
from jobq_azure.ledger.pushes import LedgerPush
from jobq_azure.ledger.queue import LedgerQueue
from jobq_azure.table_journal.entities import CHUNK_BYTES
from tests.azure.ledger.ledger_stage import SOON, THEN, drained, finished, ledgered
from tests.azure.stage import LEASE, NOW, Stage
from tests.support.http_proxy import Strike

pytestmark = [pytest.mark.check, pytest.mark.timeout(120)]


def _tasks(count: int) -> list[Task]:
    return [Task.new(command="true", batch="s7", id=f"s7.{number}") for number in range(count)]


async def _run(queue: LedgerQueue) -> list[str]:
    """Run what there is, and what is queued at the end; return the ids."""
    ran: list[str] = []
    while found := await queue.receive(8, LEASE, SOON):
        for delivery in found:
            await delivery.settle(Complete(DONE))
            ran.append(delivery.id)
    return sorted(ran)


async def test_what_a_seal_has_taken_for_dead_is_pushed_again_and_runs(stage: Stage) -> None:
    """S1: while the batch is closed it is refused, not "known"; open again, it is entered anew."""
    queue = await ledgered(stage, behind=True)
    await queue.batches.begin("s7", THEN)
    tasks = _tasks(3)
    dead = LedgerPush(queue._ledger, queue._heads, [("s7", task) for task in tasks])
    await dead.enter()  # and its process is gone before its messages are sent
    queue.batches.pushing.seconds = 0.0
    await asyncio.sleep(1.1)  # by the table's clock it is old then
    assert (await queue.batches.seal("s7")).state is BatchState.FINISHED
    with pytest.raises(BatchSealed):
        await queue.push(tasks)
    await queue.batches.reopen("s7")
    assert await queue.push(tasks) == [task.id for task in tasks]
    queue.batches.pushing.seconds = 600.0
    await queue.batches.seal("s7")
    assert await _run(queue) == ["jobq.then.s7.1", "jobq.then.s7.2", *(task.id for task in tasks)]
    assert (await finished(queue)).counts["succeeded"] == len(tasks)


async def _pushed_by_two(stage: Stage, act: Any) -> tuple[Any, Any]:
    """Let two do the same, which queues something: both have entered it, the first's send is refused, then one sends.

    Args:
        stage: with the queue.
        act: given a queue, does it.
    """
    one, two = await ledgered(stage), await ledgered(stage, behind=True)
    await two.stats()
    first, second, refused = asyncio.Event(), asyncio.Event(), asyncio.Event()
    sends, sends_too = one._inner.push, two._inner.push

    async def refuse(tasks: list[Task]) -> list[str]:
        first.set()
        await second.wait()
        stage.proxy.strike(Strike.DENY, "POST", count=float("inf"))
        try:
            return await sends(tasks)
        finally:
            await stage.proxy.heal()

    async def wait(tasks: list[Task]) -> list[str]:
        second.set()
        await refused.wait()
        return await sends_too(tasks)

    one._inner.push, two._inner.push = refuse, wait  # type: ignore[method-assign, assignment]

    async def do_first() -> Any:
        try:
            return await act(one)
        except JobqError as error:
            return error
        finally:
            refused.set()

    async def do_second() -> Any:
        await first.wait()
        return await act(two)

    ended = await asyncio.gather(do_first(), do_second())
    one._inner.push, two._inner.push = sends, sends_too  # type: ignore[method-assign]
    return ended


async def test_a_push_that_is_refused_takes_back_nothing_that_an_equal_one_has_sent(stage: Stage) -> None:
    """S1: what the second was told to be queued is in the ledger."""
    tasks = _tasks(2)
    await (queue := await ledgered(stage, behind=True)).batches.begin("s7", THEN)
    failed, acknowledged = await _pushed_by_two(stage, lambda queue: queue.push(tasks))
    assert isinstance(failed, JobqError)
    assert acknowledged == [task.id for task in tasks]
    await queue.batches.seal("s7")
    assert await _run(queue) == ["jobq.then.s7.1", *acknowledged]
    assert (await finished(queue)).counts["succeeded"] == len(tasks)


async def test_an_end_whose_queue_refuses_takes_back_nothing_that_another_has_sent(stage: Stage) -> None:
    await (queue := await ledgered(stage, behind=True)).batches.begin("s7", THEN)
    await queue.push(_tasks(1))
    (delivery,) = await queue.receive(1, LEASE, NOW)
    await queue.batches.seal("s7")
    await delivery.settle(Complete(DONE))
    queue._finishing._due.clear()
    await _pushed_by_two(stage, lambda queue: queue.batches.find("s7"))
    assert await _run(queue) == ["jobq.then.s7.1"]
    await finished(queue)
    assert await queue.dead_letters(9) == []


async def test_a_page_without_rows_that_goes_on_is_no_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service may answer so; Azurite does not, so its answers are changed here."""
    queue = await ledgered(stage, behind=True)
    await queue.batches.begin("s7", THEN)
    await queue.push(_tasks(3))
    send, changed = queue._wire._requests.send, 0

    async def sent(method: str, path: str, query: Any, headers: Any, body: bytes) -> Any:
        nonlocal changed
        goes_on = "NextPartitionKey" in query
        answer = await send(
            method, path, {name: each for name, each in query.items() if not name.startswith("Next")}, headers, body
        )
        if goes_on or "RowKey ge 'u!'" not in query.get("$filter", "") or not json.loads(answer.body)["value"]:
            return answer
        changed += 1
        after = {"x-ms-continuation-nextpartitionkey": "1!AA", "x-ms-continuation-nextrowkey": "1!AA"}
        return replace(answer, body=b'{"value":[]}', headers=CIMultiDictProxy(CIMultiDict({**answer.headers, **after})))

    monkeypatch.setattr(queue._wire._requests, "send", sent)
    assert (await queue.batches.seal("s7")).state is BatchState.SEALED
    assert changed


async def test_a_shorter_plan_leaves_nothing_of_a_longer_one(stage: Stage) -> None:
    queue = await ledgered(stage, behind=True)
    then = Task.new(command=f"echo {'x' * (CHUNK_BYTES - 3000)}", id="any").encode().decode()
    for template in ("x" * 4000, "short"):
        await queue.batches.begin("s7", Plan(then=(then,), template=template))
    assert (await queue.batches.find("s7")).template == "short"


async def test_a_cancel_whose_request_was_refused_is_made_up_for(stage: Stage) -> None:
    """What is marked as asked to end was asked to."""
    queue = await ledgered(stage)
    await queue.batches.begin("s7", Plan())
    await queue.push(_tasks(1))
    (delivery,) = await queue.receive(1, LEASE, NOW)
    record = queue._walk._requests.record

    async def refuse(_requests: Any) -> None:
        raise BackendUnavailable("503")

    queue._walk._requests.record = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(BackendUnavailable):
        await queue.batches.cancel("s7")
    queue._walk._requests.record = record  # type: ignore[method-assign]
    await queue.batches.cancel("s7")
    async with asyncio.timeout(60):
        while not (await delivery.renew(LEASE)).cancel:
            await asyncio.sleep(0.2)
    await delivery.settle(Complete(DONE))


async def test_what_is_run_at_the_end_is_not_forgotten_before_it_has_run(stage: Stage) -> None:
    queue = await ledgered(stage, behind=True)
    await queue.batches.begin("s7", THEN)
    await queue.push(_tasks(1))
    await queue.batches.seal("s7")
    (delivery,) = await queue.receive(1, LEASE, NOW)
    await delivery.settle(Complete(DONE))
    await finished(queue)
    queue._retention._keep_seconds = -60.0
    await queue._retention.once()
    assert await drained(queue) == ["jobq.then.s7.1"]
    await queue._retention.once()
    assert await queue.batches.list("", 10) == []


async def test_a_letter_of_what_waits_is_put_back(stage: Stage) -> None:
    """A worker whose table is another one makes dead letters of what it does not know."""
    queue = await ledgered(stage, behind=True)
    await queue.batches.begin("s7", Plan())
    await queue.push(_tasks(1))
    (stranger,) = await queue._inner.receive(1, timedelta(seconds=30), NOW)
    await stranger.settle(MoveToDeadLetters("unknown", "batch s7 is not there"))
    assert await queue.redrive(["s7.0"]) == ["s7.0"]
    assert await drained(queue) == ["s7.0"]
    assert (await queue.batches.find("s7")).counts["succeeded"] == 1


async def test_the_end_of_a_batch_that_takes_long_to_count_is_seen_to(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that ends the last task has some seconds to find that out, and then as long as it takes."""
    monkeypatch.setattr(finishing, "_EVERY_SECONDS", 0.5)
    queue = await ledgered(stage, behind=True)
    await queue.batches.begin("s7", THEN)
    await queue.push(_tasks(2))
    await queue.batches.seal("s7")
    counted = queue._finishing._counting.counted

    async def slow(*args: Any) -> Any:
        await asyncio.sleep(2.0)
        return await counted(*args)

    monkeypatch.setattr(queue._finishing._counting, "counted", slow)
    assert await _run(queue) == ["jobq.then.s7.1", "s7.0", "s7.1"]
