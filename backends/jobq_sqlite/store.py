"""The queue's verbs as SQL: functions that run on the connection's thread, inside its transaction.

Each settle is one UPDATE that compares the receipt and its expiry (S4); `_settle` is the only place that does so.
"""

import contextlib
import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from jobq.backend import DeadLetter, Peeked, QueueStats
from jobq.errors import DuplicateTask, LockLost, MalformedTask, QueueNotFound
from jobq.task import Task

RETENTION_SECONDS: Final = 30 * 86400.0  # how long a done task's id is remembered
_PROMOTE_AT_ONCE: Final = 500  # bounds one claim; the next goes on
_PURGE_AT_ONCE: Final = 200


class Now(NamedTuple):
    """The time as one transaction sees it: CLOCK_BOOTTIME for leases, wall time for delays; seconds."""

    boottime: float
    wall: float


class NewRow(NamedTuple):
    """A task to add, as its columns."""

    id: str
    priority: int
    not_before: float | None
    body: bytes
    fingerprint: bytes


class ClaimedRow(NamedTuple):
    """A leased task."""

    seq: int
    id: str
    body: bytes
    deliveries: int
    checkpoint: str | None
    receipt: str


@dataclass(frozen=True)
class NothingReady:
    """The answer to a claim that found nothing: when to look again, None = only after a write."""

    boottime: float | None


def create(database: sqlite3.Connection, name: str, now: Now) -> bool:
    """Make the queue; return whether it was new."""
    return (
        database.execute("INSERT OR IGNORE INTO queue (name, created_at) VALUES (?, ?)", (name, now.wall)).rowcount == 1
    )


