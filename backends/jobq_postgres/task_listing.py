"""What `jobq serve` shows of tasks, and the documents it remembers, as SQL; see `jobq.servable`."""

from collections.abc import Sequence
from typing import Any, Final

from jobq.journal.records import Attempt
from jobq.servable import PAGE_BYTES, Document, Kind, ListedTask
from jobq_postgres.stored_text import text_of

TASKS_AT_ONCE: Final = 16  # read before it is seen whether a page is full: 16 MiB at most
_NOW: Final = "statement_timestamp()"
_IDS: Final = {
    Kind.ALL: "jobq.submission WHERE true",
    Kind.WAITING: f"jobq.task WHERE (expires_at IS NULL OR expires_at <= {_NOW})",
    Kind.STARTED: f"jobq.task WHERE expires_at > {_NOW}",
    Kind.PROCESSED: "jobq.submission WHERE ended_at IS NOT NULL",
    Kind.DEAD: "jobq.dead WHERE true",
}
_SHOW: Final = f"""
    SELECT given.id, task.seq IS NOT NULL AS is_there, dead.id IS NOT NULL AS is_dead,
        submission.ended_at IS NOT NULL AS is_done, task.expires_at > {_NOW} AS is_leased,
        task.due > {_NOW} AS is_later,
        coalesce(task.deliveries, dead.deliveries) AS deliveries, coalesce(task.body, dead.body) AS body,
        extract(epoch FROM coalesce(task.started_at, dead.started_at, submission.started_at))::float8 AS started,
        extract(epoch FROM task.heartbeat_at)::float8 AS heartbeat,
        extract(epoch FROM task.expires_at)::float8 AS expires, extract(epoch FROM task.due)::float8 AS due,
        extract(epoch FROM coalesce(dead.died_at, submission.ended_at))::float8 AS processed,
        last.attempt, last.record, last.output, dead.reason, dead.description
    FROM unnest($2::text[]) WITH ORDINALITY AS given (id, number)
    LEFT JOIN jobq.submission ON submission.queue_id = $1 AND submission.id = given.id
    LEFT JOIN jobq.task ON task.queue_id = $1 AND task.id = given.id
    LEFT JOIN jobq.dead ON dead.queue_id = $1 AND dead.id = given.id
    LEFT JOIN LATERAL (
        SELECT attempt, record, output FROM jobq.attempt WHERE submission.ended_at IS NOT NULL AND queue_id = $1
        AND attempt.id = given.id ORDER BY attempt DESC LIMIT 1) AS last ON true
    ORDER BY given.number
"""  # noqa: S608 - constants of ours, every value is bound; so below
_READ: Final = "SELECT value, version FROM jobq.document WHERE name = $1"
_ADD: Final = "INSERT INTO jobq.document (name, version, value) VALUES ($1, 1, $2) ON CONFLICT (name) DO NOTHING"
_REPLACE: Final = "UPDATE jobq.document SET value = $2, version = version + 1 WHERE name = $1 AND version = $3"


async def page(connection: Any, queue: int, kind: Kind, after: str, limit: int) -> tuple[list[ListedTask], str | None]:
    """Return a page of tasks, and the id that the next one is behind."""
    statement = f"SELECT id FROM {_IDS[kind]} AND queue_id = $1 AND id > $2 ORDER BY id LIMIT $3"  # noqa: S608
    ids = [row[0] for row in await connection.fetch(statement, queue, after, limit + 1)]
    tasks: list[ListedTask] = []
    size = 0
    for start in range(0, len(ids), TASKS_AT_ONCE):
        for task in await show(connection, queue, ids[start : start + TASKS_AT_ONCE]):
            if len(tasks) == limit or size >= PAGE_BYTES:
                return tasks, tasks[-1].id
            tasks.append(task)
            size += task.size
    return tasks, None


async def show(connection: Any, queue: int, ids: Sequence[str]) -> list[ListedTask]:
    """Return these tasks, as far as they are there."""
    rows = await connection.fetch(_SHOW, queue, list(ids))
    return [_record(row) for row in rows if row["is_there"] or row["is_dead"] or row["is_done"]]


async def queues(connection: Any) -> list[str]:
    """Return the names of all queues."""
    return sorted(row[0] for row in await connection.fetch("SELECT name FROM jobq.queue"))


async def read_document(connection: Any, name: str) -> Document | None:
    """Return a document."""
    row = await connection.fetchrow(_READ, name)
    return None if row is None else Document(value=row[0], version=row[1])


async def write_document(connection: Any, name: str, value: bytes, version: int) -> bool:
    """Replace a document, if it is at this version."""
    done = await (
        connection.execute(_REPLACE, name, value, version) if version else connection.execute(_ADD, name, value)
    )
    return str(done).endswith(" 1")


def _record(row: Any) -> ListedTask:
    is_leased = bool(row["is_leased"])
    return ListedTask(
        id=row["id"],
        state=_state(row),
        deliveries=row["deliveries"],
        body=row["body"],
        started=row["started"],
        last_heartbeat=row["heartbeat"],
        must_heartbeat_before=row["expires"] if is_leased else None,
        due=row["due"],
        processed=row["processed"],
        last=None if row["record"] is None else Attempt.decode(row["record"], row["attempt"]),
        output="" if row["output"] is None else text_of(row["output"]),
        reason=row["reason"],
        description=None if row["description"] is None else text_of(row["description"]),
    )


def _state(row: Any) -> str:
    if row["is_there"]:
        return "leased" if row["is_leased"] else "scheduled" if row["is_later"] else "ready"
    return "dead" if row["is_dead"] else "done"
