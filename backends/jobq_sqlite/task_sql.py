"""The life of a task as SQL, once `push_sql` has added it: claim, settle. Runs on the connection's thread, transacted.

Each settle is one UPDATE that compares the receipt and its expiry (S4); `_fenced` is the only place that does so.
"""

import math
import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

from jobq.errors import LockLost, QueueNotFound
from jobq.journal.retention import JournalCap
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue, Settlement
from jobq_sqlite import journal_writer
from jobq_sqlite.shape_sql import ShapeChooser, claim_fitting, has_fitting

PROMOTE_AT_ONCE: Final = 500  # bounds one claim; the next goes on
_NO_DELAY: Final = timedelta(0)

# What may change only while the lease is ours: the one compare of S4.
_WHERE_OURS: Final = "WHERE seq = ? AND state = 'leased' AND receipt = ? AND expires_at > ?"
_SETTLE: Final = (
    "UPDATE task SET receipt = NULL, expires_at = NULL, holder = NULL, beat = NULL,"
    " settlements = substr(receipt || ' ' || ? || ';' || settlements, 1, 512),"
)
_RENEW: Final = f"UPDATE task SET expires_at = ?, heartbeat_at = ?, beat = coalesce(?, beat) {_WHERE_OURS}"  # noqa: S608 - a constant of ours, every value is bound
_CHECKPOINT: Final = (
    "UPDATE task SET checkpoint = ?, checkpoint_order = (deliveries << 32) | ?"  # noqa: S608 - as above
    f" {_WHERE_OURS} AND (deliveries << 32) | ? >= checkpoint_order"
)
_COMPLETE: Final = (
    f"{_SETTLE} state = 'done', body = x'', checkpoint = NULL, finished_at = ?, outcome = ? {_WHERE_OURS}"
)
_BACK: Final = f"{_SETTLE} state = ?, available_at = coalesce(?, available_at), body = ? {_WHERE_OURS}"
_DEAD_LETTER: Final = (
    f"{_SETTLE} state = 'dead', cancel_requested = 0, finished_at = ?, reason = ?, description = ? {_WHERE_OURS}"
)
# By its id: who has put it back as a dead letter has given it another number.
_SETTLED: Final = "SELECT settlements FROM queue CROSS JOIN task USING (queue_id) WHERE id = ?"
# Begins the name of a queue that was deleted, which no spec can name: its row stays, for another queue with its number
# would get what those push and take who have not heard of it.
DELETED: Final = "deleted "
LOOK: Final = (
    "SELECT EXISTS (SELECT 1 FROM task WHERE queue_id = :queue AND state = 'ready'),"
    " (SELECT min(available_at) FROM task WHERE queue_id = :queue AND state = 'scheduled'),"
    " (SELECT min(expires_at) FROM task WHERE queue_id = :queue AND state = 'leased'), EXISTS (SELECT 1 FROM outbox)"
)
PROMOTE_DUE: Final = (
    "UPDATE task SET state = 'ready' WHERE seq IN (SELECT seq FROM task"
    " WHERE queue_id = ? AND state = 'scheduled' AND available_at <= ? ORDER BY available_at LIMIT ?)"
)
EXPIRED: Final = (
    "SELECT seq, deliveries, holder, started_at, expires_at, cancel_requested FROM task WHERE queue_id = ?"
    " AND state = 'leased' AND expires_at <= ? ORDER BY expires_at LIMIT ?"
)
PROMOTE_EXPIRED: Final = (
    "UPDATE task SET state = 'ready', available_at = ?, receipt = NULL, expires_at = NULL, holder = NULL,"
    " beat = NULL WHERE seq = ?"
)
CLAIM: Final = (
    "SELECT seq, id, body, deliveries, checkpoint, cancel_requested FROM task WHERE queue_id = ? AND state = 'ready'"
    " ORDER BY priority DESC, available_at, seq LIMIT ?"
)

