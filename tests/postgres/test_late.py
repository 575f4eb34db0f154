"""Commits that come late: what they show is found, whatever the process believed by then."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from jobq_postgres import PostgresBackend
from tests.postgres.server import Database
from tests.postgres.support import LEASE, NOW


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
