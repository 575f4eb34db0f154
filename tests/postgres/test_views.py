"""Looking at a whole database: by indexes alone, for a bounded time, beside who claims, by who may only look."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobq.errors import AccessDenied, BackendUnavailable
from jobq.journal.notes import DEPTH_MARK, NoteKind, time_key
from jobq.journal.records import TaskState
from jobq.journal.task_filter import TaskFilter
from jobq.journal.task_search import TaskOrder
from jobq.settlement import Complete, MoveToDeadLetters
from jobq_postgres import PostgresBackend, dead_groups, lease_listing, observations, queue_lines, task_walk
from jobq_postgres.views import PostgresViews
from tests.postgres.server import Database
from tests.postgres.support import DONE, LEASE, NOW, take, tasks
from tests.postgres.test_schema import as_role, documented_grants
from tests.postgres.test_schema import roles as roles  # noqa: PLC0414 - a fixture

_NOW = datetime(2030, 1, 1, tzinfo=UTC)
_VALUES = {
    "queue": 1, "batch": 1, "now": _NOW, "look": 50, "want": 50, "oldest": datetime(2000, 1, 1, tzinfo=UTC),
    "newest": _NOW, "body": b"x", "record0": "x",
}  # fmt: skip
_KEYS = {"rank": 0, "position": 0, "seq": 0, "batch_id": 1, "id": "x"}
_INDEXES = {
    TaskOrder.EXPIRED: "task_leased",
    TaskOrder.RUNNING: "task_leased",
    TaskOrder.READY: "task_ready",
    TaskOrder.DUE: "task_scheduled",
    TaskOrder.SCHEDULED: "task_scheduled",
    TaskOrder.DEAD: "dead_by_age",
    TaskOrder.ENDED: "submission_ended",
}
_OF_BATCH = {
    TaskOrder.READY: "task_of_batch",
    TaskOrder.DEAD: "dead_of_batch",
    TaskOrder.ENDED: "submission_ended_of_batch",
}
_ORDERS = {str(order): (walk, _INDEXES[order]) for order, walk in task_walk.ORDERS.items()} | {
    f"{order} of a batch": (walk, _OF_BATCH[order]) for order, walk in task_walk.OF_BATCH.items()
}
FILL = """
    WITH known AS (
        INSERT INTO jobq.submission (queue_id, id, ended_at)
        SELECT 1, 't-' || lpad(n::text, 8, '0'), CASE WHEN n <= {done} THEN clock_timestamp() - n * interval '1 s' END
        FROM generate_series(1, {count}) AS n RETURNING id, ended_at)
    INSERT INTO jobq.task (queue_id, id, body)
    SELECT 1, id, convert_to('{{"version":2,"id":"' || id || '","command":"train ' || id || '"}}', 'UTF8')
    FROM known WHERE ended_at IS NULL ORDER BY id
