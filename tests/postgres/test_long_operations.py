"""What concerns many rows takes many short transactions: a lease of the queue can be renewed between any two (S11)."""

from collections.abc import Callable
from typing import Any

import pytest

from jobq.errors import ConfigurationError
from jobq.settlement import MoveToDeadLetters
from jobq.task import Task
from jobq_postgres import PostgresBackend
from jobq_postgres.queue_admin import ROWS_AT_ONCE
from tests.postgres.server import Database
from tests.postgres.support import LEASE, NOW, tasks

_ROWS = 2 * ROWS_AT_ONCE + 7
# The server's own word: how many rows each transaction took out of a table.
_WATCH = """
    CREATE TABLE public.seen (transaction text, rows bigint);
    CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN INSERT INTO public.seen SELECT pg_current_xact_id()::text, count(*) FROM gone; RETURN NULL; END';
    CREATE TRIGGER see AFTER DELETE ON jobq.task REFERENCING OLD TABLE AS gone
        FOR EACH STATEMENT EXECUTE FUNCTION public.see();
    CREATE TRIGGER see AFTER DELETE ON jobq.dead REFERENCING OLD TABLE AS gone
        FOR EACH STATEMENT EXECUTE FUNCTION public.see();
"""
_BURY = """
    WITH gone AS (DELETE FROM jobq.task WHERE queue_id = 1 AND id LIKE 't-%' RETURNING *)
    INSERT INTO jobq.dead (queue_id, id, rank, deliveries, body, reason, description, died_at)
    SELECT queue_id, id, rank, 1, body, 'failed', '', clock_timestamp() FROM gone
"""


async def _clear(queue: PostgresBackend, ids: list[str]) -> None:
    assert await queue.clear() == len(ids)


async def _purge(queue: PostgresBackend, ids: list[str]) -> None:
    assert await queue.purge_dead(["unknown", *ids]) == ids


async def _redrive(queue: PostgresBackend, ids: list[str]) -> None:
    assert await queue.redrive([*ids, *ids[:2]]) == ids
    assert (await queue.stats()).visible == len(ids)


@pytest.mark.parametrize("operation", [_clear, _purge, _redrive])
async def test_no_transaction_takes_all_rows(
    database: Database, queue: PostgresBackend, operation: Callable[[PostgresBackend, list[str]], Any]
) -> None:
    ids = await queue.push(tasks(_ROWS))
    connection = await database.server().connect("watch")
    try:
        if operation is not _clear:
            await connection.execute(_BURY)
        await connection.execute(_WATCH)
        await operation(queue, ids)
        rows = await connection.fetch("SELECT sum(rows) FROM public.seen GROUP BY transaction")
    finally:
        await connection.close()
    assert sum(row[0] for row in rows) == _ROWS
    assert max(row[0] for row in rows) <= ROWS_AT_ONCE


async def test_a_place_in_the_dead_letters_that_no_page_gave_is_refused(queue: PostgresBackend) -> None:
    """Not told as an outage, after which whoever asks over HTTP would ask again and again."""
    with pytest.raises(ConfigurationError, match="is no place in a list of dead letters"):
        await queue.dead_page("5:\0", 10)


async def test_a_page_of_dead_letters_has_so_many_bytes(
    queue: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer over HTTP has to arrive within its time, however large the tasks are."""
    monkeypatch.setattr("jobq_postgres.queue_admin.PAGE_BYTES", 25_000)
    ids = await queue.push([Task.new(kwargs={"data": "x" * 10_000}, id=f"t-{number}") for number in range(7)])
    for delivery in await queue.receive(7, LEASE, NOW):
        await delivery.settle(MoveToDeadLetters("failed", ""))
    page, behind = await queue.dead_page("", 7)
    assert (len(page), behind is None) == (3, False)
    assert len((await queue.dead_page(behind or "", 2))[0]) == 2
    assert sorted(letter.id for letter in await queue.dead_letters(10)) == ids
    assert len(await queue.dead_letters(5)) == 5
