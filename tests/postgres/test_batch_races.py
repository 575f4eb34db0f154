"""Batches under two at once, on a real server: each race held open, and committed in both orders."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from jobq.batch_plan import Plan
from jobq.batches import BatchState
from jobq.errors import BatchSealed, DuplicateTask
from jobq.settlement import Complete, MoveToDeadLetters, Settlement
from jobq.task import Task
from jobq_postgres import PostgresBackend, backend, queue_admin, settle
from jobq_postgres.advance import Advanced, advance
from jobq_postgres.batch_push import KEEP_PUSHES_OUT
from jobq_postgres.claimer import Claimer
from jobq_postgres.delivery import PostgresDelivery
from jobq_postgres.settle import Change, settling
from tests.fork_server import forked
from tests.postgres.server import Database
from tests.postgres.support import DONE, LEASE, NOW, tasks
from tests.postgres.test_schema import as_role, documented_grants, roles

pytestmark = pytest.mark.check

__all__ = ["roles"]  # a fixture
_THEN: Final = Plan(then=(Task.new(command="echo then >>then").encode().decode(),))
_WAITS: Final = """
    SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()
"""


@pytest.fixture
async def one(database: Database) -> AsyncIterator[Any]:
    connection = await database.server().connect("one")
    yield connection
    connection.terminate()


@pytest.fixture
async def two(database: Database) -> AsyncIterator[Any]:
    connection = await database.server().connect("two")
    yield connection
    connection.terminate()


@pytest.fixture
async def sealed(queue: PostgresBackend) -> list[PostgresDelivery]:
    """Two tasks of a sealed batch, leased; nobody but the test looks for what follows."""
    await queue.batches.begin("s7", _THEN)
    await queue.push(tasks(2, batch="s7"))
    found = await queue.receive(2, timedelta(minutes=5), NOW)
    await queue.batches.seal("s7")
    assert len(found) == 2
    return [delivery for delivery in found if isinstance(delivery, PostgresDelivery)]


async def done(connection: Any, delivery: PostgresDelivery) -> None:
    """Complete a task over this connection, and do nothing of what follows."""
    await _settled(connection, settle.COMPLETE, delivery, Complete(DONE))


async def buried(connection: Any, delivery: PostgresDelivery) -> None:
    """Likewise, as a dead letter."""
    await _settled(connection, settle.BURY, delivery, MoveToDeadLetters("failures", ""))


async def _settled(connection: Any, statement: str, delivery: PostgresDelivery, settlement: Settlement) -> None:
    _, *values = settling(settlement, b"", settlement.key)
    answers, tells = await settle.settle(connection, statement, [Change(delivery._row, tuple(values))])
    assert (answers, tells) == ([None], True)


async def ends(queue: PostgresBackend) -> list[str]:
    """Return the ids of what was added at the ends of batches, and take it away."""
    found = await queue.receive(10, LEASE, NOW)
    for delivery in found:
        await delivery.settle(Complete(DONE))
    return [delivery.id for delivery in found]


async def until_waiting(connection: Any, task: "asyncio.Task[Any]") -> None:
    while not await connection.fetchval(_WAITS):
        assert not task.done(), task
        await asyncio.sleep(0)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_two_last_settles_end_a_batch_once(
    queue: PostgresBackend, sealed: list[PostgresDelivery], one: Any, two: Any, order: tuple[int, int]
) -> None:
    """Each sees the other's task, whichever commits first: the one who looks after both finds none."""
    settlers = [one, two]
    for connection, delivery in zip(settlers, sealed, strict=True):
        await connection.execute("BEGIN")
        await done(connection, delivery)
    for number, place in enumerate(order, 1):
        await settlers[place].execute("COMMIT")
        looked = await advance(settlers[place], 1)
        assert bool(looked.lowest) is (number == 2)
    assert await advance(one, 1) == Advanced()
    found = await queue.batches.find("s7")
    assert (found.state, found.counts["succeeded"], found.total) == (BatchState.FINISHED, 2, 2)
    assert await ends(queue) == ["jobq.then.s7.1"]


