"""Forgetting: what ended longer ago than JOBQ_KEEP, and what a journal leaves behind; a bounded part at a time."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from jobq.errors import JobqError
from jobq_azure.common.errors import NoAnswer
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.cancel_requests import request_of
from jobq_azure.table_journal.client import Row, TableWire
from jobq_azure.table_journal.lookup import Lookup
from jobq_azure.table_journal.recorder import Notebook

if TYPE_CHECKING:
    from collections.abc import Mapping

_EVERY_SECONDS: Final = 600.0  # by each worker
_SPREAD: Final = 0.5  # of that: workers that started together shall not sweep together
_DONE_SECONDS: Final = 3600.0  # for which a task that has ended is known as such, against a late word of its push
_CANCEL_REQUEST_SECONDS: Final = 600.0  # after which a request is looked at: has its task ended?
_NOBODYS_SECONDS: Final = 86400.0  # for which a request waits for a task that the journal knows nothing of
_MOST_ROWS: Final = 100  # that are looked at one by one
_log: Final = logging.getLogger(__name__)


class Sweep:
    """Of one queue, by one worker.

    Args:
        wire: to the table.
        notebook: deletes.
        keep: for how long what has ended is kept.
        also: sees to what is not the journal's, after each sweep.
    """

    def __init__(
        self,
        wire: TableWire,
        notebook: Notebook,
        keep: timedelta,
        also: Callable[[], Awaitable[None]],
    ) -> None:
        self._wire = wire
        self._queue = wire.place.queue
        self._lookup = Lookup(wire)
        self._notebook = notebook
        self._keep_seconds = keep.total_seconds()
        self._also = also
        self._loop: asyncio.Task[None] | None = None
        self._behind: dict[str, Mapping[str, str] | None] = {}  # by what is looked at one by one: where to go on

    def start(self) -> None:
        """Sweep now, and every ten minutes or so; once only, however often this is called."""
        if self._loop is None:
            self._loop = asyncio.create_task(self._sweep_for_ever(), name="journal sweep")

    async def aclose(self) -> None:
        """Sweep no more."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait({self._loop})

    async def _sweep_for_ever(self) -> None:
        while True:
            try:
                await self.once()
                await self._also()
            except (JobqError, NoAnswer, LookupError, ValueError, TypeError) as error:  # its rows may be anybody's
                _log.debug("the journal of %s is not swept: %s", self._wire.place.spec, error)
            await asyncio.sleep(_EVERY_SECONDS * random.uniform(1 - _SPREAD, 1 + _SPREAD))  # noqa: S311 - no secret

    async def once(self) -> None:
        """Delete what is to be forgotten, a thousand attempts at most."""
        first, end = rows.below("i")
        await self._wire.look(self._queue, first, end, select="RowKey", limit=1)  # whose answer tells the store's time
        now = self._wire.now()
        await self._cancel_requests(now)  # first: the row of a task that has ended shows that its request is met
        old, _ = await self._wire.look(self._queue, first, rows.ended_from(now - self._keep_seconds), select="Printed")
        self._notebook.forget([each for row in old for each in _attempt_of(row)])
        self._notebook.forget(await self._done(now))
        self._notebook.forget(await self._lost(now - self._keep_seconds))

    async def _done(self, now: float) -> list[Row]:
        """Return where lives are that ended long ago."""
        first, end = rows.below("l")
        where = f"State eq '{rows.DONE}' and At lt {now - _DONE_SECONDS:.3f}"
        done, _ = await self._wire.look(self._queue, first, end, where=where, select="At", etags=True)
        return done

    async def _lost(self, old: float) -> list[Row]:
        """Return where lives are whose lease has long been over."""
        running = await self._next(self._queue, "l", f"State eq 'running' and At lt {old:.3f}")
        return [row for row in running if rows.lease_left(row, self._wire.now()) <= -self._keep_seconds]

    async def _next(self, partition: str, kind: str, where: str) -> list[Row]:
        """Return the next rows of this kind; those that stay do not stand before others for ever."""
        first, end = rows.below(kind)
        found, self._behind[kind] = await self._wire.look(
            partition, first, end, where=where, select="At,State,LeaseLeft", limit=_MOST_ROWS,
            after=self._behind.get(kind), etags=True,
        )  # fmt: skip
        return found

    async def _cancel_requests(self, now: float) -> None:
        """Delete cancel requests whose task has ended, or was never heard of."""
        partition = rows.cancel_requests_of(self._queue)
        met: list[Row] = []
        for row in await self._next(partition, "w", f"At lt {now - _CANCEL_REQUEST_SECONDS:.3f}"):
            birth = request_of(row).birth
            task = None if birth is None else await self._lookup.life(rows.id_part(row), birth)
            is_old = now - float(row["At"]) > _NOBODYS_SECONDS
            if is_old if task is None else task["State"] == rows.DONE:
                met.append(row)
        self._notebook.forget(met, partition)


def _attempt_of(row: Row) -> list[dict[str, Any]]:
    """Return the rows of an attempt, by the row that says when it ended."""
    whose = row["RowKey"].split("!", 2)[2]
    found = [{"RowKey": row["RowKey"]}, {"RowKey": f"a!{whose}"}]
    return [*found, {"RowKey": f"o!{whose}"}] if row.get("Printed") else found
