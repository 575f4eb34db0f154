"""Forgetting: what ended longer ago than JOBQ_KEEP, and what a journal leaves behind; a bounded part at a time."""

import asyncio
import logging
import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from jobq.errors import JobqError
from jobq_azure.common.errors import NoAnswer
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.client import Row, TableWire, Verb, Write
from jobq_azure.table_journal.errors import WriteRefused
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
_MOST_ROWS: Final = 100  # that are looked at one by one
_log: Final = logging.getLogger(__name__)


class Sweep:
    """Of one queue, by one worker.

    Args:
        wire: to the table.
        notebook: deletes.
        keep: for how long what has ended is kept.
    """

    def __init__(self, wire: TableWire, notebook: Notebook, keep: timedelta) -> None:
        self._wire = wire
        self._queue = wire.place.queue
        self._notebook = notebook
        self._keep_seconds = keep.total_seconds()
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
            except (JobqError, NoAnswer, LookupError, ValueError, TypeError) as error:  # its rows may be anybody's
                _log.debug("the journal of %s is not swept: %s", self._wire.place.spec, error)
            await asyncio.sleep(_EVERY_SECONDS * random.uniform(1 - _SPREAD, 1 + _SPREAD))  # noqa: S311 - no secret

    async def once(self) -> None:
        """Delete what is to be forgotten, a thousand attempts at most."""
        now = time.time()
        await self._cancel_requests(now)  # first: the row of a task that has ended shows that its request is met
        first, _ = rows.below("i")
        old, _ = await self._wire.look(self._queue, first, rows.ended_from(now - self._keep_seconds), select="Printed")
        self._notebook.forget([each for row in old for each in _attempt_of(row)])
        first, end = rows.below("l")
        done, _ = await self._wire.look(
            self._queue, first, end, where=f"State eq '{rows.DONE}' and At lt {now - _DONE_SECONDS:.3f}", select="At",
            etags=True,
        )  # fmt: skip
        self._notebook.forget(done)
        lost, _ = await self._wire.look(
            self._queue, first, end, where=f"State eq 'running' and At lt {now - self._keep_seconds:.3f}",
            select="LeaseLeft", etags=True,
        )  # fmt: skip
        self._notebook.forget([row for row in lost if rows.lease_left(row, self._wire.now()) <= -self._keep_seconds])
        await self._checkpoints(now - max(self._keep_seconds, _SAVED_SECONDS))

    async def _checkpoints(self, old: float) -> None:
        """Delete checkpoints that were saved before this and whose task neither runs nor waits, one at a time (S9)."""
        for each in await self._saved_before(self._queue, "c", old):
            saved = await self._wire.get(self._queue, each["RowKey"])  # first: who takes the task then changes it
            task = await self._wire.get(self._queue, rows.live(rows.id_of(each)))
            if saved is None or float(saved["At"]) >= old or (task is not None and task["State"] != rows.DONE):
                continue
            try:
                await self._wire.write(self._queue, [Write(Verb.DELETE, each["RowKey"], {}, str(saved["odata.etag"]))])
            except WriteRefused as refused:
                _log.debug("the checkpoint of %s is kept: %s", rows.id_of(each), refused)

    async def _saved_before(self, partition: str, kind: str, moment: float) -> list[Row]:
        """Return the next rows that are older; those that stay do not stand before others for ever."""
        first, end = rows.below(kind)
        found, self._behind[kind] = await self._wire.look(
            partition, first, end, where=f"At lt {moment:.3f}", select="At,Born", limit=_MOST_ROWS,
            after=self._behind.get(kind), etags=True,
        )  # fmt: skip
        return found

    async def _cancel_requests(self, now: float) -> None:
        """Delete cancel requests whose task has ended, or was never heard of."""
        partition = rows.cancel_requests_of(self._queue)
        met: list[Row] = []
        for row in await self._saved_before(partition, "w", now - _CANCEL_REQUEST_SECONDS):
            task = await self._wire.get(self._queue, rows.live(rows.id_of(row)))
            is_old = now - float(row["At"]) > _NOBODYS_SECONDS
            if is_old if task is None else _has_met(row, task):
                met.append(row)
        self._notebook.forget(met, partition)


def _has_met(request: Row, task: Row) -> bool:
    """Return whether a task has ended that somebody wanted to end; not a former one of its id, which ended before."""
    born = {str(request.get("Born") or ""), str(task.get("Born") or "")}
    is_of_it = "" in born or len(born) == 1
    return task["State"] == rows.DONE and (is_of_it or float(task["At"]) >= float(request["At"]))


def _attempt_of(row: Row) -> list[dict[str, Any]]:
    """Return the rows of an attempt, by the row that says when it ended."""
    _, _, task, fencing = row["RowKey"].split("!")
    found = [{"RowKey": row["RowKey"]}, {"RowKey": f"a!{task}!{fencing}"}]
    return [*found, {"RowKey": f"o!{task}!{fencing}"}] if row.get("Printed") else found
