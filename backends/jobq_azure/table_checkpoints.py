"""Checkpoints of a queue that has no place for them: a row for each task, fenced by the fencing number (S4, S9)."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from jobq.errors import BackendUnavailable, ConfigurationError, LockLost, MalformedTask, SettlementUnknown
from jobq.fencing import FencingNumber
from jobq_azure import table_rows as rows
from jobq_azure.answers import NoAnswer
from jobq_azure.table_answers import WriteRefused
from jobq_azure.table_wire import Row, TableWire, Verb, Write

_TRIES: Final = 3  # a row that changes under our hands is another attempt's, which one more look shows


class Checkpoints:
    """Of one queue.

    Args:
        wire: to the table.
        forget: deletes a row, some time.
    """

    def __init__(self, wire: TableWire, forget: Callable[[list[Row]], None]) -> None:
        self._wire = wire
        self._queue = wire.place.queue
        self._forget = forget

    async def find(self, task_id: str, seconds: float) -> str | None:
        """Return what was saved last; None = nothing was.

        Raises:
            BackendUnavailable: nobody knows within so long.
        """
        try:
            async with asyncio.timeout(seconds):
                row = await self._wire.get(self._queue, rows.checkpoint_key(task_id))
        except (NoAnswer, TimeoutError) as error:
            raise BackendUnavailable(str(error) or f"{self._wire.place}: no answer in time") from None
        return None if row is None else rows.taken(row, "Value").decode(errors="replace")

    async def save(self, task_id: str, fencing: FencingNumber, value: str) -> None:
        """Save durably, unless a later attempt has saved.

        Raises:
            LockLost: one has.
            SettlementUnknown: the answer was lost; it may be repeated.
            MalformedTask: it cannot be kept.
        """
        try:
            data = value.encode()
        except UnicodeEncodeError:  # what could not be read again would take the task with it
            raise MalformedTask("holds half a surrogate pair, which is no text", "checkpoint") from None
        values: dict[str, Any] = {"Fencing": rows.order(fencing), "At": time.time()}
        rows.put(values, "Value", data)
        key = rows.checkpoint_key(task_id)
        try:
            for _ in range(_TRIES):
                row = await self._wire.get(self._queue, key)
                if row is not None and rows.fencing_in(row["Fencing"]) > fencing:
                    raise LockLost("a later attempt has saved its checkpoint")
                etag = "" if row is None else str(row["odata.etag"])
                try:
                    await self._wire.write(
                        self._queue, [Write(Verb.REPLACE if etag else Verb.INSERT, key, values, etag)]
                    )
                except WriteRefused as refused:
                    if not refused.is_conflict:
                        raise ConfigurationError(str(refused)) from None
                    continue
                return
        except NoAnswer as error:
            raise SettlementUnknown(str(error)) from None
        raise BackendUnavailable(f"{self._wire.place}: the checkpoint of {task_id} is written by another, too")

    def forget(self, task_id: str) -> None:
        """Delete it, some time: its task has ended."""
        self._forget([{"RowKey": rows.checkpoint_key(task_id)}])
