"""Claims by what there is room for, by many at once: no shape is lost between pushes, and no task between rooms."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import pytest

from jobq.errors import ConfigurationError
from jobq.resources.room import Room, Space
from jobq.resources.shapes import MOST_SHAPES
from jobq.settlement import Complete
from tests.backends.places import DONE, LEASE, NOW, Place, Table, tasks

pytestmark = pytest.mark.check

_GIB = 1024**3


def _room(cpus: float = 0, total: float | None = None, **more: Any) -> Room:
    free = Space(cpus=round(cpus * 1000), mem=64 * _GIB)
    return Room(free=free, total=free.copied({"cpus": round((cpus if total is None else total) * 1000)}), **more)


async def _together(*works: Coroutine[Any, Any, None]) -> None:
    """Run all; the first failure ends the others."""
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work)


async def test_a_call_that_is_refused_fails_no_other_of_its_group(queue: Table) -> None:
    """Nor one whose shapes there is room for behind it: all are asked at once, so they share statements."""
    await queue.push([task for cpus in range(1, MOST_SHAPES) for task in tasks(1, f"s{cpus}", cpus=cpus)])
    calls = [
        queue.push(tasks(1, "first", cpus=1)),
        queue.push([*tasks(1, "two", cpus=1001), *tasks(1, "more", cpus=1002), *tasks(1, "plain")]),
        queue.push(tasks(1, "last", cpus=1003)),
        queue.push(tasks(1, "beside")),
        queue.push(tasks(1, "other", cpus=1004)),
        queue.push(tasks(1, "same", cpus=1003)),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(answer, ConfigurationError) for answer in answers] == [False, True, False, False, True, False]
    assert "cpus=1002" in str(answers[1])
    assert (await queue.stats()).visible == MOST_SHAPES - 1 + 4


async def test_pushes_of_the_same_new_shape_at_once_make_one(place: Place, queue: Table) -> None:
    """In opposite orders, beside pushes of the same ids: none is refused, and none waits in a circle."""
    await queue.push(tasks(1))

    async def push(number: int) -> None:
        async with place.handle() as mine:
            for start in range(3):
                same = [task for cpus in range(1, 5) for task in tasks(1, f"{start}-{cpus}", cpus=cpus + 4 * start)]
                await mine.push(same if number % 2 else same[::-1])

    await _together(*(push(number) for number in range(8)))
    found = await queue.waiting_shapes()
    assert [each.count for each in found] == [1] * 13, "one of each, and the plain one"
    assert len(await queue.receive_fitting(_room(1000), 20, LEASE, NOW)) == 13, "none has a shape that is not there"


async def test_no_shape_is_dropped_under_a_push_that_uses_it(place: Place, queue: Table) -> None:
    """While a full queue drops what nobody uses, for new ones, others push what it may be dropping just then."""
    await queue.push([task for tag in range(MOST_SHAPES) for task in tasks(1, f"s{tag}", needs=[f"s{tag}"])])
    await queue.clear()

    async def make(first: int) -> None:
        async with place.handle() as mine:
            for tag in range(first, first + 60):
                (made,) = await mine.push(tasks(1, f"n{tag}", needs=[f"n{tag}"]))
                (held,) = await mine.receive_fitting(_room(tags=[f"n{tag}"]), 1, LEASE, timedelta(seconds=5))
                assert held.id == made
                await held.settle(Complete(DONE))

    async def push(prefix: str) -> None:
        async with place.handle() as mine:
            for tag in range(60):
                await mine.push(tasks(1, f"{prefix}{tag}", needs=[f"s{tag}"]))

    await _together(make(1000), make(2000), *(push(f"o{number}-") for number in range(4)))
    assert sorted(each.count for each in await queue.waiting_shapes()) == [4] * 60
    ample = _room(tags=[f"s{tag}" for tag in range(60)])
    found = [len(await queue.receive_fitting(ample, 100, LEASE, NOW)) for _ in range(4)]
    assert sum(found) == 240, "none has a shape that is not there"


@pytest.mark.usefixtures("queue")
async def test_claims_with_different_rooms_share_and_miss_nothing(place: Place) -> None:
    """S1, S3: seven handles, pushes on the way, batches of every size: each task once, and where it fits."""
    seen: list[str] = []
    kinds: list[dict[str, Any]] = [
        {},
        {"cpus": 1},
        {"cpus": 2},
        {"cpus": 4},
        {"cpus": 2, "mem": "1G"},
        {"needs": ["eu"]},
    ]
    rooms = [
        _room(1),
        _room(2),
        _room(4),
        _room(4, tags=["eu"]),
        _room(2, 4, reserves_after=0.01),
        _room(1, tags=["eu"]),
        None,
    ]

    async def work(number: int, what: Room | None) -> None:
        async with place.handle() as mine:
            while True:
                most, wait = 1 + number * 2, timedelta(seconds=1.5)
                receive = mine.receive(most, LEASE, wait) if what is None else None
                found = await (receive or mine.receive_fitting(what or Room(), most, LEASE, wait))
                if not found:
                    return
                asked = [each.task.resources.cpus or 0 for each in found if each.task.resources]
                assert what is None or len(found) == 1 or sum(asked) <= what.free.cpus, asked
                seen.extend(each.id for each in found)
                await asyncio.gather(*(each.settle(Complete(DONE)) for each in found))

    async def push(prefix: str) -> None:
        async with place.handle() as mine:
            for number in range(12):
                await mine.push(
                    [
                        task
                        for kind, asked in enumerate(kinds)
                        for task in tasks(4, f"{prefix}-{number}-{kind}", priority=number % 3, **asked)
                    ]
                )

    await _together(push("a"), push("b"), *(work(number, what) for number, what in enumerate(rooms)))
    assert len(seen) == len(set(seen)) == 2 * 12 * 4 * len(kinds)
    async with place.handle() as looker:
        assert (await looker.stats()).unfinished == 0
