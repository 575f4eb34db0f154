"""Going back to the queue: a clone and the end of its original, a crash between them, and exact budgets (S7)."""

from datetime import timedelta
from pathlib import Path

import pytest

from jobq.backend import Delivery
from jobq.errors import BackendUnavailable, LockLost, SettlementUnknown
from jobq.run.attempt.retry import crashes_before
from jobq.settlement import Complete, Release, Requeue
from jobq.task import Budgets
from jobq.testing.clock import VirtualClock
from jobq.testing.harness import DONE
from tests.emulators.service_bus.faults import Drop, Fault, Operation
from tests.emulators.service_bus.fidelity import Fidelity
from tests.sb.stage import LOCK_SECONDS, NOW, Stage, staged

pytestmark = pytest.mark.check


async def _crash_after_the_clone(stage: Stage, delivery: Delivery) -> None:
    """Requeue; the machine is gone when the clone was sent, before the original is completed."""
    stage.emulator.faults.plan(Fault(drop=Drop.BEFORE), Operation.COMPLETE)
    with pytest.raises(BackendUnavailable):
        await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW))


@pytest.mark.parametrize("window", [0.0, 600.0], ids=["without dedup", "with dedup"])
async def test_a_crash_between_clone_and_completion_loses_nothing(tmp_path: Path, window: float) -> None:
    # S6: the original runs once more beside its clone, as stated; the broker drops the second clone where it can.
    clock = VirtualClock()
    async with staged(tmp_path, clock=clock, dedup_window=window) as stage:
        await stage.pushed()
        first = await stage.take()
        await _crash_after_the_clone(stage, first)
        copy = await stage.take()
        assert copy.fencing == (first.fencing.epoch, 1, 2)
        assert copy.task.counters.failures == 1
        await copy.settle(Complete(DONE))
        await clock.advance(LOCK_SECONDS + 1)
        again = await stage.take()
        assert again.fencing == (first.fencing.epoch, 0, 2)
        assert crashes_before(again.task, again.deliveries) == 1
        await again.settle(Requeue(again.task.requeued(failures=1).counters, NOW))
        assert len(stage.queue.messages()) == (0 if window else 1)
        with pytest.raises(LockLost):
            await first.settle(Complete(DONE))


async def test_s3_s7_a_crash_between_the_steps_of_a_give_back_makes_no_second_task(tmp_path: Path) -> None:
    """Its copy is of the next generation: other fencing numbers, and the name of the one that the original sends."""
    clock = VirtualClock()
    async with staged(tmp_path, clock=clock, dedup_window=600.0) as stage:
        await stage.pushed()
        first = await stage.take()
        stage.emulator.faults.plan(Fault(drop=Drop.BEFORE), Operation.COMPLETE)
        with pytest.raises(BackendUnavailable):
            await first.settle(Release())
        copy = await stage.take()
        await clock.advance(LOCK_SECONDS + 1)
        original, again = [await stage.take() for _ in range(2)]
        if original.fencing.generation:
            original, again = again, original
        epoch = first.fencing.epoch
        shown = [first.fencing, copy.fencing, original.fencing, again.fencing]
        assert shown == [(epoch, 0, 1), (epoch, 1, 2), (epoch, 0, 2), (epoch, 1, 3)]
        assert crashes_before(copy.task, copy.deliveries) == 0
        await original.settle(Requeue(original.task.requeued(failures=1).counters, NOW))
        (left,) = stage.queue.messages()
        assert str(left.content.message_id).startswith(f"~1:{epoch}:1:")
        await again.settle(Complete(DONE))
        assert stage.queue.messages() == []


async def test_a_requeue_that_is_repeated_sends_one_clone(stage: Stage) -> None:
    # Its completion was refused, so the caller asks again: without dedup a second clone would be a second task.
    await stage.pushed()
    delivery = await stage.take()
    again = delivery.task.requeued(failures=1)
    stage.emulator.faults.plan(Fault(503), Operation.COMPLETE, count=2)
    for _ in range(2):
        with pytest.raises(BackendUnavailable):
            await delivery.settle(Requeue(again.counters, NOW))
    await delivery.settle(Requeue(again.counters, NOW))
    assert len(stage.requests(Operation.SEND, 201)) == 2, "the push, and one clone"
    assert [each.generation for each in [(await stage.take()).task]] == [1]


