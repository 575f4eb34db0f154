"""Hastening, where a row says what no single verb leaves behind."""

import time

from jobq.backend import Hastened
from jobq_postgres import PostgresBackend
from tests.postgres.support import LEASE, NOW, tasks


async def test_what_is_to_be_canceled_has_ended_and_is_not_hastened(queue: PostgresBackend) -> None:
    """A renewal's client may die between the settle that puts a task back and the statement that ends it."""
    (id_,) = await queue.push(tasks(1, not_before=time.time() + 600))
    mark = "UPDATE jobq.task SET cancel_requested = true"
    await (await queue._linked()).look(lambda connection: connection.execute(mark))
    assert await queue.hasten([id_]) == [Hastened.ENDED]
    assert await queue.receive(1, LEASE, NOW) == []
    assert (await queue.stats()).scheduled == 1


async def test_many_are_answered_one_by_one(queue: PostgresBackend) -> None:
    """More than one transaction takes, and one of them twice."""
    later = await queue.push(tasks(1100, not_before=time.time() + 600))
    answers = await queue.hasten([*later, "unknown", later[0]])
    assert answers == [Hastened.DUE] * 1100 + [Hastened.UNKNOWN, Hastened.DUE]
    assert (await queue.stats()).visible == 1100
