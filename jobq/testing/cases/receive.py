"""Leasing tasks: how many, how long it waits, what a delivery says, and looking without leasing."""

import asyncio
from contextlib import suppress
from datetime import timedelta

from jobq.backend import Delivery
from jobq.lease.store import KeepsLeases, LeaseState, Request
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.task import new_id
from jobq.testing.cases import case
from jobq.testing.harness import DONE, NOW, Bench, crashes, stored

_LONG = timedelta(seconds=30)


@case()
async def delivery_says_what_it_is(bench: Bench) -> None:
    """A first delivery: count 1, generation 0, no checkpoint, the lease that was asked for at most."""
    (pushed,) = await bench.pushed()
    delivery = await bench.take()
    assert delivery.id == pushed.id
    assert delivery.deliveries == 1
    assert delivery.fencing[1:] == (0, 1)
    assert delivery.checkpoint_value is None
    assert NOW < delivery.lease <= bench.lease
    assert delivery.task == delivery.task


@case()
async def never_more_than_asked_for(bench: Bench) -> None:
    """At most max_tasks, each once, until all are leased."""
    pushed = await bench.pushed(5)
    first = await bench.backend.receive(2, bench.lease, bench.harness.patience)
    assert 1 <= len(first) <= 2
    rest = await bench.take_all(5 - len(first))
    assert sorted(each.id for each in [*first, *rest]) == sorted(each.id for each in pushed)


@case()
async def default_lease_is_the_declared_one(bench: Bench) -> None:
    """Without a length, the lease is the service's default, and is held."""
    await bench.pushed()
    (delivery,) = await bench.backend.receive(1, None, bench.harness.patience)
    if bench.capabilities.chooses_lease:
        assert delivery.lease == bench.capabilities.default_lease
    assert NOW < delivery.lease <= bench.capabilities.default_lease
    await bench.nothing()


@case()
async def two_receivers_never_share_a_task(bench: Bench) -> None:
    """S3: handles that receive at once get different tasks."""
    pushed = await bench.pushed(12)
    handles = [await bench.handle() for _ in range(4)]
    found = await asyncio.gather(*(each.receive(4, bench.lease, bench.harness.patience) for each in handles))
    ids = [delivery.id for deliveries in found for delivery in deliveries]
    assert len(ids) == len(set(ids)), "one task was leased twice at once"
    assert set(ids) <= {each.id for each in pushed}
    await bench.take_all(12 - len(ids))


@case()
async def zero_wait_looks_once(bench: Bench) -> None:
    """A wait of zero answers at once, on an empty queue too."""
    before = bench.clock.boottime()
    assert await bench.backend.receive(1, bench.lease, NOW) == []
    assert bench.clock.boottime() - before < 5


@case()
async def empty_after_the_wait(bench: Bench) -> None:
    """A wait ends with nothing when nothing comes, not before its time."""
    start = bench.clock.boottime()
    waiting = asyncio.create_task(bench.backend.receive(1, bench.lease, timedelta(seconds=3)))
    assert await bench.finish(waiting, 10) == []
    assert bench.clock.boottime() - start >= 3


@case()
async def waiter_is_woken_by_a_push(bench: Bench) -> None:
    """A receive that waits sees what another handle pushes, long before its wait ends."""
    other = await bench.handle()
    waiting = asyncio.create_task(other.receive(1, bench.lease, _LONG))
    await bench.clock.advance(1)
    (pushed,) = await bench.pushed()
    assert [each.id for each in await bench.finish(waiting, 15)] == [pushed.id]


@case()
async def waiter_is_woken_by_time(bench: Bench) -> None:
    """A receive that waits sees a delayed task and an expired lease when they are due."""
    other = await bench.handle()
    (pushed,) = await bench.pushed()
    delivery = await bench.take()
    await delivery.settle(Requeue(pushed.requeued(failures=1).counters, timedelta(seconds=2)))
    waiting = asyncio.create_task(other.receive(1, bench.lease, _LONG))
    (second,) = await bench.finish(waiting, 15)
    assert second.task.generation == 1
    waiting = asyncio.create_task(other.receive(1, bench.lease, _LONG + bench.lease))
    (third,) = await bench.finish(waiting, 15 + bench.lease.total_seconds())
    assert third.fencing > second.fencing


@case()
async def waiters_share_what_comes(bench: Bench) -> None:
    """S3: of several that wait, each pushed task goes to one."""
    handles = [await bench.handle() for _ in range(3)]
    waiting = [asyncio.create_task(each.receive(1, _LONG, timedelta(seconds=20))) for each in handles]
    await bench.clock.advance(1)
    pushed = await bench.pushed(3)
    found = [await bench.finish(each, 15) for each in waiting]
    assert sorted(each.id for deliveries in found for each in deliveries) == sorted(each.id for each in pushed)


@case()
async def cancelled_wait_costs_nothing(bench: Bench) -> None:
    """A receive that is cancelled while it waits takes nothing: what comes later is a first delivery."""
    waiting = asyncio.create_task(bench.backend.receive(1, bench.lease, _LONG))
    await bench.clock.advance(1)
    await _cancelled(waiting)
    await bench.pushed()
    delivery = await bench.take()
    assert delivery.deliveries == 1
    assert crashes(delivery) == 0