async def test_a_clone_whose_answer_was_lost_is_in_doubt_without_dedup(stage: Stage) -> None:
    await stage.pushed()
    delivery = await stage.take()
    stage.emulator.faults.plan(Fault(drop=Drop.AFTER), Operation.SEND)
    with pytest.raises(SettlementUnknown):
        await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW))
    assert len(stage.queue.messages()) == 2, "the clone, and the original under its lock"


async def test_a_clone_whose_answer_was_lost_is_sent_again_with_dedup(tmp_path: Path) -> None:
    async with staged(tmp_path, dedup_window=600.0) as stage:
        await stage.pushed()
        delivery = await stage.take()
        stage.emulator.faults.plan(Fault(drop=Drop.AFTER), Operation.SEND)
        again = delivery.task.requeued(failures=1)
        with pytest.raises(BackendUnavailable):
            await delivery.settle(Requeue(again.counters, NOW))
        await delivery.settle(Requeue(again.counters, NOW))
        (left,) = stage.queue.messages()
        # The original's sequence number, epoch and generation.
        assert str(left.content.message_id).startswith(f"~1:{delivery.fencing.epoch}:1:")


async def test_who_lost_the_lock_sends_no_clone(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with staged(tmp_path, clock=clock) as stage:
        await stage.pushed()
        stale = await stage.take()
        await clock.advance(LOCK_SECONDS + 1)
        with pytest.raises(LockLost):
            await stale.settle(Requeue(stale.task.requeued(failures=1).counters, NOW))
        with pytest.raises(LockLost):
            await stale.settle(Release())
        assert len(stage.queue.messages()) == 1


async def test_a_delay_goes_by_the_services_clock(tmp_path: Path) -> None:
    clock = VirtualClock()  # which is not this machine's
    async with staged(tmp_path, clock=clock) as stage:
        await stage.pushed()
        delivery = await stage.take()
        await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, timedelta(seconds=90)))
        (scheduled,) = stage.queue.messages()
        assert scheduled.content.scheduled_for is not None
        assert 90 <= scheduled.content.scheduled_for - clock.wall() <= 91
        assert scheduled.content.time_to_live is None, "nothing expires by itself (S1)"


@pytest.mark.parametrize("first", [0, 1])
async def test_a_retry_budget_of_three_is_four_starts(tmp_path: Path, first: int) -> None:
    # S7, with either count of a first delivery over REST.
    fidelity = Fidelity(rest_first_delivery_count=first)
    async with staged(tmp_path, fidelity=fidelity, lock_duration=30.0) as stage:
        (task,) = await stage.pushed(command="echo start >> starts; exit 7", budgets=Budgets(retries=3))
        result = await stage.run("worker", JOBQ_BACKOFF="50ms", JOBQ_BACKOFF_MAX="50ms")
        assert result.code == 0, result.err
        assert (tmp_path / "starts").read_text().count("start") == 4
        (letter,) = await stage.backend.dead_letters(10)
        assert (letter.id, letter.reason, letter.deliveries) == (task.id, "failed", 4)
        assert stage.queue.messages() == []


async def test_a_crash_budget_is_exact(tmp_path: Path) -> None:
    # S7: what nobody recorded is counted by the service, through clones too.
    clock = VirtualClock()
    async with staged(tmp_path, clock=clock) as stage:
        await stage.pushed(budgets=Budgets(crashes=2))
        for crashes in (0, 1):
            delivery = await stage.take()
            assert crashes_before(delivery.task, delivery.deliveries) == crashes
            await clock.advance(LOCK_SECONDS + 1)
        delivery = await stage.take()
        await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW))
        for crashes in (2, 3):
            delivery = await stage.take()
            assert crashes_before(delivery.task, delivery.deliveries) == crashes
            await clock.advance(LOCK_SECONDS + 1)
