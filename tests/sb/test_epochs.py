"""S3: an id that is pushed again goes on with higher tokens, whatever the broker has forgotten."""

from pathlib import Path

from jobq.backend import FencingNumber
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.task import Task
from jobq.testing.clock import VirtualClock
from jobq.testing.harness import DONE
from tests.emulators.service_bus.description import Description
from tests.sb.stage import LOCK_SECONDS, NOW, QUEUE, Stage, staged

WINDOW = 600.0


async def _begun(stage: Stage) -> FencingNumber:
    """Push the task, and let a worker begin that is never heard of again."""
    await stage.backend.push([Task.new(id="train", command="true")])
    return (await stage.take()).fencing


async def test_an_id_that_the_broker_has_forgotten(tmp_path: Path) -> None:
    """Each life of it, with a copy in each that may still run: retried, given up, put back, purged, deleted."""
    clock = VirtualClock()
    async with staged(tmp_path, clock=clock, dedup_window=WINDOW) as stage:
        seen = [await _begun(stage)]
        await clock.advance(LOCK_SECONDS + 1)
        again = await stage.take()
        await again.settle(
            Requeue(Task.new(id="train", command="true").requeued(failures=1).counters, NOW)
        )  # as its pusher has it
        copy = await stage.take()
        await copy.settle(Release())
        released = await stage.take()
        await released.settle(MoveToDeadLetters("failed", ""))
        assert await stage.backend.redrive(["train"]) == ["train"]
        redriven = await stage.take()
        await redriven.settle(MoveToDeadLetters("failed", "again"))
        seen += [each.fencing for each in (again, copy, released, redriven)]
        assert await stage.backend.purge_dead(["train"]) == ["train"]
        for _ in range(2):
            await clock.advance(WINDOW + 1)
            seen.append(await _begun(stage))
            await clock.advance(LOCK_SECONDS + 1)
            assert await stage.backend.clear() == 1
        assert seen == sorted(set(seen)), f"fencing numbers did not strictly rise: {seen}"
        assert len({number.epoch for number in seen}) == 4, "only a push and a redrive begin an epoch"


async def test_a_queue_that_is_made_anew_goes_on(tmp_path: Path) -> None:
    """Its sequence numbers begin again with 1; what a receiver has seen of the queue before it is no hindrance."""
    clock = VirtualClock()
    async with staged(tmp_path, clock=clock) as stage:
        for task in await stage.pushed(3):
            assert task.epoch == 0
            await (await stage.take()).settle(Complete(DONE))
        before = await _begun(stage)
        broker = stage.emulator.broker
        broker.delete(QUEUE)
        broker.create(Description(QUEUE, lock_duration=LOCK_SECONDS))
        await clock.advance(1.0)
        assert await _begun(stage) > before