@case()
async def cancelled_grant_is_not_lost(bench: Bench) -> None:
    """S1: cancelled at any turn, a receive gives back what it was granted or lets the lease run out."""
    pushed = await bench.pushed(8)
    for turns in range(8):
        receiving = asyncio.create_task(bench.backend.receive(1, bench.lease, NOW))
        for _ in range(turns):
            await asyncio.sleep(0)
        await _cancelled(receiving)
    await bench.expire()
    assert {each.id for each in await bench.take_all(8)} == {each.id for each in pushed}


@case()
async def peek_leases_nothing(bench: Bench) -> None:
    """Peek shows what is visible, at most so many, and leaves everything as it was."""
    pushed = await bench.pushed(3)
    assert len(await bench.backend.peek(2)) == 2
    seen = await bench.backend.peek(10)
    assert {each.id: each.body for each in seen} == {each.id: stored(each, seen[0].body) for each in pushed}
    assert {each.deliveries for each in seen} == {0}
    held = await bench.take_all(3)
    await bench.peeks_none(leased=3)
    assert {each.deliveries for each in held} == {1}, "peek has counted as a delivery"
    await bench.expire()
    if bench.capabilities.counts_deliveries:
        assert {each.deliveries for each in await bench.backend.peek(10)} == {1}


@case()
async def peek_shows_next_first(bench: Bench) -> None:
    """What peek shows first is what receive hands out first, as long as nothing changes."""
    await bench.pushed(4)
    order = [each.id for each in await bench.backend.peek(4)]
    assert order == [(await bench.take()).id for _ in order]


@case("priorities")
async def peek_shows_what_is_due_and_what_expired_in_its_place(bench: Bench) -> None:
    """Whatever a receive would hand out: by priority first, then by time."""
    await bench.pushed(priority=3)
    await bench.pushed()
    await bench.take_all(2)
    now = bench.clock.wall()
    for seconds, priority in ((1, 0), (2, 5), (1, 4)):
        await bench.pushed(not_before=now + seconds, priority=priority)
    await bench.expire()
    await bench.pushed()
    await bench.pushed(priority=9)
    shown = [each.id for each in await bench.backend.peek(10)]
    assert len(shown) == 7
    assert [each.id for each in await bench.backend.peek(2)] == shown[:2]
    assert [(await bench.take(lease=bench.long_lease)).id for _ in shown] == shown
    assert await bench.backend.peek(0) == []


@case()
async def stats_follow_every_state(bench: Bench) -> None:
    """S1: each task is counted where it is, and nowhere else."""
    await bench.counts()
    await bench.pushed(4)
    await bench.pushed(not_before=bench.clock.wall() + 600)
    await bench.counts(visible=4, scheduled=1)
    first, second = [await bench.take() for _ in range(2)]
    await bench.counts(visible=2, leased=2, scheduled=1)
    await first.settle(MoveToDeadLetters("failures", ""))
    await second.settle(Requeue(second.task.requeued(failures=1).counters, timedelta(seconds=600)))
    await bench.counts(visible=2, scheduled=2, dead=1)
    await bench.take()
    await bench.expire()
    await bench.counts(visible=2, scheduled=2, dead=1)


@case()
async def clear_deletes_all_but_the_dead(bench: Bench) -> None:
    """Clear deletes what waits or is leased, counts it, and keeps dead letters."""
    buried = await bench.bury()
    await bench.pushed(3)
    await bench.pushed(not_before=bench.clock.wall() + 600)
    held = await bench.take()
    if bench.capabilities.clears_leased:
        assert await bench.backend.clear() == 4
    else:
        assert await bench.backend.clear() == 3
        await held.settle(Complete(DONE))
    await bench.counts(dead=1)
    await bench.expire()
    await bench.nothing()
    assert [each.id for each in await bench.backend.dead_letters(10)] == [buried.id]
    assert await bench.backend.clear() == 0


@case("named_leases")
async def clear_leaves_named_leases(bench: Bench) -> None:
    """They are in the same store, and nobody's task."""
    assert isinstance(bench.backend, KeepsLeases)
    leases = bench.backend.leases
    ttl = max(bench.long_lease, leases.limits.min_ttl)
    await leases.acquire(Request(name="nightly", key=new_id(), holder="h:1", ttl=ttl))
    await bench.pushed(3)
    assert await bench.backend.clear() == 3
    await bench.nothing()
    record = await leases.read("nightly")
    assert record is not None
    assert record.state is LeaseState.ACTIVE


@case("redelivers_at=front")
async def redelivered_at_the_front(bench: Bench) -> None:
    """A task whose lease expired is handed out before younger ones, where the backend says so."""
    await bench.pushed(2)
    first = await bench.take()
    await bench.expire()
    assert (await bench.take()).id == first.id


@case("redelivers_at=back")
async def redelivered_at_the_back(bench: Bench) -> None:
    """A task whose lease expired waits behind younger ones, where the backend says so: it may be what kills workers."""
    await bench.pushed(2)
    first = await bench.take()
    await bench.expire()
    second = await bench.take()
    assert second.id != first.id
    assert (await bench.take()).id == first.id


async def _cancelled(receiving: asyncio.Task[list[Delivery]]) -> None:
    receiving.cancel()
    with suppress(asyncio.CancelledError):
        await receiving  # it may have been answered before
