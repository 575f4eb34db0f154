"""Selecting: a worker gets what it has room for, in order, whatever waits before it."""

import asyncio
from datetime import timedelta
from typing import Any

from jobq.backend import Delivery
from jobq.batch_plan import Plan
from jobq.batches import batches_of
from jobq.errors import ConfigurationError
from jobq.resources.request import UNIT
from jobq.resources.room import ResourceRequest, Room, Space
from jobq.resources.shapes import MOST_SHAPES
from jobq.selecting import Selects
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.task import Task
from jobq.testing.cases import case
from jobq.testing.harness import DONE, NOW, Bench, raises, task

_GIB = 1024**3
_HOUR = 3600.0


@case("selects")
async def what_fits_comes_in_order(bench: Bench) -> None:
    """Of what fits the highest priority first, then the oldest; what does not fit keeps its place."""
    large = await _pushed(bench, cpus=8)
    small = await _pushed(bench, cpus=2)
    plain = await _pushed(bench)
    more = await _pushed(bench, cpus=3)
    urgent = await _pushed(bench, cpus=1, priority=5)
    room = _room(cpus=4)
    assert [await _taken(bench, room) for _ in range(4)] == [urgent, small, plain, more]
    await _nothing_fits(bench, room)
    later = await _pushed(bench, cpus=8, priority=-1)
    assert [await _taken(bench, _room(cpus=8)) for _ in range(2)] == [large, later]


@case("selects")
async def who_says_no_room_gets_all_in_order(bench: Bench) -> None:
    """`receive` and `peek` know of no room, and order by priority and age alone, also where shapes differ."""
    pushed = [await _pushed(bench, **asked) for asked in ({"cpus": 8}, {}, {"needs": ["a100"]}, {"cpus": 1}, {})]
    urgent = await _pushed(bench, mem="2G", priority=1)
    wanted = [urgent, *pushed]
    assert [each.id for each in await bench.backend.peek(10)] == wanted
    assert [each.id for each in await bench.take_all(len(wanted))] == wanted


@case("selects")
async def a_worker_has_all_that_is_needed(bench: Bench) -> None:
    """All tags, and each amount; whoever offers nothing gets what asks for nothing."""
    both = await _pushed(bench, needs=["a100", "eu"])
    one = await _pushed(bench, needs=["eu"])
    gpus = await _pushed(bench, gpus=2, cpus=1)
    card = await _pushed(bench, gpus=1, mem="1G")
    plain = await _pushed(bench)
    assert await _taken(bench, Room()) == plain
    await _nothing_fits(bench, Room())
    await _nothing_fits(bench, _room(cpus=64, mem=64 * _GIB, tags=["a100"]))
    await _nothing_fits(bench, Room(free=Space(cpus=UNIT, gpus=UNIT, parts=UNIT, mem=_GIB - 1)))
    assert await _taken(bench, _room(tags=["eu"])) == one
    assert await _taken(bench, _room(tags=["a100", "eu", "us"])) == both
    assert await _taken(bench, Room(free=Space(parts=UNIT, mem=_GIB))) == card
    assert await _taken(bench, Room(free=Space(cpus=UNIT, gpus=2 * UNIT))) == gpus


@case("selects")
async def what_is_handed_out_fits_together(bench: Bench) -> None:
    """Many at once never take more than there is; nor one a slot, where each that asks for nothing takes one."""
    asked = [await _pushed(bench, cpus=count) for count in (2, 3, 1, 3, 2)]
    found = await _receive(bench, _room(cpus=4), 10)
    taken = [each.task.resources.cpus or 0 for each in found if each.task.resources]
    assert 0 < sum(taken) <= 4 * UNIT, taken
    assert [each.id for each in found] == asked[: len(found)]
    await bench.backend.clear()
    await bench.pushed(5)
    counted = _room(cpus=2).copied({"counts_slots": True})
    assert len(await _receive(bench, counted, 2)) == 2
    await _nothing_fits(bench, _room(cpus=0).copied({"counts_slots": True}))


@case("selects")
async def who_waits_is_woken_by_what_fits(bench: Bench) -> None:
    """And by nothing else: a worker beside a queue that it cannot run stays where it is."""
    await _pushed(bench, cpus=8)
    handle = await bench.handle()
    assert isinstance(handle, Selects)
    waiting = asyncio.create_task(handle.receive_fitting(_room(cpus=4), 1, bench.lease, timedelta(seconds=60)))
    await _pushed(bench, cpus=8)
    small = await _pushed(bench, cpus=4)
    (found,) = await bench.finish(waiting, 15)
    assert found.id == small


