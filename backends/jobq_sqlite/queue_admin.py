"""Looking at a queue and tending its dead letters, as SQL; see `store` for the life of a task."""

import contextlib
import math
import sqlite3
from typing import Final

from jobq.backend import DeadLetter, Hastened, Peeked, QueueStats
from jobq.errors import ConfigurationError, MalformedTask, QueueNotEmpty
from jobq.pausing import Pause
from jobq.servable import PAGE_BYTES
from jobq.task import Task
from jobq_sqlite.bulk import ROWS_AT_ONCE
from jobq_sqlite.push_sql import NEWEST
from jobq_sqlite.shape_sql import FIRST_OF_EACH, PRIORITY
from jobq_sqlite.task_sql import DELETED, PROMOTE_AT_ONCE, Now, confirm

# What a claim would find, in its order: the ready, then what it would make ready first. Each part is bounded by its own
# index before they are merged, so that a deep queue is not sorted; nor is what tasks run.
PEEK: Final = f"""
    SELECT seq FROM (
        SELECT * FROM (
            SELECT priority, available_at, seq FROM (
                SELECT 0 AS value UNION ALL SELECT shape FROM shape WHERE queue_id = :queue) AS fit
            CROSS JOIN task ON seq IN ({FIRST_OF_EACH}) LIMIT -1)
        UNION ALL SELECT * FROM (
            SELECT priority, available_at, seq FROM task
            WHERE queue_id = :queue AND state = 'scheduled' AND available_at <= :wall
            ORDER BY available_at LIMIT {PROMOTE_AT_ONCE})
        UNION ALL SELECT * FROM (
            SELECT priority, :wall, seq FROM task
            WHERE queue_id = :queue AND state = 'leased' AND expires_at <= :boottime
            ORDER BY expires_at LIMIT {PROMOTE_AT_ONCE}))
    ORDER BY {PRIORITY} DESC, available_at, seq LIMIT :limit
"""  # noqa: S608 - the number is ours, every value is bound
_UNFINISHED: Final = "state IN ('ready', 'scheduled', 'leased')"
# Of each state apart, as their indexes are: together they would have all rows looked at, under the lock for writing.
HOLDS: Final = (
    "SELECT EXISTS (SELECT 1 FROM task WHERE queue_id = :queue AND state = 'ready')"
    " OR EXISTS (SELECT 1 FROM task WHERE queue_id = :queue AND state = 'scheduled')"
    " OR EXISTS (SELECT 1 FROM task WHERE queue_id = :queue AND state = 'leased')"
    " OR EXISTS (SELECT 1 FROM task WHERE queue_id = :queue AND state = 'dead')"
)
END_ALL_LEASES: Final = (
    "UPDATE task SET state = 'ready', receipt = NULL, expires_at = NULL, holder = NULL, beat = NULL"
    " WHERE queue_id = ? AND state = 'leased'"
)
_HASTEN: Final = (
    "UPDATE task SET state = 'ready', available_at = :wall"
    " WHERE queue_id = :queue AND id = :id AND state = 'scheduled' AND available_at > :wall"
)
# In the order of rows, which the indexes of the states do not have.
UNFINISHED_ROWS: Final = (
    f"SELECT seq FROM task NOT INDEXED WHERE seq > ? AND seq <= ? AND queue_id = ? AND {_UNFINISHED}"  # noqa: S608 - a constant of ours
    " ORDER BY seq LIMIT ?"
)
# The queues first, of which few are: notes have no index by whether their queue is there.
NOTES_OF_DELETED: Final = (
    "SELECT queue.queue_id, kind, key FROM queue CROSS JOIN observation ON observation.queue_id = queue.queue_id"
    " WHERE substr(name, 1, ?) = ? LIMIT ?"
)
CLEAR: Final = f"DELETE FROM task WHERE seq = ? AND queue_id = ? AND {_UNFINISHED}"  # noqa: S608 - as above


def peek(
    database: sqlite3.Connection, queue: int, skipped: int, limit: int, now: Now, *, most_bytes: float = PAGE_BYTES
) -> tuple[list[Peeked], int | None]:
    """Return what a claim would return: what is ready, due or expired, in the order of delivery; see `peek_page`."""
    values = {"queue": queue, "wall": now.wall, "boottime": now.boottime, "limit": skipped + max(0, limit) + 1}
    rows = database.execute(PEEK, values).fetchall()
    tasks: list[Peeked] = []
    size = 0
    for number, (seq,) in enumerate(rows[skipped:], skipped):
        if len(tasks) >= limit or size >= most_bytes:
            return tasks, number
        row = database.execute("SELECT id, body, deliveries FROM task WHERE seq = ?", (seq,)).fetchone()
        if row is not None:  # else it has gone meanwhile
            tasks.append(Peeked(id=row[0], body=bytes(row[1]), deliveries=row[2]))
            size += len(tasks[-1].body)
    return tasks, None


