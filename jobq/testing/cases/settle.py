"""Settling: S5 (once, repeats are harmless), S6 (atomic) and S7 (counters and budgets)."""

import asyncio
from datetime import timedelta

from jobq.backend import Delivery
from jobq.errors import LockLost
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.task import Counters, TaskResult
from jobq.testing.cases import case
from jobq.testing.harness import DONE, NOW, Bench, Verb, crashes, raises

_DELAY = timedelta(seconds=3)


def _settlements(delivery: Delivery) -> dict[str, Verb]:
    return {
        "complete": lambda: delivery.settle(Complete(DONE)),
        "requeue": lambda: delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW)),
        "release": lambda: delivery.settle(Release()),
        "dead_letter": lambda: delivery.settle(MoveToDeadLetters("failures", "three times")),
    }


@case()
async def complete_ends_the_task(bench: Bench) -> None:
    """A completed task is neither visible, leased nor dead, and never comes back."""
    await bench.pushed()
    await (await bench.take()).settle(Complete(TaskResult(value={"answer": [42, None]}, duration=2.0)))
    await bench.counts()
    await bench.expire()
    await bench.nothing()


@case()
async def requeue_stores_counters_and_generation(bench: Bench) -> None:
    """S6, S7: what requeue was given is what the next delivery holds."""
    (pushed,) = await bench.pushed()
    delivery = await bench.take()
    changed = delivery.task.requeued(failures=2, preemptions=1)
    await delivery.settle(Requeue(changed.counters, NOW))
    following = await bench.take()
    assert following.task == changed
    assert following.body == changed.encode()
    assert following.id == pushed.id
    assert following.task.generation == 1
    if bench.capabilities.counts_deliveries:
        assert following.deliveries == 2, "deliveries are never reset (S3)"
        assert crashes(following) == 0, "a recorded end is no crash (S7)"


@case()
async def requeue_waits_for_its_delay(bench: Bench) -> None:
    """S6: not before the delay, which is not the old lease either, and soon after it."""
    await bench.pushed()
    delivery = await bench.take()
    await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, _DELAY + bench.lease))
    await bench.counts(scheduled=1)
    await bench.clock.advance(bench.lease.total_seconds() + 1)
    await bench.nothing()
    assert await bench.backend.peek(10) == []
    await bench.clock.advance(_DELAY.total_seconds())
    assert (await bench.take()).task.generation == 1


@case("max_delay")
async def longest_delay_is_taken(bench: Bench) -> None:
    """A delay as long as the service declares is honoured, not cut."""
    longest = bench.capabilities.max_delay
    assert longest is not None
    await bench.pushed()
    delivery = await bench.take()
    await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, longest))
    await bench.expire()
    await bench.nothing()


@case()
async def release_consumes_no_budget(bench: Bench) -> None:
    """S7: a delivery that was never started is recorded as an end, at once visible, and is no crash."""
    await bench.pushed()
    before = await bench.take()
    for number in (1, 2, 3):
        await before.settle(Release())
        await bench.counts(visible=1)
        after = await bench.take()
        assert after.task.counters.failures == after.task.counters.preemptions == 0
        assert after.task.counters.ends == number, "a release is one recorded end"
        assert after.task.generation == (0 if bench.capabilities.atomic_requeue else number), "a copy is of the next"
        if bench.capabilities.counts_deliveries:
            assert after.deliveries == before.deliveries + 1
            assert crashes(after) == crashes(before) == 0
        before = after


@case()
async def release_waits_for_its_delay(bench: Bench) -> None:
    """S7: a task that this worker has no room for comes back when its delay is over, and no sooner."""
    (pushed,) = await bench.pushed()
    await (await bench.take()).settle(Release(_DELAY + bench.lease))
    await bench.counts(scheduled=1)
    await bench.clock.advance(bench.lease.total_seconds() + 1)
    await bench.nothing()
    await bench.clock.advance(_DELAY.total_seconds())
    after = await bench.take()
    assert after.task.fingerprint() == pushed.fingerprint()
    assert after.task.counters == Counters(ends=1), "one recorded end, and no failure"


@case()
async def release_counts_a_misfit(bench: Bench) -> None:
    """S7: a worker that could never run a task has that counted, which is no budget; a redrive begins it anew."""
    (pushed,) = await bench.pushed()
    delivery = await bench.take()
    for number in (1, 2):
        await delivery.settle(Release(misfits=1))
        if bench.capabilities.idempotent_settle:
            await delivery.settle(Release(misfits=1))
            with raises(LockLost, "a release that counts nothing, under the same receipt (S5)"):
                await delivery.settle(Release())
        delivery = await bench.take()
        assert delivery.task.counters == Counters(ends=number, misfits=number)
        assert not bench.capabilities.counts_deliveries or crashes(delivery) == 0
        assert delivery.task.fingerprint() == pushed.fingerprint()
    await delivery.settle(Release())
    delivery = await bench.take()
    await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW))
    delivery = await bench.take()
    assert delivery.task.counters == Counters(failures=1, ends=4, misfits=2), "what else becomes of it keeps the count"
    await delivery.settle(MoveToDeadLetters("unplaceable", "nobody could run it"))
    assert await bench.backend.redrive([pushed.id]) == [pushed.id]
    assert (await bench.take()).task.counters.misfits == 0


