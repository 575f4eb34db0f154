"""Commits that come late: what they show is found, whatever the process believed by then."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from jobq.pausing import Pause
from jobq_postgres import PostgresBackend
from jobq_postgres.advance import Advanced
from jobq_postgres.claim_sql import CLAIM, CLAIM_FROM_THE_BEGINNING, SWEEP, TAKE_AGAIN, TAKE_OVER
from jobq_postgres.claimer import Claimer
from tests.postgres.server import Database
from tests.postgres.support import LEASE, NOW, receipt, take, tasks


@pytest.fixture
async def late(database: Database) -> AsyncIterator[Any]:
    """A connection within a transaction, whose commit comes late."""
    connection = await database.server().connect("late")
    await connection.execute("BEGIN")
    yield connection
    await connection.close()


_DUE_BEFORE = (
    "INSERT INTO jobq.task (queue_id, id, position, due, body)"
    " SELECT queue_id, 'late', NULL, clock_timestamp() - $1::interval, '{}' FROM jobq.queue"
)
_EXPIRED_BEFORE = (
    "INSERT INTO jobq.task (queue_id, id, position, receipt, expires_at, body)"
    " SELECT queue_id, 'late', NULL, gen_random_uuid(), clock_timestamp() - $1::interval, '{}' FROM jobq.queue"
)


@pytest.mark.parametrize("statement", [_DUE_BEFORE, _EXPIRED_BEFORE], ids=["due", "expired"])
@pytest.mark.parametrize("seconds", [1, 600])
async def test_what_was_ready_long_before_its_commit_is_no_empty_queue(
    queue: PostgresBackend, late: Any, statement: str, seconds: int
) -> None:
    """S1: a slow push, a stopped pusher or a replica that answers late: an empty answer stays true."""
    assert await queue.receive(1, LEASE, NOW) == []
    await late.execute(statement.replace("$1", f"'{seconds} s'"))
    assert await queue.receive(1, LEASE, NOW) == []
    await late.execute("COMMIT")
    assert [each.id for each in await queue.receive(1, LEASE, NOW)] == ["late"]


@pytest.mark.parametrize("statement", [_DUE_BEFORE, _EXPIRED_BEFORE], ids=["due", "expired"])
async def test_a_commit_that_is_a_little_late_is_seen_by_one_that_waits(
    queue: PostgresBackend, late: Any, statement: str
) -> None:
    """A claim that looks again soon need not be sure, and goes back some seconds all the same."""
    await queue.receive(1, LEASE, NOW)
    links = await queue._linked()
    await late.execute(statement.replace("$1", "'2 s'") + "; COMMIT")
    links.claimer._sweep_due = 0.0
    assert [each.id for each in await links.claim(1, LEASE, thorough=False)] == ["late"]


class Overtaken:
    """A connection on which something happens between the first answer of a statement and its being taken in."""

    def __init__(self, connection: Any, statement: str, happens: Callable[[], Awaitable[None]]) -> None:
        self._connection = connection
        self._statement = statement
        self._happens = happens
        self.has_happened = False

    async def fetch(self, statement: str, *values: Any) -> Any:
        rows = await self._connection.fetch(statement, *values)
        if statement == self._statement and not self.has_happened:
            self.has_happened = True
            await self._happens()
        return rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.fixture
async def claims(database: Database) -> AsyncIterator[Any]:
    connection = await database.server().connect("claim")
    yield connection
    await connection.close()


_READY = "INSERT INTO jobq.task (queue_id, id, body) SELECT queue_id, 'late', '{}' FROM jobq.queue RETURNING position"


async def _advance(_connection: Any) -> Advanced:
    return Advanced()


@pytest.mark.parametrize("statement", [CLAIM, CLAIM_FROM_THE_BEGINNING], ids=["from the floors", "from the beginning"])
@pytest.mark.parametrize("others", [1, 0])
async def test_late_commit_that_is_told_of_during_a_claim_is_not_forgotten(
    queue: PostgresBackend, late: Any, claims: Any, statement: str, others: int
) -> None:
    """The statement did not see it, and its answer leaves the floor where the note has put it."""
    number = (await queue._linked()).queue
    claimer = Claimer("here", _advance)
    await queue.push(tasks(1, "first"))
    assert len(await _ids(claimer, claims, number)) == 1
    position = await late.fetchval(_READY)
    await queue.push(tasks(1 + others))
    assert len(await _ids(claimer, claims, number)) == 1  # above the late one

    async def commit() -> None:
        await late.execute("COMMIT")
        claimer.note({0: position})

    claimer._sweep_due = claimer._full_look_after = 0.0
    claimer._full_look_due = 0.0 if statement == CLAIM_FROM_THE_BEGINNING else math.inf
    overtaken = Overtaken(claims, statement, commit)
    found = await _ids(claimer, overtaken, number)
    assert overtaken.has_happened
    claimer._full_look_after = claimer._full_look_due = math.inf  # under restraint: full looks are dear
    assert found + await _ids(claimer, claims, number) == [f"t-{n + 1:05}" for n in range(others)] + ["late"]


async def test_note_without_a_position_during_a_full_look_asks_for_the_next(
    queue: PostgresBackend, late: Any, claims: Any
) -> None:
    """An empty note says "anywhere": the look that is under way began before it."""
    number = (await queue._linked()).queue
    claimer = Claimer("here", _advance)
    await late.fetchval(_READY)
    await queue.push(tasks(2))

    async def commit() -> None:
        await late.execute("COMMIT")
        claimer.note({})

    assert await _ids(claimer, Overtaken(claims, CLAIM_FROM_THE_BEGINNING, commit), number) == ["t-00000"]
    claimer._full_look_after = 0.0
    assert await _ids(claimer, claims, number) == ["late"]


async def test_pause_that_is_told_of_during_a_sweep_is_not_forgotten(queue: PostgresBackend, claims: Any) -> None:
    """The sweep had looked before the pause began: what it saw is believed for one claim, not for a second more."""
    number = (await queue._linked()).queue
    claimer = Claimer("here", _advance)
    await queue.push(tasks(2))

    async def pause() -> None:
        await queue.pause(Pause(at=1.0, by="ada@host"))
        claimer.note({})

    assert await _ids(claimer, Overtaken(claims, SWEEP, pause), number) == ["t-00000"]
    assert await _ids(claimer, claims, number) == []


async def test_floor_is_raised_no_further_than_what_was_seen(queue: PostgresBackend, claims: Any) -> None:
    """Nothing was told of the next task, and full looks are dear: it is found from the floor all the same."""
    number = (await queue._linked()).queue
    claimer = Claimer("here", _advance)
    await queue.push(tasks(1))
    assert await _ids(claimer, claims, number) == ["t-00000"]
    claimer._sweep_due = claimer._full_look_due = claimer._full_look_after = 0.0
    assert await _ids(claimer, claims, number) == []
    claimer._full_look_after = claimer._full_look_due = math.inf
    await queue.push(tasks(1, "next"))
    assert await _ids(claimer, claims, number) == ["next-00000"]


@pytest.mark.parametrize("statement", [TAKE_AGAIN, TAKE_OVER], ids=["take again", "take over"])
async def test_a_claim_in_doubt_takes_nothing_that_expired_while_it_waited_for_the_row(
    queue: PostgresBackend, late: Any, claims: Any, database: Database, statement: str
) -> None:
    """S4: the row was held when the statement began, and by whom it is held since nobody knows."""
    await queue.push(tasks(1))
    held = receipt(await take(queue, timedelta(seconds=0.3)))
    await late.execute("SELECT 1 FROM jobq.task FOR UPDATE")
    number = (await queue._linked()).queue
    found_by = [[uuid4()], [held.hex[:16]]] if statement is TAKE_OVER else [[held]]
    asking = asyncio.create_task(claims.fetch(statement, number, 1, LEASE, *found_by))
    looking = await database.server().connect("looking")
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    lives = "SELECT count(*) FROM jobq.task WHERE expires_at > clock_timestamp()"
    async with asyncio.timeout(20):
        while not await looking.fetchval(waits) or await looking.fetchval(lives):
            await asyncio.sleep(0.01)
    await late.execute("ROLLBACK")
    await looking.close()
    assert await asking == []


async def _ids(claimer: Claimer, connection: Any, number: int) -> list[str]:
    found, _ = await claimer.claim(connection, number, 1, LEASE, thorough=False)
    return [each.id for each in found]
