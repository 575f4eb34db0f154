"""All queues of a service that a token may see, looked at over connections of their own; see `jobq.journal.views`."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Self, TypeVar

from jobq.journal import view_wire
from jobq.journal.error_grouping import checked_grouping
from jobq.journal.notes import NoteKind, QueueNote, checked_notes
from jobq.journal.task_filter import TaskFilter
from jobq.journal.task_rows import TaskDetail, TaskRow
from jobq.journal.views import BUDGET, MOST_COUNTED, Count, DeadGroups, QueueLine, ViewPage, checked_limit
from jobq.lease.store import LeaseRecord
from jobq_http.connection import HttpConnection
from jobq_http.looking import MOST_SECONDS, asked, of_queue, read, sendable

T = TypeVar("T")
_MOST_BUDGET: Final = timedelta(seconds=2)  # that a service takes for one look


class HttpViews:
    """The queues of a service.

    Args:
        connection: to it, for looks alone.
    """

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._connection.__aexit__(None, None, None)

    async def queues(self, after: str, limit: int, *, budget: timedelta = BUDGET) -> ViewPage[QueueLine]:
        """List queues by name."""
        body = {"after": sendable(after), "limit": checked_limit(limit)}
        answer = await asked(self._connection, "/api/views/queues", body | _time(budget), MOST_SECONDS)
        return read(lambda: view_wire.page_of(answer, view_wire.line_of))

    async def queue(self, name: str, *, budget: timedelta = BUDGET) -> QueueLine:
        """Look at one queue."""
        return await self._look(name, "queue", _time(budget), view_wire.line_of)

    async def tasks(
        self, queue: str, wanted: TaskFilter, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> ViewPage[TaskRow]:
        """List tasks by state."""
        body = {"wanted": _wanted(wanted), "after": sendable(after), "limit": checked_limit(limit)}
        return await self._look(
            queue, "tasks", body | _time(budget), lambda found: view_wire.page_of(found, view_wire.row_of)
        )

    async def count(
        self, queue: str, wanted: TaskFilter, *, most: int = MOST_COUNTED, budget: timedelta = BUDGET
    ) -> Count:
        """Count tasks."""
        body = {"wanted": _wanted(wanted), "most": most}
        return await self._look(queue, "count", body | _time(budget), view_wire.count_of)

    async def task(self, queue: str, task_id: str) -> TaskDetail | None:
        """Look at one task."""

        def detail(found: Mapping[str, Any]) -> TaskDetail | None:
            return None if found["task"] is None else view_wire.detail_of(found["task"])

        return await self._look(queue, "task", {"id": sendable(task_id)}, detail)

    async def output(self, queue: str, task_id: str, attempt: int | None = None) -> tuple[int, str] | None:
        """Return the end of an attempt's output."""

        def end(found: Mapping[str, Any]) -> tuple[int, str] | None:
            return None if found["attempt"] is None else (int(found["attempt"]), str(found["output"]))

        which = {} if attempt is None else {"attempt": attempt}
        return await self._look(queue, "output", {"id": sendable(task_id)} | which, end)

    async def leases(
        self, queue: str, prefix: str, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> ViewPage[LeaseRecord]:
        """List named leases by name."""
        body = {"prefix": sendable(prefix), "after": sendable(after), "limit": checked_limit(limit)}
        return await self._look(
            queue, "leases", body | _time(budget), lambda found: view_wire.page_of(found, view_wire.lease_of)
        )

    async def dead_groups(
        self,
        queue: str,
        grouping: Sequence[str],
        limit: int,
        *,
        max_age_seconds: float | None = None,
        budget: timedelta = BUDGET,
    ) -> DeadGroups:
        """Group dead letters."""
        body: dict[str, Any] = {"grouping": list(checked_grouping(",".join(grouping))), "limit": checked_limit(limit)}
        if max_age_seconds is not None:
            body["max_age_seconds"] = max_age_seconds
        return await self._look(queue, "dead_groups", body | _time(budget), view_wire.groups_of)

    async def notes(
        self, queue: str, kind: NoteKind, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> Sequence[QueueNote]:
        """List notes."""
        body = {"kind": str(kind), "after": sendable(after), "limit": checked_notes(limit)}
        return await self._look(
            queue, "notes", body | _time(budget), lambda found: list(map(view_wire.note_of, found["notes"]))
        )

    async def _look(self, queue: str, verb: str, body: Mapping[str, Any], made: Callable[[Mapping[str, Any]], T]) -> T:
        answer = await asked(self._connection, of_queue(queue, f"views/{verb}"), body, MOST_SECONDS)
        return read(lambda: made(answer))


def _wanted(wanted: TaskFilter) -> dict[str, Any]:
    fields: dict[str, Any] = view_wire.fields_of(wanted)
    return {name: sendable(value) if isinstance(value, str) else value for name, value in fields.items()}


def _time(budget: timedelta) -> dict[str, Any]:
    return {"budget_seconds": min(budget, _MOST_BUDGET).total_seconds()}
