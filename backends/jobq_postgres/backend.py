"""A PostgreSQL queue behind the backend protocol."""

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

from jobq.backend import Capabilities, DeadLetter, Delivery, Hastened, Peeked, QueueStats
from jobq.clearing import Cleared, clear_in_steps, cursor_of
from jobq.clock import SystemClock
from jobq.errors import AnswerLost, BackendUnavailable, ConfigurationError, JobqError, PushUnknown
from jobq.examination import Finding
from jobq.pausing import Pause
from jobq.servable import (
    DATABASE,
    IDS_KEPT,
    MOST_CLAIMED,
    Document,
    Kind,
    ListedTask,
    all_pages,
    dead_cursor,
    prefix_of,
    receipts_of,
    unpacked,
)
from jobq.settlement import Release
from jobq.task import Task
from jobq_postgres import errors, queue_admin, schema, shape_sql, task_listing
from jobq_postgres.add_tasks import NewTask
from jobq_postgres.batches import PostgresBatches
from jobq_postgres.connections import Connections, queue_number
from jobq_postgres.delivery import PostgresDelivery
from jobq_postgres.errors import NoAnswer
from jobq_postgres.examination import findings
from jobq_postgres.journal import PostgresJournal
from jobq_postgres.lane import Lane, Server, Work
from jobq_postgres.leases import PostgresLeases
from jobq_postgres.push import call_of
from jobq_postgres.settle import Change, LeasedRow
from jobq_postgres.shape_sql import WantedShapes

if TYPE_CHECKING:
    from jobq.resources.room import Room
    from jobq.selecting import WaitingShape
    from jobq_postgres.observations import PostgresObservations
    from jobq_postgres.passing_lane import PassingLane
    from jobq_postgres.views import PostgresViews

_CAPABILITIES: Final = replace(DATABASE, selects=True, batches=True, views=True, whole_views=True)
_TOLD_SECONDS: Final = 10.0  # for which an empty queue is none while something follows from the ends of tasks
_TOLD_POLL_SECONDS: Final = 0.05
_log: Final = logging.getLogger(__name__)
_CREATE_SECONDS: Final = 600.0  # others may make the tables meanwhile
_PUSH_SECONDS: Final = 30.0
_PUSH_SECONDS_PER_TASK: Final = 0.001
_POLL_SECONDS: Final = 1.0  # without a notification: for expired leases, and for a notification that was lost