def queue_id(database: sqlite3.Connection, name: str) -> int:
    """Return the queue's number; raises QueueNotFound."""
    row = database.execute("SELECT queue_id FROM queue WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise QueueNotFound(f"queue {name!r} does not exist; the first push makes it, or `jobq QUEUE create`")
    return int(row[0])


def push(database: sqlite3.Connection, queue: int, rows: Sequence[NewRow], now: Now) -> None:
    """Add all rows, or raise DuplicateTask; ids that are known with the same fingerprint are left as they are (S8)."""
    before = database.total_changes
    database.executemany(
        "INSERT INTO task (queue_id, id, state, priority, available_at, body, fingerprint)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (queue_id, id) DO NOTHING",
        [
            (queue, row.id, "ready", row.priority, now.wall, row.body, row.fingerprint)
            if row.not_before is None or row.not_before <= now.wall
            else (queue, row.id, "scheduled", row.priority, row.not_before, row.body, row.fingerprint)
            for row in rows
        ],
    )
    if database.total_changes - before != len(rows):
        _refuse_other_payloads(database, queue, rows)
    _forget_old(database, queue, now)


def _refuse_other_payloads(database: sqlite3.Connection, queue: int, rows: Sequence[NewRow]) -> None:
    for row in rows:
        found = database.execute(
            "SELECT fingerprint, state FROM task WHERE queue_id = ? AND id = ?", (queue, row.id)
        ).fetchone()
        if found is not None and found[0] != row.fingerprint:
            raise DuplicateTask(
                f"task id {row.id!r} is taken by a task with another payload ({found[1]}); none of this push was added."
                " Give the new task another id"
            )


def _forget_old(database: sqlite3.Connection, queue: int, now: Now) -> None:
    database.execute(
        "DELETE FROM task WHERE seq IN (SELECT seq FROM task WHERE queue_id = ? AND state = 'done'"
        " AND finished_at < ? LIMIT ?)",
        (queue, now.wall - RETENTION_SECONDS, _PURGE_AT_ONCE),
    )


def nothing_ready(database: sqlite3.Connection, queue: int, now: Now) -> NothingReady | None:
    """Return None when a claim would find something, else when it could; takes no lock."""
    (ready, due, expiry) = database.execute(
        "SELECT EXISTS (SELECT 1 FROM task WHERE queue_id = :queue AND state = 'ready'),"
        " (SELECT min(available_at) FROM task WHERE queue_id = :queue AND state = 'scheduled'),"
        " (SELECT min(expires_at) FROM task WHERE queue_id = :queue AND state = 'leased')",
        {"queue": queue},
    ).fetchone()
    moments = [moment for moment in (due and due - now.wall + now.boottime, expiry) if moment is not None]
    if ready or any(moment <= now.boottime for moment in moments):
        return None
    return NothingReady(min(moments, default=None))


def claim(database: sqlite3.Connection, queue: int, limit: int, lease_seconds: float, now: Now) -> list[ClaimedRow]:
    """Lease up to `limit` ready tasks, after those that are due or whose lease expired have become ready."""
    database.execute(
        "UPDATE task SET state = 'ready' WHERE seq IN (SELECT seq FROM task"
        " WHERE queue_id = ? AND state = 'scheduled' AND available_at <= ? ORDER BY available_at LIMIT ?)",
        (queue, now.wall, _PROMOTE_AT_ONCE),
    )
    database.execute(
        "UPDATE task SET state = 'ready', available_at = ?, receipt = NULL, expires_at = NULL WHERE seq IN"
        " (SELECT seq FROM task WHERE queue_id = ? AND state = 'leased' AND expires_at <= ?"
        " ORDER BY expires_at LIMIT ?)",
        (now.wall, queue, now.boottime, _PROMOTE_AT_ONCE),
    )
    found = database.execute(
        "SELECT seq, id, body, deliveries, checkpoint FROM task WHERE queue_id = ? AND state = 'ready'"
        " ORDER BY priority DESC, available_at, seq LIMIT ?",
        (queue, limit),
    ).fetchall()
    noise = secrets.token_hex(16 * len(found))
    rows = [
        ClaimedRow(seq, id_, bytes(body), deliveries + 1, checkpoint, noise[32 * number : 32 * number + 32])
        for number, (seq, id_, body, deliveries, checkpoint) in enumerate(found)
    ]
    database.executemany(
        "UPDATE task SET state = 'leased', deliveries = ?, receipt = ?, expires_at = ? WHERE seq = ?",
        [(row.deliveries, row.receipt, now.boottime + lease_seconds, row.seq) for row in rows],
    )
    return rows


def renew(database: sqlite3.Connection, row: ClaimedRow, lease_seconds: float, now: Now) -> None:
    """Extend the lease."""
    _fenced(database, row, now, "expires_at = ?", (now.boottime + lease_seconds,))


def checkpoint(database: sqlite3.Connection, row: ClaimedRow, value: str, now: Now) -> None:
    """Save the task's progress (S9)."""
    _fenced(database, row, now, "checkpoint = ?", (value,))


def complete(database: sqlite3.Connection, row: ClaimedRow, now: Now) -> None:
    """End the task as done; its id stays known for RETENTION_SECONDS."""
    _settle(
        database, row, now, "complete", "state = 'done', body = x'', checkpoint = NULL, finished_at = ?", (now.wall,)
    )


def requeue(
    database: sqlite3.Connection, row: ClaimedRow, body: bytes, delay_seconds: float, now: Now, settlement: str
) -> None:
    """Put it back with another body, after the delay."""
    state = "ready" if delay_seconds <= 0 else "scheduled"
    moment = now.wall + max(0.0, delay_seconds)
    _settle(database, row, now, settlement, "state = ?, available_at = ?, body = ?", (state, moment, body))


def dead_letter(
    database: sqlite3.Connection, row: ClaimedRow, reason: str, description: str, now: Now, settlement: str
) -> None:
    """Move it to the dead-letter place; the body stays as it is."""
    _settle(
        database,
        row,
        now,
        settlement,
        "state = 'dead', finished_at = ?, reason = ?, description = ?",
        (now.wall, reason, description),
    )


def _settle(
    database: sqlite3.Connection, row: ClaimedRow, now: Now, settlement: str, change: str, values: tuple[Any, ...]
) -> None:
    change = f"receipt = NULL, expires_at = NULL, settled_receipt = receipt, settlement = ?, {change}"
    try:
        _fenced(database, row, now, change, (settlement, *values))
    except LockLost:
        # S5: the same settle again is answered like the first, without a second effect.
        again = database.execute("SELECT settled_receipt, settlement FROM task WHERE seq = ?", (row.seq,)).fetchone()
        if again != (row.receipt, settlement):
            raise


def _fenced(database: sqlite3.Connection, row: ClaimedRow, now: Now, change: str, values: tuple[Any, ...]) -> None:
    """Change the row while the lease is ours: the one compare of S4."""
    changed = database.execute(
        f"UPDATE task SET {change} WHERE seq = ? AND state = 'leased' AND receipt = ? AND expires_at > ?",  # noqa: S608 - `change` is ours, every value is bound
        (*values, row.seq, row.receipt, now.boottime),
    )
    if changed.rowcount != 1:
        raise LockLost(f"the lease on task {row.id} is no longer ours: it expired, or the task was settled or cleared")


def peek(database: sqlite3.Connection, queue: int, limit: int, now: Now) -> list[Peeked]:
    """Return what a claim would return: what is ready, due or expired, in the order of delivery."""
    columns = "SELECT id, body, deliveries, priority, available_at, seq FROM task WHERE queue_id = :queue AND state ="
    parts = (
        "'ready' ORDER BY priority DESC, available_at, seq",
        "'scheduled' AND available_at <= :wall ORDER BY available_at",
        "'leased' AND expires_at <= :boottime ORDER BY expires_at",
    )
    # Each part is bounded by its own index before they are merged, so that a deep queue is not sorted.
    merged = " UNION ALL ".join(f"SELECT * FROM ({columns} {part} LIMIT :limit)" for part in parts)  # noqa: S608 - ours
    found = database.execute(
        f"SELECT id, body, deliveries FROM ({merged}) ORDER BY priority DESC, available_at, seq LIMIT :limit",  # noqa: S608 - as above
        {"queue": queue, "wall": now.wall, "boottime": now.boottime, "limit": limit},
    )
    return [Peeked(id=id_, body=bytes(body), deliveries=deliveries) for id_, body, deliveries in found]


def stats(database: sqlite3.Connection, queue: int, now: Now) -> QueueStats:
    """Count, with what is due or expired counted as visible."""
    (ready, due, scheduled, expired, leased, dead) = database.execute(
        "SELECT (SELECT count(*) FROM task WHERE queue_id = :queue AND state = 'ready'),"
        " (SELECT count(*) FROM task WHERE queue_id = :queue AND state = 'scheduled' AND available_at <= :wall),"
        " (SELECT count(*) FROM task WHERE queue_id = :queue AND state = 'scheduled' AND available_at > :wall),"
        " (SELECT count(*) FROM task WHERE queue_id = :queue AND state = 'leased' AND expires_at <= :boottime),"
        " (SELECT count(*) FROM task WHERE queue_id = :queue AND state = 'leased' AND expires_at > :boottime),"
        " (SELECT count(*) FROM task WHERE queue_id = :queue AND state = 'dead')",
        {"queue": queue, "wall": now.wall, "boottime": now.boottime},
    ).fetchone()
    return QueueStats(visible=ready + due + expired, scheduled=scheduled, leased=leased, dead=dead)


def clear(database: sqlite3.Connection, queue: int) -> int:
    """Delete what waits or is leased."""
    return database.execute(
        "DELETE FROM task WHERE queue_id = ? AND state IN ('ready', 'scheduled', 'leased')", (queue,)
    ).rowcount


def dead_letters(database: sqlite3.Connection, queue: int, limit: int) -> list[DeadLetter]:
    """Return dead letters, oldest first."""
    found = database.execute(
        "SELECT id, reason, description, body, deliveries, finished_at FROM task"
        " WHERE queue_id = ? AND state = 'dead' ORDER BY finished_at, seq LIMIT ?",
        (queue, limit),
    )
    return [
        DeadLetter(id=id_, reason=reason, description=text, body=bytes(body), deliveries=deliveries, died=died)
        for id_, reason, text, body, deliveries, died in found
    ]


def redrive(database: sqlite3.Connection, queue: int, ids: Sequence[str], now: Now) -> list[str]:
    """Put dead letters back with a raised epoch (S3); bytes that are no task go back as they are."""
    redriven = []
    for id_ in ids:
        row = database.execute(
            "SELECT seq, body, deliveries FROM task WHERE queue_id = ? AND id = ? AND state = 'dead'", (queue, id_)
        ).fetchone()
        if row is None:
            continue
        seq, body, deliveries = row
        with contextlib.suppress(MalformedTask):  # goes back as it is: the next worker may be newer and able to read it
            body = Task.decode(bytes(body)).redriven(deliveries=deliveries).encode()
        database.execute(
            "UPDATE task SET state = 'ready', available_at = ?, body = ?, finished_at = NULL, reason = NULL,"
            " description = NULL WHERE seq = ?",
            (now.wall, body, seq),
        )
        redriven.append(id_)
    return redriven


def purge_dead(database: sqlite3.Connection, queue: int, ids: Sequence[str]) -> list[str]:
    """Delete dead letters for good; their ids are forgotten."""
    purged = []
    for id_ in ids:
        deleted = database.execute("DELETE FROM task WHERE queue_id = ? AND id = ? AND state = 'dead'", (queue, id_))
        if deleted.rowcount:
            purged.append(id_)
    return purged