"""


async def _explain(database: Database, statement: str, *values: object) -> str:
    connection = await database.server().connect("plan")
    try:
        await connection.execute("ANALYZE jobq.task; ANALYZE jobq.submission; ANALYZE jobq.dead; ANALYZE jobq.attempt")
        return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN (COSTS OFF) {statement}", *values))
    finally:
        await connection.close()


@pytest.mark.usefixtures("queue")
async def test_each_order_is_walked_by_its_index(database: Database) -> None:
    """Whatever the depth: what is leased alone is sorted, and else what has the same time."""
    await asyncio.to_thread(database.run, FILL.format(count=5000, done=2500))
    for name, (order, index) in _ORDERS.items():
        for is_first in (True, False):
            walk = order.walk(is_first=is_first)
            keys = {f"key{n}": _KEYS.get(key, _NOW) for n, key in enumerate(order.keys)}
            listed = task_walk.listed(order, walk, "coalesce(strpos(last_record, :record0) > 0, true)")
            for sql in (listed, task_walk.counted(walk)):
                text, values = task_walk.bound(sql, {**_VALUES, **keys})
                plan = await _explain(database, text, *values)
                nodes = [line.strip().removeprefix("->").strip() for line in plan.splitlines()]
                (entered,) = [n for n, node in enumerate(nodes) if f"{index} on" in node]
                assert "Seq Scan" not in plan, (name, plan)
                sorts = nodes.count("Sort")
                assert sorts == (index == "task_leased"), (name, plan)
                bounds = nodes[entered + 1]
                assert bounds.startswith("Index Cond"), (name, plan)
                if not is_first and index != "task_leased":  # entered at the place, not walked over up to it
                    first = order.keys[0].replace("position", '"position"')
                    assert f"(ROW({first}, " in bounds or f"({first} <= " in bounds or f"({first} >= " in bounds, plan


@pytest.mark.parametrize(
    ("statement", "values", "index"),
    [
        *((sql, (1, 10, _NOW), "task_") for state, sql in queue_lines.COUNTS.items() if state is not TaskState.DEAD),
        (queue_lines.COUNTS[TaskState.DEAD], (1, 10, _NOW), "dead_by_age"),
        (queue_lines.DONE, (1, 10), "submission_ended"),
        (queue_lines.OTHERWISE, (1, 10), "submission_canceled"),
        (queue_lines.ENDED, (1, 10, _NOW), "submission_ended"),
        (queue_lines.DIED, (1, 10, _NOW), "dead_by_age"),
        (dead_groups.LETTERS, (1, _NOW, "x", 10), "dead_by_age"),
        (lease_listing.LISTED, ("q", "", 10, "x", 10), "lease_pkey"),
        (lease_listing.EDGE, ("q", "", 10), "lease_pkey"),
        (observations.OUTCOMES, (1, _NOW, _NOW), "attempt_by_end"),
        (observations.SAMPLE, (1, _NOW, _NOW, 10), "attempt_by_end"),
        (observations.PAGE, (1, "depth", "", 10), "observation_pkey"),
        (observations.DROP, (1, "depth", ["x"]), "observation_pkey"),
    ],
)
@pytest.mark.usefixtures("queue")
async def test_counts_and_groups_are_read_from_indexes(
    database: Database, statement: str, values: tuple[Any, ...], index: str
) -> None:
    await asyncio.to_thread(database.run, FILL.format(count=5000, done=2500))
    plan = await _explain(database, statement, *values)
    assert index in plan, plan
    assert "Seq Scan" not in plan, plan


async def test_the_server_ends_a_statement_whose_time_is_over(
    queue: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was counted before is told; the connection goes on."""
    await queue.push(tasks(3))
    slow = "SELECT 1 FROM pg_sleep(60 + 0 * ($1::integer + $2::integer)) WHERE $3::timestamptz IS NOT NULL"
    monkeypatch.setitem(queue_lines.COUNTS, TaskState.DEAD, slow)
    async with queue.views() as views:
        began = time.monotonic()
        (line,) = (await views.queues("", 10, budget=timedelta(milliseconds=50))).rows
        assert (line.counts[TaskState.READY].number, TaskState.DEAD in line.counts) == (3, False)
        count = await views.count("q", TaskFilter(), budget=timedelta(milliseconds=50))
        assert (count.number, count.is_exact) == (3, False)
        assert time.monotonic() - began < 30, "and not after the minute that the statement takes"
        monkeypatch.undo()
        (line,) = (await views.queues("", 10)).rows
        assert line.counts[TaskState.DEAD].number == 0


async def test_a_slow_look_holds_up_no_claim_and_no_other_look(queue: PostgresBackend, database: Database) -> None:
    """It waits for a lock here, for as long as we like; what claims has connections of its own."""
    await queue.push(tasks(3))
    await take(queue)
    locker = await database.server().connect("lock")
    try:
        async with queue.views() as views, locker.transaction():
            await views.queues("", 10)
            await locker.execute("LOCK TABLE jobq.lease IN ACCESS EXCLUSIVE MODE")
            looking = asyncio.create_task(views.leases("q", "", "", 10, budget=timedelta(seconds=60)))
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            while await locker.fetchval(waits) == 0:
                await asyncio.sleep(0.01)
            async with asyncio.timeout(20):
                delivery = await take(queue)
                await delivery.settle(Complete(DONE))
                assert len((await views.tasks("q", TaskFilter(), "", 10)).rows) == 3
            assert not looking.done()
            looking.cancel()
    finally:
        await locker.close()