class PostgresBackend:
    """One queue in a PostgreSQL database.

    Args:
        server: where the database is.
        name: the queue's name.
        keep: for how long the journal keeps what has ended; None = no journal is kept.
        most_bytes: how much it may hold.
    """

    def __init__(
        self, server: Server, name: str, *, keep: timedelta | None = IDS_KEPT, most_bytes: int = 1024**3
    ) -> None:
        self.name = name
        self._keep = keep
        self._most_bytes = most_bytes
        self._server = server
        self._clock = SystemClock()
        self._links: Connections | None = None
        self._lane: Lane | None = None  # of the named leases
        self._passing: PassingLane | None = None  # of the notes
        self._opening = asyncio.Lock()
        self._closed = False
        self._changed = asyncio.Event()  # each change sets it and puts a new one in its place
        self._giving_back: set[asyncio.Task[None]] = set()

    @property
    def capabilities(self) -> Capabilities:
        """What PostgreSQL can do: everything."""
        return _CAPABILITIES

    @property
    def leases(self) -> PostgresLeases:
        """The named leases of this queue."""
        self._lane = self._lane or Lane(self._server, "named lease")
        return PostgresLeases(self._lane, self.name)

    @property
    def journal(self) -> PostgresJournal | None:
        """The journal of this queue, in the same database; None = it is off."""
        return None if self._keep is None else PostgresJournal(self._linked_once)

    @property
    def batches(self) -> PostgresBatches:
        """The batches of this queue."""
        return PostgresBatches(self._linked_once)

    def observations(self, queue: str = "") -> "PostgresObservations | None":
        """Return the notes of a queue of this database; None = the journal is off."""
        if self._keep is None:
            return None
        from jobq_postgres.observations import PostgresObservations  # noqa: PLC0415 - as below
        from jobq_postgres.passing_lane import PassingLane  # noqa: PLC0415 - as below

        if self._passing is None:
            self._passing = PassingLane(self._server, "observe")
        passing = self._passing

        async def keyed(work: Work[Any], *, seconds: float) -> Any:
            links = self._links
            if links is not None and links.is_claiming:
                return await links.beside_claims(work, seconds)
            return await passing.submit(work, seconds=seconds)

        return PostgresObservations(queue or self.name, self._server.place, keyed, passing.submit)

    def views(self) -> "PostgresViews":
        """Return what reads all queues of this database."""
        from jobq_postgres.views import PostgresViews  # noqa: PLC0415 - few need them

        return PostgresViews(self._server)

    async def _linked_once(self) -> Connections:
        return self._links or await self._linked()

    async def __aenter__(self) -> Self:
        self._closed = False
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._closed = True
        if self._giving_back:
            await asyncio.wait(self._giving_back)
        async with self._opening:
            links, self._links = self._links, None
        if links is not None:
            await links.close()
        passing, self._passing = self._passing, None
        if passing is not None:
            await passing.close()
        lane, self._lane = self._lane, None
        if lane is not None:
            await lane.close()

    async def create(self, *, exist_ok: bool = True) -> None:
        """Make the tables where there are none, and the queue; raises ConfigurationError unless `exist_ok`."""
        connection = await self._server.connect("create", checks=False)
        try:
            async with asyncio.timeout(_CREATE_SECONDS):
                created = await self._create(connection)
        except Exception as error:  # noqa: BLE001 - safe to repeat, whatever was done and whatever was in the way
            raise errors.translate(error, self._server.place) from None
        finally:
            connection.terminate()
        if not created and not exist_ok:
            raise ConfigurationError(f"queue {self.name!r} exists already in {self._server.place}")

    def findings(self) -> AsyncIterator[Finding]:
        """Look at the server's settings."""
        return findings(self._server)

    async def _create(self, connection: Any) -> bool:
        # Looked at first: who may not make tables, or queues, needs no right to find all of it there.
        if await schema.installed_version(connection) != schema.VERSION:
            await schema.make(connection, self._server.place)
        if await connection.fetchval("SELECT EXISTS (SELECT FROM jobq.queue WHERE name = $1)", self.name):
            return False
        made = "INSERT INTO jobq.queue (name) VALUES ($1) ON CONFLICT (name) DO NOTHING RETURNING queue_id"
        return await connection.fetchval(made, self.name) is not None

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        """Add all in one transaction, flushed to disk before this returns (S1)."""
        ids = [task.id for task in tasks]
        if tasks:
            links = self._links or await self._linked()
            rows = [NewTask.of(links.queue, task.in_epoch(links.pusher.epoch)) for task in tasks]
            seconds = _PUSH_SECONDS + len(rows) * _PUSH_SECONDS_PER_TASK
            await links.push(call_of(rows), seconds, lambda text: PushUnknown(text, ids))
        return ids

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        """Claim up to `max_tasks`; woken by NOTIFY, and by looking each second where that was not heard."""
        return list(await self._receive(max_tasks, lease, wait))

    async def receive_fitting(
        self,
        room: "Room",
        max_tasks: int,
        lease: timedelta | None,
        wait: timedelta,
        *,
        worker_id: str = "",  # noqa: ARG002 - of what shares a machine
    ) -> list[Delivery]:
        """Claim what there is room for."""
        return list(await self._receive(max_tasks, lease, wait, room=room))

    async def waiting_shapes(self) -> "list[WaitingShape]":
        """Count what waits by what it asks for."""
        links = self._links or await self._linked()
        found: list[WaitingShape] = await links.look(lambda connection: shape_sql.waiting(connection, links.queue))
        return found

    async def claim(
        self,
        max_tasks: int,
        lease: timedelta | None,
        wait: timedelta,
        *,
        key: str,
        former: Sequence[str],
        room: "Room | None" = None,
    ) -> list[PostgresDelivery]:
        """Claim with receipts that follow from a key; see `jobq.servable.Servable`."""
        receipts = [UUID(receipt) for receipt in receipts_of(key, min(max_tasks, MOST_CLAIMED))]
        if former:
            links = self._links or await self._linked()
            length = lease or DATABASE.default_lease
            try:
                rows = await links.take_over(len(receipts), length, receipts, [prefix_of(each) for each in former])
            except NoAnswer as error:
                raise AnswerLost(str(error)) from None
            if rows:
                return [self._delivery(links, row, length) for row in rows]
        return await self._receive(len(receipts), lease, wait, receipts, room)

    def _delivery(self, links: Connections, row: LeasedRow, lease: timedelta) -> PostgresDelivery:
        journaled = self._keep is not None
        return PostgresDelivery(links, row, lease, self._wake, queue=self.name, journaled=journaled)

    async def held(self, task_id: str, receipt: str, body: bytes = b"") -> PostgresDelivery:
        """Return a delivery by its receipt."""
        seq, number = unpacked(self.name, task_id, receipt)
        links = self._links or await self._linked()
        row = LeasedRow(seq, links.queue, task_id, body, 0, None, UUID(number))
        return self._delivery(links, row, DATABASE.default_lease)

    async def find(self, task_id: str) -> ListedTask | None:
        """Look at one task."""
        links = self._links or await self._linked()
        found = await links.look(lambda connection: task_listing.show(connection, links.queue, [task_id]))
        return found[0] if found else None

    async def page(self, kind: Kind, after: str, limit: int) -> tuple[list[ListedTask], str | None]:
        """Look at tasks, by id."""
        links = self._links or await self._linked()
        found: tuple[list[ListedTask], str | None] = await links.look(
            lambda connection: task_listing.page(connection, links.queue, kind, after, limit)
        )
        return found

    async def queues(self) -> list[str]:
        """Return the names of all queues of the database."""
        return list(await self._beside(task_listing.queues))

    async def document(self, name: str) -> Document | None:
        """Return a document of the service."""
        found: Document | None = await self._beside(lambda connection: task_listing.read_document(connection, name))
        return found

    async def write_document(self, name: str, value: bytes, version: int) -> bool:
        """Replace a document of the service."""
        return bool(
            await self._beside(lambda connection: task_listing.write_document(connection, name, value, version))
        )

    async def _beside(self, work: Work[Any]) -> Any:
        """Do what concerns no queue, on the lane of the named leases."""
        self._lane = self._lane or Lane(self._server, "named lease")
        try:
            return await self._lane.submit(work, seconds=10.0)
        except NoAnswer as error:
            raise AnswerLost(str(error)) from None

    async def _receive(
        self,
        max_tasks: int,
        lease: timedelta | None,
        wait: timedelta,
        receipts: Sequence[UUID] = (),
        room: "Room | None" = None,
    ) -> list[PostgresDelivery]:
        if max_tasks < 1:
            raise ConfigurationError(f"cannot receive {max_tasks} tasks; ask for at least one")
        length = lease or DATABASE.default_lease
        end = self._clock.boottime() + wait.total_seconds()
        links = self._links or await self._linked()
        wanted = WantedShapes(room)
        while True:
            changed = self._changed  # taken before the claim: what changes after it wakes us
            has_news = partial(links.claimer.has_news, wanted, links.claimer.notes)
            is_last = self._clock.boottime() >= end
            rows = await self._claim(links, max_tasks, length, wanted, thorough=is_last, receipts=receipts)
            if receipts and any(row.cancel_requested for row in rows):
                rows = [row for row in rows if not await self._ended_canceled(links, row)]
                if not rows:
                    continue  # there may be others behind
            if rows:
                return [self._delivery(links, row, length) for row in rows]
            if is_last:
                # What is to be run when a batch has ended may be about to come; others may be at it.
                if not links.claimer.is_told or self._clock.boottime() >= end + _TOLD_SECONDS:
                    return []
                await self._until(changed, _TOLD_POLL_SECONDS, has_news)
                continue
            left = end - self._clock.boottime()
            poll = _POLL_SECONDS * random.uniform(0.9, 1.1)  # noqa: S311 - so that many workers do not look in step
            await self._until(changed, min(left, links.claimer.next_due, poll), has_news)

    async def _ended_canceled(self, links: Connections, row: LeasedRow) -> bool:
        """End a claimed task that is to be canceled, whose worker would not know; return whether it was one (S1)."""
        if not row.cancel_requested:
            return False
        change = Change(row, ("complete canceled", None, "canceled", None, None, None))
        with suppress(JobqError, NoAnswer):  # its lease runs out, and who claims it then ends it
            await links.run("complete", change, 5.0)
        return True

    async def _claim(
        self,
        links: Connections,
        max_tasks: int,
        lease: timedelta,
        wanted: WantedShapes,
        *,
        thorough: bool,
        receipts: Sequence[UUID],
    ) -> list[LeasedRow]:
        claiming = links.claim(max_tasks, lease, thorough=thorough, receipts=receipts, wanted=wanted)
        try:
            return await asyncio.shield(claiming)
        except NoAnswer as error:
            # What it may have claimed comes back when its lease has run out.
            raise AnswerLost(str(error)) from None
        except asyncio.CancelledError:
            self._spawn(self._give_back(links, claiming))
            raise

    async def _give_back(self, links: Connections, claiming: "asyncio.Future[list[LeasedRow]]") -> None:
        """Return what was claimed for a call that was cancelled: at once, and at no cost to its budgets."""
        try:
            found = [self._delivery(links, row, DATABASE.default_lease) for row in await claiming]
            await asyncio.gather(*(delivery.settle(Release()) for delivery in found))
        except (JobqError, NoAnswer) as error:
            _log.warning("a cancelled receive of %s could not give back its tasks: %s", self.name, error)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work, name=f"give back to {self.name}")
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)

    async def _until(self, changed: asyncio.Event, seconds: float, has_news: Callable[[], bool]) -> None:
        """Return when some of what is wanted may have become ready, or after that time."""
        try:
            async with asyncio.timeout(max(seconds, 0.001)):
                await changed.wait()
                while not has_news():
                    await self._changed.wait()
        except TimeoutError:
            pass

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def peek(self, limit: int) -> list[Peeked]:
        """Look at what could be received now."""
        links = self._links or await self._linked()
        found: tuple[list[Peeked], int | None] = await links.look(
            lambda connection: queue_admin.peek(connection, links.queue, 0, limit, most_bytes=math.inf)
        )
        return found[0]

    async def peek_page(self, skipped: int, limit: int) -> tuple[list[Peeked], int | None]:
        """Look at some of what could be received now."""
        links = self._links or await self._linked()
        found: tuple[list[Peeked], int | None] = await links.look(
            lambda connection: queue_admin.peek(connection, links.queue, skipped, limit)
        )
        return found

    async def stats(self) -> QueueStats:
        """Count all four."""
        links = self._links or await self._linked()
        found: QueueStats = await links.look(lambda connection: queue_admin.stats(connection, links.queue))
        return found

    async def pause(self, mark: Pause) -> None:
        """Hand nothing out: in every process within the second in which it is heard, or a sweep finds it."""
        await self._mark(mark)

    async def resume(self) -> Pause | None:
        """Hand tasks out again."""
        return await self._mark(None)

    async def paused(self) -> Pause | None:
        """Return the mark."""
        links = self._links or await self._linked()
        sql = "SELECT paused FROM jobq.queue WHERE queue_id = $1"
        return Pause.decode(await links.look(lambda connection: connection.fetchval(sql, links.queue)))

    async def _mark(self, mark: Pause | None) -> Pause | None:
        links = self._links or await self._linked()
        text = None if mark is None else mark.encode()
        former = await links.look(
            lambda connection: connection.fetchval(queue_admin.PAUSE, links.queue, text, links.channel)
        )
        links.look_anew()  # at once, not when the notification of it arrives on the connection that claims
        return Pause.decode(former)

    async def hasten(self, ids: Sequence[str]) -> list[Hastened]:
        """Let tasks that are put off be due now, in short transactions."""
        links = self._links or await self._linked()
        answers: dict[str, Hastened] = {}
        for some in queue_admin.batches(ids):
            found, lowest = await links.look(partial(queue_admin.hasten, queue=links.queue, ids=some))
            links.notify(lowest)
            answers |= found
        return [answers.get(each, Hastened.UNKNOWN) for each in ids]

    async def clear(self) -> int:
        """Delete what waits or is leased, in short transactions."""
        return (await clear_in_steps(self)).deleted

    async def clear_some(self, cursor: str) -> Cleared:
        """Delete some of it."""
        links = self._links or await self._linked()
        at = cursor_of(cursor)
        found: Cleared
        found, tells = await links.look(lambda connection: queue_admin.clear_some(connection, links.queue, at))
        if tells:
            await links.advance()
        return found

    async def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Look at the dead letters, oldest first."""
        return await all_pages(self.dead_page, limit)

    async def dead_page(self, after: str, limit: int) -> tuple[list[DeadLetter], str | None]:
        """Look at some of the dead letters, oldest first."""
        links = self._links or await self._linked()
        behind = dead_cursor(after)
        found: tuple[list[DeadLetter], str | None] = await links.look(
            lambda connection: queue_admin.dead_page(connection, links.queue, behind, limit)
        )
        return found

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back, in short transactions."""
        links = self._links or await self._linked()
        found: list[str] = []
        for some in queue_admin.batches(ids):
            back, lowest, tells = await links.look(partial(queue_admin.redrive, queue=links.queue, ids=some))
            if tells:
                await links.advance()
            links.notify(lowest)
            found += back
        return found

    async def purge_dead(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters, in short transactions."""
        links = self._links or await self._linked()
        found: list[str] = []
        for some in queue_admin.batches(ids):
            gone, tells = await links.look(partial(queue_admin.purge_dead, queue=links.queue, ids=some))
            found += gone
            if tells:
                await links.advance()
        return found

    async def _linked(self) -> Connections:
        """Look up the queue, on first use: a worker may be built before its queue exists."""
        async with self._opening:
            if self._closed:
                raise BackendUnavailable(
                    f"{self._server.place} is closed: queue {self.name!r} was left before this call"
                )
            if self._links is None:
                connection = await self._server.connect("look")
                try:
                    async with asyncio.timeout(10.0):
                        number = await queue_number(connection, self.name, self._server.place)
                except Exception as error:  # noqa: BLE001 - nothing was done
                    raise errors.translate(error, self._server.place) from None
                finally:
                    connection.terminate()
                self._links = Connections(self._server, number, self._wake, self._keep, self._most_bytes)
            return self._links
