"""The claim: in the order of position, not slowed by what is dead, and nothing visible is passed over."""

import asyncio
from datetime import timedelta

import pytest

from jobq.settlement import Complete
from jobq_postgres import PostgresBackend
from jobq_postgres.add_tasks import ADD, columns
from tests.postgres.server import Database
from tests.postgres.support import DONE, LEASE, NOW, tasks

pytestmark = pytest.mark.check


async def take_nothing(queue: PostgresBackend) -> None:
    assert await queue.receive(1, LEASE, NOW) == []


async def test_task_that_was_pushed_by_another_and_not_told_of_is_found(
    database: Database, queue: PostgresBackend
) -> None:
    """A late commit below every floor, of a rank never seen, without a notification: an empty answer stays true."""
    await queue.push(tasks(50))
    late = await database.server().connect("late")
    await late.execute("BEGIN")
    await late.execute(
        "INSERT INTO jobq.task (queue_id, id, body) SELECT queue_id, 'late', '{}' FROM jobq.queue;"
        "INSERT INTO jobq.task (queue_id, id, rank, body) SELECT queue_id, 'last', 7, '{}' FROM jobq.queue"
    )
    await queue.push(tasks(50, "more"))
    for delivery in await queue.receive(200, LEASE, NOW):
        await delivery.settle(Complete(DONE))
    await take_nothing(queue)
    await late.execute("COMMIT")
    found = await queue.receive(5, LEASE, NOW) + await queue.receive(5, LEASE, NOW)
    assert [delivery.id for delivery in found] == ["late", "last"]
    await late.close()


async def test_claims_at_once_share_and_miss_nothing(database: Database, queue: PostgresBackend) -> None:
    """S3: eight handles, pushes on the way, batches of every size: each task once, and all of them."""
    total = 2000
    seen: list[str] = []

    async def work(number: int) -> None:
        async with PostgresBackend(database.server(), "q") as mine:
            while found := await mine.receive(1 + number * 3, LEASE, timedelta(seconds=2)):
                seen.extend(delivery.id for delivery in found)
                await asyncio.gather(*(delivery.settle(Complete(DONE)) for delivery in found))

    async def push() -> None:
        for number in range(20):
            await queue.push(tasks(total // 20, f"p{number}", priority=number % 3))

    await asyncio.gather(push(), *(work(number) for number in range(8)))
    assert len(seen) == total
    assert len(set(seen)) == total
    assert database.run("SELECT count(*) FROM jobq.task") == [(0,)]


async def test_bulk_push_finds_its_way_around_known_ids(queue: PostgresBackend) -> None:
    """COPY cannot pass over what is known: the call is added all the same, whole, and each task once (S8)."""
    await queue.push(tasks(10))
    await queue.push(tasks(1000))
    assert (await queue.stats()).visible == 1000


@pytest.mark.parametrize("count", [1, 300])
async def test_pushes_of_the_same_ids_at_once_do_not_lock_each_other_out(
    database: Database, queue: PostgresBackend, count: int
) -> None:
    """S8: in opposite orders, by four handles; every call is answered, and each id is there once."""
    same = tasks(count * 2)

    async def push(number: int) -> None:
        async with PostgresBackend(database.server(), "q") as mine:
            for start in range(2):
                part = same[start::2] if number % 2 else same[1 - start :: 2]
                await mine.push(part if number % 3 else part[::-1])

    await asyncio.gather(*(push(number) for number in range(4)))
    assert (await queue.stats()).visible == count * 2


@pytest.mark.usefixtures("queue")
async def test_order_of_the_ids_is_that_of_copy_whatever_the_collation_is(database: Database) -> None:
    """Else pushes of the same ids, one by COPY and one by statement, wait for each other in a circle.

    Seen in the plan: the servers that tests can count on have no collation with another order than C.
    """
    connection = await database.server().connect("plan")
    plan = await connection.fetch(f"EXPLAIN (VERBOSE, COSTS OFF) {ADD}", *columns([]))
    await connection.close()
    keys = [line for (line,) in plan if "Sort Key" in line and "id" in line.rsplit(".", 1)[-1]]
    assert len(keys) == 1
    assert keys[0].endswith('.queue_id, given.id COLLATE "C"'), keys
