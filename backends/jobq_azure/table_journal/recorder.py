"""Records in the journal of an Azure queue: that a task was pushed, is held, is held still, and what it came to."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from jobq.clock import SystemClock
from jobq.fencing import FencingNumber
from jobq.journal.records import Attempt, host_of, this_holder
from jobq.task import OutcomeKind, Task
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.batch_writer import Writer
from jobq_azure.table_journal.cancel_requests import CancelRequest
from jobq_azure.table_journal.client import Row, TableWire, Verb
from jobq_azure.table_journal.lookup import Lookup
from jobq_azure.table_journal.note import Note, fixed

_CLOCK: Final = SystemClock()
_LATE_SECONDS: Final = 600.0  # a push that is written later is none: its task may have ended, and its row be swept
_AT_ONCE_SECONDS: Final = 0.5  # a note that is written within, at the first try, is not worth a look
_MOST_DESCRIPTION: Final = 8192
_BEAT_BYTES: Final = 6 * 1024


@dataclass(frozen=True, kw_only=True)
class Held:
    """A delivery under its lease.

    Attributes:
        id: the task's.
        fencing: of the delivery.
        task: None = the message is none.
        checkpoint: what was saved last.
        since: boottime in seconds, read before the request that granted the lease was sent.
        lease_seconds: how long it lasts from then.
        leased: wall time in seconds of the receive.
        beat: how it is, as JSON.
        born: of one whose task is lost, when that was made, as its message says.
    """

    id: str
    fencing: FencingNumber
    task: Task | None
    checkpoint: str | None
    since: float
    lease_seconds: float
    leased: float
    beat: str | None = None
    born: float | None = None

    @property
    def birth(self) -> int:
        """Which life of its id it is."""
        return rows.birth(self.born if self.task is None else self.task.created)


@dataclass(frozen=True, kw_only=True)
class After:
    """Where a task is that was settled and has not ended.

    Attributes:
        fencing: behind that of the delivery, or the same.
        due: wall time in seconds before which it is not delivered.
    """

    fencing: FencingNumber
    due: float


class Notebook:
    """Makes the notes of one queue.

    Args:
        wire: for what has to be looked up before.
        writer: writes them.
    """

    def __init__(self, wire: TableWire, writer: Writer) -> None:
        self._wire = wire
        self._writer = writer
        self._lookup = Lookup(wire)
        self._queue = wire.place.queue

    def now(self) -> float:
        """Return wall time by the service's clock, by which what is recorded is dated."""
        return self._wire.now()

    def _by_store(self, attempt: Attempt) -> Attempt:
        """Return an attempt, which its worker has dated, by the service's clock: others forget it by that."""
        ahead = self._wire.now() - time.time()
        started = None if attempt.started is None else attempt.started + ahead
        return replace(attempt, started=started, ended=attempt.ended + ahead)

    def pushed(self, tasks: Sequence[Task], written: Callable[[Task], None] = lambda _task: None) -> None:
        """Record that tasks were acknowledged by the queue; `written` is called with each that the table then shows."""
        now, until = self._wire.now(), _CLOCK.boottime() + _LATE_SECONDS
        self._writer.add(self._pushed(task, now, until, written) for task in tasks)

    def _pushed(self, task: Task, now: float, until: float, written: Callable[[Task], None]) -> Note:
        order = FencingNumber(task.epoch, task.generation, 0)
        values = _waiting(task, task.not_before or now) | {"Fencing": rows.order(order)}
        key = rows.live(task.id, rows.birth(task.created))
        note = fixed(self._queue, key, values, Verb.INSERT, spare=True, order=order)
        note.make = lambda: values if _CLOCK.boottime() < until else None
        note.written = lambda: written(task) if _CLOCK.boottime() < until else None
        return note

    def redriven(self, task_id: str, birth: int, dead: FencingNumber) -> None:
        """Record that a dead letter was put back, under the next epoch (S3), unless more was recorded since.

        Args:
            task_id: its id.
            birth: of its life.
            dead: the fencing number of its last attempt.
        """
        fencing = FencingNumber(dead.epoch + 1, 0, dead.delivery)
        self._record_where(rows.live(task_id, birth), fencing, _waiting(None, self._wire.now()), is_last=False)

    def put_back(self, attempt: Row) -> None:
        """Record that the end of an attempt was not the task's last.

        Args:
            attempt: its row.
        """
        ended = rows.ended_key(rows.decoded(attempt).ended, attempt["RowKey"])
        self._writer.add([fixed(self._queue, ended, {"Then": rows.PUT_BACK}, Verb.MERGE, spare=True)])

    def held(self, held: Held) -> None:
        """Record that a worker holds a task, and how it is; of a later delivery first what became of the one before."""
        size = len(rows.shown_body(held.task)) + len(held.checkpoint or "") + _BEAT_BYTES
        note = Note(
            partition=self._queue,
            row=rows.live(held.id, held.birth),
            make=lambda: _running(held),
            bytes=2 * size,
            is_spare=True,
            order=held.fencing,
        )
        is_first = held.beat is not None or held.fencing[1:] == (0, 1)
        self._writer.add([note], None if is_first else lambda: self._lost_before(held))

    async def _lost_before(self, held: Held) -> list[Note]:
        """Return what to write of a former attempt that nobody could record: its worker died, or lost it."""
        try:
            row = await self._lookup.life(rows.safe(held.id), held.birth)
            return [] if row is None or row["State"] != "running" else self._lost(held, row)
        except (LookupError, ValueError, TypeError):  # who may write there may write anything
            return []

    def _lost(self, held: Held, row: Row) -> list[Note]:
        fencing = rows.fencing_in(row["Fencing"])
        if fencing >= held.fencing or rows.lease_left(row, self._wire.now()) > 0:  # given back, and recorded as that
            return []
        host, pid = host_of(str(row.get("Holder", "")))
        attempt = Attempt(
            attempt=fencing.delivery,
            outcome=OutcomeKind.LOCK_LOST,
            then="lost",
            started=float(row["At"]),
            ended=self._wire.now() + min(0.0, rows.lease_left(row, self._wire.now())),
            host=host,
            pid=pid,
            detail="its lease ran out without a word: the worker died, or lost it",
        )
        # Inserted: its own worker may have recorded more, and late.
        return self._attempt(held, fencing, attempt, "", Verb.INSERT)

    def ended(
        self,
        held: Held,
        attempt: Attempt,
        output: str,
        after: After | None,
        *,
        reason: str | None = None,
        description: str = "",
        request: CancelRequest | None = None,
    ) -> None:
        """Record what an attempt came to, once its settle has been confirmed (S5).

        Args:
            held: the delivery.
            attempt: what it came to.
            output: the end of what it printed.
            after: where the task is now; None = it has ended.
            reason: of a dead letter; None = it is none.
            description: likewise.
            request: that it ends, which is met where it has ended.
        """
        attempt = self._by_store(attempt)
        self._writer.add(self._attempt(held, held.fencing, attempt, output, Verb.REPLACE, reason, description))
        if after is not None:
            self.waits(held, after)
            return
        values = {
            "State": rows.DONE,
            "At": attempt.ended,
            "Then": attempt.then,
            **rows.batch_of(held.task),
        }
        self._record_where(rows.live(held.id, held.birth), held.fencing, values)
        if request is not None and request.birth is not None:  # of what had the id others may be meant, too
            self.forget([{"RowKey": request.row, "odata.etag": request.etag}], rows.cancel_requests_of(self._queue))

    def waits(self, held: Held, after: After) -> None:
        """Record that a task is back in the queue (S6)."""
        values = _waiting(held.task, after.due)
        if held.checkpoint is not None:
            rows.put(values, "Checkpoint", held.checkpoint.encode())
        self._record_where(rows.live(held.id, held.birth), after.fencing, values, is_last=False)

    def _record_where(self, key: str, fencing: FencingNumber, values: dict[str, Any], *, is_last: bool = True) -> None:
        """Record that a task waits or has ended: late not over the word of a later attempt (S3, S5).

        Who is cut off from the table alone, and not from the queue, writes of what another has long begun or ended.

        Args:
            key: of its row.
            fencing: of that.
            values: of the row, beside it.
            is_last: whether nobody records more of this life at once, as a worker does that takes what is back.
        """
        values["Fencing"] = rows.order(fencing)
        note, is_stale, tries = fixed(self._queue, key, values, order=fencing), False, 0
        written = _CLOCK.boottime()

        async def look() -> None:
            nonlocal is_stale, tries
            tries, late = tries + 1, _CLOCK.boottime() - written
            if is_last and tries == 1 and late < _AT_ONCE_SECONDS:
                return
            row = await self._wire.get(self._queue, note.row)
            if row is None:  # an end is recorded by its attempt, too; but the note of its push may come yet
                note.verb, note.etag = Verb.INSERT, ""
                is_stale = values["State"] == rows.DONE and late > _LATE_SECONDS
            else:
                note.verb, note.etag = Verb.REPLACE, str(row["odata.etag"])
                is_stale = _is_later(row, fencing)

        note.make, note.look = lambda: None if is_stale else values, look
        self._writer.add([note])

    def _attempt(
        self,
        held: Held,
        fencing: FencingNumber,
        attempt: Attempt,
        output: str,
        verb: Verb,
        reason: str | None = None,
        description: str = "",
    ) -> list[Note]:
        values: dict[str, Any] = {
            "Then": attempt.then, "Outcome": str(attempt.outcome), **rows.batch_of(held.task)
        }  # fmt: skip
        rows.put(values, "Record", attempt.encode().encode())
        if reason is not None:
            values["Reason"] = reason[:100]
            rows.put(values, "Description", description[:_MOST_DESCRIPTION].encode(errors="replace"))
        key = rows.attempt_key(held.id, held.birth, fencing)
        notes = [fixed(self._queue, key, values, verb)]
        index = {"Outcome": str(attempt.outcome), "Then": attempt.then, "Printed": bool(output)}
        index |= rows.listed(attempt, reason, description) | rows.batch_of(held.task)
        notes.append(fixed(self._queue, rows.ended_key(attempt.ended, key), index))
        if output:
            printed: dict[str, Any] = {}
            rows.put(printed, "Output", output.encode(errors="replace"))
            notes.append(fixed(self._queue, f"o{key[1:]}", printed, spare=True))
        return notes

    def forget(self, found: Sequence[Row], partition: str = "") -> None:
        """Delete rows, some time; those that were read with an etag only as they were read."""
        self._writer.add(
            fixed(partition or self._queue, row["RowKey"], {}, Verb.DELETE, etag=row.get("odata.etag", ""), spare=True)
            for row in found
        )


