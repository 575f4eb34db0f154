"""The journal of one queue, read; the settles write it (settle.py), and the sweep (claimer.py)."""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from jobq.errors import MalformedTask
from jobq.journal.records import Attempt, Beat, Canceled, JournalStats, TaskRecord, TaskState
from jobq.servable import Bodies
from jobq.task import Task
from jobq_postgres.cancel import cancel_held
from jobq_postgres.lane import Work
from jobq_postgres.shape_sql import first_of_each
from jobq_postgres.stored_text import text_of
from jobq_postgres.task_listing import TASKS_AT_ONCE

# In the order of tables in which a task goes through them; `waiting_of` and the others make records of their rows.
TASK_COLUMNS: Final = """
    seq, id, deliveries, body, checkpoint, holder, beat, cancel_requested, expires_at IS NOT NULL AS is_leased,
        coalesce(expires_at > clock_timestamp(), false) AS is_live,
        coalesce(due > clock_timestamp(), false) AS is_later,
        CASE WHEN expires_at IS NOT NULL THEN extract(epoch FROM started_at)::float8 END AS leased_at,
        extract(epoch FROM due)::float8 AS due,
        extract(epoch FROM expires_at - clock_timestamp())::float8 AS lease_left,
        (SELECT name FROM jobq.batch WHERE batch.batch_id = task.batch_id) AS batch
"""
_TASK: Final = f"SELECT {TASK_COLUMNS} FROM jobq.task"  # noqa: S608 - constants of ours, every value is bound; so below
DEAD_COLUMNS: Final = """
    id, deliveries, body, checkpoint, reason, description, extract(epoch FROM died_at)::float8 AS at,
    (SELECT name FROM jobq.batch WHERE batch.batch_id = dead.batch_id) AS batch
"""
ENDED_COLUMNS: Final = """
    id, outcome, extract(epoch FROM ended_at)::float8 AS at,
    (SELECT name FROM jobq.batch WHERE batch.batch_id = submission.batch_id) AS batch
"""
FIND: Final = f"{_TASK} WHERE queue_id = $1 AND id = ANY ($2::text[])"
RUNNING: Final = f"{_TASK} WHERE queue_id = $1 AND expires_at IS NOT NULL ORDER BY task.started_at, seq LIMIT $2"
# Not searched for by the batch: of its tasks a million may wait, and few run.
RUNNING_OF_BATCH: Final = f"""
    {_TASK} WHERE queue_id = $1 AND expires_at IS NOT NULL
    AND batch_id + 0 = (SELECT batch_id FROM jobq.batch WHERE queue_id = $1 AND name = $2)
    ORDER BY task.started_at, seq LIMIT $3
"""  # noqa: S608 - constants of ours, every value is bound
# In the order of the index on ids, whatever the database's collation makes of that: a page costs what it holds.
UNFINISHED: Final = f"{_TASK} WHERE queue_id = $1 AND id > $2 ORDER BY id LIMIT $3"
IDS_WITH: Final = """
    SELECT id FROM jobq.submission WHERE queue_id = $1 AND strpos(id, $2) > 0 ORDER BY id LIMIT $3
"""
FIND_DEAD: Final = f"SELECT {DEAD_COLUMNS} FROM jobq.dead WHERE queue_id = $1 AND id = ANY ($2::text[])"  # noqa: S608
FIND_ENDED: Final = f"""
    SELECT {ENDED_COLUMNS} FROM jobq.submission
    WHERE queue_id = $1 AND id = ANY ($2::text[]) AND ended_at IS NOT NULL
"""  # noqa: S608
LAST: Final = """
    SELECT DISTINCT ON (id) id, record, attempt FROM jobq.attempt WHERE queue_id = $1 AND id = ANY ($2::text[])
    ORDER BY id, attempt DESC
"""
COUNTS: Final = """
    SELECT (SELECT count(*) FROM jobq.task WHERE queue_id = $1 AND position IS NOT NULL)
            + (SELECT count(*) FROM jobq.task WHERE queue_id = $1 AND due <= statement_timestamp()) AS ready,
        (SELECT count(*) FROM jobq.task WHERE queue_id = $1 AND due > statement_timestamp()) AS scheduled,
        (SELECT count(*) FROM jobq.task WHERE queue_id = $1 AND expires_at > statement_timestamp()) AS running,
        (SELECT count(*) FROM jobq.task WHERE queue_id = $1 AND expires_at <= statement_timestamp()) AS expired,
        (SELECT count(*) FROM jobq.submission WHERE queue_id = $1 AND ended_at IS NOT NULL) AS ended,
        (SELECT count(*) FROM jobq.submission WHERE queue_id = $1 AND outcome = 'canceled') AS canceled,
        (SELECT count(*) FROM jobq.dead WHERE queue_id = $1) AS dead
"""
ENDED: Final = """
    SELECT outcome, count(*) FROM jobq.attempt
    WHERE queue_id = $1 AND ended_at > statement_timestamp() - $2 * interval '1 second' GROUP BY outcome
"""
FIRST_ENDED: Final = """
    SELECT extract(epoch FROM statement_timestamp() - min(ended_at))::float8 FROM jobq.attempt
    WHERE queue_id = $1 AND ended_at > statement_timestamp() - $2 * interval '1 second'
"""
OLDEST: Final = f"""
    SELECT body FROM (SELECT ready.seq FROM {first_of_each("1")} ORDER BY ready.position LIMIT 1) AS first
    JOIN jobq.task ON task.seq = first.seq
"""  # noqa: S608 - constants of ours, every value is bound
# Locked in the order of seq, as everyone does it.
HOLD: Final = """
    SELECT seq, id, coalesce(expires_at > clock_timestamp(), false) AS is_live FROM jobq.task
    WHERE queue_id = $1 AND id = ANY ($2::text[]) ORDER BY seq FOR UPDATE
"""


