"""The embedded queue behind the backend protocol: one file, several processes, group commit, leases by boot time."""

import asyncio
import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, Self, TypeVar

from jobq.backend import Capabilities, DeadLetter, Delivery, FencingNumber, Peeked, QueueStats
from jobq.errors import ConfigurationError, JobqError, MalformedTask, PushUnknown, QueueNotFound, SettlementUnknown
from jobq.task import Task, TaskResult
from jobq_sqlite import store
from jobq_sqlite.connection import Connection
from jobq_sqlite.opening import StoreFile
from jobq_sqlite.store import ClaimedRow, NewRow, NothingReady, Now

T = TypeVar("T")

_CAPABILITIES: Final = Capabilities(
    default_lease=timedelta(seconds=60),
    min_lease=timedelta(seconds=1),
    deduplicates=True,
    dedup_window=timedelta(seconds=store.RETENTION_SECONDS),
    idempotent_push=True,
    idempotent_settle=True,
    atomic_requeue=True,
    atomic_dead_letter=True,
    strict_expiry=True,
    counts_deliveries=True,
    native_checkpoint=True,
    priorities=True,
    redelivers_at="back",
    counts=frozenset({"visible", "leased", "scheduled", "dead"}),
)


class SqliteBackend:
    """One queue in an SQLite file.

    Args:
        file: the file and who may use it.
        name: the queue's name.
    """

    def __init__(self, file: StoreFile, name: str) -> None:
        self.name = name
        self._file = file
        self._queue_id: int | None = None
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def capabilities(self) -> Capabilities:
        """What SQLite can do: everything but serve several machines."""
        return _CAPABILITIES

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.stop()

    async def create(self, *, exist_ok: bool = True) -> None:
        """Make the file and the queue where they are missing; raises ConfigurationError unless `exist_ok`."""
        await self._open(create=True)
        created = await self._write(lambda database: store.create(database, self.name, self._now()))
        if not created and not exist_ok:
            raise ConfigurationError(f"queue {self.name!r} exists already in {self._file.path}")

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        """Add all in one transaction, synced to disk before this returns (S1)."""
        rows = [NewRow(task.id, task.priority, task.not_before, task.encode(), task.fingerprint()) for task in tasks]
        ids = [row.id for row in rows]
        if rows:
            await self._write(
                lambda database: store.push(database, self._queue(database), rows, self._now()),
                may_undo=True,
                unknown=lambda text: PushUnknown(text, ids),
            )
            self._changed.set()
        return ids

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        """Claim up to `max_tasks`; wakes on a push of this process at once, of another within 50 ms."""
        if max_tasks < 1:
            raise ConfigurationError(f"cannot receive {max_tasks} tasks; ask for at least one")
        length = lease or self.capabilities.default_lease
        clock = self._file.clock
        end = clock.boottime() + wait.total_seconds()
        connection = await self._open()
        connection.watch(True)
        try:
            found = await self._claim(connection, max_tasks, length, look_first=False)
            while True:
                if not isinstance(found, NothingReady):
                    return [SqliteDelivery(self, row, length) for row in found]
                if clock.boottime() >= end:
                    return []
                look_again = end if found.boottime is None else min(end, found.boottime)
                await self._until_changed(look_again)
                self._changed.clear()
                found = await self._claim(connection, max_tasks, length, look_first=True)
        finally:
            connection.watch(False)

    async def _claim(
        self, connection: Connection, max_tasks: int, lease: timedelta, *, look_first: bool
    ) -> list[ClaimedRow] | NothingReady:
        seconds = lease.total_seconds()

        def look(database: sqlite3.Connection) -> NothingReady | None:
            return store.nothing_ready(database, self._queue(database), self._now())

        def claim(database: sqlite3.Connection) -> list[ClaimedRow] | NothingReady:
            rows = store.claim(database, self._queue(database), max_tasks, seconds, self._now())
            return rows or look(database) or NothingReady(None)

        claimed = connection.submit(claim, look_first=look if look_first else None)
        try:
            return await asyncio.shield(claimed)
        except asyncio.CancelledError:
            # The thread may have claimed already: what nobody will run goes back at once, at no cost to its budgets.
            claimed.add_done_callback(self._give_back)
            raise

    def _give_back(self, claimed: "asyncio.Future[list[ClaimedRow] | NothingReady]") -> None:
        if claimed.cancelled() or claimed.exception() is not None or self._connection is None:
            return
        rows = claimed.result()
        if isinstance(rows, NothingReady):
            return

        def release_all(database: sqlite3.Connection) -> None:
            for row in rows:
                _release(database, row, self._now())

        self._connection.submit(release_all)

    async def _until_changed(self, boottime: float) -> None:
        timer = asyncio.ensure_future(self._file.clock.sleep_until(boottime))
        change = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({timer, change}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            change.cancel()

    async def peek(self, limit: int) -> list[Peeked]:
        """Look at what could be received now."""
        return await self._read(lambda database: store.peek(database, self._queue(database), limit, self._now()))

    async def stats(self) -> QueueStats:
        """Count all four."""
        return await self._read(lambda database: store.stats(database, self._queue(database), self._now()))

    async def clear(self) -> int:
        """Delete what waits or is leased."""
        return await self._write(lambda database: store.clear(database, self._queue(database)))

    async def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Look at the dead letters, oldest first."""
        return await self._read(lambda database: store.dead_letters(database, self._queue(database), limit))

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back in one transaction."""
        found = await self._write(lambda database: store.redrive(database, self._queue(database), ids, self._now()))
        self._changed.set()
        return found

    async def purge_dead(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters in one transaction."""
        return await self._write(lambda database: store.purge_dead(database, self._queue(database), ids))

    async def settle(self, work: Callable[[sqlite3.Connection, Now], T]) -> T:
        """Run a delivery's verb; a commit that no one can vouch for is SettlementUnknown (S5)."""
        answer = await self._write(lambda database: work(database, self._now()), unknown=SettlementUnknown)
        self._changed.set()
        return answer

    async def _open(self, *, create: bool = False) -> Connection:
        """Return the connection, opened on first use: a worker may be built before its queue exists."""
        async with self._opening:
            if self._connection is None:
                connection = Connection(self._file.path, self._file.opener(create=create), self._changed.set)
                await connection.start()
                self._connection = connection
            return self._connection

    async def _write(
        self,
        work: Callable[[sqlite3.Connection], T],
        *,
        may_undo: bool = False,
        unknown: Callable[[str], JobqError] | None = None,
    ) -> T:
        connection = self._connection or await self._open()
        return await connection.submit(work, may_undo=may_undo, unknown=unknown)

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection or await self._open()
        return await connection.submit(work, writes=False)

    def _queue(self, database: sqlite3.Connection) -> int:
        if self._queue_id is None:
            try:
                self._queue_id = store.queue_id(database, self.name)
            except QueueNotFound as error:
                raise QueueNotFound(f"{error} (looked in {self._file.path})") from None
        return self._queue_id

    def _now(self) -> Now:
        return Now(self._file.clock.boottime(), self._file.clock.wall())


class SqliteDelivery:
    """A leased row."""

    def __init__(self, backend: SqliteBackend, row: ClaimedRow, lease: timedelta) -> None:
        self._backend = backend
        self._row = row
        self.lease = lease

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
        seconds = lease.total_seconds()
        await self._backend.settle(lambda database, now: store.renew(database, self._row, seconds, now))

    async def complete(self, result: TaskResult) -> None:  # noqa: ARG002 - the journal will keep it; the queue need not
        """End the task as done."""
        await self._backend.settle(lambda database, now: store.complete(database, self._row, now))

    async def requeue(self, task: Task, delay: timedelta) -> None:
        """Put it back with another body, in one UPDATE (S6)."""
        body, seconds = task.encode(), delay.total_seconds()
        said = _said("requeue", body, repr(seconds).encode())
        await self._backend.settle(lambda database, now: store.requeue(database, self._row, body, seconds, now, said))

    async def release(self) -> None:
        """Put it back unstarted: one more end is recorded, so that it is no crash (S7)."""
        await self._backend.settle(lambda database, now: _release(database, self._row, now))

    async def dead_letter(self, reason: str, description: str) -> None:
        """Move it to the dead-letter place, in one UPDATE (S6)."""
        said = _said("dead", reason.encode(), description.encode())
        await self._backend.settle(
            lambda database, now: store.dead_letter(database, self._row, reason, description, now, said)
        )

    async def checkpoint(self, value: str) -> None:
        """Save the task's progress in its row (S9)."""
        await self._backend.settle(lambda database, now: store.checkpoint(database, self._row, value, now))


def _release(database: sqlite3.Connection, row: ClaimedRow, now: Now) -> None:
    try:
        body = Task.decode(row.body).released().encode()
    except MalformedTask:
        body = row.body
    store.requeue(database, row, body, 0.0, now, "release")


def _said(verb: str, *arguments: bytes) -> str:
    """Return what tells this settle from another one with the same receipt (S5)."""
    digest: Any = hashlib.blake2b(digest_size=8)
    for argument in arguments:
        digest.update(len(argument).to_bytes(8) + argument)
    return f"{verb} {digest.hexdigest()}"
