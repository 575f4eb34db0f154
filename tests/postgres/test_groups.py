"""Group commit: many callers, one statement; each is answered for itself alone (S11)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import asyncpg
import pytest

from jobq.backend import Delivery
from jobq.errors import BackendUnavailable, DuplicateTask, LockLost
from jobq.settlement import Complete, MoveToDeadLetters
from jobq_postgres import PostgresBackend
from tests.postgres.server import Database
from tests.postgres.support import DONE, LEASE, NOW, take, tasks

pytestmark = pytest.mark.check


async def test_settles_of_many_slots_share_few_statements(database: Database, queue: PostgresBackend) -> None:
    """What is asked while a statement is under way goes out in the next: far fewer commits than tasks."""
    await queue.push(tasks(400))
    held = await queue.receive(400, LEASE, NOW)
    assert len(held) == 400
    before = _commits(database)
    await asyncio.gather(*(delivery.renew(LEASE) for delivery in held))
    await asyncio.gather(*(delivery.settle(Complete(DONE)) for delivery in held))
    assert _commits(database) - before < 40
    assert (await queue.stats()).leased == 0


def _commits(database: Database) -> int:
    database.run("SELECT pg_stat_clear_snapshot()")
    return int(database.run("SELECT pg_current_xact_id()::text::bigint")[0][0])


async def test_one_that_cannot_be_stored_does_not_hurt_the_others(queue: PostgresBackend) -> None:
    """S11: the statement fails as a whole, and is repeated one by one."""
    await queue.push(tasks(5))
    held = await queue.receive(5, LEASE, NOW)
    reasons = ["fine", "fine", "a NUL \0", "fine", "fine"]
    answers = await asyncio.gather(
        *(delivery.settle(MoveToDeadLetters(reason, "")) for delivery, reason in zip(held, reasons, strict=True)),
        return_exceptions=True,
    )
    assert [answer is None for answer in answers] == [True, True, False, True, True]
    assert isinstance(answers[2], BackendUnavailable)
    assert len(await queue.dead_letters(10)) == 4
    await held[2].settle(Complete(DONE))


@asynccontextmanager
async def held_row(database: Database, delivery: Delivery) -> AsyncIterator[asyncpg.Connection]:
    """Lock the row of a task, as a cancel does, by a client that says nothing more."""
    other = await database.server().connect("holds a row")
    try:
        await other.execute("BEGIN")
        await other.execute(f"SELECT FROM jobq.task WHERE id = '{delivery.id}' FOR UPDATE")
        yield other
    finally:
        other.terminate()


async def test_s11_a_renewal_waits_for_no_row_that_another_session_holds(
    database: Database, queue: PostgresBackend
) -> None:
    """One that was held made the renewals of all tasks of its worker fail, until their leases were over."""
    await queue.push(tasks(3))
    held, *others = await queue.receive(3, timedelta(seconds=40), NOW)
    async with held_row(database, held) as other:
        waits = asyncio.create_task(held.renew(LEASE))
        for _ in range(3):
            await asyncio.gather(*(each.renew(LEASE) for each in others))
        assert not waits.done(), "it is neither renewed nor lost"
        await other.execute("COMMIT")
        await waits


async def test_a_lease_whose_row_stays_held_is_not_lost(database: Database, queue: PostgresBackend) -> None:
    await queue.push(tasks(1))
    (held,) = await queue.receive(1, timedelta(seconds=4), NOW)
    async with held_row(database, held) as other:
        with pytest.raises(BackendUnavailable, match="another session holds the row"):
            await held.renew(LEASE)
        waits = asyncio.create_task(held.renew(LEASE))
        await other.execute("DELETE FROM jobq.task")
        await other.execute("COMMIT")
        with pytest.raises(LockLost):
            await waits


async def test_s11_a_client_that_is_stopped_within_a_transaction_loses_it_before_others_lose_their_leases(
    database: Database, queue: PostgresBackend
) -> None:
    await queue.push(tasks(1))
    (held,) = await queue.receive(1, timedelta(seconds=12), NOW)
    async with held_row(database, held), asyncio.timeout(0.85 * 12):
        while True:  # as a keeper does
            with suppress(BackendUnavailable):
                await held.renew(LEASE)
                break
    await held.settle(Complete(DONE))


async def test_stale_one_among_many_is_refused_alone(queue: PostgresBackend) -> None:
    """S4: in one statement, each row is compared with its own receipt."""
    await queue.push(tasks(3))
    stale = await take(queue, timedelta(seconds=1))
    good = await queue.receive(2, LEASE, NOW)
    await asyncio.sleep(1.1)
    answers = await asyncio.gather(
        *(delivery.settle(Complete(DONE)) for delivery in (stale, *good)), return_exceptions=True
    )
    assert isinstance(answers[0], LockLost)
    assert answers[1:] == [None, None]
    assert (await queue.stats()).visible == 1


async def test_pushes_at_once_are_refused_each_for_itself(queue: PostgresBackend) -> None:
    """S8: a duplicate among many calls: that call adds nothing, the others all of theirs."""
    await queue.push(tasks(1, "known"))
    other = tasks(1, "known", priority=3)
    answers = await asyncio.gather(
        queue.push(tasks(2, "a")),
        queue.push([*tasks(1, "b"), *other]),
        queue.push(tasks(2, "c")),
        queue.push(tasks(1, "known")),
        return_exceptions=True,
    )
    assert isinstance(answers[1], DuplicateTask)
    assert [type(answer) for answer in answers] == [list, DuplicateTask, list, list]
    assert sorted(each.id for each in await queue.peek(10)) == [
        "a-00000",
        "a-00001",
        "c-00000",
        "c-00001",
        "known-00000",
    ]


@pytest.mark.parametrize("turns", range(12))
async def test_verb_that_is_cancelled_at_any_turn_leaves_the_lane_usable(queue: PostgresBackend, turns: int) -> None:
    await queue.push(tasks(2))
    one, other = await take(queue), await take(queue)
    await one.renew(LEASE)
    for call in (one.renew(LEASE), one.settle(Complete(DONE)), queue.push(tasks(1, "n"))):
        calling = asyncio.ensure_future(call)
        for _ in range(turns):
            await asyncio.sleep(0)
        calling.cancel()
        with suppress(asyncio.CancelledError):
            await calling
        await other.renew(LEASE)
    with suppress(LockLost):
        await one.settle(Complete(DONE))
    await other.settle(Complete(DONE))
    assert (await queue.stats()).leased == 0
