"""The backend behind faults: a refusal changes nothing, a lost answer is repeated safely, a hang breaks nothing."""

import asyncio
from contextlib import suppress
from datetime import timedelta

from jobq.errors import BackendUnavailable, PushUnknown, SettlementUnknown
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.testing.cases import case
from jobq.testing.fault_script import SETTLE_VERBS, Fault
from jobq.testing.harness import DONE, NOW, Bench, Verb, raises, task

_DELAY = timedelta(seconds=3)


@case()
async def refusal_changes_nothing(bench: Bench) -> None:
    """BackendUnavailable means that nothing was done: the same call then works, with its ordinary effect."""
    backend, faults = await bench.faulty()
    one = task()
    faults.next("push", Fault.REFUSE)
    with raises(BackendUnavailable, "a refused push"):
        await backend.push([one])
    await bench.counts()
    await backend.push([one])
    faults.next("receive", Fault.REFUSE)
    with raises(BackendUnavailable, "a refused receive"):
        await backend.receive(1, bench.lease, NOW)
    delivery = await bench.take(backend)
    assert delivery.deliveries == 1
    calls: dict[str, Verb] = {
        "renew": lambda: delivery.renew(bench.lease),
        "requeue": lambda: delivery.settle(Requeue(one.requeued(failures=1).counters, NOW)),
        "release": lambda: delivery.settle(Release()),
        "dead_letter": lambda: delivery.settle(MoveToDeadLetters("failures", "")),
        "complete": lambda: delivery.settle(Complete(DONE)),
    }
    for verb, call in calls.items():
        faults.next(verb, Fault.REFUSE)
        with raises(BackendUnavailable, f"a refused {verb}"):
            await call()
        await bench.counts(leased=1)
    await delivery.settle(Complete(DONE))
    await bench.counts()


@case("idempotent_push")
async def lost_push_is_repeated(bench: Bench) -> None:
    """S8: PushUnknown carries the ids, and the repeat yields each task once."""
    backend, faults = await bench.faulty()
    tasks = [task() for _ in range(3)]
    faults.next("push", Fault.LOSE_ANSWER)
    with raises(PushUnknown, "a push without an answer") as caught:
        await backend.push(tasks)
    assert isinstance(caught.error, PushUnknown)
    assert list(caught.error.ids) == [each.id for each in tasks]
    assert await backend.push(tasks) == [each.id for each in tasks]
    await bench.take_all(3)


@case("idempotent_settle")
async def lost_settle_is_repeated(bench: Bench) -> None:
    """S5: after SettlementUnknown the same settle again is answered, with one effect in all."""
    backend, faults = await bench.faulty()
    expected: dict[str, dict[str, int]] = {
        "complete": {},
        "requeue": {"scheduled": 1},
        "release": {"visible": 1},
        "dead_letter": {"dead": 1},
    }
    assert expected.keys() == SETTLE_VERBS
    for verb, counts in expected.items():
        (one,) = await bench.pushed()
        delivery = await bench.take(backend)
        calls: dict[str, Verb] = {
            "complete": lambda: delivery.settle(Complete(DONE)),  # noqa: B023 - called within the same turn
            "requeue": lambda: delivery.settle(Requeue(one.requeued(failures=1).counters, _DELAY)),  # noqa: B023 - as above
            "release": lambda: delivery.settle(Release()),  # noqa: B023 - as above
            "dead_letter": lambda: delivery.settle(MoveToDeadLetters("failures", "")),  # noqa: B023 - as above
        }
        faults.next(verb, Fault.LOSE_ANSWER)
        with raises(SettlementUnknown, f"{verb} without an answer"):
            await calls[verb]()
        await bench.counts(**counts)
        before = await bench.seen()
        await calls[verb]()
        assert await bench.seen() == before, f"the repeat of {verb} had a second effect"
        await bench.backend.clear()


@case()
async def lost_receive_loses_no_task(bench: Bench) -> None:
    """S1: tasks whose grant never arrived come back when the lease has run out."""
    backend, faults = await bench.faulty()
    pushed = await bench.pushed(2)
    faults.next("receive", Fault.LOSE_ANSWER)
    with raises(BackendUnavailable, "a receive without an answer"):
        await backend.receive(2, bench.lease, bench.harness.patience)
    await bench.expire()
    assert {each.id for each in await bench.take_all(2)} == {each.id for each in pushed}


@case()
async def lost_redrive_is_repeated(bench: Bench) -> None:
    """Redrive sends first and deletes after: cut off and repeated, it yields the task once."""
    backend, faults = await bench.faulty()
    buried = await bench.bury()
    faults.next("redrive", Fault.LOSE_ANSWER)
    with raises(BackendUnavailable, "a redrive without an answer"):
        await backend.redrive([buried.id])
    await backend.redrive([buried.id])
    (delivery,) = await bench.take_all(1)
    assert delivery.task.epoch > buried.epoch


@case()
async def hang_and_cancel_leave_the_store_usable(bench: Bench) -> None:
    """L4: a call that never answers and is cancelled has no effect on the next ones."""
    backend, faults = await bench.faulty()
    await bench.pushed()
    delivery = await bench.take(backend)
    calls: dict[str, Verb] = {
        "push": lambda: backend.push([task()]),
        "receive": lambda: backend.receive(1, bench.lease, NOW),
        "renew": lambda: delivery.renew(bench.lease),
        "complete": lambda: delivery.settle(Complete(DONE)),
    }
    for verb, call in calls.items():
        faults.next(verb, Fault.HANG)
        hanging = asyncio.ensure_future(call())
        await faults.begun(verb, faults.count(verb) + 1)
        hanging.cancel()
        with suppress(asyncio.CancelledError):
            await hanging
        assert hanging.cancelled(), f"{verb} answered though it hung"
    await bench.counts(leased=1)
    await delivery.settle(Complete(DONE))
    await bench.counts()


@case()
async def late_answer_is_no_second_effect(bench: Bench) -> None:
    """S5: a completion that is answered after the lease has ended took effect when it was made."""
    backend, faults = await bench.faulty()
    await bench.pushed()
    delivery = await bench.take(backend)
    answer = asyncio.Event()
    faults.next("complete", Fault.ANSWER_LATE, until=answer)
    completing = asyncio.ensure_future(delivery.settle(Complete(DONE)))
    await faults.begun("complete")
    await bench.finish(asyncio.ensure_future(_empty(bench)), 30)
    await bench.expire()
    await bench.nothing()
    assert not completing.done()
    answer.set()
    await completing


async def _empty(bench: Bench) -> None:
    """Return once nothing is visible or leased, as far as the service knows."""
    while (stats := await bench.backend.stats()).leased or stats.visible:
        await bench.clock.sleep_until(bench.clock.boottime() + 0.1)
