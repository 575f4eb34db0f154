"""S3: an id that is pushed again goes on with higher tokens, whatever this database has forgotten."""

import asyncio
from collections.abc import Sequence

import asyncpg
import pytest

from jobq.task import Task
from jobq_postgres import PostgresBackend
from tests.postgres.server import Database
from tests.postgres.support import take, tasks


@pytest.mark.parametrize(
    "again",
    [tasks(1), tasks(2), tasks(250), tasks(1, not_before=1.0), [*tasks(1), *tasks(1, "later", not_before=4e9)]],
    ids=["one", "some", "copy", "due", "scheduled"],
)
async def test_a_push_that_waits_for_who_forgets_its_id(
    database: Database, queue: PostgresBackend, again: Sequence[Task]
) -> None:
    """Its statement began before the epoch was raised; nothing of it is there in the former one."""
    await queue.push(again)
    before = await take(queue)
    other = await asyncpg.connect(database.url)
    try:
        forgetting = other.transaction()
        await forgetting.start()
        await other.execute("DELETE FROM jobq.task")
        await other.execute("DELETE FROM jobq.submission")
        pushing = asyncio.create_task(queue.push(again))
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        while not await other.fetchval(waits):
            await asyncio.sleep(0)
            assert not pushing.done()
        await forgetting.commit()
    finally:
        await other.close()
    assert await pushing == [each.id for each in again]
    after = await take(queue)
    assert after.id == before.id
    assert after.fencing > before.fencing
    assert database.run("SELECT count(*), min(epoch) FROM jobq.submission") == [(len(again), 1)]


@pytest.mark.usefixtures("queue")
async def test_epochs_cost_no_rights(database: Database) -> None:
    """A role that may not touch the sequence pushes and forgets all the same, and cannot turn it back."""
    name = database.url.rsplit("_", 1)[1]
    database.run(f"CREATE ROLE least_{name} LOGIN")
    try:
        database.run(
            f"GRANT USAGE ON SCHEMA jobq TO least_{name};"
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA jobq TO least_{name};"
            f"GRANT USAGE, SELECT ON SEQUENCE jobq.position TO least_{name}"
        )
        least = Database(database.url.replace("//postgres@", f"//least_{name}@"))
        async with PostgresBackend(least.server(), "q") as backend:
            await backend.push(tasks(1))
            await backend.clear()
            await backend.push(tasks(1))
            assert (await take(backend)).fencing == (1, 0, 1)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            least.run("SELECT setval('jobq.epoch', 0)")
    finally:
        database.run(f"DROP OWNED BY least_{name}; DROP ROLE least_{name}")
