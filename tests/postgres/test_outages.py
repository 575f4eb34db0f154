"""The server restarts, becomes read-only, runs out of connections, is locked: leases are kept or declared lost."""

import asyncio
import contextlib
import json
import subprocess
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from jobq.errors import AccessDenied, BackendUnavailable, LockLost, SettlementUnknown
from jobq.settlement import Complete, Requeue
from jobq_postgres import PostgresBackend
from tests.cli.conftest import Jobq, eventually
from tests.postgres.server import HOST, Database, PostgresServer
from tests.postgres.support import DONE, LEASE, NOW, take, tasks
from tests.support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.check


async def test_same_handle_goes_on_after_a_restart(own_postgres: PostgresServer) -> None:
    """The lease outlives a crash of the server; each verb is refused or unknown meanwhile, and works after."""
    async with PostgresBackend(own_postgres.database.server(), "q") as queue:
        await queue.create()
        await queue.push(tasks(3))
        held, lost = await take(queue, timedelta(minutes=1)), await take(queue, timedelta(seconds=1))
        waiting = asyncio.create_task(queue.receive(2, LEASE, timedelta(seconds=60)))
        await waiting
        waiting = asyncio.create_task(queue.receive(2, LEASE, timedelta(seconds=60)))
        own_postgres.kill()
        with pytest.raises((BackendUnavailable, SettlementUnknown)):
            await held.renew(LEASE)
        with pytest.raises(BackendUnavailable, match="cannot connect"):
            await held.renew(LEASE)
        with pytest.raises(BackendUnavailable):
            await queue.push(tasks(1, "n"))
        with pytest.raises(BackendUnavailable):
            await waiting
        await asyncio.to_thread(own_postgres.start)
        await held.renew(LEASE)
        await held.settle(Complete(DONE))
        (again,) = await queue.receive(1, LEASE, timedelta(seconds=10))
        assert again.id == lost.id
        assert again.deliveries == 2
        with pytest.raises(LockLost):
            await lost.settle(Complete(DONE))
        waiting = asyncio.create_task(queue.receive(1, LEASE, timedelta(seconds=30)))
        await queue.push(tasks(1, "n"))
        assert [each.id for each in await waiting] == ["n-00000"]


async def test_failover_to_read_only_is_definite(own_postgres: PostgresServer) -> None:
    """A standby takes no writes: nothing was changed, the lease is kept, and a later primary is found."""
    database = own_postgres.database
    async with PostgresBackend(database.server(), "q") as queue:
        await queue.create()
        await queue.push(tasks(2))
        held = await take(queue, timedelta(minutes=1))
        database.run("ALTER SYSTEM SET default_transaction_read_only = on")
        database.run("SELECT pg_reload_conf()")
        await read_only(database, True)
        for call in (
            lambda: held.renew(LEASE),
            lambda: held.settle(Complete(DONE)),
            lambda: queue.push(tasks(1, "n")),
            lambda: queue.push(tasks(500, "n")),
            lambda: queue.receive(1, LEASE, NOW),
        ):
            with pytest.raises(BackendUnavailable, match="read-only"):
                await call()
        writable = Database(database.url + "?default_transaction_read_only=off")
        writable.run("ALTER SYSTEM RESET default_transaction_read_only")
        database.run("SELECT pg_reload_conf()")
        await read_only(database, False)
        await held.renew(LEASE)
        await held.settle(Complete(DONE))
        assert len(await queue.receive(5, LEASE, NOW)) == 1


async def read_only(database: Database, wanted: bool) -> None:
    async with asyncio.timeout(10):
        while database.run("SELECT current_setting('default_transaction_read_only')") != [("on" if wanted else "off",)]:
            await asyncio.sleep(0.05)  # the server tells nobody when it has read its file