T = TypeVar("T")


class LooksAtQueue(Protocol):
    """What connects to a queue for a look, and for a cancel; `Connections` does."""

    @property
    def queue(self) -> int:
        """The queue's number."""
        ...

    async def look(self, work: Work[Any]) -> Any:
        """Run it on a connection; raises AnswerLost."""
        ...

    async def advance(self) -> None:
        """Do what follows from an end."""
        ...


class PostgresJournal:
    """What is known of the tasks of one queue.

    Args:
        links: gives the connections.
    """

    def __init__(self, links: Callable[[], Awaitable[LooksAtQueue]]) -> None:
        self._links = links

    async def find(self, ids: Sequence[str]) -> list[TaskRecord]:
        """Look up by id, with the last attempt; in one snapshot, since a task goes from table to table."""

        async def work(connection: Any, queue: int) -> list[TaskRecord]:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                ended = await connection.fetch(FIND_ENDED, queue, list(ids))
                last = {
                    row["id"]: Attempt.decode(row["record"], row["attempt"])
                    for row in await connection.fetch(LAST, queue, list(ids))
                }
                found = {row["id"]: ended_of(row, last.get(row["id"])) for row in ended}
                bodies = Bodies()
                for statement, record_of in ((FIND_DEAD, dead_of), (FIND, waiting_of)):
                    async for row in connection.cursor(statement, queue, list(ids), prefetch=TASKS_AT_ONCE):
                        found[row["id"]] = bodies.with_room(record_of(row, last.get(row["id"])))
            return list(found.values())

        return await self._look(work)

    async def running(self, limit: int, batch: str | None = None) -> list[TaskRecord]:
        """List what is leased."""
        if batch is not None:
            return await self._list(RUNNING_OF_BATCH, batch, limit)
        return await self._list(RUNNING, limit)

    async def unfinished(self, after: str, limit: int) -> list[TaskRecord]:
        """List what has not ended."""
        return await self._list(UNFINISHED, after, limit, is_page=True)

    async def ids_with(self, part: str, limit: int) -> list[str]:
        """Look through the index of the ids."""

        async def work(connection: Any, queue: int) -> list[str]:
            return [row[0] for row in await connection.fetch(IDS_WITH, queue, part, limit)]

        return await self._look(work)

    async def _list(self, statement: str, *values: object, is_page: bool = False) -> list[TaskRecord]:
        async def work(connection: Any, queue: int) -> list[TaskRecord]:
            bodies, found = Bodies(), list[TaskRecord]()
            async with connection.transaction(readonly=True):
                async for row in connection.cursor(statement, queue, *values, prefetch=TASKS_AT_ONCE):
                    found.append(bodies.with_room(waiting_of(row, None)))
                    if is_page and bodies.are_many:
                        break
            return found

        return await self._look(work)

    async def attempts(self, task_id: str) -> list[Attempt]:
        """Return those that were recorded."""
        statement = "SELECT record, attempt FROM jobq.attempt WHERE queue_id = $1 AND id = $2 ORDER BY attempt"

        async def work(connection: Any, queue: int) -> list[Attempt]:
            return [Attempt.decode(row[0], row[1]) for row in await connection.fetch(statement, queue, task_id)]

        return await self._look(work)

    async def output(self, task_id: str, attempt: int | None = None) -> tuple[int, str] | None:
        """Return the end of an attempt's output."""
        statement = (
            "SELECT attempt, output FROM jobq.attempt WHERE queue_id = $1 AND id = $2"
            " AND attempt = coalesce($3::integer, attempt) ORDER BY attempt DESC LIMIT 1"
        )

        async def work(connection: Any, queue: int) -> tuple[int, str] | None:
            row = await connection.fetchrow(statement, queue, task_id, attempt)
            return None if row is None else (row[0], text_of(row[1]))

        return await self._look(work)

    async def stats(self, window_seconds: float) -> JournalStats:
        """Count."""

        async def work(connection: Any, queue: int) -> JournalStats:
            counts = await connection.fetchrow(COUNTS, queue)
            ended = {row[0]: row[1] for row in await connection.fetch(ENDED, queue, window_seconds)}
            states = {
                TaskState.READY: counts["ready"],
                TaskState.SCHEDULED: counts["scheduled"],
                TaskState.RUNNING: counts["running"],
                TaskState.EXPIRED: counts["expired"],
                TaskState.SUCCEEDED: counts["ended"] - counts["canceled"],
                TaskState.DEAD: counts["dead"],
                TaskState.CANCELED: counts["canceled"],
            }
            return JournalStats(
                states={str(state): count for state, count in states.items()},
                oldest_ready_seconds=age_of(await connection.fetchval(OLDEST, queue)),
                ended=ended,
                window_seconds=window_seconds,
                first_ended_seconds=await connection.fetchval(FIRST_ENDED, queue, window_seconds),
            )

        return await self._look(work)

    async def cancel(self, ids: Sequence[str]) -> list[Canceled]:
        """End what waits, and ask for the end of what runs, in one transaction."""

        async def work(connection: Any, queue: int) -> tuple[list[Canceled], bool]:
            async with connection.transaction():
                held = await connection.fetch(HOLD, queue, list(ids))
                tells = await cancel_held(connection, held)
                ended = {row["id"]: row["outcome"] for row in await connection.fetch(FIND_ENDED, queue, list(ids))}
                dead = {row["id"] for row in await connection.fetch(FIND_DEAD, queue, list(ids))}
            answers = {
                id_: Canceled.CANCELED if outcome == "canceled" else Canceled.ENDED for id_, outcome in ended.items()
            }
            answers |= dict.fromkeys(dead, Canceled.ENDED)
            answers |= {row["id"]: Canceled.STOPPING for row in held if row["is_live"]}
            return [answers.get(id_, Canceled.UNKNOWN) for id_ in ids], tells

        answers, tells = await self._look(work)
        if tells:
            await (await self._links()).advance()
        return answers

    async def _look(self, work: Callable[[Any, int], Awaitable[T]]) -> T:
        links = await self._links()
        found: T = await links.look(lambda connection: work(connection, links.queue))
        return found


