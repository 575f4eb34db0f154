"""Batches as SQL; on the connection's thread, transacted. Triggers in batches.sql note which are to be looked at."""

import logging
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from jobq.batch_plan import Plan, under_another_id
from jobq.batches import (
    PACE_SECONDS,
    PACE_TASKS,
    Batch,
    BatchState,
    Member,
    check_too_late,
    counts_of,
    missing,
    pace,
    rounds_of,
    rounds_with,
)
from jobq.errors import JobqError
from jobq.servable import IDS_KEPT
from jobq_sqlite import journal_writer, push_sql
from jobq_sqlite.bulk import ROWS_AT_ONCE, some
from jobq_sqlite.push_sql import NewRow
from jobq_sqlite.task_sql import Now, confirm

_BATCHES_AT_ONCE: Final = 100
_COLUMNS: Final = (
    "batch_id, name, state, round, is_canceled, plan, created_at, sealed_at, finished_at, gone, rounds, queue_id"
)
_FIND: Final = f"SELECT {_COLUMNS} FROM batch WHERE queue_id = ? AND name = ?"  # noqa: S608 - constants of ours; so below
_LIST: Final = f"SELECT {_COLUMNS} FROM batch WHERE queue_id = ? AND name > ? ORDER BY name LIMIT ?"  # noqa: S608
_LIST_UNFINISHED: Final = _LIST.replace(" ORDER", " AND state <> 'finished' ORDER")
# What ended last in the queue, by the indexes of what has, and then which of that is of the batch.
_ENDS: Final = (
    "SELECT * FROM (SELECT batch_id, outcome, finished_at FROM task WHERE queue_id = :queue AND state = '{}'"
    " AND finished_at > :since ORDER BY finished_at DESC LIMIT :most)"
)
LATELY: Final = (
    f"SELECT count(*), min(finished_at) FROM ({_ENDS.format('done')} UNION ALL {_ENDS.format('dead')}"  # noqa: S608
    " ORDER BY finished_at DESC LIMIT :most) WHERE batch_id = :batch AND outcome IS NULL"
)
_IS_NOTED: Final = "SELECT 1 FROM outbox LIMIT 1"
_NOTED: Final = f"SELECT {_COLUMNS} FROM batch WHERE batch_id IN (SELECT batch_id FROM outbox LIMIT ?)"  # noqa: S608
STATES: Final = "SELECT state, outcome, count(*) FROM task WHERE batch_id = ? GROUP BY state, outcome"
# These two states alone say too little; what is in one of them is looked at, row by row.
TIMED: Final = (
    "SELECT (SELECT count(*) FROM task WHERE batch_id = :batch AND state = 'scheduled' AND available_at <= :wall),"
    " (SELECT count(*) FROM task WHERE batch_id = :batch AND state = 'leased' AND expires_at <= :boottime)"
)
IS_LEFT: Final = (
    "SELECT EXISTS (SELECT 1 FROM task WHERE batch_id = :batch AND state = 'ready')"
    " OR EXISTS (SELECT 1 FROM task WHERE batch_id = :batch AND state = 'scheduled')"
    " OR EXISTS (SELECT 1 FROM task WHERE batch_id = :batch AND state = 'leased')"
)
WAITING: Final = (
    f"SELECT {journal_writer.LEASED_COLUMNS} FROM task WHERE batch_id = :batch AND {journal_writer.WAITS} LIMIT :limit"  # noqa: S608 - as above
)
ASK_RUNNING: Final = "UPDATE task SET cancel_requested = 1 WHERE batch_id = ? AND state = 'leased'"
MEMBERS: Final = (
    "SELECT id, state, outcome, available_at <= :wall, coalesce(expires_at, 0) > :boottime, params FROM task"
    " WHERE batch_id = :batch AND id > :after ORDER BY id LIMIT :limit"
)
DEAD_MEMBERS: Final = MEMBERS.replace(" ORDER", " AND state = 'dead' ORDER")
_NOTE: Final = "INSERT OR IGNORE INTO outbox (batch_id) VALUES (?)"
# Of the ids that `Plan.tasks` makes those of the first place, and those of the others: no name holds a colon, but some
# begin as others do and go on with a dot.
_OF_ITS_ENDS: Final = (
    " AND NOT EXISTS (SELECT 1 FROM task WHERE task.queue_id = batch.queue_id AND id > 'jobq.then.' || name || '.'"
    " AND id < 'jobq.then.' || name || '/' AND substr(id, length('jobq.then.' || name || '.') + 1) NOT GLOB '*[^0-9]*')"
    " AND NOT EXISTS (SELECT 1 FROM task WHERE task.queue_id = batch.queue_id AND id > 'jobq.then.' || name || ':'"
    " AND id < 'jobq.then.' || name || ';')"
)
_FORGET: Final = (
    "DELETE FROM batch WHERE queue_id = ? AND coalesce(finished_at, created_at) < ?"  # noqa: S608 - as above
    " AND NOT EXISTS (SELECT 1 FROM task WHERE task.batch_id = batch.batch_id)"
    # Of another batch by this name, what was run at the end of this one would be known.
    f"{_OF_ITS_ENDS}"
)
_OPEN: Final = "UPDATE batch SET state = 'open', sealed_at = NULL, is_canceled = 0 WHERE batch_id = ?"
_NEXT_ROUND: Final = "UPDATE batch SET round = round + 1, finished_at = NULL WHERE batch_id = ? AND state = 'finished'"
_log: Final = logging.getLogger(__name__)


