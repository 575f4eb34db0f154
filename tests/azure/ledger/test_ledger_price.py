"""What a ledger costs, counted at the wire: as docs/batches.md says; and what is of no batch pays nothing."""

import asyncio
from datetime import timedelta

from jobq.batch_plan import Plan
from jobq.settlement import Complete
from jobq.task import Task
from jobq.testing.harness import DONE
from tests.azure.ledger.ledger_stage import NAME, drained, finished, ledgered, of_ledger, pushed
from tests.azure.stage import LEASE, NOW, Stage

_COUNT = 200


async def test_three_requests_a_task_and_two_a_partition_of_a_push(stage: Stage) -> None:
    queue = await ledgered(stage)
    await queue.batches.begin(NAME, Plan())
    tasks = [Task.new(command="true", batch=NAME, id=f"{NAME}.{number:03}") for number in range(_COUNT)]
    stage.tables.requests.clear()
    await queue.push(tasks)
    pushing = len(of_ledger(stage.tables.requests))
    # Two looks at the head; each of the 16 partitions is entered in one request for 33 tasks, and marked in one.
    assert 2 + 2 * 16 <= pushing <= 2 + 3 * 16, pushing
    stage.tables.requests.clear()
    ran = 0
    while ran < _COUNT:
        for delivery in await queue.receive(32, LEASE, LEASE):
            await delivery.settle(Complete(DONE))
            ran += 1
    running = of_ledger(stage.tables.requests)
    looks = [request for request in running if request.method == "GET"]  # at the task; whether the batch has ended
    assert len(running) - len(looks) == 2 * _COUNT, f"{len(running) - len(looks)} requests for {_COUNT} tasks"
    assert _COUNT <= len(looks) <= _COUNT + 40, "open: one look each 5 s"
    stage.tables.requests.clear()
    await queue.batches.seal(NAME)
    await finished(queue)
    print(f"push {pushing}, {len(running)} for {_COUNT} tasks, seal {len(of_ledger(stage.tables.requests))}")


async def test_a_look_at_a_batch_takes_a_handful_however_many_run(stage: Stage) -> None:
    # It took one or more for each task that runs longer than its first lease, or is to end.
    queue = await ledgered(stage)
    await pushed(queue, 100)
    while (found := await queue.batches.find(NAME)).counts["ready"]:
        assert len(await queue.receive(8, timedelta(seconds=2), NOW))  # which leaves 0.7 s for all of their claims
    while not found.counts["expired"]:
        await asyncio.sleep(0.1)
        found = await queue.batches.find(NAME)

    async def look() -> int:
        stage.tables.requests.clear()
        shown = await stage.run("batch", "show", NAME, JOBQ_JOURNAL="tables")
        assert "running" in shown.out or "expired" in shown.out, shown
        return len(stage.tables.requests)

    is_open = await look()
    await queue.batches.seal(NAME)
    is_sealed = await look()
    await queue.batches.cancel(NAME)
    is_canceled = await look()
    print(f"open {is_open}, sealed {is_sealed}, canceled {is_canceled}")  # 3, 6, 8, or repeated
    assert max(is_open, is_sealed, is_canceled) <= 9


async def test_what_is_of_no_batch_pays_nothing(stage: Stage) -> None:
    queue = await ledgered(stage)
    stage.tables.requests.clear()
    await queue.push([Task.new(command="true") for _ in range(20)])
    assert len(await drained(queue)) == 20
    assert len(of_ledger(stage.tables.requests)) <= 2, "but two looks of a worker's sweep, each ten minutes"