def waiting_of(row: Any, last: Attempt | None) -> TaskRecord:
    """Return the record of a row of TASK_COLUMNS, with its last attempt, if that is known."""
    if row["is_leased"]:
        state = TaskState.RUNNING if row["is_live"] else TaskState.EXPIRED
    elif row["cancel_requested"]:
        state = TaskState.CANCELED  # who claims it ends it unstarted
    else:
        state = TaskState.SCHEDULED if row["is_later"] else TaskState.READY
    return TaskRecord(
        id=row["id"],
        state=state,
        attempt=row["deliveries"],
        body=row["body"],
        at=row["leased_at"] if row["is_leased"] else row["due"],
        holder=row["holder"],
        leased_at=row["leased_at"],
        lease_left=row["lease_left"],
        beat=None if row["beat"] is None else Beat.decode(row["beat"]),
        checkpoint=_text(row["checkpoint"]),
        cancel_requested=row["cancel_requested"],
        last=last,
        batch=row["batch"],
    )


def dead_of(row: Any, last: Attempt | None) -> TaskRecord:
    """As `waiting_of`, of DEAD_COLUMNS."""
    return TaskRecord(
        id=row["id"],
        state=TaskState.DEAD,
        attempt=row["deliveries"],
        body=row["body"],
        at=row["at"],
        checkpoint=_text(row["checkpoint"]),
        reason=row["reason"],
        description=text_of(row["description"]),
        last=last,
        batch=row["batch"],
    )


def ended_of(row: Any, last: Attempt | None) -> TaskRecord:
    """As `waiting_of`, of ENDED_COLUMNS."""
    return TaskRecord(
        id=row["id"],
        state=TaskState.SUCCEEDED if row["outcome"] is None else TaskState(row["outcome"]),
        attempt=0 if last is None else last.attempt,
        at=row["at"],
        last=last,
        batch=row["batch"],
    )


def age_of(body: bytes | None) -> float | None:
    """Return since when the task that is next in turn waits: by its own word, when it was made."""
    with suppress(MalformedTask):
        created = None if body is None else Task.decode(body).created
        return None if created is None else max(0.0, time.time() - created)
    return None


def _text(stored: bytes | None) -> str | None:
    return None if stored is None else text_of(stored)