async def test_looks_can_write_nothing(queue: PostgresBackend) -> None:
    async with queue.views() as views:
        assert isinstance(views, PostgresViews)
        with pytest.raises(BackendUnavailable, match="read-only"):
            await views._submit(lambda connection: connection.execute("DELETE FROM jobq.task"), 1.0)
        assert [line.name for line in (await views.queues("", 10)).rows] == ["q"]
    with pytest.raises(BackendUnavailable, match="left"):
        await views.queues("", 10)


async def test_two_connections_at_most(queue: PostgresBackend, database: Database) -> None:
    await queue.push(tasks(3))
    async with queue.views() as views:
        await asyncio.gather(*(views.tasks("q", TaskFilter(text="*"), "", 10) for _ in range(20)))
        looks = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = 'jobq look' AND datname = current_database()"
        )
        assert await asyncio.to_thread(database.run, looks) == [(2,)]


async def test_who_may_only_look_looks(queue: PostgresBackend, database: Database, roles: dict[str, str]) -> None:
    """A9: the rights of a watcher are enough for each verb, and those of a pusher are not."""
    await queue.push(tasks(3))
    await (await take(queue)).settle(MoveToDeadLetters("failures", "exit code 3"))
    await (await take(queue)).settle(Complete(DONE))
    await asyncio.to_thread(database.run, documented_grants(**roles))
    async with as_role(database, roles["watcher"]) as watcher, watcher.views() as views:
        (line,) = (await views.queues("", 10)).rows
        assert (line.name, line.counts[TaskState.DEAD].number) == ("q", 1)
        rows = (await views.tasks("q", TaskFilter(), "", 10)).rows
        assert [row.state for row in rows] == [TaskState.READY, TaskState.DEAD, TaskState.SUCCEEDED]
        assert (await views.count("q", TaskFilter(text="true"))).number == 2
        assert (await views.count("q", TaskFilter(batch="s7"))).number == 0
        for row in rows:
            assert await views.task("q", row.id) is not None
            assert await views.output("q", row.id) is None
        assert (await views.leases("q", "", "", 10)).rows == []
        assert [group.count for group in (await views.dead_groups("q", ["exit"], 10)).groups] == [1]
        assert await views.notes("q", NoteKind.DEPTH, "", 10) == []
        notes = watcher.observations()
        assert notes is not None
        with pytest.raises(AccessDenied):
            await notes.put(NoteKind.DEPTH, time_key(1), DEPTH_MARK, replaces=False)
    async with as_role(database, roles["pusher"]) as pusher, pusher.views() as views:
        with pytest.raises(AccessDenied):
            await views.tasks("q", TaskFilter(), "", 10)


async def test_ends_of_one_moment_are_paged_as_well(queue: PostgresBackend, database: Database) -> None:
    """The index of the ends has no ids: those of one moment are sorted by them."""
    await asyncio.to_thread(database.run, FILL.format(count=300, done=300))
    await asyncio.to_thread(database.run, "UPDATE jobq.submission SET ended_at = date_trunc('day', ended_at)")
    seen, after = list[str](), ""
    async with queue.views() as views:
        while True:
            page = await views.tasks("q", TaskFilter(states=frozenset({TaskState.SUCCEEDED})), after, 70)
            seen += [row.id for row in page.rows]
            if page.after is None:
                break
            after = page.after
    assert len(seen) == len(set(seen)) == 300


async def test_a_lease_of_a_worker_that_is_gone_is_listed_as_expired(
    queue: PostgresBackend, database: Database
) -> None:
    await queue.push(tasks(2))
    await queue.receive(2, LEASE, NOW)
    await asyncio.to_thread(
        database.run, "UPDATE jobq.task SET expires_at = clock_timestamp() - interval '5 s' WHERE id = 't-00001'"
    )
    async with queue.views() as views:
        rows = (await views.tasks("q", TaskFilter(), "", 10)).rows
        assert [(row.id, row.state) for row in rows] == [("t-00001", TaskState.EXPIRED), ("t-00000", TaskState.RUNNING)]
        assert rows[0].lease_left is not None
        assert -60 < rows[0].lease_left <= -5
