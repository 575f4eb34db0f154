"""What is seen of a queue of a file from time to time, see `jobq.journal.observations`.

What is read, and what is counted, is read beside who claims; a note is a row of one of the transactions there.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final

from jobq.errors import BackendUnavailable, QueueNotFound
from jobq.journal.minutes import MOST_SAMPLED, EndedAttempts, sampled
from jobq.journal.notes import MOST_NOTES, NoteKind, QueueNote, Written, checked_notes
from jobq.journal.observations import checked_note
from jobq.journal.views import QueueLine, is_storable
from jobq_sqlite import queue_lines, task_sql
from jobq_sqlite.bounded_read import UntilCut, bounded
from jobq_sqlite.connection import SqliteConnection
from jobq_sqlite.task_sql import DELETED, Now

_BUDGET: Final = timedelta(milliseconds=300)  # of one look; a worker that ends waits for it
OUTCOMES: Final = (
    "SELECT outcome, count(*) FROM attempt WHERE queue_id = ? AND ended_at >= ? AND ended_at < ? GROUP BY outcome"
)
SAMPLE: Final = "SELECT record FROM attempt WHERE queue_id = ? AND ended_at >= ? AND ended_at < ? LIMIT ?"
PAGE: Final = "SELECT key, value, at FROM observation WHERE queue_id = ? AND kind = ? AND key > ? ORDER BY key LIMIT ?"
_KEEP: Final = "INSERT OR IGNORE INTO observation (queue_id, kind, key, at, value) VALUES (?, ?, ?, ?, ?)"
_REPLACE: Final = _KEEP.replace("IGNORE", "REPLACE")
_DROP: Final = "DELETE FROM observation WHERE queue_id = ? AND kind = ? AND key = ?"


class SqliteObservations:
    """The notes of one queue of a file.

    Args:
        queue: its name.
        opened: gives the connection that writes.
        opened_to_read: gives the one that only reads.
    """

    def __init__(
        self,
        queue: str,
        opened: Callable[[], Awaitable[SqliteConnection]],
        opened_to_read: Callable[[], Awaitable[SqliteConnection]],
    ) -> None:
        self._queue = queue
        self._opened = opened
        self._opened_to_read = opened_to_read

    async def line(self) -> QueueLine:
        """Look at the queue."""
        reader = await self._opened_to_read()
        return await reader.submit(
            lambda database, now: queue_lines.line(database, self._number(database), now, _BUDGET), writes=False
        )

    async def ended(self, since: float, until: float) -> EndedAttempts:
        """Count by the index of ends, which holds the outcomes, too."""

        def look(database: sqlite3.Connection, _: Now) -> EndedAttempts:
            number = self._number(database)
            with bounded(database, _BUDGET), UntilCut():
                outcomes = dict(database.execute(OUTCOMES, (number, since, until)).fetchall())
                records = database.execute(SAMPLE, (number, since, until, MOST_SAMPLED)).fetchall()
                return sampled(outcomes, (record for (record,) in records))
            raise BackendUnavailable("there was no time to count what ended")

        reader = await self._opened_to_read()
        return await reader.submit(look, writes=False)

    async def put(
        self, kind: NoteKind, key: str, value: str, *, replaces: bool, seconds: float | None = None
    ) -> Written:
        """Keep a note."""
        checked_note(kind, key, value)

        def write(database: sqlite3.Connection, now: Now) -> Written:
            row = self._number(database), kind, key, now.wall, value
            return Written(now.wall, database.execute(_REPLACE if replaces else _KEEP, row).rowcount == 1)

        connection = await self._opened()
        return await connection.submit(write, patience=seconds)

    async def page(self, kind: NoteKind, after: str, limit: int) -> Sequence[QueueNote]:
        """List notes."""
        reader = await self._opened_to_read()
        return await reader.submit(
            lambda database, now: page(database, self._number(database), kind, after, limit, now), writes=False
        )

    async def drop(self, kind: NoteKind, keys: Sequence[str]) -> None:
        """Delete notes."""
        checked_notes(len(keys))
        kept = [key for key in keys if is_storable(key)]

        def write(database: sqlite3.Connection, _: Now) -> None:
            number = self._number(database)
            database.executemany(_DROP, [(number, kind, key) for key in kept])

        connection = await self._opened()
        await connection.submit(write)

    def _number(self, database: sqlite3.Connection) -> int:
        # Each time anew: it may have been deleted meanwhile, and made again.
        if not is_storable(self._queue) or self._queue.startswith(DELETED):
            raise QueueNotFound(f"queue {self._queue[:80]!a} does not exist")
        return task_sql.queue_id(database, self._queue)


def page(
    database: sqlite3.Connection, queue: int, kind: NoteKind, after: str, limit: int, now: Now
) -> Sequence[QueueNote]:
    """Return notes of a queue behind a key, up to so many (`MOST_NOTES`)."""
    checked_notes(limit)
    found = database.execute(PAGE, (queue, kind, after if is_storable(after) else "", min(limit, MOST_NOTES)))
    return [QueueNote(key, value, max(0.0, now.wall - at)) for key, value, at in found]
