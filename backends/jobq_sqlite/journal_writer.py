"""Writing the journal, as SQL that runs inside the transactions of `task_sql` and `queue_admin`."""

import sqlite3
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from jobq.journal.records import Attempt, TaskState, host_of
from jobq.journal.retention import BYTES_AT_ONCE, JournalCap
from jobq.settlement import Record, Release, Settlement
from jobq.task import OutcomeKind
from jobq_sqlite.bulk import ROWS_AT_ONCE, some

_NOTE: Final = (
    "INSERT OR IGNORE INTO attempt (queue_id, seq, attempt, outcome, ended_at, record, output)"
    " SELECT queue_id, seq, ?, ?, ?, ?, ? FROM task WHERE seq = ?"
)
_OLD: Final = "SELECT rowid FROM attempt WHERE queue_id = ? AND ended_at < ? ORDER BY ended_at LIMIT ?"
_DROP: Final = "DELETE FROM attempt WHERE rowid = ?"
NEWEST: Final = (
    "SELECT rowid, ended_at, length(CAST(record AS BLOB)), length(CAST(output AS BLOB)) FROM attempt"
    " WHERE queue_id = ? AND ended_at < ? ORDER BY ended_at DESC LIMIT ?"
)
_CANCELED: Final = (
    "UPDATE task SET state = 'done', outcome = 'canceled', body = x'', checkpoint = NULL, finished_at = ?,"
    " receipt = NULL, expires_at = NULL, holder = NULL, beat = NULL"
)
# What nobody runs, whether or not its lease, which has run out, was seen to.
WAITS: Final = "(state IN ('ready', 'scheduled') OR state = 'leased' AND expires_at <= :boottime)"
CANCEL_IDLE: Final = f"{_CANCELED} WHERE seq = ? AND state IN ('ready', 'scheduled')"
CANCEL_LEASED: Final = f"{_CANCELED} WHERE state = 'leased' AND cancel_requested"  # of another boot
CANCEL: Final = f"{_CANCELED} WHERE seq = ?"
LEASED_COLUMNS: Final = "seq, deliveries, holder, started_at, expires_at"  # as `note_lost` takes them


def text_of(text: str) -> str:
    """Return what SQLite takes of any text: no lone surrogates, such as an error with the name of a file may hold."""
    return text.encode("utf-8", "replace").decode()


def note(database: sqlite3.Connection, seq: int, deliveries: int, settlement: Settlement, wall: float) -> None:
    """Write what an attempt came to, once its settle has been accepted in this transaction (S5)."""
    if isinstance(settlement, Release):
        record: Record | None = Record(Attempt.released(deliveries, wall))
    else:
        record = settlement.record
    if record is None:
        return
    attempt = record.attempt
    if not attempt.attempt:
        (number,) = database.execute("SELECT deliveries FROM task WHERE seq = ?", (seq,)).fetchone()
        attempt = replace(attempt, attempt=number)
    values = (attempt.attempt, attempt.outcome, attempt.ended, attempt.encode(), text_of(record.output))
    database.execute(_NOTE, (*values, seq))


def note_lost(database: sqlite3.Connection, rows: Iterable[tuple[Any, ...]], boottime: float, wall: float) -> None:
    """Write the ends that nobody could record: their workers died, or lost the lease.

    Args:
        database: in a transaction.
        rows: seq, deliveries, holder, started_at, expires_at.
        boottime: of now.
        wall: of now.
    """
    for seq, deliveries, holder, started_at, expires_at in rows:
        host, pid = host_of(holder or "")
        record = Attempt(
            attempt=deliveries,
            outcome=OutcomeKind.LOCK_LOST,
            then="lost",
            started=started_at,
            ended=wall - max(0.0, boottime - expires_at),
            host=host,
            pid=pid,
            detail="its lease ran out without a word: the worker died, or lost it",
        )
        database.execute(_NOTE, (deliveries, record.outcome, record.ended, record.encode(), "", seq))


def cancel_waiting(database: sqlite3.Connection, row: tuple[Any, ...], boottime: float, wall: float) -> None:
    """Cancel a task that `WAITS`, given as LEASED_COLUMNS; if it was leased with a journal, that end is recorded."""
    seq, _, holder, _, expires_at = row
    if holder is not None and expires_at is not None:
        note_lost(database, [row], boottime, wall)
    database.execute(CANCEL, (wall, seq))


def trim(database: sqlite3.Connection, queue: int, trimming: JournalCap, now: float) -> None:
    """Take one bounded step of keeping the journal within its size.

    A transaction that is rolled back after it is made up for by the next walk.
    """
    rows: list[tuple[int, int, int]] = []
    read, last = 0, None
    for rowid, ended_at, record, output in database.execute(
        NEWEST, (queue, float("inf") if trimming.after is None else trimming.after, ROWS_AT_ONCE)
    ):
        rows.append((rowid, record, output))
        read += record + output
        if len(rows) == ROWS_AT_ONCE or read > BYTES_AT_ONCE:
            last = ended_at
            break
    strip, drop = trimming.step([row[1:] for row in rows], now, last=last)
    database.executemany("UPDATE attempt SET output = '' WHERE rowid = ?", [rows[number][:1] for number in strip])
    database.executemany(_DROP, [rows[number][:1] for number in drop])


def forget(database: sqlite3.Connection, queue: int, before: float, until: float, most: int = ROWS_AT_ONCE) -> None:
    """Delete up to `most` attempts that ended before a wall time, while there is time (`Now.bulk_until`).

    The next push or claim deletes more.
    """
    old = database.execute(_OLD, (queue, before, most)).fetchall()
    some(old, lambda row: database.execute(_DROP, row), until)


def state_of(stored: str, outcome: str | None, *, is_due: bool, is_live: bool) -> TaskState:
    """Return where a task is, by what its row says."""
    match stored:
        case "leased":
            return TaskState.RUNNING if is_live else TaskState.EXPIRED
        case "scheduled":
            return TaskState.READY if is_due else TaskState.SCHEDULED
        case "done":
            return TaskState.SUCCEEDED if outcome is None else TaskState(outcome)
    return TaskState(stored)
