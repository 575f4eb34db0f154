"""The journal's statements on a real server: what is forgotten, and settles that come twice."""

import time
from datetime import timedelta

from jobq.journal.records import Attempt
from jobq.settlement import Complete, Record
from jobq.task import Task
from jobq_postgres import PostgresBackend
from jobq_postgres.forgetting import FORGET_ATTEMPTS
from tests.postgres.server import Database
from tests.postgres.support import DONE

LEASE = timedelta(seconds=60)


async def _done(queue: PostgresBackend) -> str:
    (id_,) = await queue.push([Task.new(command="true")])
    (delivery,) = await queue.receive(1, LEASE, timedelta(0))
    attempt = Attempt(attempt=1, outcome="succeeded", then="done", ended=time.time())
    done = Complete(DONE, record=Record(attempt, "a NUL \0 and a half \ud800"))
    await delivery.settle(done)
    await delivery.settle(done)  # S5: the same again, without a second effect
    return id_


async def test_what_is_old_is_forgotten(queue: PostgresBackend, database: Database) -> None:
    id_ = await _done(queue)
    journal = queue.journal
    assert journal is not None
    assert len(await journal.attempts(id_)) == 1
    assert await journal.output(id_) == (1, "a NUL \0 and a half \ud800")
    connection = await database.server().connect("test")
    try:
        await connection.execute(FORGET_ATTEMPTS, 1, timedelta(hours=1))
        assert len(await journal.attempts(id_)) == 1
        await connection.execute(FORGET_ATTEMPTS, 1, timedelta(0))
        assert await journal.attempts(id_) == []
    finally:
        connection.terminate()
    (record,) = await journal.find([id_])
    assert record.state == "succeeded", "the queue itself remembers"


async def test_what_is_old_is_forgotten_faster_than_it_comes(queue: PostgresBackend, database: Database) -> None:
    """More than one look takes: the next one follows at once, not a minute later."""
    await queue.stats()
    database.run(
        "INSERT INTO jobq.attempt (queue_id, id, attempt, outcome, ended_at, record, output)"
        " SELECT queue_id, 'old-' || n, 1, 'succeeded', now() - interval '40 days', '{}', ''"
        " FROM jobq.queue, generate_series(1, 2500) AS n"
    )
    for _ in range(5):
        await queue.receive(1, LEASE, timedelta(seconds=1.1))
        if database.run("SELECT count(*) FROM jobq.attempt") == [(0,)]:
            return
    raise AssertionError("it grows")
