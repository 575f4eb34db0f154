"""What goes back to where it waited: below what other claimers have seen claimed, and found all the same."""

import asyncio
import time
from datetime import timedelta

import pytest

from jobq.settlement import Complete, Release
from jobq_postgres import PostgresBackend
from tests.postgres.server import Database
from tests.postgres.support import DONE, LEASE, NOW, take, tasks

pytestmark = pytest.mark.check

SOON = timedelta(seconds=20)


async def test_what_goes_back_below_the_floors_of_others_is_next_for_them(
    database: Database, queue: PostgresBackend
) -> None:
    """Two others have come far beyond it; while much is ready behind, it comes next and not after a sweep."""
    await queue.push(tasks(3000))
    first = await take(queue)
    async with PostgresBackend(database.server(), "q") as one, PostgresBackend(database.server(), "q") as two:
        for other in (one, two):
            for delivery in await other.receive(500, LEASE, NOW):
                await delivery.settle(Complete(DONE))
        for number, other in enumerate((one, two, one, two)):
            await first.settle(Release())
            began = time.monotonic()
            met = 0
            while (first := await take(other)).id != "t-00000":
                await first.settle(Complete(DONE))
                met += 1
            assert met <= 30, f"{met} tasks overtook it within {time.monotonic() - began:.2f} s, turn {number}"
            assert first.deliveries == number + 2
            await asyncio.sleep(0.05)
            assert "t-00000" not in {each.id for each in await queue.receive(20, LEASE, NOW)}


async def test_waiting_claimers_are_woken_by_it_at_once(database: Database, queue: PostgresBackend) -> None:
    """Both wait at an empty queue, with floors behind everything: one of them gets it in a moment."""
    await queue.push(tasks(50))
    first = await take(queue)
    async with PostgresBackend(database.server(), "q") as one, PostgresBackend(database.server(), "q") as two:
        for delivery in await one.receive(50, LEASE, NOW):
            await delivery.settle(Complete(DONE))
        assert await two.receive(1, LEASE, NOW) == []
        waiting = [asyncio.create_task(other.receive(1, LEASE, SOON)) for other in (one, two)]
        await asyncio.sleep(1.5)
        for _ in range(5):
            await first.settle(Release())
            began = time.monotonic()
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert time.monotonic() - began < 1.0
            (first,) = next(iter(done)).result()
            number = waiting.index(next(iter(done)))
            waiting[number] = asyncio.create_task((one, two)[number].receive(1, LEASE, SOON))
            await asyncio.sleep(0.1)
        await first.settle(Complete(DONE))
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)


async def test_a_storm_of_releases_claims_each_once_at_a_time(database: Database, queue: PostgresBackend) -> None:
    """S3, S7: four handles give back half of what they take: each is held by one at a time, and none is left."""
    total = 300
    await queue.push([*tasks(total // 2, "p", priority=1), *tasks(total // 2, "q")])
    held: set[str] = set()
    done: list[str] = []
    seen: dict[str, int] = {}

    async def work(number: int) -> None:
        async with PostgresBackend(database.server(), "q") as mine:
            while found := await mine.receive(1 + number, LEASE, timedelta(seconds=1)):
                for each in found:
                    assert each.id not in held
                    held.add(each.id)
                    seen[each.id] = seen.get(each.id, 0) + 1
                    assert each.deliveries == seen[each.id]
                    assert each.task.counters.ends == seen[each.id] - 1
                await asyncio.sleep(0)
                for each in found:
                    held.discard(each.id)
                    if each.deliveries < 4:
                        await each.settle(Release())
                    else:
                        done.append(each.id)
                        await each.settle(Complete(DONE))

    began = time.monotonic()
    await asyncio.gather(*(work(number) for number in range(4)))
    assert len(done) == total == len(set(done))
    assert database.run("SELECT count(*) FROM jobq.task") == [(0,)]
    assert time.monotonic() - began < 60


async def test_what_went_back_untold_is_found_by_a_look_from_the_beginning(
    database: Database, queue: PostgresBackend
) -> None:
    """The worker died between the release and the notification: others that are busy behind it find it in seconds."""
    await queue.push(tasks(5000))
    first = await take(queue)
    (place,) = [row[0] for row in database.run("SELECT min(position) - 1 FROM jobq.task")]
    async with PostgresBackend(database.server(), "q") as other:
        for delivery in await other.receive(500, LEASE, NOW):
            await delivery.settle(Complete(DONE))
        database.run(
            f"UPDATE jobq.task SET position = {place}, receipt = NULL, expires_at = NULL, holder = NULL"
            f" WHERE id = '{first.id}' RETURNING seq"
        )
        began = time.monotonic()
        while (found := await take(other)).id != first.id:
            assert time.monotonic() - began < 8
            await found.settle(Complete(DONE))
            await asyncio.sleep(0.01)
