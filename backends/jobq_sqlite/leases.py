"""Named leases in the queue's own file: the rules of `jobq.lease.rules`, read, decided and written in one transaction.

The transaction holds SQLite's one write lock from before the read, so the compare on the token is atomic (S4). The time
is the boot's, without suspends, read below that lock; `file_clock` finds another boot's (rules.md 1.3 rule 10).
"""

import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import astuple, replace
from datetime import timedelta
from typing import Any, Final, TypeVar

from jobq.errors import LockLost, QueueNotFound, SettlementUnknown
from jobq.lease import rules
from jobq.lease.rules import LeaseRow
from jobq.lease.store import Busy, Confirmation, Grant, LeaseLimits, LeaseRecord, Request
from jobq_sqlite.connection import SqliteConnection
from jobq_sqlite.errors import StoreReplaced
from jobq_sqlite.task_sql import Now
from jobq_sqlite.transaction import Work

T = TypeVar("T")
_LIMITS: Final = LeaseLimits(
    default_ttl=timedelta(seconds=60), min_ttl=timedelta(seconds=1), poll=timedelta(seconds=0.25)
)
COLUMNS: Final = (
    "token, request, holder, state, expires_at, acquired_at, renewals, is_revoked, cursor, version,"
    " confirmation, ends, ttl"  # in the order of LeaseRow
)
_READ: Final = f"SELECT {COLUMNS} FROM lease WHERE queue = ? AND name = ?"  # noqa: S608 - a constant of ours
_LIST: Final = f"SELECT {COLUMNS}, name FROM lease WHERE queue = ? ORDER BY name"  # noqa: S608 - as above
_WRITE: Final = f"INSERT OR REPLACE INTO lease (queue, name, {COLUMNS}) VALUES (?, ?{', ?' * 13})"  # noqa: S608 - as above


class SqliteLeases:
    """The named leases of one queue of a file.

    Args:
        queue: the queue's name; it need not exist.
        opened: gives the connection, making the file if asked to.
        opened_to_read: gives the one that only reads.
    """

    def __init__(
        self,
        queue: str,
        opened: Callable[[bool], Awaitable[SqliteConnection]],
        opened_to_read: Callable[[], Awaitable[SqliteConnection]],
    ) -> None:
        self._queue = queue
        self._opened = opened
        self._opened_to_read = opened_to_read

    @property
    def limits(self) -> LeaseLimits:
        """What SQLite can do: all of it, on one machine."""
        return _LIMITS

    async def acquire(self, request: Request) -> Grant | Busy:
        """Take the name if it is free."""

        def work(database: sqlite3.Connection, now: Now) -> Grant | Busy:
            before = self._row(database, request.name)
            row, answer = rules.acquire(before, request, now.boottime, now.wall)
            self._write(database, request.name, before, row)
            return answer

        def look(database: sqlite3.Connection, now: Now) -> Busy | None:
            row = self._row(database, request.name)
            if row is None or row.key == request.key:
                return None
            answer = rules.acquire(row, request, now.boottime, now.wall)[1]
            return answer if isinstance(answer, Busy) else None

        # A caller that waits for a held name looks without the write lock, which others need.
        connection = await self._opened(True)
        return await connection.submit(work, look_first=look, unknown=SettlementUnknown)

    async def withdraw(self, name: str, key: str) -> None:
        """Release what this request was granted."""
        await self._change(name, lambda row, now: None if row is None else rules.withdraw(row, key, now))

    async def renew(self, grant: Grant, ttl: timedelta) -> None:
        """Extend it."""
        seconds = ttl.total_seconds()
        await self._change(grant.name, lambda row, now: rules.renew(grant.name, row, grant.token, seconds, now))

    async def release(self, name: str, token: int) -> None:
        """Give it back."""
        await self._change(name, lambda row, now: rules.release(name, row, token, now))

    async def confirm(self, name: str, token: int, value: str) -> Confirmation:
        """Take it for good."""

        def work(database: sqlite3.Connection, now: Now) -> Confirmation:
            before = self._row(database, name)
            row, answer = rules.confirm(name, before, token, value, now.boottime)
            self._write(database, name, before, row)
            return answer

        return await self._submit(work)

    async def save(self, grant: Grant, cursor: str, version: int) -> None:
        """Save the cursor."""
        await self._change(grant.name, lambda row, now: rules.save(grant.name, row, grant.token, cursor, version, now))

    async def revoke(self, name: str) -> LeaseRecord | None:
        """Keep the holder from renewing."""
        await self._change(name, lambda row, now: None if row is None else rules.revoke(row, now))
        return await self.read(name)

    async def read(self, name: str) -> LeaseRecord | None:
        """Return one."""

        def work(database: sqlite3.Connection, now: Now) -> LeaseRecord | None:
            row = self._row(database, name)
            return None if row is None else rules.record(name, row, now.boottime)

        return await self._submit(work, writes=False)

    async def list(self) -> list[LeaseRecord]:
        """Return all, by name."""

        def work(database: sqlite3.Connection, now: Now) -> list[LeaseRecord]:
            found = database.execute(_LIST, (self._queue,))
            return [rules.record(name, row_of(columns), now.boottime) for *columns, name in found]

        return await self._submit(work, writes=False)

    async def _change(self, name: str, rule: Callable[[LeaseRow | None, float], LeaseRow | None]) -> None:
        def work(database: sqlite3.Connection, now: Now) -> None:
            before = self._row(database, name)
            self._write(database, name, before, rule(before, now.boottime))

        try:
            await self._submit(work)
        except StoreReplaced as error:
            raise LockLost(f"lease {name} is gone with its file: {error}") from error

    async def _submit(self, work: Work[T], *, writes: bool = True) -> T:
        try:
            connection = await (self._opened(False) if writes else self._opened_to_read())
        except QueueNotFound as error:
            raise QueueNotFound(f"{error}; or `jobq QUEUE lease run`") from None
        return await connection.submit(work, writes=writes, unknown=SettlementUnknown)

    def _row(self, database: sqlite3.Connection, name: str) -> LeaseRow | None:
        found = database.execute(_READ, (self._queue, name)).fetchone()
        return None if found is None else row_of(found)

    def _write(self, database: sqlite3.Connection, name: str, before: LeaseRow | None, after: LeaseRow | None) -> None:
        if after is not None and after != before and after.token:
            database.execute(_WRITE, (self._queue, name, *astuple(after)))


def row_of(columns: Iterable[Any]) -> LeaseRow:
    """Return the lease of a row of COLUMNS."""
    row = LeaseRow(*columns)  # the columns stand in the order of its fields
    return replace(row, is_revoked=bool(row.is_revoked))
