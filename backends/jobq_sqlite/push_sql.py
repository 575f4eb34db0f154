"""Adding tasks as SQL, and forgetting as many that have ended; on the connection's thread, in its transaction."""

import sqlite3
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from jobq.errors import DuplicateTask
from jobq.servable import IDS_KEPT
from jobq.task import Task
from jobq_sqlite import journal_writer
from jobq_sqlite.bulk import some
from jobq_sqlite.task_sql import Now, confirm

_IDS_KEPT_SECONDS: Final = IDS_KEPT.total_seconds()
_FORGET_AT_ONCE: Final = 200
_FORGETTING: Final = 4.0  # times what a push of many took to add them
# Explicit numbers: SQLite's own begin again where rows are gone.
_NEWEST: Final = "SELECT epoch, max(newest_gone, coalesce((SELECT max(seq) FROM task), 0)) FROM host"
OLD: Final = "SELECT seq FROM task WHERE queue_id = ? AND state = 'done' AND finished_at < ? LIMIT ?"
_FORGET: Final = "DELETE FROM task WHERE seq = ?"


class NewRow(NamedTuple):
    """A task to add, with what takes long to make of it."""

    task: Task
    body: bytes
    fingerprint: bytes


def push(
    database: sqlite3.Connection, queue: int, rows: Sequence[NewRow], now: Now, keep: float | None = _IDS_KEPT_SECONDS
) -> int:
    """Add all rows, or raise DuplicateTask; ids that are known with the same fingerprint are left as they are (S8).

    Args:
        database: in a transaction.
        queue: the queue's number.
        rows: what to add.
        now: the time.
        keep: for how many seconds the journal keeps what has ended; None = there is none.

    Returns:
        The epoch that they were pushed in, which the next ones had best be encoded with.
    """
    confirm(database, queue)  # else what is acknowledged stands where nobody looks (S1)
    epoch, newest = database.execute(_NEWEST).fetchone()
    began, before = time.monotonic(), database.total_changes
    database.executemany(
        "INSERT INTO task (seq, queue_id, id, priority, fingerprint, epoch, body, state, available_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (queue_id, id) DO NOTHING",
        [(seq, *_columns(queue, row, epoch, now)) for seq, row in enumerate(rows, newest + 1)],
    )
    if database.total_changes - before != len(rows):
        _refuse_other_payloads(database, queue, rows)
    most = max(_FORGET_AT_ONCE, 2 * len(rows))  # more than is added, so that the file does not grow without end
    old = database.execute(OLD, (queue, now.wall - max(_IDS_KEPT_SECONDS, keep or 0.0), most)).fetchall()
    until = max(now.bulk_until, time.monotonic() + _FORGETTING * (time.monotonic() - began))
    some(old, lambda row: database.execute(_FORGET, row), until)
    if keep is not None:
        journal_writer.forget(database, queue, now.wall - keep, until, 2 * most)
    return int(epoch)


def _columns(queue: int, row: NewRow, epoch: int, now: Now) -> tuple[Any, ...]:
    task = row.task
    body = row.body if task.epoch == epoch else task.in_epoch(epoch).encode()
    waits = task.not_before is not None and task.not_before > now.wall
    where = ("scheduled", task.not_before) if waits else ("ready", now.wall)
    return queue, task.id, task.priority, row.fingerprint, epoch, body, *where


def _refuse_other_payloads(database: sqlite3.Connection, queue: int, rows: Sequence[NewRow]) -> None:
    for row in rows:
        found = database.execute(
            "SELECT fingerprint, state FROM task WHERE queue_id = ? AND id = ?", (queue, row.task.id)
        ).fetchone()
        if found is not None and found[0] != row.fingerprint:
            raise DuplicateTask(
                f"task id {row.task.id!r} is taken by a task with another payload ({found[1]}); none of this push was"
                " added. Give the new task another id"
            )
