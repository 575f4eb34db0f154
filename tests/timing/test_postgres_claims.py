"""The claim is not slowed by what is dead, and a push is heard of at once."""

import asyncio
import time
from datetime import timedelta
from statistics import median
from typing import Any

import pytest

from jobq.settlement import Complete
from jobq.task import Task
from jobq_postgres import PostgresBackend
from tests.postgres.server import Database
from tests.postgres.support import DONE, LEASE, NOW, take, tasks

pytestmark = pytest.mark.check

_DEAD = 200_000


async def _claim_seconds(queue: PostgresBackend, count: int = 30) -> float:
    await queue.push([Task.new(command="true") for _ in range(count)])
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        delivery = await take(queue, timedelta(minutes=5))
        seconds.append(time.perf_counter() - began)
        await delivery.settle(Complete(DONE))
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
    postgres: Database, database: Database, queue: PostgresBackend
) -> None:
    """200,000 dead tuples that no vacuum may remove: the median stays within three times that of a fresh database.

    The two take turns, so that whatever else this machine does slows both.
    """
    beside = postgres.fresh()
    holder = await database.server().connect("holder")
    await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await holder.fetchval("SELECT count(*) FROM jobq.task")
    other = await database.server().connect("dying")
    await _die(other, _DEAD // 2)  # each leaves two: one ready, one leased
    async with asyncio.timeout(30):
        while await other.fetchval("SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'task'") < _DEAD:
            await asyncio.sleep(0.2)  # statistics come late
    fresh, slow = [], []
    async with (
        PostgresBackend(beside.server(), "q") as undisturbed,
        PostgresBackend(database.server(), "q") as newcomer,
    ):
        await undisturbed.create()
        for each in (undisturbed, queue, newcomer):
            await take_nothing(each)
        for _ in range(3):
            fresh.append(await _claim_seconds(undisturbed))
            slow.append(await _claim_seconds(queue))
            fresh.append(await _claim_seconds(undisturbed))
            slow.append(await _claim_seconds(newcomer))
    await holder.close()
    await other.close()
    beside.drop()
    assert median(slow) <= 3 * median(fresh), f"ms, fresh: {_shown(fresh)}; among dead tuples: {_shown(slow)}"


def _shown(seconds: list[float]) -> str:
    return ", ".join(f"{each * 1e3:.2f}" for each in seconds)


async def take_nothing(queue: PostgresBackend) -> None:
    assert await queue.receive(1, LEASE, NOW) == []


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
    await delivery.settle(Complete(DONE))
    return at
