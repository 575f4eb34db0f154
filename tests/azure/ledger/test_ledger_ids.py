"""An id names a task within its batch: tasks of two batches, or of none, may have the same."""

import pytest

from jobq.batch_plan import Plan
from jobq.batches import BatchState
from jobq.cli.display import dead_letter_groups
from jobq.settlement import MoveToDeadLetters
from jobq.submit.batch_end import put_back
from jobq.task import Task
from jobq_azure.ledger.queue import LedgerQueue
from tests.azure.journal.journal_stage import written
from tests.azure.ledger.ledger_stage import drained, ledgered
from tests.azure.stage import LEASE, NOW, Stage

pytestmark = pytest.mark.timeout(120)


async def _dead_in_both(queue: LedgerQueue) -> None:
    for name in ("a", "b"):
        await queue.batches.begin(name, Plan())
        await queue.push([Task.new(command=f"echo {name}", batch=name, id="same")])
        await queue.batches.seal(name)
    for delivery in await queue.receive(8, LEASE, NOW):
        await delivery.settle(MoveToDeadLetters("failed", f"of {delivery.task.batch}"))
    await written(queue)


async def test_a_retry_of_a_batch_puts_back_nothing_of_another(stage: Stage) -> None:
    queue = await ledgered(stage, behind=True)
    await _dead_in_both(queue)
    assert await put_back(queue, "a") == 1
    (letter,) = await queue.dead_letters(9)
    assert letter.batch == "b"
    await written(queue)
    lives = await queue._journal._lookup.lives("same")
    assert {(row["Batch"], row["State"]) for row in lives if row["State"] == "done"} == {("b", "done")}
    assert (await queue.batches.find("b")).state is BatchState.FINISHED
    assert await drained(queue) == ["same"]
    assert (await queue.batches.find("a")).counts["succeeded"] == 1
    assert (await queue.batches.find("b")).counts["dead"] == 1


async def test_a_condition_on_the_batch_takes_nothing_of_another(stage: Stage) -> None:
    queue = await ledgered(stage, behind=True)
    await _dead_in_both(queue)
    chosen = await dead_letter_groups.chosen(queue, ["batch=a"], None)
    assert await queue.purge_dead(chosen) == ["same"]
    (letter,) = await queue.dead_letters(9)
    assert letter.batch == "b"
    assert (await queue.batches.find("b")).counts["dead"] == 1
    assert (await queue.batches.find("a")).counts["gone"] == 1
