"""An id names a task within its batch: tasks of two batches, or of none, may have the same."""

import asyncio
import time
from contextlib import suppress

import pytest

from jobq.batch_ids import IdInBatch, is_meant, key_of, without
from jobq.batch_plan import Plan
from jobq.batches import BatchState
from jobq.cli.commands import dead
from jobq.cli.display import dead_letter_groups
from jobq.errors import AllPutBack, BackendUnavailable, ConfigurationError
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.submit.batch_end import put_back
from jobq.task import Task
from jobq.testing.harness import DONE
from jobq_azure.ledger.queue import LedgerQueue
from jobq_azure.ledger.retention import LedgerRetention
from tests.azure.journal.journal_stage import written
from tests.azure.ledger.ledger_stage import SOON, drained, finished, ledgered
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


async def test_a_letter_of_no_batch_is_none_of_a_batch(stage: Stage) -> None:
    """By a condition that takes the one alone; a plain id means both."""
    queue = await ledgered(stage, behind=True)
    await queue.batches.begin("a", Plan())
    await queue.push([Task.new(command="exit 7", batch="a", id="same")])
    await queue.push([Task.new(command="exit 3", id="same")])
    await queue.batches.seal("a")
    while found := await queue.receive(8, LEASE, NOW):
        for delivery in found:
            await delivery.settle(MoveToDeadLetters("failed", f"of {delivery.task.batch}"))
    await written(queue)
    chosen = await dead_letter_groups.chosen(queue, ["error=of None"], None)
    assert chosen == ["same"]
    assert await queue.purge_dead(chosen) == ["same"]
    (letter,) = await queue.dead_letters(9)
    assert letter.batch == "a"
    await written(queue)
    assert [row["Batch"] for row in await queue._journal._lookup.lives("same")] == ["a"]
    assert (await queue.batches.find("a")).counts["dead"] == 1
    assert await queue.redrive(["same"]) == ["same"]


async def test_each_letter_of_an_id_is_taken_and_told(stage: Stage) -> None:
    """As the command line has them: those of one id in several batches, of which another reader holds one."""
    queue = await ledgered(stage, behind=True)
    await _dead_in_both(queue)
    chosen = tuple(await dead_letter_groups.chosen(queue, ["id=same"], None))
    (batch,) = [each async for each in dead._batches(queue, chosen)]
    assert len(batch) == 2
    wire = await stage.wire(f"{stage.queue}-failed")
    (held,) = await wire.get(1, 60)
    with pytest.raises(BackendUnavailable, match="1 of these dead letters are not to be had now") as raised:
        await queue.purge_dead(batch)
    (done,) = raised.value.done
    assert isinstance(done, IdInBatch)
    assert without(batch, [done]) == ["same"]
    await written(queue)
    await wire.update(held.id, held.receipt, 0)
    (letter,) = await queue.dead_letters(9)
    assert {done.batch, letter.batch} == {"a", "b"}
    assert [row["Batch"] for row in await queue._journal._lookup.lives("same")] == [letter.batch]
    assert await queue.redrive(batch) == ["same"]


def test_ids_are_told_apart_by_their_batches() -> None:
    of_a, of_none = IdInBatch.of("x", "a"), IdInBatch.of("x", None)
    assert len({key_of(each) for each in ("x", of_a, of_none)}) == 3
    assert [is_meant(each, "a") for each in ("x", of_a, of_none)] == [True, True, False]
    assert [is_meant(each, None) for each in ("x", of_a, of_none)] == [True, False, True]
    assert without([of_a, of_none, "y"], ["x"]) == ["y"], "a backend that knows no batches says ids alone"
    assert [each.batch for each in without([of_a, of_none], [of_a]) if isinstance(each, IdInBatch)] == [None]


async def test_what_is_left_of_a_forgotten_batch_is_no_task_of_the_next_of_its_name(stage: Stage) -> None:
    queue = await ledgered(stage, behind=True)
    await queue.batches.begin("a", Plan())
    due = time.time() + 3
    await queue.push([Task.new(command="echo former", batch="a", id="a.0", not_before=due)])
    await queue.batches.cancel("a")
    await finished(queue, "a")
    await LedgerRetention(queue._ledger, queue._heads, keep_seconds=-60.0).once()
    await queue.batches.begin("a", Plan())
    await queue.push([Task.new(command="echo next", batch="a", id="a.0", not_before=due)])
    await queue.batches.seal("a")
    ran = list[str]()
    async with asyncio.timeout(30):
        while not ran or await stage.total():
            with suppress(AllPutBack):
                for delivery in await queue.receive(8, LEASE, SOON):
                    ran.append(str(delivery.task.command))
                    await delivery.settle(Complete(DONE))
    assert ran == ["echo next"]
    (letter,) = await queue.dead_letters(9)
    assert (letter.id, letter.reason) == ("a.0", "unknown")
    assert b"echo former" in letter.body
    assert (await finished(queue, "a")).counts["succeeded"] == 1
    with pytest.raises(ConfigurationError, match="nothing is known any more"):
        await queue.redrive(["a.0"])
    assert (await queue.batches.find("a")).round == 1
