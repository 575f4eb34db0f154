"""Claims by what there is room for, where PostgreSQL has a way of its own; tests/backends has the rest."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from jobq.errors import BackendUnavailable
from jobq.formats.sizes import parse
from jobq.resources.room import Room, Space
from jobq.resources.shapes import rank
from jobq.task import Task
from jobq_postgres import PostgresBackend
from jobq_postgres.add_tasks import NewTask
from jobq_postgres.advance import Advanced
from jobq_postgres.claim_sql import CLAIM_FITTING, SWEEP
from jobq_postgres.claimer import Claimer
from jobq_postgres.journal import OLDEST
from jobq_postgres.push import GroupPush, call_of
from jobq_postgres.queue_admin import PEEK
from jobq_postgres.shape_sql import COUNT_WAITING, READY_RANKS, SHAPES, WantedShapes
from tests.postgres.server import Database
from tests.postgres.support import LEASE, NOW, tasks
from tests.support.tcp_proxy import TcpProxy, TcpStrike

pytestmark = pytest.mark.check


def room(cpus: float = 0, total: float | None = None, **more: Any) -> Room:
    free = Space(cpus=round(cpus * 1000), mem=parse("64G"))
    return Room(free=free, total=free.copied({"cpus": round((cpus if total is None else total) * 1000)}), **more)


def handle(database: Database) -> PostgresBackend:
    return PostgresBackend(database.server(), "q")


async def _advance(_connection: Any) -> Advanced:
    return Advanced()


async def taken(queue: PostgresBackend, what: Room, most: int = 1) -> list[str]:
    return [each.id for each in await queue.receive_fitting(what, most, LEASE, NOW)]


@pytest.fixture
async def connection(database: Database, queue: PostgresBackend) -> AsyncIterator[Any]:
    assert queue.name
    made = await database.server().connect("test")
    yield made
    await made.close()


async def test_every_statement_is_served_by_an_index(connection: Any) -> None:
    """Whatever waits: what comes first is found by the index of what is ready, and nothing is sorted but that."""
    ranks = [rank(shape, 0) for shape in range(3)]
    claim: tuple[Any, ...] = (1, 1, LEASE, [], ranks, [0, 0, 0], [0, 1, 2], [1, 1, 0], 2, LEASE, "")
    values = {
        CLAIM_FITTING: claim,
        READY_RANKS: (1, ranks, ranks),
        COUNT_WAITING: (1, [0, 1]),
        PEEK: (1, 5),
        OLDEST: (1,),
    }
    for statement, given in (values | {SHAPES: (1,)}).items():
        plan = [row[0] for row in await connection.fetch(f"EXPLAIN (COSTS OFF) {statement}", *given)]
        assert not [line for line in plan if "Seq Scan on" in line or "Bitmap" in line], plan
        scans = [line for line in plan if "Scan using" in line and " on task" in line]
        assert all("task_ready" in line or "task_pkey" in line for line in scans) or statement == PEEK, plan
        assert scans or statement == SHAPES, plan


async def test_a_push_that_asks_for_nothing_costs_one_statement(connection: Any) -> None:
    """As before there were shapes."""
    sent: list[str] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            sent.append(name)
            return getattr(connection, name)

    pusher = GroupPush(timedelta(days=30))
    (queue,) = await connection.fetchrow("SELECT queue_id FROM jobq.queue")
    await pusher.push(connection, [call_of([NewTask.of(queue, each) for each in tasks(1)])])
    await pusher.push(Counting(), [call_of([NewTask.of(queue, each) for each in tasks(5, "more")])])
    assert sent == ["fetch"]


async def test_whoever_looks_is_shown_the_priority(database: Database, queue: PostgresBackend) -> None:
    await queue.push([*tasks(1, "a", cpus=4, priority=-3), *tasks(1, "b", needs=["eu"], priority=7), *tasks(1, "c")])
    await asyncio.gather(*(queue.push(tasks(1, f"d{number}", cpus=number)) for number in range(1, 5)))
    found = dict(database.run("SELECT id, priority FROM jobq.waiting"))
    assert {id_: found[id_] for id_ in ("a-00000", "b-00000", "c-00000", "d3-00000")} == {
        "a-00000": -3,
        "b-00000": 7,
        "c-00000": 0,
        "d3-00000": 0,
    }


@pytest.mark.parametrize("seconds", [None, 0.0])
async def test_what_others_hold_is_passed_over(queue: PostgresBackend, connection: Any, seconds: float | None) -> None:
    """However much of what comes first that is, and what was to be taken alone, too: what is behind is handed out."""
    await queue.push([each for cpus in (1, 2) for each in tasks(100, f"c{cpus}", cpus=cpus)])
    await queue.push(tasks(1, "large", cpus=8, priority=1))
    await queue.push(tasks(1, "last", cpus=1))
    async with connection.transaction():
        await connection.execute("SELECT FROM jobq.task WHERE id <> 'last-00000' FOR UPDATE")
        assert await taken(queue, room(4, 8, reserves_after=seconds)) == ["last-00000"]
        assert await taken(queue, room(4)) == []


async def test_what_does_not_fit_costs_who_waits_no_claim(
    queue: PostgresBackend, far: PostgresBackend, proxy: TcpProxy
) -> None:
    """It is woken by what fits; of notes of what it has not heard of, a few; else by its own look each second."""
    await queue.push(tasks(1, "first", cpus=8))
    sent = list[bytes]()

    def count(piece: bytes) -> bool:
        sent.append(piece)
        return False

    proxy.strike(TcpStrike.BREAK, count)
    async with far:
        assert await far.receive_fitting(room(1), 1, LEASE, NOW) == []
        waiting = asyncio.create_task(far.receive_fitting(room(1), 1, LEASE, timedelta(seconds=30)))
        await proxy.until(lambda: b"LISTEN" in b"".join(sent))
        await queue.push(tasks(1, "more", cpus=8))
        began = len(sent)
        for number in range(100):
            await queue.push(tasks(1, f"more{number}", cpus=8))
        await queue.push(tasks(1, "new", cpus=1))
        (found,) = await asyncio.wait_for(waiting, 5)  # and so the notes before it have come
        assert found.id == "new-00000"
        assert len(sent) - began < 40


async def test_new_shapes_are_found_without_a_notification(queue: PostgresBackend, connection: Any) -> None:
    """An empty answer stays true: the sweep says that there are more, and what it had looked at before is not all."""
    claimer = Claimer("here", _advance)
    (number,) = await connection.fetchrow("SELECT queue_id FROM jobq.queue")

    async def found() -> list[str]:
        claimed, _ = await claimer.claim(connection, number, 5, LEASE, thorough=True, wanted=WantedShapes(room(4)))
        return [each.id for each in claimed]

    assert await found() == []
    await queue.push(tasks(1, "first", cpus=1))
    assert await found() == ["first-00000"]
    await queue.push([*tasks(1, "large", cpus=8), *tasks(1, "second", cpus=2)])
    assert await found() == ["second-00000"]
    claimer._full_look_due = claimer._full_look_after = 0.0
    await queue.push(tasks(1, "third", cpus=3))
    assert await found() == ["third-00000"]
    assert await found() == []


async def test_first_shape_that_comes_behind_the_sweep_is_no_plain_task(
    queue: PostgresBackend, connection: Any
) -> None:
    """Who knew of none looks from the beginning, and takes nothing that does not fit."""
    claimer = Claimer("here", _advance)
    (number,) = await connection.fetchrow("SELECT queue_id FROM jobq.queue")
    pushed = False

    class Overtaken:
        """A connection on which a push comes behind the sweep."""

        async def fetch(self, statement: str, *values: Any) -> Any:
            nonlocal pushed
            rows = await connection.fetch(statement, *values)
            if statement == SWEEP and not pushed:
                pushed = True
                await queue.push(tasks(1, "large", cpus=8))
            return rows

        def __getattr__(self, name: str) -> Any:
            return getattr(connection, name)

    found, _ = await claimer.claim(Overtaken(), number, 5, LEASE, thorough=False, wanted=WantedShapes(room(4)))
    assert pushed
    assert found == []


async def test_what_a_restored_database_numbers_anew_is_read_anew(
    database: Database, queue: PostgresBackend, connection: Any
) -> None:
    """A number has another meaning there than who has read it before the restore knows."""
    await queue.push([Task.new(command="true", gpus=1)])
    async with handle(database) as worker:
        card = Space(gpus=1000)
        assert len(await taken(worker, Room(free=card, total=card))) == 1
        await connection.execute(
            "DELETE FROM jobq.task; DELETE FROM jobq.shape; UPDATE jobq.queue SET newest_shape = 0"
        )
        await connection.execute("ALTER TABLE jobq.shape ALTER shape RESTART WITH 1")
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND datname = current_database()"
        )
        async with handle(database) as other:
            (large,) = await other.push([Task.new(command="true", cpus=64)])
        for _ in range(3):
            try:
                assert await taken(worker, Room(free=card, total=card)) == []
                break
            except BackendUnavailable:
                await asyncio.sleep(0.2)
        assert await taken(worker, room(64)) == [large]
