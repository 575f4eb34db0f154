"""A whole file, looked at on a connection of its own, for a bounded time: see `jobq.journal.views`."""

import asyncio
import math
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Final, Self, TypeVar

from jobq.errors import BackendUnavailable, QueueNotFound, StoreUnusable
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
from jobq_sqlite import dead_groups, lease_listing, observations, queue_lines, task_sql
from jobq_sqlite.bounded_read import UntilCut, bounded
from jobq_sqlite.connection import Link
from jobq_sqlite.journal import SqliteJournal
from jobq_sqlite.open_file import OpenFile, StoreFile
from jobq_sqlite.task_sql import Now
from jobq_sqlite.task_walk import walked
from jobq_sqlite.thread_connection import ThreadConnection
from jobq_sqlite.transaction import Work

T = TypeVar("T")
_BATCH: Final = "SELECT batch_id FROM batch WHERE queue_id = ? AND name = ?"
_NO_BATCH: Final = -1


class SqliteViews:
    """The queues of a file, on a connection and a thread that claims, renewals and settles do not use.

    Args:
        file: the file and who may use it.
    """

    def __init__(self, file: StoreFile) -> None:
        self._file = file
        self._connection: ThreadConnection | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> Self:
        self._closed = False
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._closed = True
        await self._leave()

    async def queues(self, after: str, limit: int, *, budget: timedelta = BUDGET) -> ViewPage[QueueLine]:
        """List queues by name."""
        checked_limit(limit)
        behind = after if is_storable(after) else ""
        return await self._look(lambda database, now: queue_lines.page(database, behind, limit, now, budget))

    async def queue(self, name: str, *, budget: timedelta = BUDGET) -> QueueLine:
        """Look at one queue."""
        return await self._look(lambda database, now: queue_lines.line(database, _number(database, name), now, budget))

    async def tasks(
        self, queue: str, wanted: TaskFilter, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> ViewPage[TaskRow]:
        """List tasks by state."""
        checked_limit(limit)

        def look(database: sqlite3.Connection, now: Now) -> ViewPage[TaskRow]:
            number = _number(database, queue)
            search = TaskSearch(wanted, after, limit, now.wall, budget)
            _search(database, number, wanted, search, now, budget)
            return search.page()

        return await self._look(look)

    async def count(
        self, queue: str, wanted: TaskFilter, *, most: int = MOST_COUNTED, budget: timedelta = BUDGET
    ) -> Count:
        """Count tasks."""

        def look(database: sqlite3.Connection, now: Now) -> Count:
            number = _number(database, queue)
            if wanted.has_states_alone:
                counted = queue_lines.count(database, number, wanted.states, most, now, budget)
                return replace(counted, now=now.wall)
            search = TaskSearch(wanted, "", most, now.wall, budget, keeps=False)
            _search(database, number, wanted, search, now, budget)
            return replace(search.count(), now=now.wall)

        return await self._look(look)

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
        return await self._look(
            lambda database, now: lease_listing.page(database, queue, prefix, after, limit, now, budget)
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
        checked_limit(limit)
        names = checked_grouping(",".join(grouping))
        return await self._look(
            lambda database, now: dead_groups.groups(
                database,
                _number(database, queue),
                names,
                limit,
                -math.inf if max_age_seconds is None else now.wall - max_age_seconds,
                budget,
            )
        )

    async def notes(
        self,
        queue: str,
        kind: NoteKind,
        after: str,
        limit: int,
        *,
        budget: timedelta = BUDGET,  # noqa: ARG002 - a page of them takes none that counts
    ) -> Sequence[QueueNote]:
        """List notes."""
        return await self._look(
            lambda database, now: observations.page(database, _number(database, queue), kind, after, limit, now)
        )

    def _journal(self, queue: str) -> SqliteJournal:
        async def read(work: Callable[[sqlite3.Connection, int, Now], T]) -> T:
            return await self._look(lambda database, now: work(database, _number(database, queue), now))

        return SqliteJournal(_nobody_writes, read, lambda: None, nullcontext)

    async def _look(self, work: Work[T]) -> T:
        connection = await self._opened()
        try:
            return await connection.submit(work, writes=False)
        except StoreUnusable:
            await self._leave()  # another file stands there: the next look opens that one
            raise

    async def _opened(self) -> ThreadConnection:
        async with self._opening:
            if self._closed:
                raise BackendUnavailable(f"{self._file.path} is closed: it was left before this call")
            if self._connection is None:
                connection = ThreadConnection(OpenFile(self._file, looks=True), _nothing)
                await connection.start()
                self._connection = connection
            return self._connection

    async def _leave(self) -> None:
        async with self._opening:
            connection, self._connection = self._connection, None
        if connection is not None:
            await connection.stop()


def _search(
    database: sqlite3.Connection,
    queue: int,
    wanted: TaskFilter,
    search: TaskSearch,
    now: Now,
    budget: timedelta,
) -> None:
    batch: int | None = None
    if wanted.batch:
        found = database.execute(_BATCH, (queue, wanted.batch)).fetchone() if is_storable(wanted.batch) else None
        batch = _NO_BATCH if found is None else found[0]
    with bounded(database, budget), UntilCut():
        while (step := search.step()) is not None:
            search.take(step, walked(database, queue, batch, step, now))
        return
    search.cut()


def _number(database: sqlite3.Connection, queue: str) -> int:
    if not is_storable(queue) or queue.startswith(task_sql.DELETED):
        raise QueueNotFound(f"queue {queue[:80]!a} does not exist")
    return task_sql.queue_id(database, queue)


async def _nobody_writes() -> Link:
    raise AssertionError("views only read")


def _nothing() -> None:
    """Nobody waits for what others write."""
