"""A whole database, looked at on connections of its own, for a bounded time: see `jobq.journal.views`."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, NoReturn, Self, TypeVar

from jobq.errors import BackendUnavailable, QueueNotFound
from jobq.journal.error_grouping import checked_grouping
from jobq.journal.notes import NoteKind, QueueNote
from jobq.journal.task_filter import TaskFilter
from jobq.journal.task_rows import TaskDetail, TaskRow, detail_of
from jobq.journal.task_search import TaskSearch
from jobq.journal.views import (
    BUDGET,
    MOST_COUNTED,
    Count,
    DeadGroups,
    QueueLine,
    ViewPage,
    checked_limit,
    is_storable,
)
from jobq.lease.store import LeaseRecord
from jobq_postgres import dead_groups, lease_listing, observations, queue_lines
from jobq_postgres.bounded_read import KEYED_SECONDS, BoundedRead, TimeIsOver
from jobq_postgres.connections import queue_number
from jobq_postgres.errors import NoAnswer
from jobq_postgres.journal import PostgresJournal
from jobq_postgres.lane import Lane, Server, Work
from jobq_postgres.task_walk import walked

T = TypeVar("T")
_LANES: Final = 2  # a look that takes its whole time holds up no other one
_SECONDS: Final = 2 * KEYED_SECONDS  # beside the time of a look
_IN_A_TURN: Final = 50  # tasks that are made rows before others on the event loop have their turn
_NO_BATCH: Final = -1
_BATCH: Final = "SELECT batch_id FROM jobq.batch WHERE queue_id = $1 AND name = $2"
Look = Callable[[BoundedRead], Awaitable[T]]


class PostgresViews:
    """The queues of a database, on two connections that claims, renewals and settles do not use.

    Args:
        server: where the database is.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lanes: list[Lane] = []
        self._waiting: list[int] = []

    async def __aenter__(self) -> Self:
        self._lanes = [Lane(self._server, "look", on_connected=_only_reads) for _ in range(_LANES)]
        self._waiting = [0] * _LANES
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        lanes, self._lanes = self._lanes, []
        await asyncio.gather(*(lane.close() for lane in lanes))

    async def queues(self, after: str, limit: int, *, budget: timedelta = BUDGET) -> ViewPage[QueueLine]:
        """List queues by name."""
        checked_limit(limit)
        behind = after if is_storable(after) else ""
        return await self._look(lambda read: queue_lines.page(read, behind, limit, budget), budget)

    async def queue(self, name: str, *, budget: timedelta = BUDGET) -> QueueLine:
        """Look at one queue."""
        return await self._look_at(name, lambda read, number: queue_lines.line(read, number, budget), budget)

    async def tasks(
        self, queue: str, wanted: TaskFilter, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> ViewPage[TaskRow]:
        """List tasks by state."""
        checked_limit(limit)

        async def look(read: BoundedRead, number: int) -> ViewPage[TaskRow]:
            search = TaskSearch(wanted, after, limit, read.wall, budget)
            await _search(read, number, wanted, search, budget)
            return search.page()

        return await self._look_at(queue, look, budget)

    async def count(
        self, queue: str, wanted: TaskFilter, *, most: int = MOST_COUNTED, budget: timedelta = BUDGET
    ) -> Count:
        """Count tasks."""

        async def look(read: BoundedRead, number: int) -> Count:
            if wanted.has_states_alone:
                read.limit(budget)
                return replace(await queue_lines.count(read, number, wanted.states, most), now=read.wall)
            search = TaskSearch(wanted, "", most, read.wall, budget, keeps=False)
            await _search(read, number, wanted, search, budget)
            return replace(search.count(), now=read.wall)

        return await self._look_at(queue, look, budget)

    async def task(self, queue: str, task_id: str) -> TaskDetail | None:
        """Look at one task."""
        journal = self._journal(queue)
        found = await journal.find([task_id]) if is_storable(task_id) else []
        return detail_of(found[0], await journal.attempts(task_id)) if found else None

    async def output(self, queue: str, task_id: str, attempt: int | None = None) -> tuple[int, str] | None:
        """Return the end of an attempt's output."""
        return await self._journal(queue).output(task_id, attempt) if is_storable(task_id) else None

    async def leases(
        self, queue: str, prefix: str, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> ViewPage[LeaseRecord]:
        """List named leases by name."""
        checked_limit(limit)
        if not all(is_storable(text) for text in (queue, prefix, after)):
            return ViewPage(rows=[])

        async def look(read: BoundedRead) -> ViewPage[LeaseRecord]:
            read.limit(budget)
            return await lease_listing.page(read, queue, prefix, after, limit)

        return await self._look(look, budget)

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
        checked_limit(limit)
        names = checked_grouping(",".join(grouping))

        async def look(read: BoundedRead, number: int) -> DeadGroups:
            read.limit(budget)
            since = -math.inf if max_age_seconds is None else read.wall - max_age_seconds
            return await dead_groups.groups(read, number, names, limit, since)

        return await self._look_at(queue, look, budget)

    async def notes(
        self, queue: str, kind: NoteKind, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> Sequence[QueueNote]:
        """List notes."""
        values = observations.page_values(kind, after, limit)

        async def look(read: BoundedRead, number: int) -> Sequence[QueueNote]:
            read.limit(budget)
            return [QueueNote(*row) for row in await read.fetch(observations.PAGE, number, *values)]

        try:
            return await self._look_at(queue, look, budget)
        except TimeIsOver:
            raise BackendUnavailable(f"{self._server.place}: there was no time for the notes of {queue!r}") from None

    def _journal(self, queue: str) -> PostgresJournal:
        async def linked() -> _Link:
            return _Link(await self._submit(lambda connection: self._number(connection, queue), 0.0), self._submit)

        return PostgresJournal(linked)

    async def _number(self, connection: Any, queue: str) -> int:
        if not is_storable(queue):
            raise QueueNotFound(f"queue {queue[:80]!a} does not exist in {self._server.place}")
        return await queue_number(connection, queue, self._server.place)

    async def _look_at(self, queue: str, look: Callable[[BoundedRead, int], Awaitable[T]], budget: timedelta) -> T:
        async def work(connection: Any) -> T:
            number = await self._number(connection, queue)
            return await _read(connection, lambda read: look(read, number))

        return await self._submit(work, budget.total_seconds())

    async def _look(self, look: Look[T], budget: timedelta) -> T:
        return await self._submit(lambda connection: _read(connection, look), budget.total_seconds())

    async def _submit(self, work: Work[T], seconds: float) -> T:
        """Run it on the connection that has least to do."""
        if not self._lanes:
            raise BackendUnavailable(f"{self._server.place} is closed: it was left before this call")
        at = self._waiting.index(min(self._waiting))
        self._waiting[at] += 1
        try:
            return await self._lanes[at].submit(work, seconds=seconds + _SECONDS)
        except NoAnswer as error:
            raise BackendUnavailable(str(error)) from None
        finally:
            self._waiting[at] -= 1


class _Link:
    """A queue, as its journal reads it."""

    def __init__(self, queue: int, submit: Callable[[Work[Any], float], Awaitable[Any]]) -> None:
        self.queue = queue
        self._submit = submit

    async def look(self, work: Work[Any]) -> Any:
        return await self._submit(work, 0.0)

    async def advance(self) -> NoReturn:
        raise AssertionError("views only read")


async def _only_reads(connection: Any) -> None:
    await connection.execute("SET default_transaction_read_only = on")


async def _read(connection: Any, look: Look[T]) -> T:
    """Look in a transaction, which ends with it: neither vacuum nor anything else waits for longer."""
    async with connection.transaction(readonly=True):
        read = BoundedRead(connection)
        await read.begin()
        return await look(read)


async def _search(read: BoundedRead, queue: int, wanted: TaskFilter, search: TaskSearch, budget: timedelta) -> None:
    batch: int | None = None
    if wanted.batch:
        found = await read.fetch_one(_BATCH, queue, wanted.batch) if is_storable(wanted.batch) else None
        batch = _NO_BATCH if found is None else found[0]
    read.limit(budget)
    try:
        while (step := search.step()) is not None:
            found_now = await walked(read, queue, batch, step)
            for start in range(0, len(found_now.tasks), _IN_A_TURN):
                search.take_tasks(step, found_now.tasks[start : start + _IN_A_TURN])
                await asyncio.sleep(0)
            search.go_on(step, found_now)
    except TimeIsOver:
        search.cut()
