"""Making and migrating the schema: twice, by several at once, by and with the wrong version, and by whom."""

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobq.batch_plan import Plan
from jobq.errors import AccessDenied, ConfigurationError, QueueNotFound, StoreUnusable
from jobq.resources.room import Room
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.task import Task
from jobq_postgres import PostgresBackend, schema
from tests.postgres.server import Database
from tests.postgres.support import DONE, LEASE, NOW, take, tasks
from tests.postgres.test_command_line import jobq


def handle(database: Database, queue: str = "q") -> PostgresBackend:
    return PostgresBackend(database.server(), queue)


async def test_create_is_safe_twice_and_by_many_at_once(database: Database) -> None:
    handles = [handle(database, f"q{number % 2}") for number in range(8)]
    await asyncio.gather(*(each.create() for each in handles))
    await handles[0].create()
    assert database.run("SELECT version FROM jobq.version") == [(schema.VERSION,)]
    assert database.run("SELECT name FROM jobq.queue ORDER BY name") == [("q0",), ("q1",)]
    with pytest.raises(ConfigurationError, match="exists already"):
        await handles[0].create(exist_ok=False)


async def test_without_tables_the_queue_is_missing(database: Database) -> None:
    async with handle(database) as backend:
        with pytest.raises(QueueNotFound, match="create"):
            await backend.push(tasks(1))
        await backend.create()
        await backend.push(tasks(1))
    async with handle(database, "other") as backend:
        with pytest.raises(QueueNotFound, match="'other'"):
            await backend.receive(1, None, NOW)


@pytest.mark.parametrize("version", [schema.VERSION - 1, schema.VERSION + 1])
async def test_other_versions_are_refused(database: Database, version: int) -> None:
    """A worker of another jobq says so, and touches nothing."""
    advice = f"has version {version} of jobq's tables"
    async with handle(database) as backend:
        await backend.create()
        await backend.push(tasks(1))
    database.run(f"UPDATE jobq.version SET version = {version}")
    async with handle(database) as backend:
        for call in (lambda: backend.push(tasks(1, "n")), lambda: backend.receive(1, None, NOW), backend.stats):
            with pytest.raises(StoreUnusable, match=advice):
                await call()
    with pytest.raises(StoreUnusable, match=advice):
        await handle(database).create()
    assert database.run("SELECT count(*) FROM jobq.task") == [(1,)]


async def test_a_worker_that_is_connected_notices_other_tables(database: Database) -> None:
    """At its next look; its leases can still be settled."""
    async with handle(database) as worker:
        await worker.create()
        await worker.push(tasks(2))
        held = await take(worker)
        await held.renew(LEASE)  # over a connection of its own, which is there before
        database.run("UPDATE jobq.version SET version = 99")
        with pytest.raises(StoreUnusable, match="has version 99"):
            await _receive_both(worker)
        await held.renew(LEASE)
        await held.settle(Complete(DONE))


async def test_tables_that_cannot_be_made_leave_nothing(database: Database) -> None:
    database.run(
        "CREATE SCHEMA jobq; CREATE FUNCTION jobq.current_epoch() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'"
    )
    with pytest.raises(Exception, match="already exists"):
        await handle(database).create()
    assert database.run("SELECT to_regclass('jobq.version'), to_regclass('jobq.epoch')") == [(None, None)]


async def test_a_new_database_waits_for_nobody(database: Database) -> None:
    """A transaction of somebody else in the same database holds nothing up."""
    other = await database.server().open("other")
    try:
        transaction = other.transaction(isolation="repeatable_read")
        await transaction.start()
        await other.fetch("SELECT 1")
        async with asyncio.timeout(10), handle(database) as queue:
            await queue.create()
            await queue.push(tasks(1))
        await transaction.rollback()
    finally:
        other.terminate()


async def test_schema_of_someone_else_is_left_alone_and_an_empty_one_is_used(database: Database) -> None:
    database.run("CREATE SCHEMA jobq; CREATE TABLE jobq.theirs (x integer)")
    with pytest.raises(StoreUnusable, match="not ours"):
        await handle(database).create()
    database.run("DROP TABLE jobq.theirs")
    await handle(database).create()
    assert database.run("SELECT count(*) FROM jobq.queue") == [(1,)]


