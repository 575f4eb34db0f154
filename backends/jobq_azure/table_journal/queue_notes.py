"""What is noted of a queue from time to time, in its part of the journal's table: n!KIND!KEY.

Keys stand there in base 32, whose order is that of the code points, in signs that the service takes. A queue that is
deleted takes them with it, as all of its part.
"""

import asyncio
import base64
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from jobq.errors import BackendUnavailable, ConfigurationError
from jobq.journal.minutes import MOST_SAMPLED, EndedAttempts
from jobq.journal.notes import NoteKind, QueueNote, Written, checked_notes
from jobq.journal.observations import checked_note
from jobq.journal.records import Attempt
from jobq.journal.views import QueueLine, is_storable
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.client import MOST_ROWS, TableWire, Verb, Write
from jobq_azure.table_journal.errors import WriteRefused
from jobq_azure.table_journal.looks import MOST_LOOKS, Looks
from jobq_azure.table_journal.lookup import answered
from jobq_azure.table_journal.queue_line import ASKED_BEFORE, line_with

_MOST_KEY_BYTES: Final = 300  # of UTF-8: a key of the table has 512 characters
_MOST_ENDED: Final = 20_000  # attempts of one time that are counted, a request for each thousand
_MOST_SECONDS: Final = 3.0  # of the looks of a line
_FILLED: Final = re.compile("=+$")


class TableNotes:
    """The notes of one queue.

    Args:
        wire: to the table, entered.
        queue: the partition of the queue.
        counted: returns what the service counts; raises QueueNotFound where there is no such queue.
    """

    def __init__(self, wire: TableWire, queue: str, counted: Callable[[], Awaitable[QueueLine]]) -> None:
        self._wire = wire
        self._queue = queue
        self._counted = counted
        self._is_there = False

    async def line(self) -> QueueLine:
        """Count, by five requests at most."""
        counted = await self._counted()
        self._is_there = True
        looks = Looks(self._wire, time.monotonic() + _MOST_SECONDS, MOST_LOOKS - ASKED_BEFORE, self._queue)
        return await answered(line_with(counted, looks))

    async def ended(self, since: float, until: float) -> EndedAttempts:
        """Count the attempts, by a request for each thousand."""
        first, end = rows.ended_from(since), rows.ended_from(until)
        found = await answered(self._wire.all(self._queue, first, end, select="Outcome,Record0", most=_MOST_ENDED))
        sample = [
            Attempt.decode(rows.taken(row, "Record").decode(), 0) for row in found[:MOST_SAMPLED] if "Record0" in row
        ]
        ran = (max(0.0, each.ended - each.started) for each in sample if each.started is not None)
        waited = (each.waited for each in sample if each.waited is not None)
        return EndedAttempts.of(Counter(str(row["Outcome"]) for row in found), ran, waited)

    async def put(
        self, kind: NoteKind, key: str, value: str, *, replaces: bool, seconds: float | None = None
    ) -> Written:
        """Keep a note."""
        checked_note(kind, key, value)
        verb = Verb.REPLACE if replaces else Verb.INSERT
        try:
            async with asyncio.timeout(seconds):
                if not self._is_there:
                    await self._counted()
                    self._is_there = True
                await answered(self._wire.write(self._queue, [Write(verb, row_key(kind, key), {"Value": value})]))
        except TimeoutError:
            raise BackendUnavailable(f"{self._wire.place}: no answer within {seconds:g} s") from None
        except WriteRefused as refused:
            if not refused.is_conflict:
                raise ConfigurationError(str(refused)) from None
            return Written(self._wire.now(), is_kept=False)
        return Written(self._wire.now(), is_kept=True)

    async def page(self, kind: NoteKind, after: str, limit: int) -> Sequence[QueueNote]:
        """List notes, by a request for each thousand."""
        return await notes_page(self._wire, self._queue, kind, after, limit)

    async def drop(self, kind: NoteKind, keys: Sequence[str]) -> None:
        """Delete notes, by a request for each hundred, and one for each that is gone already."""
        checked_notes(len(keys))
        there = sorted({row_key(kind, key) for key in keys if key and is_storable(key)})
        for start in range(0, len(there), MOST_ROWS):
            some = there[start : start + MOST_ROWS]
            while some:
                try:
                    await answered(self._wire.write(self._queue, [Write(Verb.DELETE, row, {}) for row in some]))
                except WriteRefused as refused:
                    if not refused.is_conflict:
                        raise ConfigurationError(str(refused)) from None
                    del some[min(refused.index or 0, len(some) - 1)]  # it is gone
                else:
                    break


async def notes_page(wire: TableWire, queue: str, kind: NoteKind, after: str, limit: int) -> list[QueueNote]:
    """Return notes in the order of their keys; see `Observations.page`."""
    checked_notes(limit)
    first, end = rows.below(f"n!{kind}")
    start = f"{row_key(kind, after)}!" if after else first
    found = await answered(wire.all(queue, start, end, select="Value", most=limit))
    return [QueueNote(_key_of(row["RowKey"]), str(row["Value"]), rows.age(row, wire.now())) for row in found]


def row_key(kind: NoteKind, key: str) -> str:
    """Return the row key of a note; raises ConfigurationError."""
    written = key.encode(errors="replace")
    if len(written) > _MOST_KEY_BYTES:
        raise ConfigurationError(f"a note's key of {len(written)} bytes cannot be kept; {_MOST_KEY_BYTES} can")
    return f"n!{kind}!{_FILLED.sub('', base64.b32hexencode(written).decode())}"


def _key_of(row: str) -> str:
    text = row.rpartition("!")[2]
    return base64.b32hexdecode(text + "=" * (-len(text) % 8)).decode()