def _is_later(row: Row, fencing: FencingNumber) -> bool:
    """Return whether a row is the word of a later attempt."""
    with suppress(LookupError, ValueError, TypeError):  # who may write there may write anything
        return rows.fencing_in(row["Fencing"]) > fencing
    return False


def _waiting(task: Task | None, due: float) -> dict[str, Any]:
    values: dict[str, Any] = {"State": "ready", "At": float(due), "Due": float(due)}
    rows.put(values, "Body", rows.shown_body(task))
    return values | rows.batch_of(task)


def _running(held: Held) -> dict[str, Any] | None:
    left = held.lease_seconds - (_CLOCK.boottime() - held.since)
    if left <= 0:  # another may hold it by now, and has recorded it (S3)
        return None
    values: dict[str, Any] = {
        "State": "running",
        "Fencing": rows.order(held.fencing),
        "At": held.leased,
        "LeaseLeft": float(left),
        "Holder": this_holder(),
        **rows.batch_of(held.task),
    }
    rows.put(values, "Body", rows.shown_body(held.task))
    if held.beat is not None:
        rows.put(values, "Beat", held.beat.encode())
    if held.checkpoint is not None:
        rows.put(values, "Checkpoint", held.checkpoint.encode())
    return values


def numbered(attempt: Attempt, number: int) -> Attempt:
    """Return an attempt under its number; 0 stood for what the queue's row knows."""
    return attempt if attempt.attempt else replace(attempt, attempt=number)
