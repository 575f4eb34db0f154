"""Checkpoints of a queue that has no place for them: a row for each task, fenced by the fencing number (S4, S9)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from jobq.errors import BackendUnavailable, ConfigurationError, LockLost, MalformedTask, SettlementUnknown
from jobq.fencing import FencingNumber
from jobq_azure.common.errors import NoAnswer
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.batch_writer import Writer
from jobq_azure.table_journal.client import Row, TableWire, Verb, Write
from jobq_azure.table_journal.errors import WriteRefused
from jobq_azure.table_journal.note import fixed

_TRIES: Final = 3  # a row that changes under our hands is another attempt's, which one more look shows


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Who holds a task.

    Attributes:
        id: the task's.
        life: what distinguishes it from any other that has, had or gets this id.
        fencing: of the delivery.
        origin: what all copies of the task have in common, and no other task; "" = nobody knows.
    """

    id: str
    life: str
    fencing: FencingNumber
    origin: str = ""


class _AnothersRow(Exception):
    """A later task that was made of the same `Task` has the row."""


class Checkpoints:
    """Of one queue.

    Args:
        wire: to the table.
        writer: deletes rows, some time.
    """

    def __init__(self, wire: TableWire, writer: Writer) -> None:
        self._wire = wire
        self._queue = wire.place.queue
        self._writer = writer

    async def taken_over(self, held: Claim, seconds: float) -> str | None:
        """Return what was saved last, and keep out any that held the task before; None = nothing was saved.

        One `Task` that was pushed twice has one row: of the two only the later one keeps a checkpoint, and the other
        starts without.

        Raises:
            LockLost: a later attempt holds the task.
            BackendUnavailable: nobody knows within so long.
        """
        try:
            async with asyncio.timeout(seconds):
                row = await self._replaced(held, lambda row: None if row is None else rows.taken(row, "Value"))
        except _AnothersRow:
            return None
        except (NoAnswer, TimeoutError) as error:
            raise BackendUnavailable(str(error) or f"{self._wire.place}: no answer in time") from None
        return row.decode(errors="replace") if row else None

    async def save(self, held: Claim, value: str, number: int = 0) -> None:
        """Save durably, unless a later attempt holds the task, or has saved more since.

        Raises:
            LockLost: one does, or this one has, under a higher number.
            SettlementUnknown: the answer was lost; it may be repeated.
            MalformedTask: it cannot be kept, or a later task that was made of the same `Task` keeps one.
        """
        try:
            data = value.encode()
        except UnicodeEncodeError:  # what could not be read again would take the task with it
            raise MalformedTask("holds half a surrogate pair, which is no text", "checkpoint") from None
        try:
            await self._replaced(held, lambda _: data, number)
        except _AnothersRow:
            raise MalformedTask("is not kept: the same Task was pushed again, and that one keeps its own") from None
        except NoAnswer as error:
            raise SettlementUnknown(str(error)) from None

    async def _replaced(
        self, held: Claim, change: Callable[[Row | None], bytes | None], number: int | None = None
    ) -> bytes | None:
        """Write what `change` makes of the row, one compare on what it was; return that."""
        key = rows.checkpoint_key(held.id, held.life)
        for _ in range(_TRIES):
            row = await self._wire.get(self._queue, key)
            etag = "" if row is None else str(row["odata.etag"])
            if row is not None and rows.fencing_in(row["Fencing"]) > held.fencing:
                if held.origin and row.get("Origin", held.origin) != held.origin:
                    raise _AnothersRow
                raise LockLost("a later attempt holds this task")
            if (
                row is not None
                and rows.fencing_in(row["Fencing"]) == held.fencing
                and number is not None
                and int(row.get("Number", 0)) > number
            ):
                raise LockLost(f"a newer checkpoint of task {held.id} was saved before this one")
            data = change(row)
            values: dict[str, Any] = {"Fencing": rows.order(held.fencing), "At": self._wire.now()}
            if held.origin:
                values["Origin"] = held.origin
            values["Number"] = float(number or 0)  # in a table an integer has 32 bits
            rows.put(values, "Value", data or b"")
            verb = Verb.REPLACE if etag else Verb.INSERT
            try:
                await self._wire.write(self._queue, [Write(verb, key, values, etag)])
            except WriteRefused as refused:
                if not refused.is_conflict:
                    raise ConfigurationError(str(refused)) from None
                continue
            return data
        raise BackendUnavailable(f"{self._wire.place}: the checkpoint of {held.id} is written by another, too")

    def forget(self, held: Claim) -> None:
        """Delete it, some time: its task has ended.

        Not what a later task keeps that was made of the same `Task`, nor what a later delivery of this one has saved:
        an original that ran beside its copy may end first (S9).
        """
        note = fixed(self._queue, rows.checkpoint_key(held.id, held.life), {}, Verb.DELETE, spare=True)

        async def look() -> None:
            row = await self._wire.get(self._queue, note.row)
            is_ours = (
                row is not None
                and (not held.origin or row.get("Origin", held.origin) == held.origin)
                and rows.fencing_in(row["Fencing"]) <= held.fencing
            )
            note.etag = str(row["odata.etag"]) if row is not None else ""
            note.make = lambda: {} if is_ours else None

        note.look = look
        self._writer.add([note])
