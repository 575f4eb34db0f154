"""Claiming the tasks of a queue, waiting for some, and giving back what a cancelled call had been granted."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final

from jobq.clock import Clock
from jobq.errors import BackendUnavailable, ConfigurationError, JobqError
from jobq.journal.records import this_holder
from jobq.journal.retention import JournalCap
from jobq.resources.room import Room
from jobq.servable import DATABASE, MOST_CLAIMED, prefix_of, receipts_of
from jobq_sqlite import task_sql
from jobq_sqlite.connection import Link, SqliteConnection
from jobq_sqlite.delivery import SqliteDelivery, release_all
from jobq_sqlite.shape_sql import KnownShapes, ShapeChooser
from jobq_sqlite.task_sql import ClaimedRow, NothingReady

_FORGET_SECONDS: Final = 0.25  # a worker forgets faster than it can complete
_log: Final = logging.getLogger(__name__)


class QueueReceiver:
    """Claims tasks of one queue, and waits for them.

    Args:
        name: the queue's name.
        link: gives the open connection.
        clock: decides leases.
        keep: seconds for which the journal keeps what has ended; None = no journal is kept.
        most_bytes: how much it may hold.
    """

    def __init__(
        self, name: str, link: Callable[[], Awaitable[Link]], clock: Clock, *, keep: float | None, most_bytes: int
    ) -> None:
        self._name = name
        self._link = link
        self._clock = clock
        self._keep = keep
        self._trimming = JournalCap(most_bytes)
        self._shapes = KnownShapes()
        self._forget_at = 0.0  # boottime in seconds
        self._abandoned = False
        self._changed = asyncio.Event()  # each change sets it and puts a new one in its place

    def wake(self) -> None:
        """Let who waits look again: something may have become ready, or be due earlier."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def claim(
        self,
        max_tasks: int,
        lease: timedelta | None,
        wait: timedelta,
        *,
        key: str,
        former: Sequence[str],
        room: Room | None = None,
    ) -> list[SqliteDelivery]:
        """Claim with receipts that follow from a key; see `jobq.servable.Servable`."""
        receipts = receipts_of(key, min(max_tasks, MOST_CLAIMED))
        if former:
            link = await self._link()
            length = lease or DATABASE.default_lease
            seconds, prefixes = length.total_seconds(), [prefix_of(each) for each in former]
            rows = await link.connection.submit(
                lambda database, now: task_sql.take_over(
                    database, link.queue, len(receipts), seconds, now, receipts, prefixes
                )
            )
            if rows:
                return self.deliveries(link, rows, length)
        return await self.receive(len(receipts), lease, wait, receipts, room=room)

    async def receive(
        self,
        max_tasks: int,
        lease: timedelta | None,
        wait: timedelta,
        receipts: Sequence[str] = (),
        worker_id: str | None = None,
        room: Room | None = None,
    ) -> list[SqliteDelivery]:
        """Claim up to `max_tasks`, waiting for the first; see `jobq.backend.Backend.receive`.

        Args:
            max_tasks: how many at most.
            lease: how long they are leased; None = as long as is usual.
            wait: for how long, while there is none.
            receipts: of the deliveries; made anew where there are none.
            worker_id: whose leases they are.
            room: what fits; None = all do.
        """
        if max_tasks < 1:
            raise ConfigurationError(f"cannot receive {max_tasks} tasks; ask for at least one")
        length = lease or DATABASE.default_lease
        clock = self._clock
        end = clock.boottime() + wait.total_seconds()
        link = await self._link()
        if self._abandoned:
            self._abandoned = False
            await link.connection.flush()  # what a cancelled receive had been granted is to be found by this one
            self._shapes.forget()  # it may have read them since it was cancelled, in a transaction that failed
        chooser = ShapeChooser(room, self._shapes)
        changed = self._changed  # taken before the claim: what changes after it wakes us
        found = await self._claim(link, max_tasks, length, receipts, worker_id, chooser)
        if not isinstance(found, NothingReady):
            return self.deliveries(link, found, length)
        link.connection.watch(True)
        try:
            while clock.boottime() < end:
                await self._until(changed, end if found.boottime is None else min(end, found.boottime))
                changed = self._changed
                found = await self._claim(link, max_tasks, length, receipts, worker_id, chooser, look_first=True)
                if not isinstance(found, NothingReady):
                    return self.deliveries(link, found, length)
        finally:
            link.connection.watch(False)
        return []

    def deliveries(self, link: Link, rows: list[ClaimedRow], lease: timedelta) -> list[SqliteDelivery]:
        """Return claimed rows as deliveries."""
        journaled = self._keep is not None
        return [
            SqliteDelivery(link.connection, row, lease, self.wake, queue=self._name, journaled=journaled)
            for row in rows
        ]

    async def _claim(
        self,
        link: Link,
        max_tasks: int,
        lease: timedelta,
        receipts: Sequence[str],
        worker_id: str | None,
        chooser: ShapeChooser,
        *,
        look_first: bool = False,
    ) -> list[ClaimedRow] | NothingReady:
        connection, queue = link
        seconds = lease.total_seconds()
        holder = None if self._keep is None else this_holder()
        forget = self._due_to_forget()

        def give_back(claimed: list[ClaimedRow] | NothingReady) -> None:
            if not isinstance(claimed, NothingReady):
                self._give_back(connection, claimed)

        claimed = connection.submit(
            lambda database, now: task_sql.claim(
                database, queue, max_tasks, seconds, now, chooser, receipts, holder, worker_id, forget, self._trimming
            ),
            look_first=(lambda database, now: task_sql.nothing_ready(database, queue, now, chooser))
            if look_first
            else None,
            abandoned=give_back,
        )
        try:
            return await claimed
        except JobqError:
            self._shapes.forget()
            raise
        except asyncio.CancelledError:
            assert isinstance(claimed, asyncio.Future)  # else nothing was awaited
            if claimed.done() and not claimed.cancelled() and claimed.exception() is None:
                give_back(claimed.result())  # the answer and the cancellation came together
            else:
                self._abandoned = True
            raise

    def _due_to_forget(self) -> float | None:
        """Return for how long the journal keeps what has ended when it is time to look for what is older."""
        now = self._clock.boottime()
        if self._keep is None or now < self._forget_at:
            return None
        self._forget_at = now + _FORGET_SECONDS
        return self._keep

    def _give_back(self, connection: SqliteConnection, rows: list[ClaimedRow]) -> None:
        """Return what was claimed for a call that was cancelled: at once, and at no cost to its budgets."""
        try:
            released = connection.submit(lambda database, now: release_all(database, rows, now))
        except BackendUnavailable:
            return  # closed meanwhile: the leases run out
        assert isinstance(released, asyncio.Future)  # only where there is a loop can a call be cancelled
        released.add_done_callback(self._given_back)

    def _given_back(self, released: "asyncio.Future[None]") -> None:
        if not released.cancelled() and (error := released.exception()) is not None:
            _log.warning("a cancelled receive of %s could not give back its tasks: %s", self._name, error)
        self.wake()

    async def _until(self, changed: asyncio.Event, boottime: float) -> None:
        """Return when something may have become ready, or at the given time."""
        waits: list[asyncio.Task[object]] = [
            asyncio.create_task(self._clock.sleep_until(boottime), name=f"wake receive of {self._name}"),
            asyncio.create_task(changed.wait(), name=f"changes of {self._name}"),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
