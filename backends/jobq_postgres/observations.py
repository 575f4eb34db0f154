"""What is seen of a queue from time to time, see `jobq.journal.observations`.

A note is one statement by its key, which goes with the claims where there is a connection for these: a worker has no
more connections for it. What takes longer has one of its own, which is there for that alone.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, TypeVar

from jobq.errors import BackendUnavailable, QueueNotFound
from jobq.journal.minutes import MOST_SAMPLED, EndedAttempts, sampled
from jobq.journal.notes import MOST_NOTES, NoteKind, QueueNote, Written, checked_notes
from jobq.journal.observations import checked_note
from jobq.journal.views import QueueLine, is_storable
from jobq_postgres import queue_lines
from jobq_postgres.bounded_read import KEYED_SECONDS, BoundedRead, TimeIsOver
from jobq_postgres.connections import queue_number
from jobq_postgres.errors import NoAnswer
from jobq_postgres.lane import Work

T = TypeVar("T")
_BUDGET: Final = timedelta(seconds=1)  # of a look, on a connection of its own
_KEYED_SECONDS: Final = 1.0  # beyond which who claims would wait for it
_SECONDS: Final = _BUDGET.total_seconds() + KEYED_SECONDS
OUTCOMES: Final = """
    SELECT outcome, count(*) FROM jobq.attempt
    WHERE queue_id = $1 AND ended_at >= $2 AND ended_at < $3 GROUP BY outcome
"""
SAMPLE: Final = """
    SELECT record FROM jobq.attempt WHERE queue_id = $1 AND ended_at >= $2 AND ended_at < $3
    ORDER BY ended_at LIMIT $4
"""
PAGE: Final = """
    SELECT key, value, greatest(0, extract(epoch FROM clock_timestamp() - at))::float8 FROM jobq.observation
    WHERE queue_id = $1 AND kind = $2 AND key > $3 ORDER BY key LIMIT $4
"""
_INSERT: Final = """
    WITH kept AS (
        INSERT INTO jobq.observation (queue_id, kind, key, at, value) VALUES ($1, $2, $3, clock_timestamp(), $4)
        ON CONFLICT (queue_id, kind, key) DO {} RETURNING 1)
    SELECT extract(epoch FROM clock_timestamp())::float8, EXISTS (SELECT FROM kept)
"""
KEEP: Final = _INSERT.format("NOTHING")
REPLACE: Final = _INSERT.format("UPDATE SET at = excluded.at, value = excluded.value")
DROP: Final = "DELETE FROM jobq.observation WHERE queue_id = $1 AND kind = $2 AND key = ANY ($3::text[])"


class Submits(Protocol):
    """Runs work on a connection."""

    async def __call__(self, work: Work[Any], *, seconds: float) -> Any:
        """Run it; raises NoAnswer or a JobqError."""
        ...


class PostgresObservations:
    """The notes of one queue of a database.

    Args:
        queue: its name.
        place: for messages.
        keyed: runs a statement that finds all by a key.
        beside: runs what may take longer, on a connection that nobody else waits for.
    """

    def __init__(self, queue: str, place: str, keyed: Submits, beside: Submits) -> None:
        self._queue = queue
        self._place = place
        self._keyed = keyed
        self._beside = beside
        self._known: int | None = None

    async def line(self) -> QueueLine:
        """Look at the queue."""
        return await self._look(lambda read, number: queue_lines.line(read, number, _BUDGET))

    async def ended(self, since: float, until: float) -> EndedAttempts:
        """Count by the index of ends; raises BackendUnavailable where the time was not enough for all."""
        bounds = datetime.fromtimestamp(since, UTC), datetime.fromtimestamp(until, UTC)

        async def look(read: BoundedRead, number: int) -> EndedAttempts:
            read.limit(_BUDGET)
            outcomes = {row[0]: int(row[1]) for row in await read.fetch(OUTCOMES, number, *bounds)}
            records = await read.fetch(SAMPLE, number, *bounds, MOST_SAMPLED) if outcomes else []
            return sampled(outcomes, (row[0] for row in records))

        return await self._look(look)

    async def put(
        self, kind: NoteKind, key: str, value: str, *, replaces: bool, seconds: float | None = None
    ) -> Written:
        """Keep a note."""
        checked_note(kind, key, value)
        statement = REPLACE if replaces else KEEP
        row = await self._run(
            lambda connection, number: connection.fetchrow(statement, number, kind, key, value), seconds
        )
        return Written(row[0], row[1])

    async def page(self, kind: NoteKind, after: str, limit: int) -> Sequence[QueueNote]:
        """List notes."""
        values = page_values(kind, after, limit)
        found = await self._run(lambda connection, number: connection.fetch(PAGE, number, *values))
        return [QueueNote(*row) for row in found]

    async def drop(self, kind: NoteKind, keys: Sequence[str]) -> None:
        """Delete notes."""
        checked_notes(len(keys))
        kept = [key for key in keys if is_storable(key)]
        await self._run(lambda connection, number: connection.execute(DROP, number, kind, kept))

    async def _look(self, look: Callable[[BoundedRead, int], Awaitable[T]]) -> T:
        async def work(connection: Any) -> T:
            number = await self._number(connection)
            async with connection.transaction(readonly=True):
                read = BoundedRead(connection)
                await read.begin()
                return await look(read, number)

        try:
            found: T = await self._beside(work, seconds=_SECONDS)
        except (NoAnswer, TimeIsOver):
            raise BackendUnavailable(f"{self._place}: there was no time for a look at queue {self._queue!r}") from None
        return found

    async def _run(self, do: Callable[[Any, int], Awaitable[Any]], seconds: float | None = None) -> Any:
        async def work(connection: Any) -> Any:
            return await do(connection, await self._number(connection))

        try:
            return await self._keyed(work, seconds=min(seconds or _KEYED_SECONDS, _KEYED_SECONDS))
        except NoAnswer as error:
            raise BackendUnavailable(str(error)) from None  # whatever was done, it is safe to repeat

    async def _number(self, connection: Any) -> int:
        if not is_storable(self._queue):
            raise QueueNotFound(f"queue {self._queue[:80]!a} does not exist in {self._place}")
        if self._known is None:  # no queue is ever deleted
            self._known = await queue_number(connection, self._queue, self._place)
        return self._known


def page_values(kind: NoteKind, after: str, limit: int) -> tuple[str, str, int]:
    """Return the values of PAGE after the queue's number; raises ConfigurationError."""
    checked_notes(limit)
    return kind, after if is_storable(after) else "", min(limit, MOST_NOTES)