async def test_looks_at_once_end_a_batch_once(
    queue: PostgresBackend, sealed: list[PostgresDelivery], one: Any, two: Any
) -> None:
    """Two rows, two who look, both before either commits: one holds the batch, and the other leaves it its row."""
    for connection, delivery in zip((one, two), sealed, strict=True):
        await done(connection, delivery)
    looking = one.transaction()
    await looking.start()
    assert (await advance(one, 1)).lowest
    assert await advance(two, 1) == Advanced(), "nothing to take"
    await two.execute("INSERT INTO jobq.outbox (queue_id, batch_id) VALUES (1, 1)")
    left = await advance(two, 1)
    assert (left.lowest, left.goes_on) == ({}, True)
    await looking.commit()
    assert not (await advance(two, 1)).lowest
    assert await two.fetchval("SELECT count(*) FROM jobq.outbox") == 0
    assert await ends(queue) == ["jobq.then.s7.1"]


async def test_a_redrive_before_the_finish_keeps_it_from_finishing(
    queue: PostgresBackend, sealed: list[PostgresDelivery], one: Any, two: Any
) -> None:
    """Its transaction is open when somebody looks: the look leaves the batch alone, and later finds the task."""
    await buried(two, sealed[0])
    await done(two, sealed[1])
    redriving = one.transaction()
    await redriving.start()
    back, *_ = await queue_admin.redrive(one, 1, [sealed[0].id])
    assert back == [sealed[0].id]
    looked = await advance(two, 1)
    assert (looked.lowest, looked.goes_on) == ({}, True)
    await redriving.commit()
    assert await advance(two, 1) == Advanced()
    found = await queue.batches.find("s7")
    assert (found.state, found.round, found.total, found.unfinished) == (BatchState.SEALED, 1, 2, 1)
    assert await ends(queue) == [sealed[0].id]
    assert await ends(queue) == ["jobq.then.s7.1"]


async def test_a_redrive_after_the_finish_begins_the_next_round(
    queue: PostgresBackend, sealed: list[PostgresDelivery], one: Any, two: Any
) -> None:
    """The finish is open when it comes: it waits, and then finds the batch finished."""
    await buried(two, sealed[0])
    await done(two, sealed[1])
    finishing = two.transaction()
    await finishing.start()
    assert (await advance(two, 1)).lowest
    redriving = asyncio.create_task(queue.redrive([sealed[0].id]))
    await until_waiting(one, redriving)
    await finishing.commit()
    assert await redriving == [sealed[0].id]
    found = await queue.batches.find("s7")
    assert (found.state, found.round, found.finished, len(found.rounds)) == (BatchState.SEALED, 2, None, 1)
    assert sorted(await ends(queue)) == sorted(["jobq.then.s7.1", sealed[0].id])
    assert await ends(queue) == ["jobq.then.s7.2"]
    assert [each.number for each in (await queue.batches.find("s7")).rounds] == [1, 2]


@pytest.mark.parametrize("count", [1, 2, 300])
async def test_a_seal_waits_for_the_push_that_is_under_way(
    database: Database, queue: PostgresBackend, one: Any, two: Any, count: int
) -> None:
    """What the push has added is of the batch then; what is pushed later is refused, also by COPY."""
    await queue.batches.begin("s7", _THEN)
    await one.execute("BEGIN")
    known = tasks(1, "known")
    await one.execute("INSERT INTO jobq.submission (queue_id, id) VALUES (1, $1)", known[0].id)
    async with PostgresBackend(database.server(), "q") as pusher, PostgresBackend(database.server(), "q") as other:
        pushing = asyncio.create_task(pusher.push([*tasks(count, batch="s7"), *known]))  # waits for that id
        await until_waiting(two, pushing)
        sealing = asyncio.create_task(other.batches.seal("s7"))
        while await two.fetchval(_WAITS) < 2:
            assert not sealing.done()
            await asyncio.sleep(0)
        await one.execute("ROLLBACK")
        await pushing
        assert (await sealing).state is BatchState.SEALED
        assert (await other.batches.find("s7")).total == count
        with pytest.raises(BatchSealed):
            await pusher.push(tasks(count, "late", batch="s7"))
        await pusher.push(tasks(count, batch="s7"))
    assert (await queue.stats()).visible == count + 1


