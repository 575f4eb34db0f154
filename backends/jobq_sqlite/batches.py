"""The protocol's face of a queue's batches."""

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from jobq.batch_plan import Plan
from jobq.batches import Batch, Member, checked_name
from jobq.errors import JobqError
from jobq_sqlite import batch_sql
from jobq_sqlite.connection import Link, T
from jobq_sqlite.task_sql import Now

_log: Final = logging.getLogger(__name__)
_Verb = Callable[[sqlite3.Connection, int, str, Now], None]


class _Read(Protocol):
    async def __call__(self, work: Callable[[sqlite3.Connection, int, Now], T]) -> T: ...


class SqliteBatches:
    """The batches of one queue.

    Args:
        link: gives the connection that writes, and the queue's number.
        read: runs a function on the one that reads; it gets the queue's number, too.
        wake: lets those that wait for tasks look again.
        looked_up_again: what a call is made in that may find the queue deleted.
        keep: for how many seconds the journal keeps what has ended; 0 = it is off.
    """

    def __init__(
        self,
        link: Callable[[], Awaitable[Link]],
        read: _Read,
        wake: Callable[[], None],
        looked_up_again: Callable[[], AbstractContextManager[None]],
        keep: float,
    ) -> None:
        self._link = link
        self._read = read
        self._wake = wake
        self._looked_up_again = looked_up_again
        self._keep = keep

    async def begin(self, name: str, plan: Plan) -> Batch:
        """Open one, or say more of it."""
        plan.checked(checked_name(name))
        return await self._write(
            lambda database, queue, name, now: batch_sql.begin(database, queue, name, plan, now, self._keep), name
        )

    async def seal(self, name: str) -> Batch:
        """Let it take no more tasks."""
        return await self._write(batch_sql.seal, name)

    async def reopen(self, name: str) -> Batch:
        """Let it take tasks again."""
        return await self._write(lambda database, queue, name, _now: batch_sql.reopen(database, queue, name), name)

    async def cancel(self, name: str) -> Batch:
        """Seal it, end what waits, and ask what runs to end."""
        return await self._write(batch_sql.cancel, name)

    async def find(self, name: str) -> Batch:
        """Return it, counted, with its rate; what nobody has seen to of its end is done first.

        That is what a worker held that died after it was asked to end it.
        """
        found = await self._read(lambda database, queue, now: batch_sql.find_with_rate(database, queue, name, now))
        if found.is_to_be_finished:
            try:
                return await self._write(batch_sql.seal, name)  # which it is: but that notes it, and looks after it
            except JobqError as error:  # such as AccessDenied
                _log.debug("the end of batch %s is left to who may write: %s", name, error)
        return found

    async def list(self, after: str, limit: int, *, unfinished: bool = False) -> Sequence[Batch]:
        """Return some, by name."""
        return await self._read(
            lambda database, queue, now: batch_sql.listed(database, queue, after, limit, now, unfinished=unfinished)
        )

    async def members(self, name: str, after: str, limit: int, state: str | None = None) -> Sequence[Member]:
        """Return some of its tasks, by id."""
        return await self._read(
            lambda database, queue, now: batch_sql.members(database, queue, name, after, limit, state, now)
        )

    async def _write(self, verb: _Verb, name: str) -> Batch:
        connection, queue = await self._link()
        with self._looked_up_again():
            await connection.submit(lambda database, now: verb(database, queue, name, now), may_undo=True)
        self._wake()  # what is to be run at its end may be there
        # Counted without the lock: of a million tasks that takes longer than anybody should wait for it.
        return await self._read(lambda database, queue, now: batch_sql.find(database, queue, name, now))