def stats(database: sqlite3.Connection, queue: int, now: Now) -> QueueStats:
    """Count, with what is due or expired counted as visible."""
    (ready, due, scheduled, expired, leased, dead, paused) = database.execute(
        "SELECT (SELECT count(*) FROM task WHERE queue_id = :queue AND state = 'ready'),"
        " (SELECT count(*) FROM task WHERE queue_id = :queue AND state = 'scheduled' AND available_at <= :wall),"
        " (SELECT count(*) FROM task WHERE queue_id = :queue AND state = 'scheduled' AND available_at > :wall),"
        " (SELECT count(*) FROM task WHERE queue_id = :queue AND state = 'leased' AND expires_at <= :boottime),"
        " (SELECT count(*) FROM task WHERE queue_id = :queue AND state = 'leased' AND expires_at > :boottime),"
        " (SELECT count(*) FROM task WHERE queue_id = :queue AND state = 'dead'),"
        " (SELECT paused FROM queue WHERE queue_id = :queue)",
        {"queue": queue, "wall": now.wall, "boottime": now.boottime},
    ).fetchone()
    return QueueStats(
        visible=ready + due + expired, scheduled=scheduled, leased=leased, dead=dead, paused=Pause.decode(paused)
    )


def pause(database: sqlite3.Connection, queue: int, mark: Pause | None) -> Pause | None:
    """Set or take away the mark by which nothing is handed out; return the former one."""
    confirm(database, queue)
    former = paused(database, queue)
    database.execute("UPDATE queue SET paused = ? WHERE queue_id = ?", (None if mark is None else mark.encode(), queue))
    return former


def paused(database: sqlite3.Connection, queue: int) -> Pause | None:
    """Return the mark by which nothing is handed out."""
    row = database.execute("SELECT paused FROM queue WHERE queue_id = ?", (queue,)).fetchone()
    return None if row is None else Pause.decode(row[0])


def hasten(database: sqlite3.Connection, queue: int, id_: str, now: Now) -> Hastened:
    """Let a task that is put off be due now; say where any other is."""
    confirm(database, queue)
    if database.execute(_HASTEN, {"queue": queue, "id": id_, "wall": now.wall}).rowcount:
        return Hastened.DUE
    row = database.execute(
        "SELECT state, state = 'leased' AND expires_at > ? FROM task WHERE queue_id = ? AND id = ?",
        (now.boottime, queue, id_),
    ).fetchone()
    if row is None:
        return Hastened.UNKNOWN
    state, is_live = row
    if is_live:
        return Hastened.RUNNING
    return Hastened.ENDED if state in ("done", "dead") else Hastened.WAITING


def newest(database: sqlite3.Connection) -> int:
    """Return up to which row there are tasks now."""
    (seq,) = database.execute("SELECT coalesce(max(seq), 0) FROM task").fetchone()
    return int(seq)


def unfinished_rows(database: sqlite3.Connection, queue: int, after: int, last: int) -> list[int]:
    """Return the next rows that wait or are leased, in the order of arrival, up to the one that was the newest.

    No new task has a number up to that one, whatever is gone meanwhile.
    """
    return [row[0] for row in database.execute(UNFINISHED_ROWS, (after, last, queue, ROWS_AT_ONCE))]


def clear(database: sqlite3.Connection, queue: int, seq: int) -> int:
    """Delete a task, if it still waits or is leased; return how many that were."""
    count = database.execute(CLEAR, (seq, queue)).rowcount
    if count:
        database.execute("DELETE FROM attempt WHERE seq = ?", (seq,))
    return count


def delete(database: sqlite3.Connection, queue: int, *, only_empty: bool) -> None:
    """Take the queue's name away: from here on nobody finds it, pushes to it, takes from it or holds any of it.

    Its ids are free then: what is pushed under them begins above all that it has handed out (S3).

    Raises:
        QueueNotFound: it was deleted before.
        QueueNotEmpty: it holds a task or a dead letter, and is not to be deleted then.
    """
    confirm(database, queue)
    if only_empty and database.execute(HOLDS, {"queue": queue}).fetchone() != (0,):
        raise QueueNotEmpty("tasks have come meanwhile, so it is not deleted")
    database.execute("UPDATE host SET epoch = max(epoch, highest_epoch) + 1")
    database.execute(END_ALL_LEASES, (queue,))
    database.execute("DELETE FROM batch WHERE queue_id = ?", (queue,))
    database.execute("DELETE FROM shape WHERE queue_id = ?", (queue,))
    database.execute("UPDATE queue SET name = ? || queue_id WHERE queue_id = ?", (DELETED, queue))