HOLDERS: Final = (
    "SELECT DISTINCT substr(worker, length(receipt) + 2) FROM task"
    " WHERE queue_id = ? AND state = 'leased' AND instr(worker, receipt || ' ') = 1 AND expires_at > ?"
)
_END_LEASES: Final = (
    "UPDATE task SET expires_at = ?"
    " WHERE queue_id = ? AND state = 'leased' AND expires_at > ? AND worker = receipt || ' ' || ?"
)
TAKE_OVER: Final = (
    "SELECT seq, id, body, deliveries, checkpoint, cancel_requested FROM task WHERE queue_id = ?"
    " AND state = 'leased' AND expires_at > ? AND instr(?, substr(receipt, 1, 16)) > 0 ORDER BY seq LIMIT ?"
)


class Now(NamedTuple):
    """The time as one transaction sees it, in seconds.

    Attributes:
        boottime: the clock of the boot that the file's leases count on, without suspends.
        wall: for delays.
        ahead: by how much that is ahead of this machine's own clock; 0 unless it is another boot's.
        bulk_until: CLOCK_MONOTONIC; what concerns many rows leaves the rest to the next transaction then.
    """

    boottime: float
    wall: float
    ahead: float = 0.0
    bulk_until: float = math.inf


class ClaimedRow(NamedTuple):
    """A leased task."""

    seq: int
    id: str
    body: bytes
    deliveries: int
    checkpoint: str | None
    receipt: str
    cancel_requested: bool = False


@dataclass(frozen=True)
class NothingReady:
    """The answer to a claim that found nothing: when to look again, None = only after a write."""

    boottime: float | None


def create(database: sqlite3.Connection, name: str, now: Now) -> bool:
    """Make the queue; return whether it was new."""
    return (
        database.execute("INSERT OR IGNORE INTO queue (name, created_at) VALUES (?, ?)", (name, now.wall)).rowcount == 1
    )


def confirm(database: sqlite3.Connection, queue: int) -> tuple[bool, int]:
    """Return whether a queue that was once looked up is paused, and its newest shape.

    Raises:
        QueueNotFound: it has been deleted.
    """
    row = database.execute(
        "SELECT name, paused IS NOT NULL, newest_shape FROM queue WHERE queue_id = ?", (queue,)
    ).fetchone()
    if row is None or row[0].startswith(DELETED):
        raise QueueNotFound("the queue was deleted meanwhile; the next push makes it anew, or `jobq QUEUE create`")
    return bool(row[1]), row[2]


def queue_id(database: sqlite3.Connection, name: str) -> int:
    """Return the queue's number; raises QueueNotFound."""
    row = database.execute("SELECT queue_id FROM queue WHERE name = ?", (name,)).fetchone()
    if row is None:
        from difflib import get_close_matches  # noqa: PLC0415 - for slips alone

        names = [row[0] for row in database.execute("SELECT name FROM queue") if not row[0].startswith(DELETED)]
        near = "".join(f" (did you mean {each!r}?)" for each in get_close_matches(name, names, n=1))
        raise QueueNotFound(f"queue {name!r} does not exist{near}")
    return int(row[0])


def nothing_ready(database: sqlite3.Connection, queue: int, now: Now, chooser: ShapeChooser) -> NothingReady | None:
    """Return None when a claim would find something, or end a lease, else when it could; takes no lock."""
    is_paused, newest = confirm(database, queue)
    ready, due, expiry, is_noted = database.execute(LOOK, {"queue": queue}).fetchone()
    choice = chooser.choice(database, queue, newest) if ready else None
    ready = ready and (choice is None or has_fitting(database, queue, choice))
    if is_noted or (ready and not is_paused):  # the end of a pause is a change
        return None
    moments = [] if due is None else [due - now.wall + now.boottime]
    moments += [] if expiry is None else [expiry]
    moment = min(moments, default=None)
    if moment is None:
        return NothingReady(None)
    return None if moment <= now.boottime else NothingReady(moment - now.ahead)