@case("selects")
async def what_goes_back_asks_for_the_same(bench: Bench) -> None:
    """However it came back: by a retry, a release, a lost lease, or from the dead letters."""
    room, other = _room(cpus=4), _room(cpus=1)
    pushed = await _pushed(bench, cpus=4, priority=3)
    held = await _delivery(bench, room)
    await held.settle(Requeue(held.task.requeued(failures=1).counters))
    await _nothing_fits(bench, other)
    await (await _delivery(bench, room)).settle(Release())
    await _nothing_fits(bench, other)
    await _delivery(bench, room)
    await bench.expire()
    await _nothing_fits(bench, other)
    await (await _delivery(bench, room)).settle(MoveToDeadLetters("failures", ""))
    assert await bench.backend.redrive([pushed]) == [pushed]
    await _nothing_fits(bench, other)
    await (await _delivery(bench, room)).settle(Complete(DONE))


@case("selects")
async def what_is_due_later_asks_for_the_same(bench: Bench) -> None:
    """Also where it was put off, and is handed out among others when it is due."""
    pushed = await _pushed(bench, cpus=4, not_before=bench.clock.wall() + 5)
    await _nothing_fits(bench, _room(cpus=4))
    await _nothing_fits(bench, _room(cpus=1))
    waiting = _selecting(bench).receive_fitting(_room(cpus=4), 1, bench.lease, timedelta(seconds=20))
    (found,) = await bench.finish(asyncio.create_task(waiting), 25)
    assert found.id == pushed


@case("selects")
async def none_is_reserved_before_it_was_overtaken_for_long(bench: Bench) -> None:
    """The first in order that fits all that is offered, but not what is free, is handed out alone in the end."""
    large = await _pushed(bench, cpus=8)
    small = [await _pushed(bench, cpus=2) for _ in range(4)]
    room = Room(free=Space(cpus=4 * UNIT), total=Space(cpus=8 * UNIT), reserves_after=_HOUR)
    assert await _taken(bench, room) == small[0]
    assert await _taken(bench, room) == small[1]
    assert await _taken(bench, room.copied({"reserves_after": None})) == small[2]
    found = await _receive(bench, room.copied({"reserves_after": 0.0}), 5)
    assert [each.id for each in found] == [large], "the one that was overtaken is handed out alone"
    assert await _taken(bench, room.copied({"reserves_after": 0.0})) == small[3]


@case("selects")
async def one_is_overtaken_since_it_was_first(bench: Bench) -> None:
    """However often it is overtaken again: else a busy queue would never come to it."""
    large = await _pushed(bench, cpus=8)
    small = [await _pushed(bench, cpus=2) for _ in range(3)]
    room = Room(free=Space(cpus=4 * UNIT), total=Space(cpus=8 * UNIT), reserves_after=_HOUR)
    assert await _taken(bench, room) == small[0]
    await bench.clock.advance(1.5)
    assert await _taken(bench, room) == small[1]
    assert await _taken(bench, room.copied({"reserves_after": 1.5})) == large


@case("selects")
async def what_never_fits_is_not_reserved(bench: Bench) -> None:
    """Nor what would overtake: only the first in order is waited for."""
    await _pushed(bench, cpus=16)
    first = await _pushed(bench, cpus=1)
    large = await _pushed(bench, cpus=8)
    second = await _pushed(bench, cpus=1)
    room = Room(free=Space(cpus=4 * UNIT), total=Space(cpus=8 * UNIT), reserves_after=0.0)
    assert await _taken(bench, room) == first
    assert [await _taken(bench, room) for _ in range(2)] == [large, second]


@case("selects")
async def what_waits_is_counted_by_what_it_asks_for(bench: Bench) -> None:
    """What is leased or dead is not counted."""
    for _ in range(3):
        await _pushed(bench, cpus=4)
    for _ in range(2):
        await _pushed(bench, needs=["a100"])
    await bench.pushed(1)
    await _delivery(bench, _room(cpus=4, tags=["a100"]))
    (resources,) = {each.task.resources for each in await _receive(bench, _room(cpus=4), 1)}
    wanted = {ResourceRequest(resources): 1, ResourceRequest(None, ("a100",)): 2, ResourceRequest(): 1}
    assert {each.request: each.count for each in await _selecting(bench).waiting_shapes()} == wanted


