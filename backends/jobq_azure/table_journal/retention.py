"""Forgetting: what ended longer ago than JOBQ_KEEP, and what a journal leaves behind; a bounded part at a time."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from jobq.errors import JobqError
from jobq.fencing import FencingNumber
from jobq_azure.common.errors import NoAnswer
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.cancel_requests import request_of
from jobq_azure.table_journal.client import PAGE_ROWS, Row, TableWire, Verb, Write
from jobq_azure.table_journal.errors import WriteRefused
from jobq_azure.table_journal.lives import life_meant
from jobq_azure.table_journal.lookup import Lookup
from jobq_azure.table_journal.recorder import Notebook

if TYPE_CHECKING:
    from collections.abc import Mapping

_EVERY_SECONDS: Final = 600.0  # by each worker
_SPREAD: Final = 0.5  # of that: workers that started together shall not sweep together
_DONE_SECONDS: Final = 3600.0  # for which a task that has ended is known as such, against a late word of its push
_CANCEL_REQUEST_SECONDS: Final = 600.0  # after which a request is looked at: has its task ended?
_NOBODYS_SECONDS: Final = 86400.0  # for which a request waits for a task that the journal knows nothing of
# A checkpoint of which nothing else is known may be a dead letter's, or that of a task which nobody has taken since.
_SAVED_SECONDS: Final = 30 * 86400.0
_NEVER_HELD: Final = FencingNumber(0, 0, 0)  # of a push
_MOST_ROWS: Final = 100  # that are looked at one by one
_log: Final = logging.getLogger(__name__)


class Sweep:
    """Of one queue, by one worker.

    Args:
        wire: to the table.
        notebook: deletes.
        keep: for how long what has ended is kept.
        apart: returns within how many microseconds the queue drops repetitions.
        also: sees to what is not the journal's, after each sweep.
    """

    def __init__(
        self,
        wire: TableWire,
        notebook: Notebook,
        keep: timedelta,
        apart: Callable[[], int],
        also: Callable[[], Awaitable[None]],
    ) -> None:
        self._wire = wire
        self._queue = wire.place.queue
        self._lookup = Lookup(wire)
        self._notebook = notebook
        self._keep_seconds = keep.total_seconds()
        self._apart = apart
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
        await self._checkpoints(now - max(self._keep_seconds, _SAVED_SECONDS))

    async def _done(self, now: float) -> list[Row]:
        """Return where lives are that ended long ago, with the repetitions of these, which nobody receives."""
        first, end = rows.below("l")
        kept_seconds = max(_DONE_SECONDS, self._apart() / rows.MICROSECONDS)  # so long the queue drops repetitions
        done, _ = await self._wire.look(
            self._queue, first, end, where=f"State eq '{rows.DONE}' and At lt {now - kept_seconds:.3f}",
            select="At,Born", etags=True,
        )  # fmt: skip
        if not done or not self._apart():
            return done
        where = f"Fencing eq '{rows.order(_NEVER_HELD)}'"
        first, end = rows.lives(rows.id_part(done[0]))[0], rows.lives(rows.id_part(done[-1]))[1]
        waiting = await self._wire.all(
            self._queue, first, end, where=where, select="Born,Batch", most=PAGE_ROWS, etags=True
        )
        if len(waiting) == PAGE_ROWS:  # those behind are forgotten another time
            done = [row for row in done if rows.lives(rows.id_part(row))[1] <= waiting[-1]["RowKey"]]
        births: dict[str, list[int]] = {}
        for row in done:
            births.setdefault(rows.id_part(row), []).append(rows.birth_in(row))

        def is_repetition(row: Row) -> bool:
            if row.get("Batch"):
                return False
            return life_meant(births.get(rows.id_part(row), ()), rows.birth_in(row), self._apart()) is not None

        return done + [row for row in waiting if is_repetition(row)]

    async def _lost(self, old: float) -> list[Row]:
        """Return where lives are whose lease has long been over, and what versions before wrote of them, once."""
        found = list[Row]()
        where = f"State ne '{rows.DONE}' and (Born ge '' or (State eq 'running' and At lt {old:.3f}))"
        for row in await self._next(self._queue, "l", where):
            # One of a version before may have a later word under the key of its life.
            last = await self._lookup.life(rows.id_part(row), rows.birth_in(row), row) if rows.is_former(row) else row
            is_lost = row["State"] == "running" and rows.lease_left(row, self._wire.now()) <= -self._keep_seconds
            if is_lost or (last is not None and last["RowKey"] != row["RowKey"]):
                found.append(row)
        return found

    async def _checkpoints(self, old: float) -> None:
        """Delete checkpoints that were saved before this and whose task neither runs nor waits, one at a time (S9)."""
        for each in await self._next(self._queue, "c", f"At lt {old:.3f}"):
            saved = await self._wire.get(self._queue, each["RowKey"])  # first: who takes the task then changes it
            born = each["RowKey"].split("!")[2].partition("-")[0]
            task = await self._lookup.life(rows.id_part(each), int(born.replace(".", "")) if "." in born else 0)
            if saved is None or float(saved["At"]) >= old or (task is not None and task["State"] != rows.DONE):
                continue
            try:
                await self._wire.write(self._queue, [Write(Verb.DELETE, each["RowKey"], {}, str(saved["odata.etag"]))])
            except WriteRefused as refused:
                _log.debug("the checkpoint of %s is kept: %s", rows.id_part(each), refused)

    async def _next(self, partition: str, kind: str, where: str) -> list[Row]:
        """Return the next rows of this kind; those that stay do not stand before others for ever."""
        first, end = rows.below(kind)
        found, self._behind[kind] = await self._wire.look(
            partition, first, end, where=where, select="At,Born,State,Fencing,Window,LeaseLeft", limit=_MOST_ROWS,
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
