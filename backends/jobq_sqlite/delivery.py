"""A leased row behind the delivery protocol; every verb is fenced by its receipt (S4)."""

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TypeVar

from jobq.backend import FencingNumber
from jobq.errors import LockLost, MalformedTask, SettlementUnknown
from jobq.journal.page import Page
from jobq.servable import packed, result_json
from jobq.task import Task, TaskResult
from jobq_sqlite import journal_writer, task_sql
from jobq_sqlite.connection import Connection
from jobq_sqlite.errors import StoreReplaced
from jobq_sqlite.task_sql import ClaimedRow, Now
from jobq_sqlite.transaction import Work

T = TypeVar("T")


class SqliteDelivery:
    """One task leased from an SQLite file.

    Args:
        connection: the one that it was claimed on.
        row: what was claimed, with the receipt.
        lease: the length that was granted.
        changed: called when something may have become ready, or will be sooner.
        queue: the queue's name, for a receipt that others may use (`jobq.servable`).
        keeps_result: whether the result of the task is kept with its id, for the service to show.
        journaled: whether a journal is kept.

    Attributes:
        page: what is told the journal of it; None = there is none.
    """

    def __init__(
        self,
        connection: Connection,
        row: ClaimedRow,
        lease: timedelta,
        changed: Callable[[], None],
        *,
        queue: str = "",
        keeps_result: bool = False,
        journaled: bool = False,
    ) -> None:
        self.lease = lease
        self._queue = queue
        self._keeps_result = keeps_result
        self.page = Page() if journaled else None
        if self.page is not None and row.cancel_requested:
            self.page.cancel.set()
        self._connection = connection
        self._row = row
        self._changed = changed

    @property
    def id(self) -> str:
        """The task's id."""
        return self._row.id

    @property
    def body(self) -> bytes:
        """The body as stored."""
        return self._row.body

    @property
    def deliveries(self) -> int:
        """The row's count, this delivery included."""
        return self._row.deliveries

    @property
    def checkpoint_value(self) -> str | None:
        """The column, as it was at the claim."""
        return self._row.checkpoint

    @cached_property
    def task(self) -> Task:
        """The task in the body; raises MalformedTask."""
        return Task.decode(self._row.body)

    @property
    def fencing(self) -> FencingNumber:
        """The number that the task may show to others."""
        try:
            return FencingNumber(self.task.epoch, self.task.generation, self.deliveries)
        except MalformedTask:
            return FencingNumber(0, 0, self.deliveries)

    async def renew(self, lease: timedelta) -> None:
        """Extend the lease from now."""
        row, seconds, page = self._row, lease.total_seconds(), self.page
        beat = page.told() if page is not None else None
        canceled = await self._run(lambda database, now: task_sql.renew(database, row, seconds, now, beat))
        if page is not None and canceled:
            page.cancel.set()
        self._changed()  # the new end may be nearer than the one that waiters know

    async def complete(self, result: TaskResult) -> None:
        """End the task as done."""
        row, said, page = self._row, _said("complete", result), self.page
        kept = result_json(result) if self._keeps_result else None  # for the service; the journal has its own
        await self._run(lambda database, now: task_sql.complete(database, row, said, now, kept, page))

    async def requeue(self, task: Task, delay: timedelta) -> None:
        """Put it back with another body, in one UPDATE (S6)."""
        row, body, seconds = self._row, task.encode(), delay.total_seconds()
        said, page = _said("requeue", body, seconds), self.page
        await self._run(lambda database, now: task_sql.requeue(database, row, body, seconds, said, now, page))
        self._changed()

    async def release(self) -> None:
        """Put it back unstarted: one more end is recorded, so that it is no crash (S7)."""
        row, journaled = self._row, self.page is not None
        await self._run(lambda database, now: _release(database, row, now, journaled=journaled))
        self._changed()

    async def dead_letter(self, reason: str, description: str) -> None:
        """Move it to the dead-letter place, in one UPDATE (S6)."""
        row, said, page = self._row, _said("dead", reason, description), self.page
        await self._run(lambda database, now: task_sql.dead_letter(database, row, reason, description, said, now, page))

    @property
    def receipt(self) -> str:
        """What finds this delivery again."""
        return packed(self._queue, self.id, self._row.seq, self._row.receipt)

    async def put_back(self, body: bytes, delay: timedelta, said: str) -> None:
        """As `requeue`, with the bytes as they are."""
        row, seconds, page = self._row, delay.total_seconds(), self.page
        await self._run(lambda database, now: task_sql.requeue(database, row, body, seconds, said, now, page))
        self._changed()

    async def bury(self, reason: str, description: str, said: str) -> None:
        """As `dead_letter`, with what tells it from another settle."""
        row, page = self._row, self.page
        await self._run(lambda database, now: task_sql.dead_letter(database, row, reason, description, said, now, page))

    async def checkpoint(self, value: str, number: int = 0) -> None:
        """Save the task's progress in its row (S9)."""
        row = self._row
        await self._run(lambda database, now: task_sql.checkpoint(database, row, value, number, now))

    async def _run(self, work: Work[T]) -> T:
        """Run a verb; a commit that no one can vouch for is SettlementUnknown (S5), a file that is gone keeps none."""
        try:
            return await self._connection.submit(work, unknown=SettlementUnknown)
        except StoreReplaced as error:
            raise LockLost(f"the lease on task {self.id} is gone with its file: {error}") from error


def release_all(database: sqlite3.Connection, rows: Sequence[ClaimedRow], now: Now) -> None:
    """Put back what was claimed and never handed to anyone."""
    for row in rows:
        with contextlib.suppress(LockLost):  # cleared meanwhile, which is no matter of the others
            _release(database, row, now)


def _release(database: sqlite3.Connection, row: ClaimedRow, now: Now, *, journaled: bool = False) -> None:
    try:
        body = Task.decode(row.body).released().encode()
    except MalformedTask:
        body = row.body
    task_sql.requeue(database, row, body, 0.0, "release", now)
    if journaled:
        journal_writer.note_release(database, row.seq, row.deliveries, now.wall)


def _said(verb: str, *arguments: object) -> str:
    """Return what tells this settle from another one with the same receipt (S5)."""
    return f"{verb} {hashlib.blake2b(repr(arguments).encode(), digest_size=8).hexdigest()}"