@case("selects")
async def shapes_are_bounded(bench: Bench) -> None:
    """One more than the most is refused, and nothing of that push is added; where others have gone there is room."""
    await bench.backend.push([task(cpus=number / 8) for number in range(1, MOST_SHAPES + 1)])
    with raises(ConfigurationError):
        await bench.backend.push([task(cpus=100), task()])
    await bench.counts(visible=MOST_SHAPES)
    await (await _delivery(bench, _room(cpus=1 / 8))).settle(Complete(DONE))
    await _pushed(bench, cpus=100)
    assert await _taken(bench, _room(cpus=1)) is not None


@case("selects")
async def what_runs_or_is_dead_asks_for_the_same_when_it_comes_back(bench: Bench) -> None:
    """In a queue that is full of other requests nobody got its place meanwhile: dead letters count among them."""
    ran, died = await _pushed(bench, needs=["ran"]), await _pushed(bench, needs=["died"])
    running = await _delivery(bench, _room(tags=["ran"]))
    await (await _delivery(bench, _room(tags=["died"]))).settle(MoveToDeadLetters("failures", "it failed"))
    await bench.backend.push([task(cpus=number / 8) for number in range(1, MOST_SHAPES - 1)])
    with raises(ConfigurationError):
        await bench.backend.push([task(cpus=100)])
    await running.settle(Release())
    await bench.backend.redrive([died])
    await _nothing_fits(bench, _room())
    assert await _taken(bench, _room(tags=["ran"])) == ran
    assert await _taken(bench, _room(tags=["died"])) == died


@case("selects", "batches")
async def what_a_batch_runs_at_its_end_asks_for_what_it_says(bench: Bench) -> None:
    """Where that is one request too many it ends all the same: who cannot run the task puts it back."""
    batches = batches_of(bench.backend)
    for number, name in enumerate(("one", "two")):
        then = Task.new(command="true", id=f"jobq.then.{name}", cpus=100 + number)
        await batches.begin(name, Plan(then=(then.encode().decode(),)))
    await batches.seal("one")
    await _nothing_fits(bench, _room(cpus=1))
    assert await _taken(bench, _room(cpus=100)) == "jobq.then.one.1"
    await bench.backend.push([task(cpus=number / 8) for number in range(1, MOST_SHAPES + 1)][1:])
    await batches.seal("two")
    assert "jobq.then.two.1" in {each.id for each in await bench.backend.peek(2 * MOST_SHAPES)}


@case("selects")
async def nothing_is_reserved_for_what_asks_for_nothing(bench: Bench) -> None:
    """It takes a processor where each counts as one, and is no reason to idle; nor for what comes behind it."""
    await bench.pushed()
    room = Room(total=Space(cpus=UNIT, mem=_GIB), counts_slots=True, reserves_after=0.0)
    await _nothing_fits(bench, room)
    await _pushed(bench, mem="1G")
    await _nothing_fits(bench, room)


async def _pushed(bench: Bench, **fields: Any) -> str:
    (pushed,) = await bench.pushed(**fields)
    return pushed.id


def _selecting(bench: Bench) -> Selects:
    assert isinstance(bench.backend, Selects), "selects says that the backend is one"
    return bench.backend


async def _receive(bench: Bench, room: Room, most: int) -> list[Delivery]:
    return await _selecting(bench).receive_fitting(room, most, bench.lease, bench.harness.patience)


async def _delivery(bench: Bench, room: Room) -> Delivery:
    (found,) = await _receive(bench, room, 1)
    return found


async def _taken(bench: Bench, room: Room) -> str:
    return (await _delivery(bench, room)).id


async def _nothing_fits(bench: Bench, room: Room) -> None:
    assert await _selecting(bench).receive_fitting(room, 10, bench.lease, NOW) == []


def _room(*, cpus: float = 0, mem: int = 0, tags: tuple[str, ...] | list[str] = ()) -> Room:
    space = Space(cpus=round(cpus * UNIT), mem=mem)
    return Room(free=space, total=space, tags=list(tags))
