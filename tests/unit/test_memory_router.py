"""The router beside the protocol: threads as workers, order, trace, snapshot, counters, the registry."""

import asyncio
import threading
from collections import Counter
from datetime import timedelta

import pytest

from jobq.errors import ConfigurationError, InvalidSpec, LockLost, QueueNotFound
from jobq.settings import Settings
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.spec import parse
from jobq.task import Task, TaskResult
from jobq.testing.clock import VirtualClock
from jobq_memory import MemoryBackend, Router, State, connect, forget

LEASE = timedelta(seconds=10)
NOW = timedelta(0)
DONE = TaskResult(exit_code=0)


def routed(clock: VirtualClock) -> tuple[Router, MemoryBackend]:
    router = Router(clock)
    router.create("q")
    return router, MemoryBackend(router, "q")


async def _work(router: Router, ready: threading.Barrier, completed: list[str]) -> None:
    """Complete tasks until one says stop; the stops of other threads go back."""
    backend = MemoryBackend(router, "q")
    await asyncio.to_thread(ready.wait)
    while deliveries := await backend.receive(3, LEASE, timedelta(seconds=30)):
        stops = [each for each in deliveries if each.task.command == "stop"]
        for delivery in deliveries:
            if delivery not in stops:
                await delivery.settle(Complete(DONE))
                completed.append(delivery.id)  # list.append is atomic
        for surplus in stops[1:]:
            await surplus.settle(Release())
        if stops:
            await stops[0].settle(Complete(DONE))
            return


