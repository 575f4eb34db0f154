"""Sections of the schema that run outside of a transaction: who writes goes on, and a crash costs nothing but time."""

import asyncio
from typing import Any, Final

import pytest

from jobq.errors import JobqError, StoreUnusable
from jobq.task import Task
from jobq_postgres import PostgresBackend, migrations
from tests.postgres.server import Database
from tests.postgres.support import LEASE, NOW, take, tasks

_TRANSACTIONAL: Final = 8  # the last section before the online one
_BUILDS: Final = """
    SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'CREATE INDEX CONCURRENTLY%'
    AND datname = current_database()
"""
_INVALID: Final = "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
_UNCHECKED: Final = "SELECT count(*) FROM pg_constraint WHERE NOT convalidated"


@pytest.fixture
async def former(database: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A database of version 7 with a task, migrated up to the online section."""
    sections = migrations.sections()
    body = Task.new(command="true", id="old").encode()
    with monkeypatch.context() as older:
        older.setattr(migrations, "sections", lambda: sections[:7])
        await PostgresBackend(database.server(), "q").create()
        database.run("INSERT INTO jobq.submission (queue_id, id) VALUES (1, 'old')")
        database.run("INSERT INTO jobq.task (queue_id, id, body) VALUES (1, 'old', $1)", body)
        older.setattr(migrations, "sections", lambda: sections[:_TRANSACTIONAL])
        await PostgresBackend(database.server(), "q").create()
    return database


async def test_a_migration_that_is_killed_goes_on_where_it_was(former: Database) -> None:
    """Before it is done nobody works with it; what it has left half built is built again."""
    queue = PostgresBackend(former.server(), "q")
    writer, watcher = await former.server().open("writer"), await former.server().open("watcher")
    try:
        writing = writer.transaction()
        await writing.start()
        await writer.execute(
            "INSERT INTO jobq.submission (queue_id, id) VALUES (1, 'a'); DELETE FROM jobq.task WHERE id = ''"
        )
        migrating = asyncio.create_task(queue.create())
        builder = await _builder(watcher, migrating)
        await watcher.execute("INSERT INTO jobq.submission (queue_id, id) VALUES (1, 'b')")  # waits for nobody
        await watcher.execute("INSERT INTO jobq.task (queue_id, id, body) VALUES (1, 'b', '')")
        await watcher.execute("SELECT pg_terminate_backend($1)", builder)
        with pytest.raises(JobqError):
            await migrating
        assert await watcher.fetchval(_INVALID) == 1
        with pytest.raises(StoreUnusable, match="migrate it"):
            await queue.receive(1, LEASE, NOW)
        await writing.rollback()
    finally:
        writer.terminate()
        watcher.terminate()
    await asyncio.gather(*(PostgresBackend(former.server(), f"q{number}").create() for number in range(4)))
    await _is_whole(former)
    async with queue:
        assert (await take(queue)).id == "old"


async def test_who_waits_for_a_migration_is_not_waited_for_by_it(former: Database) -> None:
    """A second one comes while an index is built: a statement that waits for a lock would hold the first one up."""
    writer, watcher = await former.server().open("writer"), await former.server().open("watcher")
    try:
        writing = writer.transaction()
        await writing.start()
        await writer.execute("DELETE FROM jobq.task WHERE id = ''")
        first = asyncio.create_task(PostgresBackend(former.server(), "q").create())
        await _builder(watcher, first)
        second = asyncio.create_task(PostgresBackend(former.server(), "r").create())
        await asyncio.wait({first, second}, timeout=1.0)
        assert not first.done()
        assert not second.done()
        await writing.commit()
        await asyncio.gather(first, second)
    finally:
        writer.terminate()
        watcher.terminate()
    await _is_whole(former)


async def test_a_new_database_waits_for_nobody(database: Database) -> None:
    """Its tables are empty: a transaction of somebody else in the same database holds nothing up."""
    other = await database.server().open("other")
    try:
        transaction = other.transaction(isolation="repeatable_read")
        await transaction.start()
        await other.fetch("SELECT 1")
        async with asyncio.timeout(10), PostgresBackend(database.server(), "q") as queue:
            await queue.create()
            await queue.push(tasks(1))
        await transaction.rollback()
    finally:
        other.terminate()
    await _is_whole(database)


async def _builder(watcher: Any, migrating: "asyncio.Task[None]") -> int:
    while (pid := await watcher.fetchval(_BUILDS)) is None:
        assert not migrating.done(), migrating
        await asyncio.sleep(0)
    return int(pid)


async def _is_whole(database: Database) -> None:
    assert database.run("SELECT version FROM jobq.version") == [(migrations.wanted_version(),)]
    assert database.run(_INVALID) == [(0,)]
    assert database.run(_UNCHECKED) == [(0,)]
    names = {name for (name,) in database.run("SELECT indexname::text FROM pg_indexes WHERE schemaname = 'jobq'")}
    assert {"task_of_batch", "dead_of_batch", "submission_of_batch", "submission_ended_of_batch"} <= names
