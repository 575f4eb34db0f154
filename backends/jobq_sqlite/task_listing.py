"""What `jobq serve` shows of tasks, and the documents it remembers, as SQL; see `jobq.servable`."""

import sqlite3
from typing import Any, Final

from jobq.journal.records import Attempt
from jobq.servable import PAGE_BYTES, Document, Kind, ListedTask
from jobq_sqlite.journal_writer import WAITS
from jobq_sqlite.task_sql import DELETED, Now

_WHICH: Final = {
    Kind.ALL: "true",
    Kind.WAITING: WAITS,
    Kind.STARTED: "state = 'leased' AND expires_at > :boottime",
    Kind.PROCESSED: "state = 'done'",
    Kind.DEAD: "state = 'dead'",
}
# Their rows first, and each by itself until the page is full: a list that is sorted is not to hold what tasks run.
_ROWS: Final = "SELECT seq FROM task WHERE queue_id = :queue AND {} AND id > :after ORDER BY id LIMIT :limit"
_SHOW: Final = (
    "SELECT task.id, state, deliveries, body, started_at, heartbeat_at, expires_at, available_at, finished_at,"
    " reason, description, attempt.record, attempt.output FROM task LEFT JOIN attempt"
    " ON state = 'done' AND attempt.seq = task.seq AND attempt.attempt = task.deliveries WHERE task.queue_id = :queue"
)


def page(
    database: sqlite3.Connection, queue: int, kind: Kind, after: str, limit: int, now: Now
) -> tuple[list[ListedTask], str | None]:
    """Return a page of tasks, and the id that the next one is behind."""
    values = {"queue": queue, "after": after, "limit": limit + 1, "boottime": now.boottime}
    tasks: list[ListedTask] = []
    size = 0
    for (seq,) in database.execute(_ROWS.format(_WHICH[kind]), values).fetchall():
        row = database.execute(f"{_SHOW} AND task.seq = :seq", {"queue": queue, "seq": seq}).fetchone()
        if row is None:  # it has gone meanwhile
            continue
        if len(tasks) == limit or size >= PAGE_BYTES:
            return tasks, tasks[-1].id
        tasks.append(_record(row, now))
        size += tasks[-1].size
    return tasks, None


def find(database: sqlite3.Connection, queue: int, task_id: str, now: Now) -> ListedTask | None:
    """Return one task."""
    row = database.execute(f"{_SHOW} AND task.id = :id", {"queue": queue, "id": task_id}).fetchone()
    return None if row is None else _record(row, now)


def queues(database: sqlite3.Connection) -> list[str]:
    """Return the names of all queues."""
    return [
        row[0] for row in database.execute("SELECT name FROM queue ORDER BY name") if not row[0].startswith(DELETED)
    ]


def read_document(database: sqlite3.Connection, name: str) -> Document | None:
    """Return a document."""
    row = database.execute("SELECT value, version FROM document WHERE name = ?", (name,)).fetchone()
    return None if row is None else Document(value=bytes(row[0]), version=row[1])


def write_document(database: sqlite3.Connection, name: str, value: bytes, version: int) -> bool:
    """Replace a document, if it is at this version."""
    if version:
        statement = "UPDATE document SET value = ?, version = version + 1 WHERE name = ? AND version = ?"
        return database.execute(statement, (value, name, version)).rowcount == 1
    statement = "INSERT OR IGNORE INTO document (name, version, value) VALUES (?, 1, ?)"
    return database.execute(statement, (name, value)).rowcount == 1


def _record(row: Any, now: Now) -> ListedTask:
    id_, state, deliveries, body, started, heartbeat, expires, available, finished, reason, text, last, output = row
    is_leased = state == "leased" and expires > now.boottime
    if (state == "leased" and not is_leased) or (state == "scheduled" and available <= now.wall):
        state = "ready"
    return ListedTask(
        id=id_,
        state=state,
        deliveries=deliveries,
        body=None if state == "done" else bytes(body),
        started=started,
        last_heartbeat=heartbeat,
        must_heartbeat_before=now.wall + expires - now.boottime if is_leased else None,
        due=available if state == "scheduled" else None,
        processed=finished,
        last=None if last is None else Attempt.decode(last, deliveries),
        output=output or "",
        reason=reason,
        description=text,
    )
