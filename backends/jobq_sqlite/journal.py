"""The journal of one queue of a file, read; `journal_writer` writes it."""

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, closing
from typing import Any, Final, Protocol, TypeVar

from jobq.journal.records import Attempt, Beat, Canceled, JournalStats, TaskRecord, TaskState
from jobq.servable import Bodies
from jobq_sqlite import journal_writer
from jobq_sqlite.connection import SqliteConnection
from jobq_sqlite.task_sql import Now, confirm

T = TypeVar("T")
# In the order in which `record_of` takes them.
COLUMNS: Final = (
    "seq, id, state, deliveries, body, available_at, finished_at, expires_at, holder, started_at, beat, checkpoint,"
    " cancel_requested, outcome, reason, description,"
    " (SELECT name FROM batch WHERE batch.batch_id = task.batch_id) AS batch"
)
_FIND: Final = f"SELECT {COLUMNS} FROM task WHERE queue_id = ? AND id IN ({{}})"  # noqa: S608 - constants of ours
RUNNING: Final = f"SELECT {COLUMNS} FROM task WHERE queue_id = ? AND state = 'leased' ORDER BY started_at, seq LIMIT ?"  # noqa: S608
RUNNING_OF_BATCH: Final = (
    f"SELECT {COLUMNS} FROM task WHERE batch_id = (SELECT batch_id FROM batch WHERE queue_id = ? AND name = ?)"  # noqa: S608
    " AND state = 'leased' ORDER BY started_at, seq LIMIT ?"
)
UNFINISHED: Final = (
    f"SELECT {COLUMNS} FROM task WHERE queue_id = ? AND id > ? AND state IN ('ready', 'scheduled', 'leased')"  # noqa: S608
    " ORDER BY id LIMIT ?"
)
_IDS_WITH: Final = "SELECT id FROM task WHERE queue_id = ? AND instr(id, ?) ORDER BY id LIMIT ?"
_LAST: Final = "SELECT record, attempt FROM attempt WHERE seq = ? ORDER BY attempt DESC LIMIT 1"
_SEQ: Final = "SELECT seq FROM task WHERE queue_id = ? AND id = ?"
_STATES: Final = {
    "ready": "state = 'ready'",
    "due": "state = 'scheduled' AND available_at <= :wall",
    "scheduled": "state = 'scheduled' AND available_at > :wall",
    "running": "state = 'leased' AND expires_at > :boottime",
    "expired": "state = 'leased' AND expires_at <= :boottime",
    "done": "state = 'done'",
    "canceled": "outcome = 'canceled'",
    "dead": "state = 'dead'",
}
_COUNT: Final = "(SELECT count(*) FROM task WHERE queue_id = :queue AND {})"
COUNTS: Final = f"SELECT {', '.join(map(_COUNT.format, _STATES.values()))}"
ENDED: Final = "SELECT outcome, count(*) FROM attempt WHERE queue_id = ? AND ended_at > ? GROUP BY outcome"
FIRST_ENDED: Final = "SELECT min(ended_at) FROM attempt WHERE queue_id = ? AND ended_at > ?"
# By the index of the claims, which is in the order of priorities: one step for each priority, not for each task.
OLDEST: Final = """
    WITH RECURSIVE level (priority) AS (
        SELECT max(priority) FROM task WHERE queue_id = :queue AND state = 'ready'
        UNION ALL
        SELECT (SELECT max(priority) FROM task
            WHERE queue_id = :queue AND state = 'ready' AND priority < level.priority)
        FROM level WHERE level.priority IS NOT NULL)
    SELECT min((SELECT min(available_at) FROM task
        WHERE queue_id = :queue AND state = 'ready' AND priority = level.priority)) FROM level
"""
_CANCEL_RUNNING: Final = "UPDATE task SET cancel_requested = 1 WHERE seq = ?"


class ReadsQueue(Protocol):
    """Runs a function on a connection that reads; it gets the queue's number, too."""

    async def __call__(self, work: Callable[[sqlite3.Connection, int, Now], T]) -> T:
        """Run it; raises what it raises, and QueueNotFound."""
        ...