def begin(database: sqlite3.Connection, queue: int, name: str, plan: Plan, now: Now, keep: float) -> None:
    """Open a batch, or say more of one that is open; forget those whose ids are forgotten, too."""
    confirm(database, queue)
    database.execute(_FORGET, (queue, now.wall - max(keep, IDS_KEPT.total_seconds())))
    database.execute(
        "INSERT INTO batch (queue_id, name, state, plan, created_at) VALUES (?, ?, 'open', ?, ?)"
        " ON CONFLICT (queue_id, name) DO NOTHING",
        (queue, name, plan.encode(), now.wall),
    )
    row = _row(database, queue, name)
    check_too_late(name, BatchState(row[2]), plan, Plan.decode(row[5]))
    if row[2] == BatchState.OPEN:
        said = Plan.decode(row[5]).with_later(plan).encode()
        database.execute("UPDATE batch SET plan = ? WHERE batch_id = ?", (said, row[0]))


def seal(database: sqlite3.Connection, queue: int, name: str, now: Now) -> None:
    """Let it take no more tasks."""
    _sealed(database, queue, name, now)
    advance(database, now)


def cancel(database: sqlite3.Connection, queue: int, name: str, now: Now) -> None:
    """Seal it, end what waits as far as there is time, and ask what runs to end."""
    batch = _sealed(database, queue, name, now)
    database.execute("UPDATE batch SET is_canceled = 1 WHERE batch_id = ? AND state = 'sealed'", (batch,))
    advance(database, now)


def reopen(database: sqlite3.Connection, queue: int, name: str) -> None:
    """Let it take tasks again."""
    confirm(database, queue)
    batch = _row(database, queue, name)[0]
    database.execute(_NEXT_ROUND, (batch,))
    database.execute(_OPEN, (batch,))


def find(database: sqlite3.Connection, queue: int, name: str, now: Now) -> Batch:
    """Return a batch, counted; raises BatchNotFound."""
    return _seen(database, _row(database, queue, name), now)


def find_with_rate(database: sqlite3.Connection, queue: int, name: str, now: Now) -> Batch:
    """Return a batch, counted, and how fast its tasks end; raises BatchNotFound."""
    row = _row(database, queue, name)
    batch = _seen(database, row, now)
    since = max([now.wall - PACE_SECONDS, *(each.finished for each in batch.rounds[-1:])])
    values = {"queue": queue, "batch": row[0], "since": since, "most": PACE_TASKS}
    count, first = database.execute(LATELY, values).fetchone()
    return replace(batch, rate=pace(count, None if first is None else now.wall - first))


def listed(
    database: sqlite3.Connection, queue: int, after: str, limit: int, now: Now, *, unfinished: bool
) -> Sequence[Batch]:
    """Return some, by name."""
    statement = _LIST_UNFINISHED if unfinished else _LIST
    return [_seen(database, row, now) for row in database.execute(statement, (queue, after, limit)).fetchall()]


def members(
    database: sqlite3.Connection, queue: int, name: str, after: str, limit: int, state: str | None, now: Now
) -> Sequence[Member]:
    """Return some of its tasks, by id."""
    values = {"batch": _row(database, queue, name)[0], "after": after, "limit": limit}
    found = database.execute(
        MEMBERS if state is None else DEAD_MEMBERS, {**values, "wall": now.wall, "boottime": now.boottime}
    )
    return [
        Member(
            id=id_,
            state=str(journal_writer.state_of(stored, outcome, is_due=bool(is_due), is_live=bool(is_live))),
            params=push_sql.params_of(params),
        )
        for id_, stored, outcome, is_due, is_live, params in found
    ]