@case("keeps_place")
async def release_keeps_its_place(bench: Bench) -> None:
    """What this worker has no room for is the oldest still, whoever comes next, and in whichever order they go back."""
    pushed = await bench.pushed(4)
    first, second = await bench.take(), await bench.take()
    other = await bench.handle()
    (third,) = await other.receive(1, bench.lease, NOW)  # another process has seen that all before it was taken
    assert third.id == pushed[2].id
    await bench.clock.advance(0.1)
    await bench.pushed()
    for delivery in (second, first):
        await delivery.settle(Release())
    again = await bench.take()
    assert again.id == pushed[0].id, "what came later has overtaken it"
    await again.settle(Release())
    taken = [(await bench.take()).id for _ in range(3)]
    assert taken == [pushed[0].id, pushed[1].id, pushed[3].id]
    await third.settle(Complete(DONE))


@case("keeps_place")
async def release_with_a_delay_is_due_then(bench: Bench) -> None:
    """A release that waits comes behind what waited before that moment, as a retry does."""
    pushed = await bench.pushed(2)
    await (await bench.take()).settle(Release(_DELAY))
    await bench.clock.advance(_DELAY.total_seconds() + 1)
    assert [(await bench.take()).id for _ in range(2)] == [pushed[1].id, pushed[0].id]


@case("counts_deliveries")
async def counters_add_up_over_a_whole_life(bench: Bench) -> None:
    """S7: a crash, a failure, a preemption, a release and a crash: each counted as what it was."""
    await bench.pushed()
    await bench.take()
    await bench.expire()
    delivery = await bench.take()
    await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW))
    delivery = await bench.take()
    await delivery.settle(Requeue(delivery.task.requeued(preemptions=1).counters, NOW))
    await (await bench.take()).settle(Release())
    await bench.take()
    await bench.expire()
    delivery = await bench.take()
    counters = delivery.task.counters
    assert (counters.failures, counters.preemptions, counters.ends) == (1, 1, 3)
    assert delivery.deliveries == 6
    assert crashes(delivery) == 2
    assert delivery.fencing[1:] == (2 if bench.capabilities.atomic_requeue else 3, 6)


@case("idempotent_settle")
async def repeat_answers_as_the_first(bench: Bench) -> None:
    """S5: the same settle again answers the same, and nothing happens twice."""
    for verb in ("complete", "requeue", "release", "dead_letter"):
        await bench.pushed()
        settle = _settlements(await bench.take())[verb]
        await settle()
        before = await bench.seen()
        for _ in range(2):
            await settle()
            assert await bench.seen() == before, f"the repeat of {verb} had an effect"
        await bench.backend.clear()


@case("idempotent_settle")
async def repeat_after_redelivery_has_no_effect(bench: Bench) -> None:
    """S5: a late repeat answers the same, and neither ends nor moves the next one's lease."""
    for verb in ("requeue", "release"):
        await bench.pushed()
        first = await bench.take()
        settle = _settlements(first)[verb]
        await settle()
        holder = await bench.take()
        before = await bench.seen()
        await settle()
        assert await bench.seen() == before, f"the repeat of {verb} had an effect on the next delivery"
        await bench.nothing()
        await holder.settle(Complete(DONE))


@case("idempotent_settle")
async def other_arguments_are_no_repeat(bench: Bench) -> None:
    """S5: a used receipt with another result, delay or reason is stale."""
    await bench.pushed(3)
    done, back, dead = await bench.take_all(3)
    again = back.task.requeued(failures=1)
    await done.settle(Complete(DONE))
    await back.settle(Requeue(again.counters, _DELAY))
    await dead.settle(MoveToDeadLetters("failures", "first"))
    before = await bench.seen()
    with raises(LockLost, "complete with another result"):
        await done.settle(Complete(TaskResult(exit_code=1)))
    with raises(LockLost, "requeue with another task"):
        await back.settle(Requeue(back.task.requeued(preemptions=1).counters, _DELAY))
    with raises(LockLost, "requeue with another delay"):
        await back.settle(Requeue(again.counters, NOW))
    with raises(LockLost, "dead_letter with another description"):
        await dead.settle(MoveToDeadLetters("failures", "second"))
    assert await bench.seen() == before


@case("idempotent_settle")
async def two_at_once_have_one_effect(bench: Bench) -> None:
    """S5: of contradicting settles at the same time exactly one is accepted."""
    (pushed,) = await bench.pushed()
    delivery = await bench.take()
    answers = await asyncio.gather(
        delivery.settle(Complete(DONE)),
        delivery.settle(Requeue(pushed.requeued(failures=1).counters, NOW)),
        delivery.settle(MoveToDeadLetters("failures", "")),
        return_exceptions=True,
    )
    accepted = [answer for answer in answers if answer is None]
    refused = [answer for answer in answers if isinstance(answer, LockLost)]
    assert (len(accepted), len(refused)) == (1, 2), f"one settle is accepted, the others refused: {answers}"
    left = await bench.backend.receive(5, bench.lease, NOW)
    dead = await bench.backend.dead_letters(5)
    expected = {0: (0, 0), 1: (1, 0), 2: (0, 1)}[answers.index(None)]
    assert (len(left), len(dead)) == expected, "the effect is not the accepted settle's"


@case("idempotent_settle")
async def two_completions_at_once_are_one(bench: Bench) -> None:
    """S5: the same completion twice at the same time: both are acknowledged, one has an effect."""
    await bench.pushed(2)
    delivery, other = await bench.take_all(2)
    await asyncio.gather(delivery.settle(Complete(DONE)), delivery.settle(Complete(DONE)))
    await bench.counts(leased=1)
    await other.settle(Complete(DONE))
    await bench.counts()


@case()
async def settling_one_leaves_the_other(bench: Bench) -> None:
    """S11: each settle touches its own task alone."""
    for verb in ("complete", "requeue", "release", "dead_letter"):
        await bench.pushed(2)
        one, other = await bench.take_all(2)
        await _settlements(one)[verb]()
        await other.renew(bench.lease)
        await other.settle(Complete(DONE))
        await bench.backend.clear()