def documented_grants(**roles: str) -> str:
    """Return what docs/postgresql.md has an owner run, for other roles."""
    page = (Path(__file__).parents[2] / "docs/postgresql.md").read_text()
    (sql,) = re.findall(r"^```sql\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return re.sub(r"\b(pusher|worker|watcher)\b", lambda found: roles[found[0]], sql)


@pytest.fixture
def roles(database: Database) -> Any:
    name = database.url.rsplit("_", 1)[1]
    made = {role: f"{role}_{name}" for role in ("pusher", "worker", "watcher")}
    for role in made.values():
        database.run(f"CREATE ROLE {role} LOGIN")
    yield made
    for role in made.values():
        database.run(f"DROP OWNED BY {role}; DROP ROLE {role}")


def as_role(database: Database, role: str) -> PostgresBackend:
    return PostgresBackend(Database(database.url.replace("//postgres@", f"//{role}@")).server(), "q")


async def test_least_rights_are_those_of_the_documentation(database: Database, roles: dict[str, str]) -> None:
    """A9: a pusher can push and nothing else, a worker everything but make queues or change tables."""
    pusher, worker = roles["pusher"], roles["worker"]
    async with handle(database) as owner:
        await owner.create()
    async with as_role(database, pusher) as backend:
        with pytest.raises(AccessDenied, match="permission denied"):
            await backend.push(tasks(1))
    database.run(documented_grants(**roles))
    async with as_role(database, pusher) as backend:
        await backend.push(tasks(3))
        await backend.push(tasks(300, "bulk"))
        await backend.push(tasks(3))  # known already
        await backend.push(tasks(1, "large", cpus=3))
        await backend.create()  # it is there: no right is needed to find that out
        for call in (lambda: backend.receive(1, LEASE, NOW), backend.clear):
            with pytest.raises(AccessDenied, match=r"docs/postgresql\.md"):
                await call()
        with pytest.raises(AccessDenied):
            await as_role_queue(database, pusher, "new").create()
    async with as_role(database, worker) as backend:
        delivery = await take(backend)
        await delivery.renew(LEASE)
        await delivery.checkpoint("x")
        await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW))
        await (await take(backend)).settle(Complete(DONE))
        dead = await take(backend)
        await dead.settle(MoveToDeadLetters("failures", ""))
        await backend.push(tasks(1, "urgent", cpus=2, priority=1))
        overtaking = Room(free={"cpus": 1000}, total={"cpus": 2000}, reserves_after=3600)
        (other,) = await backend.receive_fitting(overtaking, 1, LEASE, NOW)
        await other.settle(Complete(DONE))
        assert database.run("SELECT request FROM jobq.shape WHERE overtaken_seq > 0") == [('{"cpus":2000}',)]
        assert {each.count for each in await backend.waiting_shapes()} == {1, 300}
        await backend.peek(1)
        await backend.stats()
        await backend.dead_letters(1)
        assert await backend.redrive([dead.id]) == [dead.id]
        await backend.push(tasks(1, "from a worker".replace(" ", "-")))
        assert await backend.clear() == 304
        with pytest.raises(AccessDenied):
            await backend._beside(lambda connection: connection.execute("DELETE FROM jobq.shape"))
        with pytest.raises(AccessDenied):
            await as_role_queue(database, worker, "new").create()


