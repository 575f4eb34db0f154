"""Submitting: S1 (durable), S8 (dedup), what a task looks like at the other end, and the queue's own existence."""

from datetime import timedelta
from typing import Any

from jobq.backend import Backend
from jobq.errors import ConfigurationError, DuplicateTask, MalformedTask, QueueNotFound
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.task import Budgets, Task
from jobq.testing.cases import case
from jobq.testing.harness import DONE, NOW, Bench, Verb, raises, stored, task


@case()
async def returns_ids_in_order(bench: Bench) -> None:
    """Push answers with the ids in the order given, and for nothing with nothing."""
    await bench.pushed(5)
    assert await bench.backend.push([]) == []
    await bench.counts(visible=5)


@case()
async def is_durable_for_other_handles(bench: Bench) -> None:
    """S1: what was acknowledged to one handle, another receives, once."""
    pushed = await bench.pushed(3)
    other = await bench.handle()
    found = {(await bench.take(other)).id for _ in pushed}
    assert found == {each.id for each in pushed}
    assert await other.receive(1, bench.lease, NOW) == []


@case()
async def every_field_arrives(bench: Bench) -> None:
    """S2: the task that is received is the task that was pushed."""
    full = task(
        argv=["python", "-c", "print('ü')", ""],
        env={"A": "1", "EMPTY": ""},
        cwd="/tmp/ä b",  # noqa: S108 - a path that is carried, never opened
        timeout=1.5,
        priority=3,
        budgets=Budgets(retries=0, preemptions=1, crashes=2),
        trace_context={"traceparent": "00-1-2-01"},
    )
    await bench.backend.push([full])
    delivery = await bench.take()
    assert delivery.task.in_epoch(full.epoch) == full
    assert delivery.id == full.id
    assert delivery.body == stored(full, delivery.body), "the body is kept byte for byte"


@case("max_message_bytes")
async def too_large_is_refused_and_nothing_added(bench: Bench) -> None:
    """The largest body fits, one byte more is MalformedTask, and then none of the call's tasks is added."""
    limit = bench.capabilities.max_message_bytes
    assert limit is not None
    small = task()
    bare = len(_task_of_bytes(0).encode())
    fits, too_large = _task_of_bytes(limit - bare - 100), _task_of_bytes(limit - bare + 100)
    with raises(MalformedTask, "a body over max_message_bytes"):
        await bench.backend.push([small, too_large])
    await bench.nothing()
    await bench.backend.push([fits])
    assert (await bench.take()).task.in_epoch(fits.epoch) == fits


def _task_of_bytes(more: int) -> Task:
    return task(call="builtins:len", kwargs={"obj": "x" * more})  # a command has bounds of its own


@case("deduplicates")
async def known_id_adds_no_task(bench: Bench) -> None:
    """S8: two pushes of one id, or two in one call, yield one task and the same answer."""
    one = task()
    again = one.copied({"created": None, "trace_context": {"traceparent": "00-1-2-01"}})
    assert await bench.backend.push([one, one]) == [one.id, one.id]
    assert await (await bench.handle()).push([again]) == [one.id]
    await bench.take_all(1)


@case("deduplicates")
async def two_payloads_of_one_id_in_a_push_are_an_error(bench: Bench) -> None:
    """S8: two payloads of one id in one call are DuplicateTask, and none of the call's tasks is added."""
    twin = task()
    with raises(DuplicateTask, "two payloads of one id in one call"):
        await bench.backend.push([task(), twin, twin.copied({"command": "false"})])
    await bench.nothing()


@case("deduplicates", "frees_ids")
async def other_payload_is_an_error_and_adds_none(bench: Bench) -> None:
    """S8: a known id with another payload is DuplicateTask, and none of the call's tasks is added."""
    (known,) = await bench.pushed()
    other = known.copied({"command": "false"})
    with raises(DuplicateTask, "the same id with another command"):
        await bench.backend.push([task(), other, task()])
    (delivery,) = await bench.take_all(1)
    assert delivery.task.in_epoch(known.epoch) == known, "the first payload stays"


@case("deduplicates")
async def id_is_remembered_in_every_state(bench: Bench) -> None:
    """S8: leased, requeued, dead or done, a task is not added a second time."""
    (known,) = await bench.pushed()
    delivery = await bench.take()
    assert await bench.backend.push([known]) == [known.id]
    await bench.nothing()
    await delivery.settle(Requeue(known.requeued(failures=1).counters, NOW))
    assert await bench.backend.push([known]) == [known.id]
    delivery = await bench.take()
    assert delivery.task.counters.failures == 1, "the push has overwritten the counters"
    await delivery.settle(MoveToDeadLetters("failures", ""))
    assert await bench.backend.push([known]) == [known.id]
    await bench.nothing()
    assert await bench.backend.redrive([known.id]) == [known.id]
    await (await bench.take()).settle(Complete(DONE))
    assert await bench.backend.push([known]) == [known.id]
    await bench.nothing()


