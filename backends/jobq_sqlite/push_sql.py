"""Adding tasks as SQL, and forgetting as many that have ended; on the connection's thread, in its transaction."""

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from jobq.batches import BatchState, missing, sealed
from jobq.errors import DuplicateTask
from jobq.resources.shapes import rank, text_of
from jobq.servable import IDS_KEPT
from jobq.task import Task
from jobq_sqlite import journal_writer
from jobq_sqlite.bulk import some
from jobq_sqlite.shape_sql import numbers_of
from jobq_sqlite.task_sql import Now, confirm

IDS_KEPT_SECONDS: Final = IDS_KEPT.total_seconds()
_FORGET_AT_ONCE: Final = 180
_FORGETTING: Final = 4.0  # times what a push of many took to add them
# Explicit numbers: SQLite's own begin again where rows are gone.
NEWEST: Final = "SELECT epoch, max(newest_gone, coalesce((SELECT max(seq) FROM task), 0)) FROM host"
OLD: Final = "SELECT seq FROM task WHERE queue_id = ? AND state = 'done' AND finished_at < ? LIMIT ?"
_IS_KNOWN: Final = "SELECT EXISTS (SELECT 1 FROM task WHERE queue_id = ? AND id = ?)"
_FORGET: Final = "DELETE FROM task WHERE seq = ?"
_FORGET_EXPIRED: Final = "DELETE FROM task WHERE queue_id = ? AND id = ? AND state = 'done' AND finished_at < ?"


class NewRow(NamedTuple):
    """A task to add, with what takes long to make of it."""

    task: Task
    body: bytes
    fingerprint: bytes

    @property
    def shape(self) -> str:
        """What it asks for."""
        return text_of(self.task.resources, self.task.needs)


def push(
    database: sqlite3.Connection,
    queue: int,
    rows: Sequence[NewRow],
    now: Now,
    keep: float | None = IDS_KEPT_SECONDS,
    ids_kept: float = IDS_KEPT_SECONDS,
    *,
    refuses_shapes: bool = True,
) -> int:
    """Add all rows, or raise DuplicateTask; ids that are known with the same fingerprint are left as they are (S8).

    Args:
        database: in a transaction.
        queue: the queue's number.
        rows: what to add.
        now: the time.
        keep: for how many seconds the journal keeps what has ended; None = there is none.
        ids_kept: for how many seconds the id of a task that is done is known.
        refuses_shapes: whether a task is refused with whose request there would be too many different ones.

    Returns:
        The epoch that they were pushed in, which the next ones had best be encoded with.
    """
    confirm(database, queue)  # else what is acknowledged stands where nobody looks (S1)
    expired = now.wall - ids_kept
    numbers = _batches(database, queue, rows, expired)
    shapes = numbers_of(database, queue, (row.shape for row in rows), refuses=refuses_shapes)
    began = time.monotonic()
    epoch, are_new = _add(database, queue, rows, numbers, shapes, now)
    if not are_new:
        if _forget_expired(database, queue, rows, expired):
            epoch, _ = _add(database, queue, rows, numbers, shapes, now)
        _refuse_other_payloads(database, queue, rows)
    most = max(_FORGET_AT_ONCE, 2 * len(rows))  # more than is added, so that the file does not grow without end
    old = database.execute(OLD, (queue, expired, most)).fetchall()
    until = max(now.bulk_until, time.monotonic() + _FORGETTING * (time.monotonic() - began))
    some(old, lambda row: database.execute(_FORGET, row), until)
    if keep is not None:
        journal_writer.forget(database, queue, now.wall - keep, until, 2 * most)
    return epoch


def is_known(database: sqlite3.Connection, queue: int, id_: str, now: Now) -> bool:
    """Return whether an id is that of a task of the queue; one whose time is over is forgotten."""
    database.execute(_FORGET_EXPIRED, (queue, id_, now.wall - IDS_KEPT_SECONDS))
    return bool(database.execute(_IS_KNOWN, (queue, id_)).fetchone()[0])


def params_of(stored: str | None) -> dict[str, str | int | float]:
    """Return what a task was pushed with, for a table of results."""
    return {} if stored is None else json.loads(stored)


def _add(
    database: sqlite3.Connection,
    queue: int,
    rows: Sequence[NewRow],
    numbers: Mapping[str | None, int | None],
    shapes: Mapping[str, int],
    now: Now,
) -> tuple[int, bool]:
    """Add those whose ids are not known; return the epoch that they are in, and whether that were all."""
    epoch, newest = database.execute(NEWEST).fetchone()
    before = database.total_changes
    database.executemany(
        "INSERT INTO task (seq, queue_id, id, priority, fingerprint, epoch, body, batch_id, params, state,"
        " available_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (queue_id, id) DO NOTHING",
        [(seq, *_columns(queue, row, epoch, numbers, shapes, now)) for seq, row in enumerate(rows, newest + 1)],
    )
    return int(epoch), database.total_changes - before == len(rows)


def _forget_expired(database: sqlite3.Connection, queue: int, rows: Sequence[NewRow], before: float) -> bool:
    """Forget those of the ids whose time is over, which the forgetting has not come to yet; return whether any was."""
    changes = database.total_changes
    database.executemany(_FORGET_EXPIRED, [(queue, row.task.id, before) for row in rows])
    return database.total_changes > changes


def _batches(
    database: sqlite3.Connection, queue: int, rows: Sequence[NewRow], expired: float
) -> dict[str | None, int | None]:
    """Return the numbers of the batches that are named; raises BatchNotFound, BatchSealed for a new task of one."""
    numbers: dict[str | None, int | None] = {None: None}
    for name in {row.task.batch for row in rows} - {None}:
        assert name is not None
        found = database.execute(
            "SELECT batch_id, state FROM batch WHERE queue_id = ? AND name = ?", (queue, name)
        ).fetchone()
        numbers[name] = None if found is None else found[0]
        if found is not None and found[1] == BatchState.OPEN:
            continue
        members = [row for row in rows if row.task.batch == name]
        _forget_expired(database, queue, members, expired)
        if any(database.execute(_IS_KNOWN, (queue, row.task.id)).fetchone() == (0,) for row in members):
            raise missing(name) if found is None else sealed(name, BatchState(found[1]))
    return numbers


def _columns(
    queue: int,
    row: NewRow,
    epoch: int,
    numbers: Mapping[str | None, int | None],
    shapes: Mapping[str, int],
    now: Now,
) -> tuple[Any, ...]:
    task = row.task
    params = None if task.params is None else json.dumps(task.params)
    body = row.body if task.epoch == epoch else task.in_epoch(epoch).encode()
    waits = task.not_before is not None and task.not_before > now.wall
    where = ("scheduled", task.not_before) if waits else ("ready", now.wall)
    order = -rank(shapes[row.shape], task.priority)
    return queue, task.id, order, row.fingerprint, epoch, body, numbers[task.batch], params, *where


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