async def test_a_push_that_waits_for_a_seal_is_refused(queue: PostgresBackend, one: Any, two: Any) -> None:
    await queue.batches.begin("s7", _THEN)
    await one.execute("BEGIN")
    await one.execute(KEEP_PUSHES_OUT, 1)
    await one.execute("UPDATE jobq.batch SET state = 'sealed', sealed_at = now()")
    pushing = asyncio.create_task(queue.push(tasks(1, batch="s7")))
    await until_waiting(two, pushing)
    await one.execute("COMMIT")
    with pytest.raises(BatchSealed):
        await pushing
    assert (await queue.stats()).visible == 0


async def test_a_settle_that_looked_before_the_seal_is_not_missed(queue: PostgresBackend, one: Any, two: Any) -> None:
    """Its row is there, whatever the batch was; who took it before the seal has left it to the seal's own."""
    await queue.batches.begin("s7", _THEN)
    await queue.push(tasks(1, batch="s7"))
    (delivery,) = await queue.receive(1, LEASE, NOW)
    assert isinstance(delivery, PostgresDelivery)
    await one.execute("BEGIN")
    await done(one, delivery)
    assert (await queue.batches.seal("s7")).state is BatchState.SEALED
    await one.execute("COMMIT")
    assert (await advance(two, 1)).lowest
    assert await ends(queue) == ["jobq.then.s7.1"]


async def test_calls_that_share_a_transaction_are_refused_one_by_one(queue: PostgresBackend) -> None:
    """One bad call refuses none of its neighbours, whatever is wrong with it."""
    for name in ("s7", "s8"):
        await queue.batches.begin(name, Plan())
    await queue.batches.seal("s8")
    await queue.push(tasks(1, "x"))
    calls = [
        *(queue.push(tasks(1, f"a{number}", batch="s7")) for number in range(3)),
        queue.push([*tasks(1, "b", batch="s7"), *tasks(1, "c", batch="s8")]),
        queue.push(tasks(1, "x", batch="s7")),
        queue.push(tasks(1, "d")),
        queue.push(tasks(250, "e", batch="s7")),
        queue.push(tasks(1, "f", params={"lr": 0.5})),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in answers] == [list, list, list, BatchSealed, DuplicateTask, list, list, list]
    assert (await queue.batches.find("s7")).total == 253
    assert (await queue.stats()).visible == 256


async def test_a_worker_that_is_killed_between_settle_and_look(
    database: Database, queue: PostgresBackend, sealed: list[PostgresDelivery], tmp_path: Path
) -> None:
    """The row it has left is found by whoever sweeps, within two seconds; what is run then is run by an idle worker."""
    program = """
import asyncio, json, os, signal, sys
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.settlement import Complete
from jobq.task import TaskResult
from jobq_postgres import advancing

async def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    advancing.advance = killed
    async with resolve(sys.argv[1], Settings()) as backend:
        for id_, receipt in json.loads(sys.argv[2]):
            await (await backend.held(id_, receipt)).settle(Complete(TaskResult(exit_code=0)))
        await asyncio.sleep(60)

asyncio.run(main())
"""
    held = json.dumps([[each.id, each.receipt] for each in sealed])
    killed = await forked.create_subprocess_exec(
        *(sys.executable, "-c", program, database.spec(), held), env=_environment(tmp_path), cwd=tmp_path
    )
    assert await asyncio.wait_for(killed.wait(), 60) == -signal.SIGKILL
    while database.run("SELECT count(*) FROM jobq.task WHERE batch_id IS NOT NULL") != [(0,)]:
        await sealed[1].settle(Complete(DONE))  # it was killed after the first one
    assert [each.state for each in await queue.batches.list("", 10)] == [BatchState.SEALED]
    worker = await forked.create_subprocess_exec(
        *(sys.executable, "-m", "jobq", database.spec(), "worker"), env=_environment(tmp_path), cwd=tmp_path
    )
    assert await asyncio.wait_for(worker.wait(), 60) == 0
    assert (tmp_path / "then").read_text() == "then\n"
    assert (await queue.batches.find("s7")).state is BatchState.FINISHED