async def test_each_role_does_its_own_with_batches(database: Database, roles: dict[str, str]) -> None:
    """A9: a pusher begins, fills and seals one, a worker ends it, and who looks counts it."""
    async with handle(database) as owner:
        await owner.create()
    database.run(documented_grants(**roles))
    then = Task.new(command="true", id="then").encode().decode()
    async with as_role(database, roles["pusher"]) as pusher:
        await pusher.batches.begin("s7", Plan())
        await pusher.batches.begin("s7", Plan(then=(then,)))
        await pusher.push([*tasks(1, batch="s7"), *tasks(300, "bulk", batch="s7", params={"lr": 0.1})])
        assert (await pusher.batches.seal("s7")).total == 301
        await pusher.batches.begin("s8", Plan())
        await pusher.batches.seal("s8")
        await pusher.batches.reopen("s8")
        assert len(await pusher.batches.members("s7", "", 10)) == 10
        with pytest.raises(AccessDenied):
            await pusher.batches.cancel("s7")
    async with as_role(database, roles["worker"]) as worker:
        dead = await take(worker)
        await dead.settle(MoveToDeadLetters("failures", ""))
        await worker.redrive([dead.id])
        await worker.batches.cancel("s7")
        assert (await take(worker)).id == "jobq.then.s7.1"
    async with as_role(database, roles["watcher"]) as watcher:
        assert (await watcher.batches.find("s7")).counts["canceled"] == 301
        assert [batch.name for batch in await watcher.batches.list("", 5)] == ["s7", "s8"]
        with pytest.raises(AccessDenied):
            await watcher.batches.seal("s8")


@pytest.mark.slow("a real server, and leases of seconds")
def test_each_role_does_its_own_on_the_command_line_and_nothing_else(
    database: Database, roles: dict[str, str], tmp_path: Path
) -> None:
    """A9: with a journal, as the commands use it; what is refused changes nothing."""
    spec = {role: database.spec().replace("//postgres@", f"//{name}@") for role, name in roles.items()}
    jobq(database.spec(), "create", folder=tmp_path)
    database.run(documented_grants(**roles))
    jobq(spec["pusher"], "push", "--id", "one", "-c", "echo ran > ran", folder=tmp_path)
    jobq(spec["pusher"], "push", "--id", "two", "--num-retries", "0", "-c", "exit 1", folder=tmp_path)
    jobq(spec["worker"], "worker", folder=tmp_path)
    assert (tmp_path / "ran").read_text() == "ran\n"
    jobq(spec["pusher"], "push", "--id", "three", "-c", "echo again > again", folder=tmp_path)
    changes: tuple[tuple[str, ...], ...] = (("cancel", "three"), ("clear", "--yes"), ("dead", "purge", "two"))
    changes += (("dead", "retry", "two"), ("worker",))
    for command in (*changes, ("push", "-c", "true")):
        assert "permission denied" in jobq(spec["watcher"], *command, folder=tmp_path, code=3)
    for command in changes:
        assert "permission denied" in jobq(spec["pusher"], *command, folder=tmp_path, code=3)
    looks = (("size",), ("peek",), ("stats",), ("ps",), ("dead", "list"), ("status", "one"), ("logs", "one"))
    assert [
        word
        for word, command in (("1", ("size",)), ("two", ("dead", "list", "--json")), ("three", ("peek", "--json")))
        if word in jobq(spec["watcher"], *command, folder=tmp_path)
    ] == ["1", "two", "three"]
    for command in looks:
        jobq(spec["watcher"], *command, folder=tmp_path)
    jobq(spec["worker"], "dead", "retry", "two", folder=tmp_path)
    jobq(spec["worker"], "worker", folder=tmp_path)
    assert (tmp_path / "again").exists()


def as_role_queue(database: Database, role: str, queue: str) -> PostgresBackend:
    return PostgresBackend(Database(database.url.replace("//postgres@", f"//{role}@")).server(), queue)


async def _receive_both(backend: PostgresBackend) -> None:
    for _ in range(2):  # the first may still find the task that is left
        await backend.receive(1, LEASE, timedelta(seconds=5))


async def test_who_may_only_push_forgets_expired_ids(
    database: Database, queue: PostgresBackend, roles: dict[str, str]
) -> None:
    """S8: and none before its time, whatever is asked of the function that does it."""
    database.run(documented_grants(**roles))
    again = tasks(2)
    await queue.push(again)
    for delivery in await queue.receive(2, LEASE, NOW):
        await delivery.settle(Complete(DONE))
    older = "UPDATE jobq.submission SET ended_at = ended_at - interval '{} days'"
    async with as_role(database, roles["pusher"]) as pusher:
        database.run(older.format(29))
        database.run("SELECT jobq.forget_expired(1, ARRAY['t-00000'], '0')")
        await pusher.push(again)
        assert (await queue.stats()).visible == 0
        database.run(older.format(2))
        await pusher.push(again)
    assert (await queue.stats()).visible == 2
