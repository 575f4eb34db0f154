"""A worker of other settings than its batch needs, and a queue that is not the one to which its batch was pushed."""

import asyncio

import pytest

from jobq.batches import BatchState
from jobq.errors import LockLost
from jobq.settlement import Complete
from jobq.testing.harness import DONE
from jobq_azure.ledger.entries import heads_of, key
from jobq_azure.table_journal.client import Verb, Write
from tests.azure.ledger.ledger_stage import NAME, book_of, finished, ledgered, pushed
from tests.azure.stage import LEASE, NOW, Stage


async def test_a_worker_of_another_table_makes_no_dead_letters(stage: Stage) -> None:
    """It buried a whole batch as unknown, and ended with 0."""
    queue = await ledgered(stage, behind=True)
    (task,) = await pushed(queue)
    await queue.batches.seal(NAME)
    await queue._ledger.wire.write(  # as in another table: nothing of the batch is known
        heads_of(queue._ledger.queue), [Write(Verb.DELETE, f"h!{NAME}", {})]
    )
    partition, key_ = queue._ledger.partition(await book_of(stage), task.id), key("m", task.id)
    await queue._ledger.wire.write(partition, [Write(Verb.DELETE, key_, {})])
    worker = await stage.run("worker", JOBQ_JOURNAL="tables")
    assert (worker.code, "JOBQ_JOURNAL names another table" in worker.err) == (3, True), worker
    assert (await stage.total(), await queue.dead_letters(9)) == (1, [])


async def test_a_worker_without_the_table_ends_with_3(stage: Stage) -> None:
    queue = await ledgered(stage, behind=True)
    await pushed(queue)
    worker = await stage.run("worker", JOBQ_JOURNAL="off")
    assert (worker.code, "set JOBQ_JOURNAL=tables" in worker.err) == (3, True), worker
    assert await stage.total() == 1


async def test_a_queue_that_was_deleted_and_made_anew_leaves_no_batch_sealed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the portal: who looks at its batch for ever after saw it wait."""
    monkeypatch.setattr("jobq_azure.ledger.walk._LOST_SECONDS", 1.0)
    queue = await ledgered(stage, behind=True)
    await pushed(queue, 3)
    await queue.batches.seal(NAME)
    (running,) = await queue.receive(1, LEASE, NOW)
    await (await stage.wire()).clear()  # what Azurite takes less time for
    await queue.prepare()
    assert await queue.receive(1, LEASE, NOW) == []
    assert (await queue.batches.find(NAME)).state is BatchState.SEALED, "what has changed lately may be under way"
    await asyncio.sleep(1.1)  # by the service's clock
    await queue.prepare()
    assert await queue.receive(1, LEASE, NOW) == []
    assert (await finished(queue)).counts["gone"] == 3
    with pytest.raises(LockLost):
        await running.settle(Complete(DONE))
