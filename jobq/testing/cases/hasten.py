"""Hastening: what is put off is to be had now, and nothing else is touched."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from jobq.backend import Delivery, Hastened, Hastens
from jobq.errors import LockLost
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.testing.cases import case
from jobq.testing.harness import DONE, Bench, raises

_LATER_SECONDS = 600
_LATER = timedelta(seconds=_LATER_SECONDS)
_SECONDS = 15.0  # by which who waits has what was hastened


@case("hastens")
async def what_is_put_off_is_to_be_had_now(bench: Bench) -> None:
    """Whatever put it off, a push, a retry or a release; counters and generation are those of before (S7)."""
    (pushed,) = await bench.pushed(not_before=bench.clock.wall() + _LATER_SECONDS)
    await bench.nothing()
    assert await _hastened(bench, pushed.id) == [Hastened.DUE]
    await bench.counts(visible=1)
    first = await bench.take()
    await first.settle(Requeue(first.task.requeued(failures=2).counters, _LATER))
    await bench.nothing()
    assert await _hastened(bench, pushed.id) == [Hastened.DUE]
    second = await bench.take()
    assert (second.task.counters.failures, second.task.generation) == (2, first.task.generation + 1)
    assert second.fencing > first.fencing
    await second.settle(Release(_LATER))
    await bench.nothing()
    assert await _hastened(bench, pushed.id) == [Hastened.DUE]
    await (await bench.take()).settle(Complete(DONE))
    await bench.counts()


@case("hastens")
async def it_is_put_off_no_more(bench: Bench) -> None:
    """When a task was to begin at first is forgotten: a lost lease, or a release, puts it off no second time."""
    (pushed,) = await bench.pushed(not_before=bench.clock.wall() + _LATER_SECONDS)
    await _hastened(bench, pushed.id)
    held = await bench.take()
    await bench.expire()
    again = await bench.take()
    assert again.deliveries == held.deliveries + 1
    await again.settle(Release())
    await (await bench.take()).settle(Complete(DONE))


@case("hastens")
async def nothing_else_is_touched_and_the_answer_says_so(bench: Bench) -> None:
    """What runs keeps its lease, what waits its place, what has ended its end; each is answered in its order."""
    running, done, dead = [await _taken(bench) for _ in range(3)]
    await done.settle(Complete(DONE))
    await dead.settle(MoveToDeadLetters("failures", ""))
    waiting = await bench.pushed(3)
    before = await bench.seen()
    ids = [running.id, waiting[2].id, done.id, dead.id, "unknown"]
    wanted = [Hastened.RUNNING, Hastened.WAITING, Hastened.ENDED, Hastened.ENDED, Hastened.UNKNOWN]
    assert await _hastened(bench, *ids) == wanted
    assert await bench.seen() == before
    await running.renew(bench.lease)
    await running.settle(Complete(DONE))
    assert [(await bench.take()).id for _ in waiting] == [each.id for each in waiting], "one has lost its place"
    assert await _hastened(bench) == []


@case("hastens")
async def once_is_as_good_as_twice(bench: Bench) -> None:
    """A repetition finds it waiting, and an expired lease is to be had without; its old receipt stays stale (S4)."""
    first, second = await bench.pushed(2, not_before=bench.clock.wall() + _LATER_SECONDS)
    assert await _hastened(bench, second.id) == [Hastened.DUE]
    assert await _hastened(bench, second.id) == [Hastened.WAITING]
    held = await bench.take()
    assert held.id == second.id, f"{first.id} was not meant"
    await bench.nothing()
    await bench.expire()
    assert await _hastened(bench, second.id) == [Hastened.WAITING]
    with raises(LockLost):
        await held.renew(bench.lease)
    assert (await bench.take()).id == second.id


@case("hastens")
async def who_waits_has_it_at_once(bench: Bench) -> None:
    """A receive that began before, through another handle, does not sleep until it would have been due."""
    (pushed,) = await bench.pushed(not_before=bench.clock.wall() + _LATER_SECONDS)
    waiting = asyncio.ensure_future((await bench.handle()).receive(1, bench.lease, bench.harness.case_timeout))
    await bench.clock.advance(1.0)
    assert not waiting.done()
    await _hastened(bench, pushed.id)
    (delivery,) = await bench.finish(waiting, _SECONDS)
    assert delivery.id == pushed.id


async def _taken(bench: Bench) -> Delivery:
    await bench.pushed()
    return await bench.take(lease=bench.lease * 5)


async def _hastened(bench: Bench, *ids: str) -> Sequence[Hastened]:
    assert isinstance(bench.backend, Hastens)
    return await bench.backend.hasten(ids)