async def test_no_connection_left_is_definite_and_passes(own_postgres: PostgresServer) -> None:
    database = own_postgres.database
    async with PostgresBackend(database.server(), "q") as queue:
        await queue.create()
        await queue.push(tasks(1))
        database.run("CREATE ROLE few LOGIN")
        database.run(
            "GRANT USAGE ON SCHEMA jobq TO few; GRANT ALL ON ALL TABLES IN SCHEMA jobq TO few;"
            " GRANT ALL ON ALL SEQUENCES IN SCHEMA jobq TO few"
        )
        few = Database(database.url.replace("//postgres@", "//few@")).server()
        async with PostgresBackend(few, "q") as worker:
            delivery = await take(worker)
            database.run("ALTER ROLE few CONNECTION LIMIT 1")
            with pytest.raises(BackendUnavailable, match="connection"):
                await delivery.renew(LEASE)
            database.run("ALTER ROLE few CONNECTION LIMIT 5")
            await delivery.renew(LEASE)
            await delivery.settle(Complete(DONE))


async def test_locked_table_is_refused_in_time_and_nothing_was_changed(
    database: Database, queue: PostgresBackend
) -> None:
    """A `LOCK TABLE`, or an ALTER that waits: the claim gives up, the lease is not guessed about."""
    await queue.push(tasks(2))
    delivery = await take(queue)
    server = database.server()
    other = await server.connect("lock")
    await other.execute("BEGIN; LOCK TABLE jobq.task IN ACCESS EXCLUSIVE MODE")
    began = time.monotonic()
    with pytest.raises(SettlementUnknown):
        await delivery.renew(LEASE)
    assert time.monotonic() - began < LEASE.total_seconds() / 8 + 2
    with pytest.raises(BackendUnavailable, match="in the way"):
        await queue.receive(1, LEASE, NOW)
    await other.execute("ROLLBACK")
    await other.close()
    await delivery.settle(Complete(DONE))
    assert len(await queue.receive(5, LEASE, NOW)) == 1


