"""A Storage Queue with a journal in an Azure Table (JOBQ_JOURNAL=tables): the queue as it is, and a record of it.

The queue's own requests, and what they mean, are not changed by it. What it adds to a task's way is one look for cancel
requests before a start, of a second at most and none while the table is away; everything else is written afterwards.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Final, Self, TypeVar, cast

from jobq.backend import (
    UNKNOWN_ID,
    Capabilities,
    DeadLetter,
    Delivery,
    Peeked,
    QueueStats,
)
from jobq.batch_ids import IdInBatch, key_of
from jobq.clock import SystemClock
from jobq.errors import AllPutBack, BackendUnavailable, JobqError
from jobq.examination import Finding, Verdict
from jobq.fencing import FencingNumber
from jobq.journal.views import QueueLine
from jobq.lease.store import LeaseStore
from jobq.pausing import Pause
from jobq.task import Task
from jobq_azure.common.errors import NoAnswer
from jobq_azure.common.giving_back import give_back
from jobq_azure.common.put_off_times import PutOffTimes
from jobq_azure.storage.backend import StorageQueueBackend
from jobq_azure.storage.delivery import StorageDelivery
from jobq_azure.storage.views import line_of
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.batch_writer import Writer
from jobq_azure.table_journal.cancel_requests import CancelRequests
from jobq_azure.table_journal.client import TableWire
from jobq_azure.table_journal.delivery import JournaledDelivery
from jobq_azure.table_journal.location import TablePlace
from jobq_azure.table_journal.pushed_tasks import PushedTasks
from jobq_azure.table_journal.queue_notes import TableNotes
from jobq_azure.table_journal.reader import TableJournal
from jobq_azure.table_journal.recorder import Notebook
from jobq_azure.table_journal.retention import Sweep
from jobq_azure.table_journal.tending import Tending
from jobq_azure.table_journal.views import TableViews
from jobq_azure.table_journal.whole_queue import forget_queue

_T = TypeVar("_T")
_CLOCK: Final = SystemClock()
ANSWER_SECONDS: Final = 5.0  # of the table
_LEAVE_SECONDS: Final = 5.0  # for settles that are still on their way
_ROOM_SECONDS: Final = 2.0  # for which a push waits that is faster than the table
_PUT_OFF: Final = timedelta(seconds=30)  # a task whose batch cannot be asked now
_FIRST_PAUSE_SECONDS: Final = 0.1  # of a receive all of which was put off, before it asks again
_LONGEST_PAUSE_SECONDS: Final = 2.0
_log: Final = logging.getLogger(__name__)


class JournaledQueue:
    """A queue, and its journal.

    Args:
        inner: the queue, not yet entered; this enters and leaves it.
        place: of the table.
        keep: for how long what has ended is kept.
    """

    def __init__(self, inner: StorageQueueBackend, place: TablePlace, keep: timedelta) -> None:
        self._inner = inner
        self._wire = TableWire(place, ANSWER_SECONDS)
        self._keep = keep
        self._on_their_way: set[asyncio.Task[None]] = set()
        self._put_off_times = PutOffTimes()
        self._stack = AsyncExitStack()
        self.writer: Writer
        self._cancel_requests: CancelRequests
        self._notebook: Notebook
        self._journal: TableJournal
        self._tending: Tending
        self._sweep: Sweep

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._inner.name

    @property
    def capabilities(self) -> Capabilities:
        """The queue's own; and views."""
        return replace(self._inner.capabilities, views=True, journal_lags=True)

    @property
    def journal(self) -> TableJournal:
        """What is known of its tasks."""
        return self._journal

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:  # whatever fails here leaves nothing open
            await stack.enter_async_context(self._inner)
            await stack.enter_async_context(self._wire)
            self.writer = Writer(self._wire)
            self._cancel_requests = CancelRequests(self._wire)
            self._notebook = Notebook(self._wire, self.writer)
            self._pushed = PushedTasks()
            self._journal = TableJournal(self._wire, self._cancel_requests, self._pushed, self._count_dead)
            self._tending = Tending(self._wire, self._cancel_requests, self._pushed)
            self._sweep = Sweep(self._wire, self._notebook, self._keep, self._swept)
            stack.push_async_callback(self._leave)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _leave(self) -> None:
        if self._on_their_way:
            await asyncio.wait(self._on_their_way, timeout=_LEAVE_SECONDS)
        for settling in self._on_their_way:
            settling.cancel()
        await self._cancel_requests.aclose()
        await self._sweep.aclose()
        await self.writer.aclose()

    async def _swept(self) -> None:
        """See to what else is to be looked at now and then; there is nothing."""

    async def prepare(self) -> None:
        """As the queue does it."""
        await self._inner.prepare()

    async def create(self, *, exist_ok: bool = True) -> None:
        """Make the queue, and the table; no worker needs this right."""
        await self._inner.create(exist_ok=exist_ok)
        try:
            await self._wire.create()
        except NoAnswer as error:
            raise BackendUnavailable(str(error)) from None

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        """Add the tasks, and record them once they are acknowledged (S1)."""
        await self.writer.room(_ROOM_SECONDS)  # before, for who is cancelled afterwards has pushed
        ids = await self._inner.push(tasks)
        try:
            ids = self._pushed.add(tasks, self._wire.now())
            self._notebook.pushed(tasks, self._pushed.expect_row)
        except Exception:  # noqa: BLE001 - logged with its traceback; the tasks are queued, which must not look otherwise
            _log.exception("%s: internal error of the journal", self.name)
        return ids

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        """Lease tasks; those that somebody wants to end are marked so before they start."""
        end, pause = _CLOCK.boottime() + wait.total_seconds(), _FIRST_PAUSE_SECONDS
        while True:
            left = timedelta(seconds=max(0.0, end - _CLOCK.boottime()))
            found = await self._receive(max_tasks, lease, left)
            if found is not None:
                return list(found)
            if _CLOCK.boottime() >= end:  # what waits behind what was put off must not pass for an empty queue
                raise AllPutBack(f"{self.name}: nothing of what was received can be started now")
            await asyncio.sleep(min(pause, max(0.0, end - _CLOCK.boottime())))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _receive(
        self, max_tasks: int, lease: timedelta | None, wait: timedelta
    ) -> list[JournaledDelivery] | None:
        """Lease tasks once; None = all that came was put off, or is not to be run."""
        since = _CLOCK.boottime()  # rules.md 1.3, rule 1
        granted = cast("list[StorageDelivery]", await self._inner.receive(max_tasks, lease, wait))
        if not granted:
            return []
        self._sweep.start()
        deliveries: list[JournaledDelivery] = []
        seen_to: list[Delivery] = []
        try:
            opened = await asyncio.gather(*(self._opened(inner, since, seen_to) for inner in granted))
            deliveries = [self._delivery(inner, since) for inner, opens in zip(granted, opened, strict=True) if opens]
            await self._cancel_requests.hear(deliveries)
        except asyncio.CancelledError:  # nobody waits for them any more: given back, as the queue itself does
            own = deliveries or [self._delivery(inner, since) for inner in granted if inner not in seen_to]
            back = [asyncio.ensure_future(self._given_back(each)) for each in own]
            _, pending = await asyncio.wait(back, timeout=_LEAVE_SECONDS) if back else ((), ())
            if pending or seen_to:  # the next look must not find an empty queue meanwhile
                self._put_off_times.add(UNKNOWN_ID, max(map(self._longest_lease, granted)))
            raise
        return deliveries or None

    def _delivery(self, inner: StorageDelivery, since: float) -> JournaledDelivery:
        return JournaledDelivery(inner, self._notebook, since, self._on_their_way)

    async def _opened(self, inner: StorageDelivery, since: float, seen_to: list[Delivery]) -> bool:  # noqa: ARG002 - for a ledger
        """Return whether a delivery may start; else it is among what is seen to."""
        return True

    def _put_off_later(self, inner: StorageDelivery, since: float, what: str, why: Exception) -> None:
        """Put a task off; whoever works waits for it, unless it would come again and again.

        Args:
            inner: was not started.
            since: boottime in seconds before it was received.
            what: cannot be had, in plain words.
            why: of the table.
        """
        told = str(why) or "no answer in time"
        _log.warning("%s: task %s is put off, for %s: %s", self.name, inner.id, what, told)
        is_passing = isinstance(why, BackendUnavailable | NoAnswer | TimeoutError)
        putting = asyncio.ensure_future(self._put_off(inner, since, is_passing=is_passing))
        self._on_their_way.add(putting)  # not waited for: the leases of others run
        putting.add_done_callback(self._on_their_way.discard)
        if is_passing:
            self._put_off_times.add(inner.id, _PUT_OFF.total_seconds())

    async def _put_off(self, inner: StorageDelivery, since: float, *, is_passing: bool) -> None:
        hidden = _PUT_OFF.total_seconds()  # from when that was done; also where its answer was lost
        try:
            await give_back(self._delivery(inner, since), _PUT_OFF)
        except JobqError as error:
            _log.warning("%s: task %s comes when its lease is over: %s", self.name, inner.id, error)
            hidden = max(hidden, self._longest_lease(inner))
        if is_passing:
            self._put_off_times.add(inner.id, hidden)

    async def _given_back(self, delivery: Delivery) -> None:
        try:
            await give_back(delivery)
        except JobqError as error:
            _log.debug("task %s comes when its lease is over: %s", delivery.id, error)
            self._put_off_times.add(delivery.id, self._longest_lease(delivery))

    def _longest_lease(self, delivery: Delivery) -> float:
        """Return the seconds for which it may be leased still: it was granted or renewed just now, perhaps."""
        return self.capabilities.longest_lease(delivery.lease).total_seconds()

    @property
    def misplaced(self) -> str:
        """Why tasks were put back that need other settings than these; empty = none were."""
        return self._put_off_times.misplaced

    def take_put_off(self) -> Mapping[str, float]:
        """Return what was put off since the last call by this, and by the queue."""
        found = self._put_off_times.take()
        return {**self._inner.take_put_off(), **found}

    async def peek(self, limit: int) -> list[Peeked]:
        """Look at the first tasks."""
        return await self._inner.peek(limit)

    async def stats(self) -> QueueStats:
        """Count what the service counts."""
        return await self._inner.stats()

    async def _count_dead(self) -> int | None:
        return (await self._inner.stats()).dead

    async def clear(self) -> int:
        """Delete what waits; and forget it."""
        await self._tried(self._journal.find([]), "what was cleared still shows")  # the first answer sets its clock
        began = self._wire.now()
        count = await self._inner.clear()
        await self._tried(self._forget_cleared(began), "what was cleared still shows")
        return count

    async def delete(self, *, only_empty: bool = False) -> None:
        """Forget all that the table holds of the queue, and delete that: in this order, so that it can be repeated."""
        await forget_queue(self._wire)
        await self._inner.delete(only_empty=only_empty)

    async def _forget_cleared(self, began: float) -> None:
        self._notebook.forget(await self._tending.cleared(began, running=self.capabilities.clears_leased))

    async def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Look at what jobq gave up on."""
        return await self._inner.dead_letters(limit)

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back, and record it."""
        # Before: what was put back first may have ended again when the last one is.
        or_else = "what was put back still shows as dead until it starts, and what was canceled may end before"
        dead = await self._tried(self._tending.dead(ids), or_else) or {}

        async def record(done: Sequence[str]) -> None:
            for key, id_ in {key_of(each): str(each) for each in done}.items():
                for birth, last in dead.get(key, {}).items():
                    self._record_redriven(id_, birth, rows.fencing_of(last))
                    self._notebook.put_back(last)

        return await self._tended(self._inner.redrive(ids), record, or_else)

    def _record_redriven(self, task_id: str, birth: int, dead: FencingNumber) -> None:
        """Record that a dead letter was put back; see `Notebook.redriven`."""
        self._notebook.redriven(task_id, birth, dead)

    async def purge_dead(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters for good, and forget them."""
        return await self._tended(self._inner.purge_dead(ids), self._forget_purged, "what was purged still shows")

    async def _forget_purged(self, ids: Sequence[str]) -> None:
        self._notebook.forget(await self._tending.purged(ids))

    async def findings(self) -> AsyncIterator[Finding]:
        """Look at the queue, and at the table."""
        async for finding in self._inner.findings():
            yield finding
        try:
            await self._journal.find([])
        except JobqError as error:
            yield Finding(what="the journal's table", found="no", verdict=Verdict.DIFFERS, advice=str(error))
        else:
            yield Finding(what="the journal's table", found="can be read")

    async def _tended(
        self, tending: Awaitable[list[str]], record: Callable[[Sequence[str]], Awaitable[None]], or_else: str
    ) -> list[str]:
        """Record in the journal what was done, also where some of it was not."""
        done: Sequence[str] = ()
        try:
            done = found = await tending
        except JobqError as error:
            done = error.done
            raise
        finally:
            if done:
                await self._tried(record(done), or_else)
        return found

    async def _tried(self, recording: Awaitable[_T], or_else: str) -> _T | None:
        """Record what the queue has done; it is done, whether or not the journal can be written."""
        try:
            return await recording
        except JobqError as error:
            _log.warning("the journal of %s cannot be written (%s): %s", self._wire.place.spec, or_else, error)
            return None

    def walk_dead(self) -> AsyncGenerator[list[IdInBatch]]:
        """Yield the ids of all dead letters; see `WalksDead`."""
        return self._inner.walk_dead()

    def views(self) -> TableViews:
        """Return what shows the queue by its journal, with connections of its own."""
        return TableViews(self._inner.views(), self.name, self._wire.place)

    def observations(self, queue: str = "") -> TableNotes:
        """Return the notes of a queue of this account."""
        name = queue or self.name
        account, _, _ = self._wire.place.queue.rpartition("!")

        async def counted() -> QueueLine:
            return line_of(name, await self._inner.stats_of(name))

        return TableNotes(self._wire, f"{account}!{name}", counted)

    @property
    def leases(self) -> LeaseStore:
        """The named leases of this queue."""
        return self._inner.leases

    async def pause(self, mark: Pause) -> None:
        """Hand nothing out."""
        await self._inner.pause(mark)

    async def resume(self) -> Pause | None:
        """Hand tasks out again."""
        return await self._inner.resume()

    async def paused(self) -> Pause | None:
        """Return the mark."""
        return await self._inner.paused()
