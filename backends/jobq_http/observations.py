"""What is seen of a queue of a service from time to time, see `jobq.journal.observations`: the service keeps it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from jobq.journal import view_wire
from jobq.journal.minutes import EndedAttempts
from jobq.journal.notes import NoteKind, QueueNote, Written, checked_notes
from jobq.journal.observations import checked_note
from jobq.journal.views import QueueLine, is_storable
from jobq_http.connection import HttpConnection
from jobq_http.looking import MOST_SECONDS, asked, of_queue, read, sendable

T = TypeVar("T")
_PUT_SECONDS: Final = 5.0


class HttpObservations:
    """The notes of one queue.

    Args:
        connection: to the service.
        queue: the queue's name.
    """

    def __init__(self, connection: HttpConnection, queue: str) -> None:
        self._connection = connection
        self._queue = queue

    async def line(self) -> QueueLine:
        """Look at the queue."""
        return await self._ask("line", {}, view_wire.line_of)

    async def ended(self, since: float, until: float) -> EndedAttempts:
        """Count."""
        return await self._ask("ended", {"since": since, "until": until}, view_wire.ended_of)

    async def put(
        self, kind: NoteKind, key: str, value: str, *, replaces: bool, seconds: float | None = None
    ) -> Written:
        """Keep a note; one of who changed something is named by the service after the token."""
        checked_note(kind, key, value)
        body = {"kind": str(kind), "key": key, "value": value, "replaces": replaces}
        return await self._ask(
            "put", body, lambda found: Written(float(found["at"]), bool(found["is_kept"])), seconds or _PUT_SECONDS
        )

    async def page(self, kind: NoteKind, after: str, limit: int) -> Sequence[QueueNote]:
        """List notes."""
        body = {"kind": str(kind), "after": sendable(after), "limit": checked_notes(limit)}
        return await self._ask("page", body, lambda found: list(map(view_wire.note_of, found["notes"])))

    async def drop(self, kind: NoteKind, keys: Sequence[str]) -> None:
        """Delete notes."""
        checked_notes(len(keys))
        if kept := [key for key in keys if is_storable(key)]:
            await self._ask("drop", {"kind": str(kind), "keys": kept}, lambda _: None)

    async def _ask(
        self, verb: str, body: Mapping[str, Any], made: Callable[[Mapping[str, Any]], T], seconds: float = MOST_SECONDS
    ) -> T:
        answer = await asked(self._connection, of_queue(self._queue, f"notes/{verb}"), body, seconds)
        return read(lambda: made(answer))