def claim(
    database: sqlite3.Connection,
    queue: int,
    limit: int,
    lease_seconds: float,
    now: Now,
    chooser: ShapeChooser,
    receipts: Sequence[str] = (),
    holder: str | None = None,
    worker: str | None = None,
    forget: float | None = None,
    trimming: JournalCap | None = None,
) -> list[ClaimedRow] | NothingReady:
    """Lease up to `limit` ready tasks, after those that are due or whose lease expired have become ready.

    Args:
        database: in a transaction.
        queue: the queue's number.
        limit: how many at most.
        lease_seconds: for how long.
        now: the time.
        chooser: knows which of them there is room for.
        receipts: for the leases; random ones by default.
        holder: who asks, for the journal; None = there is none.
        worker: the id by which others can see whether it is dead; None = they cannot.
        forget: for how many seconds the journal keeps what has ended; None = it is not looked at now.
        trimming: keeps it within its size.
    """
    is_paused, newest = confirm(database, queue)
    if forget is not None:
        journal_writer.forget(database, queue, now.wall - forget, now.bulk_until)
        if trimming is not None and trimming.is_due(now.boottime - now.ahead):
            journal_writer.trim(database, queue, trimming, now.boottime - now.ahead)
    _, due, expiry, _ = database.execute(LOOK, {"queue": queue}).fetchone()
    if due is not None and due <= now.wall:
        database.execute(PROMOTE_DUE, (queue, now.wall, PROMOTE_AT_ONCE))
    if expiry is not None and expiry <= now.boottime:
        _promote_expired(database, queue, now, journaled=holder is not None)
    choice = chooser.choice(database, queue, newest)
    if is_paused:
        found: Sequence[tuple[Any, ...]] = []
    elif choice is None:
        found = database.execute(CLAIM, (queue, limit)).fetchall()
    else:
        found = claim_fitting(database, queue, choice, limit, now.wall)
    if not found:
        return nothing_ready(database, queue, now, chooser) or NothingReady(now.boottime - now.ahead)
    receipts = receipts or [secrets.token_hex(16) for _ in found]
    rows = [
        ClaimedRow(seq, id_, bytes(body), deliveries + 1, checkpoint, receipts[number], bool(canceled))
        for number, (seq, id_, body, deliveries, checkpoint, canceled) in enumerate(found)
    ]
    expires_at = now.boottime + lease_seconds
    mine = "" if worker is None else f" {worker}"
    database.executemany(
        "UPDATE task SET state = 'leased', deliveries = ?, receipt = ?, expires_at = ?, holder = ?, worker = ?,"
        " started_at = ?, heartbeat_at = NULL WHERE seq = ?",
        [
            (row.deliveries, row.receipt, expires_at, holder, mine and row.receipt + mine, now.wall, row.seq)
            for row in rows
        ],
    )
    return rows


def take_over(
    database: sqlite3.Connection,
    queue: int,
    limit: int,
    lease_seconds: float,
    now: Now,
    receipts: Sequence[str],
    former: Sequence[str],
) -> list[ClaimedRow]:
    """Lease what claims whose receipts begin so still hold, with new receipts: who gives it back changes nothing."""
    found = database.execute(TAKE_OVER, (queue, now.boottime, " ".join(former), limit)).fetchall()
    rows = [
        ClaimedRow(seq, id_, bytes(body), deliveries, checkpoint, receipts[number], bool(canceled))
        for number, (seq, id_, body, deliveries, checkpoint, canceled) in enumerate(found)
    ]
    database.executemany(
        "UPDATE task SET receipt = ?, expires_at = ? WHERE seq = ?",
        [(row.receipt, now.boottime + lease_seconds, row.seq) for row in rows],
    )
    return rows


def holders(database: sqlite3.Connection, queue: int, now: Now) -> list[str]:
    """Return the ids of the workers that hold leases."""
    return [worker for (worker,) in database.execute(HOLDERS, (queue, now.boottime))]