def test_threads_with_their_own_loops_complete_each_task_once() -> None:
    """S3, S5: 500 tasks, four threads; a waiting thread is woken by the push of another."""
    router = Router()
    router.create("q")
    completed: list[str] = []
    ready = threading.Barrier(5)

    threads = [threading.Thread(target=lambda: asyncio.run(_work(router, ready, completed))) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait()
    pushed = [Task.new(command="true") for _ in range(500)]

    async def push() -> None:
        backend = MemoryBackend(router, "q")
        for start in range(0, 500, 20):
            await backend.push(pushed[start : start + 20])
        await backend.push([Task.new(command="stop", priority=-1) for _ in threads])

    asyncio.run(push())
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(completed) == sorted(task.id for task in pushed)
    assert router.counters["completed"] == 504
    assert router.counters["late_settlements"] == router.counters["expired"] == 0


async def test_order_is_priority_then_schedule_then_push() -> None:
    clock = VirtualClock()
    _, backend = routed(clock)
    wall = clock.wall()
    await backend.push(
        [
            Task.new(command="true", id="late", not_before=wall + 2),
            Task.new(command="true", id="early", not_before=wall + 1),
            Task.new(command="true", id="first"),
            Task.new(command="true", id="second"),
            Task.new(command="true", id="urgent", priority=1),
        ]
    )
    await clock.advance(3)
    found = await backend.receive(5, LEASE, NOW)
    assert [each.id for each in found] == ["urgent", "first", "second", "early", "late"]


async def test_late_completion_is_refused_and_counted() -> None:
    clock = VirtualClock()
    router, backend = routed(clock)
    await backend.push([Task.new(command="true", id="a")])
    (stale,) = await backend.receive(1, LEASE, NOW)
    await clock.advance(10)
    with pytest.raises(LockLost, match="has expired"):
        await stale.settle(Complete(DONE))
    (holder,) = await backend.receive(1, LEASE, NOW)
    with pytest.raises(LockLost, match="handed out again"):
        await stale.settle(Release())
    with pytest.raises(LockLost):
        await stale.renew(LEASE)
    await holder.settle(Complete(DONE))
    await holder.settle(Complete(DONE))
    assert router.counters == Counter(
        pushed=1, leased=2, expired=1, late_complete=1, late_release=1, late_settlements=2, late_renew=1,
        completed=1, settle_repeated=1,
    )  # fmt: skip


async def test_trace_tells_the_story_with_times_and_fencing() -> None:
    clock = VirtualClock(boottime=0.0)
    router, backend = routed(clock)
    task = Task.new(command="true", id="a")
    await backend.push([task])
    (delivery,) = await backend.receive(1, LEASE, NOW)
    await clock.advance(1)
    await delivery.settle(Requeue(task.requeued(failures=1).counters, timedelta(seconds=2)))
    await clock.advance(2)
    (delivery,) = await backend.receive(1, LEASE, NOW)
    await delivery.settle(MoveToDeadLetters("failures", ""))
    assert [(each.time, each.event, str(each.fencing)) for each in router.trace] == [
        (0.0, "pushed", "0.0.0"),
        (0.0, "leased", "0.0.1"),
        (1.0, "requeued", "0.1.1"),
        (3.0, "leased", "0.1.2"),
        (3.0, "dead_lettered", "0.1.2"),
    ]


async def test_trace_is_bounded() -> None:
    router = Router(VirtualClock(), trace_length=3)
    router.create("q")
    await MemoryBackend(router, "q").push([Task.new(command="true") for _ in range(5)])
    assert len(router.trace) == 3


async def test_snapshot_shows_every_task_and_no_receipt() -> None:
    clock = VirtualClock(boottime=0.0)
    router, backend = routed(clock)
    await backend.push([Task.new(command="true", id=name) for name in ("a", "b")])
    (delivery,) = await backend.receive(1, LEASE, NOW)
    await delivery.checkpoint("half")
    shown = router.snapshot("q")
    assert (shown["a"].state, shown["a"].expires, shown["a"].checkpoint) == (State.LEASED, 10.0, "half")
    assert (shown["b"].state, shown["b"].expires, shown["b"].deliveries) == (State.READY, None, 0)
    await delivery.settle(Complete(DONE))
    assert router.snapshot("q")["a"].state is State.DONE
    assert not hasattr(shown["a"], "receipt")


async def test_injected_task_is_a_task_and_a_copy_of_its_id_is_not() -> None:
    router, backend = routed(VirtualClock())
    task = Task.new(command="true", id="a")
    assert router.inject("q", task.encode()) == "a"
    assert router.inject("q", task.encode()) != "a"
    assert router.inject("q", b"\xff") != "a"
    assert [each.task.id for each in await backend.receive(1, LEASE, NOW)] == ["a"]


async def test_many_renewals_leave_no_heap_of_stale_items() -> None:
    clock = VirtualClock()
    router, backend = routed(clock)
    await backend.push([Task.new(command="true")])
    (delivery,) = await backend.receive(1, LEASE, NOW)
    for _ in range(1000):
        await delivery.renew(LEASE)
    with router.opened("q") as store:
        assert len(store._schedule._leases) <= 65


async def test_a_waiter_is_woken_when_a_lease_is_cut_short() -> None:
    clock = VirtualClock()
    _, backend = routed(clock)
    await backend.push([Task.new(command="true", id="a")])
    (delivery,) = await backend.receive(1, timedelta(seconds=600), NOW)
    waiting = asyncio.create_task(backend.receive(1, LEASE, timedelta(seconds=60)))
    await clock.advance(1)
    await delivery.renew(timedelta(seconds=2))
    await clock.advance(2)
    assert [each.id for each in await waiting] == ["a"]


async def test_limits_of_receive_are_checked() -> None:
    _, backend = routed(VirtualClock())
    with pytest.raises(ConfigurationError, match="at least one"):
        await backend.receive(0, LEASE, NOW)
    with pytest.raises(ConfigurationError, match="shorter"):
        await backend.receive(1, timedelta(milliseconds=10), NOW)


async def test_one_name_is_one_router_and_queues_are_apart() -> None:
    name = "test-one-name"
    try:
        first = connect(parse(f"memory://{name}/q"), Settings())
        second = connect(parse(f"memory://{name}/q"), Settings())
        other = connect(parse(f"memory://{name}/other"), Settings())
        await first.create()
        await first.push([Task.new(command="true", id="a")])
        assert [each.id for each in await second.peek(1)] == ["a"]
        with pytest.raises(QueueNotFound):
            await other.stats()
        forget(name)
        with pytest.raises(QueueNotFound):
            await connect(parse(f"memory://{name}/q"), Settings()).stats()
    finally:
        forget(name)


def test_a_spec_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="memory://NAME/QUEUE"):
        connect(parse("memory://q"), Settings())
