"""The claim: in the order of position, not slowed by what is dead, and nothing visible is passed over."""

import asyncio
import time
from datetime import timedelta
from statistics import median
from typing import Any

import pytest

from jobq.task import Task
from jobq_postgres import PostgresBackend
from tests.postgres.server import Database
from tests.postgres.support import DONE, LEASE, NOW, take, tasks

_DEAD = 200_000


async def _claim_seconds(queue: PostgresBackend, count: int = 60) -> float:
    await queue.push([Task.new(command="true") for _ in range(count)])
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        delivery = await take(queue, timedelta(minutes=5))
        seconds.append(time.perf_counter() - began)
        await delivery.complete(DONE)
    return median(seconds)


async def _die(connection: Any, count: int) -> None:
    """Let so many tasks become ready, be leased and end, each state in a transaction of its own."""
    await connection.execute("SET statement_timeout = 0")
    queue = await connection.fetchval("SELECT queue_id FROM jobq.queue")
    await connection.execute(
        "INSERT INTO jobq.task (queue_id, id, body) SELECT $1, 'dead-' || n, '{}' FROM generate_series(1, $2) AS n",
        queue,
        count,
    )
    await connection.execute(
        "UPDATE jobq.task SET position = NULL, receipt = gen_random_uuid(), expires_at = clock_timestamp() + '1 minute'"
        " WHERE id LIKE 'dead-%'"
    )
    await connection.execute("DELETE FROM jobq.task WHERE id LIKE 'dead-%'")


async def test_claim_is_not_slowed_by_dead_tuples_and_a_held_snapshot(
    database: Database, queue: PostgresBackend
) -> None:
    """200,000 dead tuples that no vacuum may remove: the median stays within three times the fresh one."""
    await _claim_seconds(queue)
    fresh = await _claim_seconds(queue)
    holder = await database.server().connect("holder")
    await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await holder.fetchval("SELECT count(*) FROM jobq.task")
    other = await database.server().connect("dying")
    await _die(other, _DEAD // 2)  # each leaves two: one ready, one leased
    async with asyncio.timeout(30):
        while (
            dead := await other.fetchval("SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'task'")
        ) < _DEAD:
            await asyncio.sleep(0.2)  # statistics come late
    assert dead >= _DEAD
    await take_nothing(queue)
    slow = [await _claim_seconds(queue) for _ in range(3)]
    async with PostgresBackend(database.server(), "q") as newcomer:
        await take_nothing(newcomer)
        slow.append(await _claim_seconds(newcomer))
    await holder.close()
    await other.close()
    assert median(slow) <= 3 * fresh, f"fresh {fresh * 1e3:.2f} ms, with dead tuples {[s * 1e3 for s in slow]}"


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
        await delivery.complete(DONE)
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
                await asyncio.gather(*(delivery.complete(DONE) for delivery in found))

    async def push() -> None:
        for number in range(20):
            await queue.push(tasks(total // 20, f"p{number}", priority=number % 3))

    await asyncio.gather(push(), *(work(number) for number in range(8)))
    assert len(seen) == total
    assert len(set(seen)) == total
    assert database.run("SELECT count(*) FROM jobq.task") == [(0,)]


async def test_push_is_started_by_a_waiting_worker_in_milliseconds(database: Database, queue: PostgresBackend) -> None:
    """Woken by NOTIFY: the median from before the push to after the claim is under 20 ms."""
    seconds = []
    async with PostgresBackend(database.server(), "q") as worker:
        for number in range(30):
            waiting = asyncio.create_task(_claimed(worker))
            await asyncio.sleep(0.02)
            began = time.perf_counter()
            await queue.push(tasks(1, f"n{number}"))
            seconds.append(await waiting - began)
    assert median(seconds) < 0.020, f"{median(seconds) * 1e3:.1f} ms"


async def _claimed(worker: PostgresBackend) -> float:
    (delivery,) = await worker.receive(1, LEASE, timedelta(seconds=30))
    at = time.perf_counter()
    await delivery.complete(DONE)
    return at


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