def end_leases(database: sqlite3.Connection, queue: int, workers: Sequence[str], now: Now) -> int:
    """Let the leases of workers that are dead, with all that they ran, run out now; return how many."""
    return sum(
        database.execute(_END_LEASES, (now.boottime, queue, now.boottime, worker)).rowcount for worker in workers
    )


def _promote_expired(database: sqlite3.Connection, queue: int, now: Now, *, journaled: bool) -> None:
    expired = database.execute(EXPIRED, (queue, now.boottime, PROMOTE_AT_ONCE)).fetchall()
    if journaled:
        journal_writer.note_lost(database, [row[:-1] for row in expired], now.boottime, now.wall)
    for *row, is_canceled in expired:
        database.execute(journal_writer.CANCEL if is_canceled else PROMOTE_EXPIRED, (now.wall, row[0]))


def renew(
    database: sqlite3.Connection, row: ClaimedRow, lease_seconds: float, now: Now, beat: str | None = None
) -> bool:
    """Extend the lease and keep the attempt's sign of life; return whether the task is to be canceled."""
    _fenced(database, row, now, _RENEW, (now.boottime + lease_seconds, now.wall, beat))
    (canceled,) = database.execute("SELECT cancel_requested FROM task WHERE seq = ?", (row.seq,)).fetchone()
    return bool(canceled)


def checkpoint(database: sqlite3.Connection, row: ClaimedRow, value: str, number: int, now: Now) -> None:
    """Save the task's progress, unless a newer one was saved (S9)."""
    _fenced(database, row, now, _CHECKPOINT, (value, number), (number,))


def settle(
    database: sqlite3.Connection,
    row: ClaimedRow,
    settlement: Settlement,
    body: bytes,
    said: str,
    now: Now,
    *,
    journaled: bool = False,
) -> None:
    """End the delivery; one that goes back and is to be canceled has ended with that.

    Args:
        database: in a transaction.
        row: what was claimed, with the receipt.
        settlement: how.
        body: of a task that goes back, as it is stored from now on.
        said: what distinguishes this settle (S5).
        now: the time.
        journaled: whether a journal is kept.
    """
    try:
        match settlement:
            case Complete():  # its id stays known for _IDS_KEPT_SECONDS
                _fenced(database, row, now, _COMPLETE, (said, now.wall, settlement.final))
            case MoveToDeadLetters(reason, description):  # the body stays as it is
                text = journal_writer.text_of(description)
                _fenced(database, row, now, _DEAD_LETTER, (said, now.wall, str(reason), text))
            case Requeue() | Release():
                is_due, keeps_place = settlement.delay <= _NO_DELAY, isinstance(settlement, Release)
                at = now.wall + max(0.0, settlement.delay.total_seconds())
                place = ("ready" if is_due else "scheduled"), None if is_due and keeps_place else at
                _fenced(database, row, now, _BACK, (said, *place, body))
    except LockLost:
        # S5: the same settle again is answered like the first, without a second effect.
        found = database.execute(_SETTLED, (row.id,)).fetchall()
        if not any(f"{row.receipt} {said};" in settlements for (settlements,) in found):
            raise
        return
    if journaled:
        journal_writer.note(database, row.seq, row.deliveries, settlement, now.wall)
    if isinstance(settlement, Requeue | Release):
        database.execute(f"{journal_writer.CANCEL_IDLE} AND cancel_requested", (now.wall, row.seq))


def _fenced(
    database: sqlite3.Connection,
    row: ClaimedRow,
    now: Now,
    update: str,
    values: tuple[Any, ...],
    more: tuple[Any, ...] = (),
) -> None:
    """Change the row while the lease is ours (S4)."""
    changed = database.execute(update, (*values, row.seq, row.receipt, now.boottime, *more)).rowcount
    if changed != 1:
        raise LockLost(
            f"the lease on task {row.id} is no longer ours: it expired, the task was settled or cleared,"
            " or a newer checkpoint was saved"
        )