async def test_an_empty_queue_is_none_while_somebody_is_at_the_end_of_a_batch(
    database: Database, sealed: list[PostgresDelivery], one: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an idle worker would end, and what is to be run then waited for the next one."""
    monkeypatch.setattr(backend, "_TOLD_SECONDS", 3600.0)  # how long it waits at most is nothing to a slow machine
    looking = await _at_the_end(sealed, one)
    looks, seen, claim = 0, asyncio.Event(), Claimer.claim

    async def counted(self: Claimer, *given: Any, **named: Any) -> Any:
        nonlocal looks
        found = await claim(self, *given, **named)
        looks += 1
        if looks == 3:
            seen.set()
        return found

    monkeypatch.setattr(Claimer, "claim", counted)
    async with PostgresBackend(database.server(), "q") as worker:
        receiving = asyncio.create_task(worker.receive(1, LEASE, NOW))
        await seen.wait()
        assert not receiving.done()
        await looking.commit()
        assert [delivery.id for delivery in await receiving] == ["jobq.then.s7.1"]


async def test_what_is_added_at_the_end_of_a_batch_behind_a_look_is_looked_for_once_more(
    database: Database, sealed: list[PostgresDelivery], one: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look from the beginning found nothing, and then there was nothing left to be done at the end."""
    looking = await _at_the_end(sealed, one)
    look = Claimer._look_at_all

    async def committed_behind(self: Claimer, *given: Any) -> Any:
        found = await look(self, *given)
        monkeypatch.setattr(Claimer, "_look_at_all", look)
        await looking.commit()
        return found

    monkeypatch.setattr(Claimer, "_look_at_all", committed_behind)
    async with PostgresBackend(database.server(), "q") as worker:
        assert [delivery.id for delivery in await worker.receive(1, LEASE, NOW)] == ["jobq.then.s7.1"]


async def _at_the_end(sealed: list[PostgresDelivery], one: Any) -> Any:
    """Return the transaction of somebody who is at the end of the batch."""
    for delivery in sealed:
        await done(one, delivery)
    looking = one.transaction()
    await looking.start()
    assert (await advance(one, 1)).lowest
    return looking


async def test_a_push_of_its_id_meanwhile_keeps_nothing_from_its_end(
    queue: PostgresBackend, sealed: list[PostgresDelivery], one: Any, two: Any
) -> None:
    """The step waits for the push, and adds its task under another id, in the same step."""
    for delivery in sealed:
        await done(two, delivery)
    await one.execute("BEGIN")
    await one.execute("INSERT INTO jobq.submission (queue_id, id) VALUES (1, 'jobq.then.s7.1')")
    advancing = asyncio.create_task(advance(two, 1))
    await until_waiting(one, advancing)
    await one.execute("COMMIT")
    assert (await advancing).lowest
    assert (await queue.batches.find("s7")).state is BatchState.FINISHED
    (id_,) = await ends(queue)
    assert id_.startswith("jobq.then.s7.")
    assert id_ != "jobq.then.s7.1"


async def test_who_only_looks_sees_to_the_end_where_he_may(
    database: Database, queue: PostgresBackend, sealed: list[PostgresDelivery], one: Any, roles: dict[str, str]
) -> None:
    """Who ended the last task was killed, and there is no worker: `batch wait` goes on; a watcher only reads."""
    await done(one, sealed[0])
    assert (await queue.batches.find("s7")).state is BatchState.SEALED
    assert await one.fetchval("SELECT count(*) FROM jobq.outbox") > 0, "no more than a look"
    await done(one, sealed[1])
    database.run(documented_grants(**roles))
    async with as_role(database, roles["watcher"]) as watcher:
        found = await watcher.batches.find("s7")
        assert (found.state, found.counts["succeeded"]) == (BatchState.SEALED, 2)
    async with PostgresBackend(database.server(), "q") as waiter:
        assert (await waiter.batches.find("s7")).state is BatchState.FINISHED
    assert await ends(queue) == ["jobq.then.s7.1"]


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBQ_", "PG"))}
    return {**kept, "HOME": str(folder), "JOBQ_SCHEDULED_EVENTS": "off"}
