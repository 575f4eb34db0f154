"""S1, S8: the id of a task that ended longer ago than ids are kept is no id: what is pushed under it is queued."""

import asyncio
from typing import Any

import pytest

from jobq.batch_plan import Plan
from jobq.batches import counts_of
from jobq.errors import BatchSealed, DuplicateTask
from jobq.journal.records import Attempt
from jobq.journal.store import journal_of
from jobq.settlement import Complete, Record
from jobq.task import Task
from jobq_postgres import PostgresBackend
from tests.postgres.server import Database
from tests.postgres.support import DONE, LEASE, NOW, take, tasks
from tests.postgres.test_schema import as_role, documented_grants, roles

__all__ = ["roles"]  # a fixture


async def _done(queue: PostgresBackend, count: int, prefix: str = "t", **fields: Any) -> list[Task]:
    made = tasks(count, prefix, **fields)
    await queue.push(made)
    for delivery in await queue.receive(count, LEASE, NOW):
        await delivery.settle(Complete(DONE))
    return made


def _pass(database: Database, days: int = 31) -> None:
    database.run(f"UPDATE jobq.submission SET ended_at = ended_at - interval '{days} days'")
    database.run(f"UPDATE jobq.attempt SET ended_at = ended_at - interval '{days} days'")


@pytest.mark.parametrize("count", [1, 3, 300])
async def test_what_is_pushed_again_is_queued_with_higher_tokens(
    database: Database, queue: PostgresBackend, count: int
) -> None:
    """It was acknowledged and nothing was queued, until a worker had come."""
    again = await _done(queue, count)
    _pass(database, 29)
    await queue.push(again)
    assert (await queue.stats()).visible == 0, "not yet"
    _pass(database, 2)
    await queue.push([*tasks(1, "new"), *again])
    assert (await queue.stats()).visible == count + 1
    found = {each.id: each.fencing for each in await queue.receive(count + 1, LEASE, NOW)}
    assert [found[each.id] for each in again] == [(1, 0, 1)] * count


async def test_another_payload_is_taken_and_what_it_comes_to_is_recorded(
    database: Database, queue: PostgresBackend
) -> None:
    (task,) = tasks(1)
    journal = journal_of(queue)
    for command in ("true", "other"):
        await queue.push([Task.new(command=command, id=task.id)])
        delivery = await take(queue)
        assert delivery.task.command == command
        await delivery.settle(
            Complete(
                DONE, record=Record(Attempt(attempt=0, outcome="succeeded", then="done", ended=float(len(command))))
            )
        )
        assert [each.ended for each in await journal.attempts(task.id)] == [len(command)]
        _pass(database)
    with pytest.raises(DuplicateTask):
        await queue.push([task, Task.new(command="third", id=task.id)])


async def test_it_is_gone_from_its_batch_and_new_to_one_that_is_sealed(
    database: Database, queue: PostgresBackend
) -> None:
    for name in ("open", "sealed"):
        await queue.batches.begin(name, Plan())
    again = await _done(queue, 1, prefix="o", batch="open")
    late = await _done(queue, 2, prefix="s", batch="sealed")
    await queue.batches.seal("sealed")
    await queue.push(late)
    _pass(database)
    with pytest.raises(BatchSealed):
        await queue.push(late)
    await queue.push(again)
    found = await queue.batches.find("open")
    assert dict(found.counts) == counts_of({"ready": 1, "gone": 1})


async def test_many_push_them_at_once_and_one_is_queued(database: Database, queue: PostgresBackend) -> None:
    """In any order, and while they are forgotten."""
    again = await _done(queue, 30)
    _pass(database)
    others = [PostgresBackend(database.server(), "q") for _ in range(6)]
    pushes = [each.push(again[:: 1 - 2 * (number % 2)]) for number, each in enumerate(others)]
    try:
        await asyncio.gather(*pushes, queue.receive(1, LEASE, NOW))
    finally:
        for each in others:
            await each.__aexit__(None, None, None)
    stats = await queue.stats()
    assert (stats.visible or 0) + (stats.leased or 0) == 30


async def test_who_may_only_push_does_so(database: Database, queue: PostgresBackend, roles: dict[str, str]) -> None:
    """And may forget no id before its time, whatever is asked of the function that does it."""
    database.run(documented_grants(**roles))
    again = await _done(queue, 2)
    async with as_role(database, roles["pusher"]) as pusher:
        _pass(database, 29)
        database.run("SELECT jobq.forget_expired(1, ARRAY['t-00000'], '0')")
        await pusher.push(again)
        assert (await queue.stats()).visible == 0
        _pass(database, 2)
        await pusher.push(again)
    assert (await queue.stats()).visible == 2