def rows_of_deleted(database: sqlite3.Connection) -> list[int]:
    """Return the next tasks of whichever queue was deleted, whatever has become of them."""
    found = database.execute(
        "SELECT seq FROM task WHERE queue_id IN (SELECT queue_id FROM queue WHERE substr(name, 1, ?) = ?) LIMIT ?",
        (len(DELETED), DELETED, ROWS_AT_ONCE),
    )
    return [row[0] for row in found]


def forget(database: sqlite3.Connection, seq: int) -> None:
    """Delete a task of a queue that was deleted, and its attempts."""
    database.execute("DELETE FROM attempt WHERE seq = ?", (seq,))
    database.execute("DELETE FROM task WHERE seq = ?", (seq,))


def notes_of_deleted(database: sqlite3.Connection) -> list[tuple[int, str, str]]:
    """Return the next notes of whichever queue was deleted (`jobq.journal.observations`)."""
    found = database.execute(NOTES_OF_DELETED, (len(DELETED), DELETED, ROWS_AT_ONCE))
    return [(queue, kind, key) for queue, kind, key in found]


def forget_note(database: sqlite3.Connection, note: tuple[int, str, str]) -> None:
    """Delete a note of a queue that was deleted."""
    database.execute("DELETE FROM observation WHERE queue_id = ? AND kind = ? AND key = ?", note)


def dead_page(
    database: sqlite3.Connection, queue: int, after: tuple[int, str] | None, limit: int
) -> tuple[list[DeadLetter], str | None]:
    """Return dead letters, oldest first, from behind a sequence number and when it died, and the next such place."""
    try:
        seq, died = (-1, -math.inf) if after is None else (after[0], float.fromhex(after[1]))
    except (ValueError, OverflowError):
        raise ConfigurationError("this is no place in a list of dead letters") from None
    found = database.execute(
        "SELECT id, reason, description, body, deliveries, finished_at, seq,"
        " (SELECT name FROM batch WHERE batch.batch_id = task.batch_id) FROM task WHERE queue_id = ?"
        " AND state = 'dead' AND (finished_at, seq) > (?, ?) ORDER BY finished_at, seq LIMIT ?",
        (queue, died, seq, limit),
    )
    letters: list[DeadLetter] = []
    size = 0
    for id_, reason, text, body, deliveries, died, seq, batch in found:
        letters.append(
            DeadLetter(
                id=id_,
                reason=reason,
                description=text,
                body=bytes(body),
                deliveries=deliveries,
                died=died,
                batch=batch,
            )
        )
        size += len(body) + len(text)
        if len(letters) == limit or size >= PAGE_BYTES:
            return letters, f"{seq}:{float(died).hex()}"
    return letters, None


def redrive(database: sqlite3.Connection, queue: int, id_: str, now: Now) -> bool:
    """Put a dead letter back with a raised epoch (S3); bytes that are no task go back as they are.

    It is the newest task then: a clear that began before leaves it alone.
    """
    confirm(database, queue)
    row = database.execute(
        "SELECT seq, body, deliveries FROM task WHERE queue_id = ? AND id = ? AND state = 'dead'", (queue, id_)
    ).fetchone()
    if row is None:
        return False
    seq, body, deliveries = row
    epoch = 0
    with contextlib.suppress(MalformedTask):  # goes back as it is: the next worker may be newer and able to read it
        task = Task.decode(bytes(body)).redriven(deliveries=deliveries)
        epoch, body = task.epoch, task.encode()
    (_, newest) = database.execute(NEWEST).fetchone()
    database.execute(
        "UPDATE task SET seq = ?, state = 'ready', available_at = ?, body = ?, epoch = max(epoch, ?),"
        " finished_at = NULL, reason = NULL, description = NULL, cancel_requested = 0 WHERE seq = ?",
        (newest + 1, now.wall, body, epoch, seq),
    )
    database.execute("UPDATE attempt SET seq = ? WHERE seq = ?", (newest + 1, seq))
    return True


def purge_dead(database: sqlite3.Connection, queue: int, id_: str) -> bool:
    """Delete a dead letter for good; its id is forgotten."""
    confirm(database, queue)
    database.execute(
        "DELETE FROM attempt WHERE seq IN (SELECT seq FROM task WHERE queue_id = ? AND id = ? AND state = 'dead')",
        (queue, id_),
    )
    deleted = database.execute("DELETE FROM task WHERE queue_id = ? AND id = ? AND state = 'dead'", (queue, id_))
    return deleted.rowcount == 1
