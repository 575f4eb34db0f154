"""What a worker notes of its queue costs it no connection, holds up none of its own work, and needs few rights."""

import asyncio

from jobq.clock import SystemClock
from jobq.journal.notes import NoteKind
from jobq.journal.observing import Observer
from jobq.journal.presence import WorkerPresence
from jobq.settlement import Complete
from jobq_postgres import PostgresBackend
from tests.postgres.server import Database
from tests.postgres.support import DONE, LEASE, take, tasks
from tests.postgres.test_schema import as_role, documented_grants
from tests.postgres.test_schema import roles as roles  # noqa: PLC0414 - a fixture

_PRESENCE = WorkerPresence(holder="h:1", host="h", version="1", slots=1, busy=0, state="working", started=0.0)
_CONNECTIONS = (
    "SELECT application_name FROM pg_stat_activity"
    " WHERE application_name LIKE 'jobq %' AND datname = current_database() ORDER BY 1"
)


async def test_a_worker_has_no_further_connection_for_it_but_for_a_moment(
    queue: PostgresBackend, database: Database
) -> None:
    await queue.push(tasks(1))
    await (await take(queue)).settle(Complete(DONE))
    before = await asyncio.to_thread(database.run, _CONNECTIONS)
    notes = queue.observations()
    assert notes is not None
    observer = Observer(notes, clock=SystemClock())
    await observer.report(_PRESENCE)
    assert await asyncio.to_thread(database.run, _CONNECTIONS) == before
    await observer.step(_PRESENCE)  # its turn: it counts
    assert await asyncio.to_thread(database.run, _CONNECTIONS) == sorted([*before, ("jobq observe",)])
    async with asyncio.timeout(20):
        while await asyncio.to_thread(database.run, _CONNECTIONS) != before:
            await asyncio.sleep(0.05)
    assert len(await notes.page(NoteKind.ENDED, "", 10)) == 3


async def test_a_lock_on_the_notes_holds_up_no_renewal_and_no_settle(
    queue: PostgresBackend, database: Database
) -> None:
    """And a claim by a second at most: they share a connection."""
    await queue.push(tasks(2))
    delivery = await take(queue)
    notes = queue.observations()
    assert notes is not None
    locker = await database.server().connect("lock")
    try:
        async with locker.transaction():
            await locker.execute("LOCK TABLE jobq.observation IN ACCESS EXCLUSIVE MODE")
            noting = asyncio.create_task(notes.put(NoteKind.WORKER, "h:1", _PRESENCE.encode(), replaces=True))
            while await locker.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") == 0:
                await asyncio.sleep(0.01)
            await delivery.renew(LEASE)
            await delivery.settle(Complete(DONE))
            async with asyncio.timeout(10):
                await (await take(queue)).settle(Complete(DONE))
            assert noting.done()
            assert noting.exception() is not None
    finally:
        await locker.close()


async def test_the_documented_rights_are_enough(
    queue: PostgresBackend, database: Database, roles: dict[str, str]
) -> None:
    """A9: a worker notes, and tidies up."""
    assert queue.name == "q"
    await asyncio.to_thread(database.run, documented_grants(**roles))
    async with as_role(database, roles["worker"]) as worker:
        notes = worker.observations()
        assert notes is not None
        await Observer(notes, clock=SystemClock()).step(_PRESENCE)
        await notes.drop(NoteKind.WORKER, ["h:1"])
        assert await notes.page(NoteKind.WORKER, "", 10) == []
