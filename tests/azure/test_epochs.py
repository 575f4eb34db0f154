"""S3: an id that is pushed again goes on with higher tokens, though a Storage Queue knows no ids."""

from jobq.backend import FencingNumber
from jobq.settlement import MoveToDeadLetters, Requeue
from jobq.task import Task
from tests.azure.stage import NOW, Stage


async def _begun(stage: Stage) -> FencingNumber:
    """Push the task, and let a worker begin that is never heard of again."""
    await stage.backend.push([Task.new(id="train", command="true")])
    return (await stage.take()).fencing


async def test_an_id_that_was_cleared_away(stage: Stage) -> None:
    """Its copy may still run; what is pushed at once is above it all the same, for `clear` ends with a new second."""
    seen = [await _begun(stage)]
    assert await stage.backend.clear() == 1
    seen.append(await _begun(stage))
    assert seen[1].epoch > seen[0].epoch, seen


async def test_an_id_that_was_put_back(stage: Stage) -> None:
    """Retried as its pusher has it, given up, and put back within the second."""
    await stage.backend.push([Task.new(id="train", command="true")])
    first = await stage.take()
    await first.settle(Requeue(Task.new(id="train", command="true").requeued(failures=1).counters, NOW))
    retried = await stage.take()
    await retried.settle(MoveToDeadLetters("failed", ""))
    assert await stage.backend.redrive(["train"]) == ["train"]
    redriven = await stage.take()
    seen = [first.fencing, retried.fencing, redriven.fencing]
    assert seen == sorted(set(seen)), f"fencing numbers did not strictly rise: {seen}"
    assert seen[0].epoch == seen[1].epoch < seen[2].epoch


async def test_a_message_of_another_program_is_in_an_epoch_too(stage: Stage) -> None:
    """Whoever pushes: the service says when."""
    wire = await stage.wire()
    await wire.put(Task.new(id="train", command="true").encode().decode())
    assert (await stage.take()).fencing.epoch > 1_700_000_000