class SqliteJournal:
    """What is known of the tasks of one queue.

    Args:
        link: gives the connection that writes, and the queue's number.
        read: runs a function on the one that reads; it gets the queue's number, too.
        changed: called when something may have changed that a receive waits for.
        looked_up_again: has the queue looked up anew after a call that finds it deleted.
    """

    def __init__(
        self,
        link: Callable[[], Awaitable[tuple[SqliteConnection, int]]],
        read: ReadsQueue,
        changed: Callable[[], None],
        looked_up_again: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._link = link
        self._read = read
        self._changed = changed
        self._looked_up_again = looked_up_again

    async def find(self, ids: Sequence[str]) -> list[TaskRecord]:
        """Look up by id, with the last attempt."""
        marks = ", ".join("?" * len(ids))

        def work(database: sqlite3.Connection, queue: int, now: Now) -> list[TaskRecord]:
            bodies = Bodies()
            return [
                bodies.with_room(record_of(row, now, database.execute(_LAST, row[:1]).fetchone()))
                for row in database.execute(_FIND.format(marks), (queue, *ids))
            ]

        return await self._read(work)

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
        return await self._read(
            lambda database, queue, _: [row[0] for row in database.execute(_IDS_WITH, (queue, part, limit))]
        )

    async def _list(self, statement: str, *values: object, is_page: bool = False) -> list[TaskRecord]:
        def work(database: sqlite3.Connection, queue: int, now: Now) -> list[TaskRecord]:
            bodies, found = Bodies(), list[TaskRecord]()
            with closing(database.execute(statement, (queue, *values))) as rows:
                for row in rows:
                    found.append(bodies.with_room(record_of(row, now, None)))
                    if is_page and bodies.are_many:
                        break
            return found

        return await self._read(work)

    async def attempts(self, task_id: str) -> list[Attempt]:
        """Return those that were recorded."""
        statement = f"SELECT record, attempt FROM attempt WHERE seq = ({_SEQ}) ORDER BY attempt"  # noqa: S608 - constants of ours
        return await self._read(
            lambda database, queue, _: [Attempt.decode(*row) for row in database.execute(statement, (queue, task_id))]
        )

    async def output(self, task_id: str, attempt: int | None = None) -> tuple[int, str] | None:
        """Return the end of an attempt's output."""
        statement = (
            f"SELECT attempt, output FROM attempt WHERE seq = ({_SEQ}) AND attempt = coalesce(?, attempt)"  # noqa: S608 - as above
            " ORDER BY attempt DESC LIMIT 1"
        )
        found: tuple[int, str] | None = await self._read(
            lambda database, queue, _: database.execute(statement, (queue, task_id, attempt)).fetchone()
        )
        return found

    async def stats(self, window_seconds: float) -> JournalStats:
        """Count."""

        def work(database: sqlite3.Connection, queue: int, now: Now) -> JournalStats:
            values = {"queue": queue, "wall": now.wall, "boottime": now.boottime}
            counts = dict(zip(_STATES, database.execute(COUNTS, values).fetchone(), strict=True))
            (oldest,) = database.execute(OLDEST, {"queue": queue}).fetchone()
            ended = dict(database.execute(ENDED, (queue, now.wall - window_seconds)).fetchall())
            (first,) = database.execute(FIRST_ENDED, (queue, now.wall - window_seconds)).fetchone()
            states = {
                TaskState.READY: counts["ready"] + counts["due"],
                TaskState.SCHEDULED: counts["scheduled"],
                TaskState.RUNNING: counts["running"],
                TaskState.EXPIRED: counts["expired"],
                TaskState.SUCCEEDED: counts["done"] - counts["canceled"],
                TaskState.DEAD: counts["dead"],
                TaskState.CANCELED: counts["canceled"],
            }
            return JournalStats(
                states={str(state): count for state, count in states.items()},
                oldest_ready_seconds=None if oldest is None else max(0.0, now.wall - oldest),
                ended=ended,
                window_seconds=window_seconds,
                first_ended_seconds=None if first is None else max(0.0, now.wall - first),
            )

        return await self._read(work)

    async def cancel(self, ids: Sequence[str]) -> list[Canceled]:
        """End what waits, and ask for the end of what runs, in short transactions."""
        connection, queue = await self._link()
        with self._looked_up_again():
            answers = await connection.each(ids, lambda database, now, id_: _cancel(database, queue, id_, now))
        self._changed()
        return answers


def _cancel(database: sqlite3.Connection, queue: int, task_id: str, now: Now) -> Canceled:
    confirm(database, queue)
    row = database.execute(
        f"SELECT state, outcome, {journal_writer.LEASED_COLUMNS} FROM task WHERE queue_id = ? AND id = ?",  # noqa: S608 - as above
        (queue, task_id),
    ).fetchone()
    if row is None:
        return Canceled.UNKNOWN
    state, outcome, *leased = row
    if state == "leased" and leased[-1] > now.boottime:
        database.execute(_CANCEL_RUNNING, leased[:1])
        return Canceled.STOPPING
    if state in ("done", "dead"):
        return Canceled.CANCELED if outcome == "canceled" else Canceled.ENDED
    journal_writer.cancel_waiting(database, tuple(leased), now.boottime, now.wall)
    return Canceled.CANCELED


def record_of(row: tuple[Any, ...], now: Now, last: tuple[str, int] | None) -> TaskRecord:
    """Return the record of a row of COLUMNS, with its last attempt, if that is known."""
    (
        _, id_, stored, deliveries, body, available_at, finished_at, expires_at, holder, started_at, beat, checkpoint,
        cancel_requested, outcome, reason, description, batch,
    ) = row  # fmt: skip
    state = journal_writer.state_of(
        stored, outcome, is_due=available_at <= now.wall, is_live=(expires_at or 0.0) > now.boottime
    )
    return TaskRecord(
        id=id_,
        state=state,
        attempt=deliveries,
        body=bytes(body),
        at=finished_at if state.is_final else started_at if stored == "leased" else available_at,
        holder=holder,
        leased_at=started_at if stored == "leased" else None,
        lease_left=expires_at - now.boottime if stored == "leased" else None,
        beat=None if beat is None else Beat.decode(beat),
        checkpoint=checkpoint,
        cancel_requested=bool(cancel_requested),
        reason=reason,
        description=description,
        last=None if last is None else Attempt.decode(*last),
        batch=batch,
    )