@case("deduplicates", "frees_ids")
async def purged_and_cleared_ids_are_free(bench: Bench) -> None:
    """What clear and purge_dead delete can be pushed anew, with another payload too."""
    first = await bench.bury()
    assert await bench.backend.purge_dead([first.id]) == [first.id]
    (second,) = await bench.pushed()
    assert await bench.backend.clear() == 1
    await bench.backend.push([each.copied({"command": "false"}) for each in (first, second)])
    assert {each.task.command for each in await bench.take_all(2)} == {"false"}


@case("idempotent_push")
async def repeat_after_success_is_safe(bench: Bench) -> None:
    """S8: where idempotent_push is declared, the same call again adds nothing, whatever happened in between."""
    tasks = await bench.pushed(3)
    await (await bench.take()).settle(Complete(DONE))
    assert await bench.backend.push(tasks) == [each.id for each in tasks]
    await bench.take_all(2)


@case()
async def not_before_is_kept(bench: Bench) -> None:
    """A task with not_before waits for the wall clock, then is delivered."""
    (later,) = await bench.pushed(not_before=bench.clock.wall() + 4)
    (now,) = await bench.pushed()
    assert [each.id for each in await bench.take_all(1)] == [now.id]
    await bench.counts(leased=1, scheduled=1)
    await bench.peeks_none(leased=1)
    await bench.clock.advance(5)
    assert (await bench.take_id(later.id)).task.not_before == later.not_before


@case("priorities")
async def higher_priority_first(bench: Bench) -> None:
    """Higher first, also below zero and after a requeue."""
    tasks = [task(priority=priority) for priority in (0, 5, -3, 2)]
    await bench.backend.push(tasks)
    first = await bench.take()
    assert first.task.priority == 5
    await first.settle(Requeue(first.task.requeued(failures=1).counters, NOW))
    assert [each.task.priority for each in [await bench.take() for _ in tasks]] == [5, 2, 0, -3]


@case()
async def create_twice(bench: Bench) -> None:
    """Create is harmless on an existing queue, or refuses when asked to."""
    await bench.pushed()
    await bench.backend.create()
    with raises(ConfigurationError, "create(exist_ok=False) on an existing queue"):
        await bench.backend.create(exist_ok=False)
    await bench.take_all(1)


@case()
async def missing_queue_is_told_by_every_verb(bench: Bench) -> None:
    """QueueNotFound from each verb, and none of them makes the queue."""
    missing = await bench.handle(bench.harness.queue_name())
    for verb, call in _every_verb(missing).items():
        with raises(QueueNotFound, f"{verb} on a missing queue"):
            await call()
    await missing.create(exist_ok=False)
    assert await missing.push([task()])


@case()
async def queues_are_apart(bench: Bench) -> None:
    """S11: a task of one queue is not seen in another of the same store."""
    other = await bench.handle(bench.harness.queue_name())
    await other.create()
    (mine,) = await bench.pushed()
    assert await other.receive(1, bench.lease, NOW) == []
    assert await other.clear() == 0
    assert (await bench.take()).id == mine.id


def _every_verb(backend: Backend) -> dict[str, Verb]:
    return {
        "push": lambda: backend.push([task()]),
        "receive": lambda: backend.receive(1, None, NOW),
        "receive with wait": lambda: backend.receive(1, None, timedelta(seconds=1)),
        "peek": lambda: backend.peek(1),
        "stats": backend.stats,
        "clear": backend.clear,
        "dead_letters": lambda: backend.dead_letters(1),
        "redrive": lambda: backend.redrive(["some-id"]),
        "purge_dead": lambda: backend.purge_dead(["some-id"]),
    }


@case()
async def what_a_task_asks_for_is_kept(bench: Bench) -> None:
    """Processors, memory and tags come out as they went in, and no settlement loses them."""
    asked: dict[str, Any] = {"cpus": 1.5, "gpus": 1, "mem": "2G", "needs": ["eu", "a100"]}
    (pushed,) = await bench.pushed(**asked)
    delivery = await bench.take()
    for _ in range(2):
        found = delivery.task
        assert (found.resources, found.needs) == (pushed.resources, pushed.needs)
        assert found.fingerprint() == pushed.fingerprint()
        await delivery.settle(Requeue(found.requeued(failures=1).counters, NOW))
        delivery = await bench.take()
    await delivery.settle(Complete(DONE))