async def test_what_is_acknowledged_is_flushed_whatever_the_default_is(database: Database) -> None:
    """S1: synchronous_commit is on in each of our sessions, though database and role say off."""
    name = database.url.rsplit("/", 1)[1]
    database.run(f"ALTER DATABASE {name} SET synchronous_commit = off")
    database.run(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    connection = await database.server().connect("test", checks=False)
    assert await connection.fetchval("SHOW synchronous_commit") == "on"
    assert await connection.fetchval("SHOW default_transaction_isolation") == "read committed"
    await connection.close()
    database.run(f"ALTER DATABASE {name} SET synchronous_commit = remote_apply")
    connection = await database.server().connect("test", checks=False)
    assert await connection.fetchval("SHOW synchronous_commit") == "remote_apply"
    await connection.close()


async def test_black_hole_at_connect_is_told_in_time(database: Database, proxy: TcpProxy) -> None:
    proxy.silence()
    async with PostgresBackend(database.through(proxy.port).server(), "q") as queue:
        began = time.monotonic()
        with pytest.raises(BackendUnavailable, match="cannot connect"):
            await queue.push(tasks(1))
        assert time.monotonic() - began < 8


async def test_others_are_told_again_after_a_connection_could_not_be_made(
    database: Database, queue: PostgresBackend, proxy: TcpProxy
) -> None:
    """A notification that found no connection is lost; those after it are not."""
    async with PostgresBackend(database.through(proxy.port).server(), "q") as worker:
        await queue.push(tasks(1))
        delivery = await take(worker)
        links = await worker._linked()
        await proxy.refuse()
        links.notify({0: 1})
        with pytest.raises(BackendUnavailable):
            await links.look(lambda connection: connection.fetchval("SELECT 1"))  # after it, on the same lane
        await proxy.heal()
        heard: asyncio.Queue[str] = asyncio.Queue()
        listener = await database.server().connect("listen")
        await listener.add_listener(links.channel, lambda *note: heard.put_nowait(str(note[-1])))
        await delivery.settle(Requeue(delivery.task.counters, NOW))
        async with asyncio.timeout(5):
            assert await heard.get() == "0:1", "what was not told yet goes with the next"
        await listener.close()


async def test_a_cancelled_statement_changed_nothing(own_postgres: PostgresServer) -> None:
    """By a statement timeout or an administrator: the lease is neither lost nor extended, and the next try works."""
    server = own_postgres.database.server()
    async with PostgresBackend(server, "q") as queue:
        await queue.create()
        await queue.push(tasks(1))
        held = await take(queue, timedelta(minutes=1))
        other, administrator = await server.connect("lock"), await server.connect("administrator")
        await other.execute("BEGIN; LOCK TABLE jobq.task IN ACCESS EXCLUSIVE MODE")
        renewing = asyncio.create_task(held.renew(LEASE))
        cancel = (
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'jobq lease' AND wait_event_type = 'Lock'"
        )
        async with asyncio.timeout(10):
            while not await administrator.fetch(cancel):
                await asyncio.sleep(0.01)
        with pytest.raises(BackendUnavailable, match="cancelled the statement"):
            await renewing
        await other.execute("ROLLBACK")
        await other.close()
        await administrator.close()
        await held.renew(LEASE)
        await held.settle(Complete(DONE))


def test_whoever_waits_outlasts_an_outage(database: Database, tmp_path: Path) -> None:
    """What is waited for is queued: to end the wait would invite a second push, which would run it twice."""
    line, spec = Jobq(tmp_path), database.spec()
    name, others = database.url.rpartition("/")[2], database.named("postgres")
    waiting = line.start(spec, "push", "--wait", "--ids", "-c", "true")
    assert waiting.stdout is not None
    assert waiting.stderr is not None
    waiting.stdout.readline()
    others.run(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    try:
        others.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        while b"still waiting" not in (told := waiting.stderr.readline()):
            assert told, "it gave up"
        others.run(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        line(spec, "worker", "--quiet-output", env={"JOBQ_SCHEDULED_EVENTS": "off"})
        _, told = waiting.communicate(timeout=30)
        assert (waiting.returncode, b"1 of 1 succeeded" in told) == (0, True), told
    finally:
        waiting.kill()
        waiting.communicate()


@pytest.mark.slow("a real server, and leases of seconds")
def test_an_outage_is_two_lines_whatever_runs(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """One for two tasks, their ends and the receives, and one when the server is back."""
    spec, jobq = own_postgres.database.spec(), Jobq(tmp_path)
    for name in ("one", "two"):
        jobq(spec, "push", "-c", f"touch {name}; while [ ! -e end-{name} ]; do sleep 0.1; done")
    log = jobq.folder / "log"
    with log.open("wb") as file:
        words = ("worker", "-n", "3", "--visibility-timeout", "12s", "--log-format", "json")
        worker = jobq.start(spec, *words, stdin=subprocess.DEVNULL, stdout=file.fileno(), stderr=file.fileno())
        for name in ("one", "two"):
            eventually((jobq.folder / name).exists)
        own_postgres.kill()
        (jobq.folder / "end-one").touch()  # it cannot be settled
        eventually(lambda: "worker.receive_failed" in log.read_text())
        time.sleep(5)  # both leases were to be renewed meanwhile
        own_postgres.start()
        eventually(lambda: "answers again" in log.read_text())
        (jobq.folder / "end-two").touch()
        try:
            assert worker.wait(30) == 0
        finally:
            worker.kill()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["event"] for line in lines if line["level"] != "info"] == ["worker.receive_failed", "log"]
    assert sum(line["event"] == "task.succeeded" for line in lines) == 2


async def test_a_wrong_password_is_not_tried_again_and_again(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renewals and receives ask several times a second; a server may lock the account after a few refusals."""
    own_postgres.database.run("CREATE ROLE worker LOGIN PASSWORD 'right'")
    own_postgres.ask_password_of("worker")
    tried = 0
    connect = asyncpg.connect

    async def counted(*arguments: Any, **more: Any) -> Any:
        nonlocal tried
        tried += 1
        return await connect(*arguments, **more)

    monkeypatch.setattr("asyncpg.connect", counted)
    monkeypatch.setenv("PGPASSWORD", "wrong")
    url = urlsplit(own_postgres.database.url)
    server = Database(url._replace(netloc=f"worker@{HOST}:{own_postgres.port}").geturl()).server()
    for _ in range(20):
        with pytest.raises(AccessDenied, match="refuses this role"):
            await server.open("a test")
    assert tried == 1
    monkeypatch.setenv("PGPASSWORD", "right")
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(AccessDenied):
                connection = await server.open("a test")
                break
            await asyncio.sleep(0.05)
    assert tried == 2
    connection.terminate()
