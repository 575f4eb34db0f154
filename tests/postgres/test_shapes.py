"""Claims by what there is room for: no shape is lost between pushes, and no task between rooms."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from jobq.batch_plan import Plan
from jobq.errors import BackendUnavailable, ConfigurationError
from jobq.formats.sizes import parse
from jobq.resources.room import Room, Space
from jobq.resources.shapes import MOST_SHAPES, NO_SHAPE, rank
from jobq.settlement import Complete
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
from tests.postgres.support import DONE, LEASE, NOW, take, tasks

pytestmark = pytest.mark.check

_ORPHANS = """
    SELECT id FROM jobq.task WHERE rank > 1::bigint << 39
    AND (rank + (1::bigint << 39)) >> 40 NOT IN (SELECT shape FROM jobq.shape)
"""


def room(cpus: float = 0, total: float | None = None, **more: Any) -> Room:
    free = Space(cpus=round(cpus * 1000), mem=parse("64G"))
    return Room(free=free, total=free.copied({"cpus": round((cpus if total is None else total) * 1000)}), **more)


def handle(database: Database) -> PostgresBackend:
    return PostgresBackend(database.server(), "q")


async def _advance(_connection: Any) -> Advanced:
    return Advanced()


async def taken(queue: PostgresBackend, what: Room, most: int = 1) -> list[str]:
    return [each.id for each in await queue.receive_fitting(what, most, LEASE, NOW)]


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """Run all; the first failure ends the others."""
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work)


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


async def test_a_call_that_is_refused_fails_no_other_of_its_group(queue: PostgresBackend) -> None:
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


async def test_pushes_of_the_same_new_shape_at_once_make_one(database: Database, queue: PostgresBackend) -> None:
    """In opposite orders, beside pushes of the same ids: none is refused, and none waits in a circle."""
    await queue.push(tasks(1))

    async def push(number: int) -> None:
        async with handle(database) as mine:
            for start in range(3):
                same = [task for cpus in range(1, 5) for task in tasks(1, f"{start}-{cpus}", cpus=cpus + 4 * start)]
                await mine.push(same if number % 2 else same[::-1])

    await together(*(push(number) for number in range(8)))
    assert database.run("SELECT count(*), max(shape) FROM jobq.shape") == [(12, 12)]
    assert database.run("SELECT newest_shape FROM jobq.queue") == [(12,)]
    assert {each.count for each in await queue.waiting_shapes()} == {1}
    assert database.run(_ORPHANS) == []


async def test_no_shape_is_dropped_under_a_push_that_uses_it(database: Database, queue: PostgresBackend) -> None:
    """While a full queue drops what nobody uses, for new ones, others push what it may be dropping just then."""
    await queue.push([task for cpus in range(1, MOST_SHAPES + 1) for task in tasks(1, f"s{cpus}", cpus=cpus)])
    await queue.clear()

    async def make(first: int) -> None:
        connection = await database.server().connect("ends them")
        async with handle(database) as mine:
            for cpus in range(first, first + 60):
                await mine.push(tasks(1, f"n{cpus}", cpus=cpus))
                await connection.execute("DELETE FROM jobq.task WHERE id = $1", f"n{cpus}-00000")
        await connection.close()

    async def push(prefix: str) -> None:
        async with handle(database) as mine:
            for cpus in range(1, 61):
                await mine.push(tasks(1, f"{prefix}{cpus}", cpus=cpus))

    await together(make(1001), make(2001), *(push(f"o{number}-") for number in range(4)))
    assert database.run(_ORPHANS) == []
    assert sorted(each.count for each in await queue.waiting_shapes()) == [4] * 60


@pytest.mark.usefixtures("queue")
async def test_claims_with_different_rooms_share_and_miss_nothing(database: Database) -> None:
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
        room(1),
        room(2),
        room(4),
        room(4, tags=["eu"]),
        room(2, 4, reserves_after=0.01),
        room(1, tags=["eu"]),
        None,
    ]

    async def work(number: int, what: Room | None) -> None:
        async with handle(database) as mine:
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
        async with handle(database) as mine:
            for number in range(12):
                await mine.push(
                    [
                        task
                        for kind, asked in enumerate(kinds)
                        for task in tasks(4, f"{prefix}-{number}-{kind}", priority=number % 3, **asked)
                    ]
                )

    await together(push("a"), push("b"), *(work(number, what) for number, what in enumerate(rooms)))
    assert len(seen) == len(set(seen)) == 2 * 12 * 4 * len(kinds)
    assert database.run("SELECT count(*) FROM jobq.task") == [(0,)]


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


async def test_the_overtaken_one_is_written_once(database: Database, queue: PostgresBackend) -> None:
    """A claim that takes another one for want of room writes no more than that it did, and only when that is new."""
    await queue.push([*tasks(1, "large", cpus=8), *tasks(5, "small", cpus=1)])
    noted = "SELECT overtaken_seq, overtaken_since, xmin::text FROM jobq.shape WHERE request LIKE '%8000%'"
    what = room(4, 8, reserves_after=3600.0)
    assert await taken(queue, what.copied({"reserves_after": None})) == ["small-00000"]
    ((seq, _, _),) = database.run(noted)
    assert seq is None
    assert await taken(queue, what) == ["small-00001"]
    first = database.run(noted)
    assert first[0][:2] != (None, None)
    assert await taken(queue, what) == ["small-00002"]
    assert database.run(noted) == first


async def test_what_does_not_fit_costs_who_waits_no_claim(database: Database, queue: PostgresBackend) -> None:
    """It is woken by what fits, and by each note that may be that: of a shape that it has not heard of."""
    await queue.push(tasks(1, "first", cpus=8))
    async with handle(database) as waiter:
        waiting = asyncio.create_task(waiter.receive_fitting(room(1), 1, LEASE, timedelta(seconds=30)))
        links = await waiter._linked()
        sent = 0
        claim = links.claim

        def counted(*values: Any, **named: Any) -> Any:
            nonlocal sent
            sent += 1
            return claim(*values, **named)

        links.claim = counted  # type: ignore[method-assign] # counts
        async with asyncio.timeout(20):
            while not links.claimer._shapes.keys() - {NO_SHAPE}:
                await asyncio.sleep(0.01)
        began, noted = sent, links.claimer.notes
        for number in range(100):
            await queue.push(tasks(1, f"more{number}", cpus=8))
        async with asyncio.timeout(20):
            while links.claimer.notes < noted + 100:
                await asyncio.sleep(0.01)
        assert not waiting.done()
        assert sent - began < 20  # by its own look each second alone
        await queue.push(tasks(1, "new", cpus=1))
        (found,) = await asyncio.wait_for(waiting, 5)
        assert found.id == "new-00000"


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


async def test_tasks_at_the_end_of_a_batch_ask_for_what_they_say(database: Database, queue: PostgresBackend) -> None:
    """And where they would be one shape too many, the batch ends all the same: they are handed out to anyone."""
    for number, name in enumerate(("one", "two")):
        then = Task.new(command="true", id=f"jobq.then.{name}", cpus=16 + number)
        await queue.batches.begin(name, Plan(then=(then.encode().decode(),)))
    await queue.batches.seal("one")
    assert await taken(queue, room(1)) == []
    assert await taken(queue, room(16)) == ["jobq.then.one.1"]
    await queue.push([task for cpus in range(1, MOST_SHAPES) for task in tasks(1, f"s{cpus}", cpus=cpus / 100)])
    await queue.batches.seal("two")
    assert await taken(queue, Room()) == ["jobq.then.two.1"]
    assert database.run("SELECT count(*) FROM jobq.shape") == [(MOST_SHAPES,)]


async def test_who_takes_nothing_but_shapes_takes_no_plain_task(queue: PostgresBackend) -> None:
    """Before there is any shape, too: of such a room nothing is asked of the index."""
    await queue.push(tasks(3))
    counted = room(0, 1, counts_slots=True)
    assert await taken(queue, counted) == []
    assert await taken(queue, room(2, counts_slots=True), 5) == ["t-00000", "t-00001"]
    await queue.push(tasks(1, "part", mem="1G"))
    assert await taken(queue, counted) == []
    assert await taken(queue, counted.copied({"reserves_after": 0.0})) == [], "a plain task is first"
    assert (await take(queue)).id == "t-00002"


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
