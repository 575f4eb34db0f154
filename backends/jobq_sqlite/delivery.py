"""A leased row behind the delivery protocol; every verb is fenced by its receipt (S4)."""

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from jobq.backend import Renewed
from jobq.delivery import BaseDelivery, released_body
from jobq.errors import LockLost, SettlementUnknown
from jobq.servable import packed
from jobq.settlement import Release, Requeue, Settlement
from jobq_sqlite import task_sql
from jobq_sqlite.connection import SqliteConnection
from jobq_sqlite.errors import StoreReplaced
from jobq_sqlite.task_sql import ClaimedRow, Now
from jobq_sqlite.transaction import Work

if TYPE_CHECKING:
    from jobq.journal.records import Beat

T = TypeVar("T")


class SqliteDelivery(BaseDelivery):
    """One task leased from an SQLite file.

    Args:
        connection: the one that it was claimed on.
        row: what was claimed, with the receipt.
        lease: the length that was granted.
        changed: called when something may have become ready, or will be sooner.
        queue: the queue's name, for a receipt that others may use (`jobq.servable`).
        journaled: whether a journal is kept.
    """

    def __init__(
        self,
        connection: SqliteConnection,
        row: ClaimedRow,
        lease: timedelta,
        changed: Callable[[], None],
        *,
        queue: str = "",
        journaled: bool = False,
    ) -> None:
        super().__init__(
            id=row.id,
            body=row.body,
            deliveries=row.deliveries,
            lease=lease,
            checkpoint=row.checkpoint,
            journaled=journaled,
            cancel_requested=row.cancel_requested,
        )
        self._queue = queue
        self._connection = connection
        self._row = row
        self._changed = changed

    async def renew(self, lease: timedelta, beat: "Beat | None" = None) -> Renewed:
        """Extend the lease from now."""
        row, seconds = self._row, lease.total_seconds()
        sign = None if beat is None or not self.journaled else beat.encode()
        canceled = await self._run(lambda database, now: task_sql.renew(database, row, seconds, now, sign))
        self._changed()  # the new end may be nearer than the one that waiters know
        return Renewed(cancel=canceled)

    async def settle(self, settlement: Settlement, said: str = "") -> None:
        """End the delivery, in one UPDATE (S6).

        Args:
            settlement: how.
            said: what distinguishes it, where its values do not (`jobq.servable`).
        """
        row, journaled = self._row, self.journaled
        body, said = self.body_after(settlement), said or settlement.key
        await self._run(
            lambda database, now: task_sql.settle(database, row, settlement, body, said, now, journaled=journaled)
        )
        if isinstance(settlement, Requeue | Release):
            self._changed()

    @property
    def receipt(self) -> str:
        """What finds this delivery again."""
        return packed(self._queue, self.id, self._row.seq, self._row.receipt)

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
    release = Release()
    for row in rows:
        with contextlib.suppress(LockLost):  # cleared meanwhile, which is no matter of the others
            task_sql.settle(database, row, release, released_body(row.body, release), release.key, now)