def advance(database: sqlite3.Connection, now: Now) -> bool:
    """See to what follows from what has ended: cancel what waits of a canceled batch, finish one that has none left.

    Returns:
        Whether tasks were added.
    """
    added = False
    if database.execute(_IS_NOTED).fetchone() is None:  # as nearly always, in a quarter of the time
        return added
    for row in database.execute(_NOTED, (_BATCHES_AT_ONCE,)).fetchall():
        database.execute("SAVEPOINT batch")
        try:
            has_more, adds = _looked_after(database, row, now)
        except JobqError as error:  # of a queue that is gone, or by a newer jobq: those who only settle must not fail
            database.execute("ROLLBACK TO batch")
            _log.warning("batch %s is left as it is until somebody looks at it: %s", row[1], error)
            has_more, adds = False, False
        database.execute("RELEASE batch")
        added = adds or added
        if not has_more:  # else the note stays, and the next one that writes goes on
            database.execute("DELETE FROM outbox WHERE batch_id = ?", (row[0],))
    return added


def _looked_after(database: sqlite3.Connection, row: tuple[Any, ...], now: Now) -> tuple[bool, bool]:
    """Do what is to be done about a batch; return whether there is more, and whether tasks were added."""
    batch, state, is_canceled, queue = row[0], row[2], row[4], row[11]
    confirm(database, queue)
    if state != BatchState.SEALED:
        return False, False
    if is_canceled and not _canceled(database, batch, now):
        return True, False
    if database.execute(IS_LEFT, {"batch": batch}).fetchone() != (0,):
        return False, False
    return False, _finish(database, row, now)


def _sealed(database: sqlite3.Connection, queue: int, name: str, now: Now) -> int:
    confirm(database, queue)
    batch = int(_row(database, queue, name)[0])
    database.execute(
        "UPDATE batch SET state = 'sealed', sealed_at = ? WHERE batch_id = ? AND state = 'open'", (now.wall, batch)
    )
    database.execute(_NOTE, (batch,))
    return batch


def _canceled(database: sqlite3.Connection, batch: int, now: Now) -> bool:
    """Cancel some; return whether none is left that waits."""
    database.execute(ASK_RUNNING, (batch,))
    values = {"batch": batch, "boottime": now.boottime, "limit": ROWS_AT_ONCE}
    waiting = database.execute(WAITING, values).fetchall()
    cancel_one = partial(journal_writer.cancel_waiting, database, boottime=now.boottime, wall=now.wall)
    done = some(waiting, cancel_one, now.bulk_until)
    return len(done) == len(waiting) < ROWS_AT_ONCE


def _finish(database: sqlite3.Connection, row: tuple[Any, ...], now: Now) -> bool:
    """Finish its round, and add what is to be run then; return whether there is any."""
    batch, name, number, plan, rounds, queue = row[0], row[1], row[3], row[5], row[10], row[11]
    tasks = Plan.decode(plan).tasks(name, number)
    counts = _seen(database, row, now).counts
    database.execute(
        "UPDATE batch SET state = 'finished', finished_at = ?, rounds = ? WHERE batch_id = ?",
        (now.wall, rounds_with(rounds, number, now.wall, counts), batch),
    )
    for task in tasks:
        free = task
        while push_sql.is_known(database, queue, free.id, now):  # somebody has given another task such an id
            free = under_another_id(task)
        added = NewRow(free, free.encode(), free.fingerprint())
        push_sql.push(database, queue, [added], now, None, math.inf, refuses_shapes=False)  # else it never ends
    return bool(tasks)


def _row(database: sqlite3.Connection, queue: int, name: str) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = database.execute(_FIND, (queue, name)).fetchone()
    if row is None:
        raise missing(name)
    return row


def _seen(database: sqlite3.Connection, row: tuple[Any, ...], now: Now) -> Batch:
    batch, name, state, number, is_canceled, plan, created, sealed_at, finished, gone, rounds, _ = row
    found = {(stored, outcome): count for stored, outcome, count in database.execute(STATES, (batch,))}
    due, expired = database.execute(TIMED, {"batch": batch, "wall": now.wall, "boottime": now.boottime}).fetchone()
    counts = {
        "ready": found.get(("ready", None), 0) + due,
        "scheduled": found.get(("scheduled", None), 0) - due,
        "running": found.get(("leased", None), 0) - expired,
        "expired": expired,
        "succeeded": found.get(("done", None), 0),
        "dead": found.get(("dead", None), 0),
        "canceled": found.get(("done", "canceled"), 0),
        "gone": gone,
    }
    return Batch(
        name=name,
        state=BatchState(state),
        round=number,
        is_canceled=bool(is_canceled),
        template=Plan.decode(plan).template,
        created=created,
        sealed=sealed_at,
        finished=finished,
        counts=counts_of(counts),
        rounds=rounds_of(rounds),
    )
