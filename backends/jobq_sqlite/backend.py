"""The embedded queue behind the backend protocol: one file, several processes, group commit, leases by boot time."""

import math
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from jobq.backend import Capabilities, DeadLetter, Delivery, Hastened, Peeked, QueueStats
from jobq.clearing import Cleared, clear_in_steps, cursor_of
from jobq.errors import BackendUnavailable, ConfigurationError, PushUnknown, QueueNotFound
from jobq.pausing import Pause
from jobq.servable import DATABASE, IDS_KEPT, Document, Kind, ListedTask, all_pages, dead_cursor, unpacked
from jobq.task import Task
from jobq_sqlite import push_sql, queue_admin, shape_sql, task_listing, task_sql
from jobq_sqlite.bulk import some
from jobq_sqlite.connection import Link, SqliteConnection
from jobq_sqlite.open_file import OpenFile, StoreFile
from jobq_sqlite.push_sql import NewRow
from jobq_sqlite.same_file import is_kept
from jobq_sqlite.task_sql import ClaimedRow, Now

T = TypeVar("T")
if TYPE_CHECKING:
    from jobq.examination import Finding
    from jobq.resources.room import Room
    from jobq.selecting import WaitingShape
    from jobq_sqlite.batches import SqliteBatches
    from jobq_sqlite.delivery import SqliteDelivery
    from jobq_sqlite.journal import SqliteJournal
    from jobq_sqlite.leases import SqliteLeases
    from jobq_sqlite.observations import SqliteObservations
    from jobq_sqlite.receiver import QueueReceiver
    from jobq_sqlite.views import SqliteViews

_CAPABILITIES: Final = replace(DATABASE, shares_machine=True, selects=True, batches=True, views=True, whole_views=True)


class SqliteBackend:
    """One queue in an SQLite file.

    Args:
        file: the file and who may use it.
        name: the queue's name.
        keep: for how long the journal keeps what has ended; None = no journal is kept.
        most_bytes: how much it may hold.
        connect: makes what runs statements; None = a thread does, for as long as nobody calls `without_loop`.
    """

    def __init__(
        self,
        file: StoreFile,
        name: str,
        *,
        keep: timedelta | None = IDS_KEPT,
        most_bytes: int = 1024**3,
        connect: type[SqliteConnection] | None = None,
    ) -> None:
        self.name = name
        self._keep = None if keep is None else keep.total_seconds()
        self._ids_kept = max(push_sql.IDS_KEPT_SECONDS, self._keep or 0.0)
        self._file = file
        self._connect = connect
        self._most_bytes = most_bytes
        self._epoch = 0  # of the last push: that of the next, as a rule
        self._connection: SqliteConnection | None = None
        self._reader: SqliteConnection | None = None
        self._link: Link | None = None
        self._closed = False
        self._opening: AbstractAsyncContextManager[object] | None = None
        self._receiver: QueueReceiver | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What SQLite can do: everything but serve several machines."""
        return _CAPABILITIES

    @property
    def leases(self) -> "SqliteLeases":
        """The named leases of this queue, in the same file."""
        from jobq_sqlite.leases import SqliteLeases  # noqa: PLC0415 - few commands need them

        return SqliteLeases(self.name, lambda create: self._opened(create=create), self._opened_to_read)

    @property
    def journal(self) -> "SqliteJournal | None":
        """The journal of this queue, in the same file; None = it is off."""
        if self._keep is None:
            return None
        from jobq_sqlite.journal import SqliteJournal  # noqa: PLC0415 - as above

        return SqliteJournal(self._linked, self._read, self._wake, self._looked_up_again)

    @property
    def batches(self) -> "SqliteBatches":
        """The batches of this queue, in the same file."""
        from jobq_sqlite.batches import SqliteBatches  # noqa: PLC0415 - as above

        return SqliteBatches(self._linked, self._read, self._wake, self._looked_up_again, self._keep or 0.0)

    def observations(self, queue: str = "") -> "SqliteObservations | None":
        """Return the notes of a queue of this file; None = the journal is off, or nobody else looks at this file."""
        if self._keep is None or (self._connect is not None and not self._connect.shares_file):
            return None
        from jobq_sqlite.observations import SqliteObservations  # noqa: PLC0415 - as above

        return SqliteObservations(queue or self.name, self._opened, self._opened_to_read)

    def views(self) -> "SqliteViews":
        """Return what reads all queues of this file."""
        from jobq_sqlite.views import SqliteViews  # noqa: PLC0415 - as above

        return SqliteViews(self._file)

    @property
    def _receiving(self) -> "QueueReceiver":
        if self._receiver is None:
            from jobq_sqlite.receiver import QueueReceiver  # noqa: PLC0415 - as above

            clock = self._file.clock
            self._receiver = QueueReceiver(self.name, self._linked, clock, keep=self._keep, most_bytes=self._most_bytes)
        return self._receiver

    def findings(self) -> AsyncIterator["Finding"]:
        """Look at the file."""
        from jobq_sqlite.examination import findings  # noqa: PLC0415 - as above

        return findings(self._file.path)

    def keeps(self, path: Path) -> bool:
        """Return whether a path leads to the file, or to what SQLite keeps beside it."""
        return is_kept(path, self._file.path)

    def without_loop(self) -> None:
        """Answer each call at once, on the thread that makes it: for one caller, and no event loop (`run_at_once`)."""
        self._connect = SqliteConnection
        self._opening = nullcontext()

    async def __aenter__(self) -> Self:
        self._closed = False
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._closed = True
        async with self._guard():
            connections = dict.fromkeys((self._reader, self._connection))
            self._reader = self._connection = self._link = None
        for connection in connections:
            if connection is not None:
                await connection.stop()

    async def create(self, *, exist_ok: bool = True) -> None:
        """Make the file and the queue where they are missing; raises ConfigurationError unless `exist_ok`."""
        connection = await self._opened(create=True)
        created = await connection.submit(lambda database, now: task_sql.create(database, self.name, now))
        if created:
            await self._forget_deleted(connection)
        if not created and not exist_ok:
            raise ConfigurationError(f"queue {self.name!r} exists already in {self._file.path}")

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        """Add all in one transaction, synced to disk before this returns (S1)."""
        likely = [task.in_epoch(self._epoch) for task in tasks]
        rows = [NewRow(task, task.encode(), task.fingerprint()) for task in likely]
        ids = [task.id for task in tasks]
        if rows:
            connection, queue = await self._linked()
            with self._looked_up_again():
                self._epoch = await connection.submit(
                    lambda database, now: push_sql.push(database, queue, rows, now, self._keep, self._ids_kept),
                    may_undo=True,
                    unknown=lambda text: PushUnknown(text, ids),
                )
            self._wake()
        return ids

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        """Claim up to `max_tasks`; wakes on a push of this process at once, of another within 50 ms."""
        with self._looked_up_again():
            return list(await self._receiving.receive(max_tasks, lease, wait))

    async def receive_as(
        self, worker_id: str, max_tasks: int, lease: timedelta | None, wait: timedelta
    ) -> list[Delivery]:
        """Claim with leases that say whose they are."""
        with self._looked_up_again():
            return list(await self._receiving.receive(max_tasks, lease, wait, worker_id=worker_id))

    async def receive_fitting(
        self, room: "Room", max_tasks: int, lease: timedelta | None, wait: timedelta, *, worker_id: str = ""
    ) -> list[Delivery]:
        """Claim what there is room for."""
        with self._looked_up_again():
            found = self._receiving.receive(max_tasks, lease, wait, worker_id=worker_id or None, room=room)
            return list(await found)

    async def waiting_shapes(self) -> "list[WaitingShape]":
        """Count what waits by what it asks for."""
        return await self._read(lambda database, queue, _: shape_sql.waiting(database, queue))

    async def claim(
        self,
        max_tasks: int,
        lease: timedelta | None,
        wait: timedelta,
        *,
        key: str,
        former: Sequence[str],
        room: "Room | None" = None,
    ) -> "list[SqliteDelivery]":
        """Claim with receipts that follow from a key; see `jobq.servable.Servable`."""
        with self._looked_up_again():
            return await self._receiving.claim(max_tasks, lease, wait, key=key, former=former, room=room)

    async def held(self, task_id: str, receipt: str, body: bytes = b"") -> "SqliteDelivery":
        """Return a delivery by its receipt."""
        seq, number = unpacked(self.name, task_id, receipt)
        link = await self._linked()
        row = ClaimedRow(seq, task_id, body, 0, None, number)
        return self._receiving.deliveries(link, [row], DATABASE.default_lease)[0]

    async def find(self, task_id: str) -> ListedTask | None:
        """Look at one task."""
        return await self._read(lambda database, queue, now: task_listing.find(database, queue, task_id, now))

    async def page(self, kind: Kind, after: str, limit: int) -> tuple[list[ListedTask], str | None]:
        """Look at tasks, by id."""
        return await self._read(
            lambda database, queue, now: task_listing.page(database, queue, kind, after, limit, now)
        )

    async def queues(self) -> list[str]:
        """Return the names of all queues of the file."""
        reader = await self._opened_to_read()
        return await reader.submit(lambda database, _: task_listing.queues(database), writes=False)

    async def document(self, name: str) -> Document | None:
        """Return a document of the service."""
        reader = await self._opened_to_read()
        return await reader.submit(lambda database, _: task_listing.read_document(database, name), writes=False)

    async def write_document(self, name: str, value: bytes, version: int) -> bool:
        """Replace a document of the service."""
        connection = await self._opened()
        return await connection.submit(lambda database, _: task_listing.write_document(database, name, value, version))

    async def holders(self) -> list[str]:
        """Return the ids of the workers that hold leases."""
        return await self._read(task_sql.holders)

    async def end_leases(self, worker_ids: Sequence[str]) -> int:
        """Let the leases of dead workers run out now."""
        connection, queue = await self._linked()
        count = await connection.submit(lambda database, now: task_sql.end_leases(database, queue, worker_ids, now))
        self._wake()
        return count

    def _wake(self) -> None:
        if self._receiver is not None:
            self._receiver.wake()

    def keep_ids(self) -> None:
        """Know the ids of tasks that are done for as long as the file is there."""
        self._ids_kept = math.inf

    def has_one_user(self) -> None:
        """Expect no other process in the file, before it is opened: a write that waits for nobody needs no thread."""
        from jobq_sqlite.loop_connection import LoopConnection  # noqa: PLC0415 - for `jobq run` alone

        self._connect = LoopConnection

    async def go_nameless(self) -> None:
        """Expect the file to be deleted while it is open: this is its only user, and nothing of it shall be left."""
        connection = await self._opened()
        self._reader = self._reader or connection  # by what name could another be opened?
        for each in (connection, self._reader):
            each.file.go_nameless()
        # It ends with this process, so no loss of power is survived in any case: nothing waits for the disk.
        await connection.submit(lambda database, _now: database.execute("PRAGMA synchronous = OFF"), writes=False)

    async def peek(self, limit: int) -> list[Peeked]:
        """Look at what could be received now."""
        found, _ = await self._read(
            lambda database, queue, now: queue_admin.peek(database, queue, 0, limit, now, most_bytes=math.inf)
        )
        return found

    async def peek_page(self, skipped: int, limit: int) -> tuple[list[Peeked], int | None]:
        """Look at some of what could be received now."""
        return await self._read(lambda database, queue, now: queue_admin.peek(database, queue, skipped, limit, now))

    async def stats(self) -> QueueStats:
        """Count all four."""
        return await self._read(queue_admin.stats)

    async def pause(self, mark: Pause) -> None:
        """Hand nothing out."""
        await self._mark(mark)

    async def resume(self) -> Pause | None:
        """Hand tasks out again."""
        former = await self._mark(None)
        self._wake()
        return former

    async def paused(self) -> Pause | None:
        """Return the mark."""
        return await self._read(lambda database, queue, _: queue_admin.paused(database, queue))

    async def _mark(self, mark: Pause | None) -> Pause | None:
        connection, queue = await self._linked()
        with self._looked_up_again():
            return await connection.submit(lambda database, _: queue_admin.pause(database, queue, mark))

    async def hasten(self, ids: Sequence[str]) -> list[Hastened]:
        """Let tasks that are put off be due now, in short transactions."""
        connection, queue = await self._linked()
        try:
            with self._looked_up_again():
                return await connection.each(
                    ids, lambda database, now, id_: queue_admin.hasten(database, queue, id_, now)
                )
        finally:
            self._wake()

    async def clear(self) -> int:
        """Delete what waits or is leased, in short transactions."""
        return (await clear_in_steps(self)).deleted

    async def clear_some(self, cursor: str) -> Cleared:
        """Delete some of it, in the order of arrival up to what was there at first."""
        connection, queue = await self._linked()
        after, last = cursor_of(cursor) or (0, await self._read(lambda database, *_: queue_admin.newest(database)))
        rows = await self._read(lambda database, queue, _: queue_admin.unfinished_rows(database, queue, after, last))
        if not rows:
            return Cleared(0, None)
        counts = await connection.submit(
            lambda database, now: some(rows, lambda seq: queue_admin.clear(database, queue, seq), now.bulk_until)
        )
        return Cleared(sum(counts), f"{rows[len(counts) - 1]}-{last}")

    async def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Look at the dead letters, oldest first."""
        return await all_pages(self.dead_page, limit)

    async def dead_page(self, after: str, limit: int) -> tuple[list[DeadLetter], str | None]:
        """Look at some of the dead letters, oldest first."""
        behind = dead_cursor(after)
        return await self._read(lambda database, queue, _: queue_admin.dead_page(database, queue, behind, limit))

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back, in short transactions."""
        connection, queue = await self._linked()
        try:
            with self._looked_up_again():
                found = await connection.each(
                    ids, lambda database, now, id_: queue_admin.redrive(database, queue, id_, now)
                )
        finally:
            self._wake()
        return list(compress(ids, found))

    async def purge_dead(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters, in short transactions."""
        connection, queue = await self._linked()
        with self._looked_up_again():
            found = await connection.each(ids, lambda database, _, id_: queue_admin.purge_dead(database, queue, id_))
        return list(compress(ids, found))

    async def delete(self, *, only_empty: bool = False) -> None:
        """Delete the queue, at once, and all in it, in short transactions; its named leases stay (S3)."""
        connection, queue = await self._linked()
        with self._looked_up_again():
            await connection.submit(lambda database, _: queue_admin.delete(database, queue, only_empty=only_empty))
        self._link = None
        await self._forget_deleted(connection)

    async def _forget_deleted(self, connection: SqliteConnection) -> None:
        """Delete the rows of queues that are deleted, also of one whose delete was cut off."""
        while rows := await connection.submit(lambda database, _: queue_admin.rows_of_deleted(database), writes=False):
            await connection.each(rows, lambda database, _, seq: queue_admin.forget(database, seq))
        while notes := await connection.submit(
            lambda database, _: queue_admin.notes_of_deleted(database), writes=False
        ):
            await connection.each(notes, lambda database, _, note: queue_admin.forget_note(database, note))

    @contextmanager
    def _looked_up_again(self) -> Iterator[None]:
        """Look the queue up anew at the next call where this one finds that it was deleted: it may be there again."""
        try:
            yield
        except QueueNotFound:
            self._link = None
            raise

    async def _read(self, work: Callable[[sqlite3.Connection, int, Now], T]) -> T:
        """Look at the queue on a connection of its own: what takes long holds up no claim and no renewal."""
        _, queue = await self._linked()
        reader = self._reader or await self._opened_to_read()

        def confirmed(database: sqlite3.Connection, now: Now) -> T:
            task_sql.confirm(database, queue)
            return work(database, queue, now)

        with self._looked_up_again():
            return await reader.submit(confirmed, writes=False)

    async def _linked(self) -> Link:
        """Connect and look up the queue, on first use: a worker may be built before its queue exists."""
        if self._link is None:
            try:
                connection = await self._opened()
            except QueueNotFound:
                raise _missing(self.name, self._file) from None
            self._link = Link(connection, await self._queue_in(connection))
        return self._link

    async def _queue_in(self, connection: SqliteConnection) -> int:
        # Read by itself, not in the transaction of a verb: a queue that is then not committed would be remembered.
        try:
            return await connection.submit(lambda database, _: task_sql.queue_id(database, self.name), writes=False)
        except QueueNotFound as error:
            raise _missing(self.name, self._file, str(error)) from None

    async def _opened(self, *, create: bool = False) -> SqliteConnection:
        async with self._guard():
            if self._closed:
                raise BackendUnavailable(f"{self._file.path} is closed: queue {self.name!r} was left before this call")
            if self._connection is None:
                self._connection = await self._started(OpenFile(self._file, create=create))
            return self._connection

    async def _opened_to_read(self) -> SqliteConnection:
        writer = await self._opened()  # first, for it may have to bring the file up to date
        async with self._guard():
            if self._closed:
                raise BackendUnavailable(f"{self._file.path} is closed: queue {self.name!r} was left before this call")
            if self._reader is None:
                alone = self._connect is SqliteConnection  # nobody waits for it meanwhile
                file = OpenFile(self._file, reads_beside=writer.file)
                self._reader = writer if alone else await self._started(file)
            return self._reader

    async def _started(self, file: OpenFile) -> SqliteConnection:
        if self._connect is None:
            from jobq_sqlite.thread_connection import ThreadConnection  # noqa: PLC0415 - as above

            self._connect = ThreadConnection
        connection = self._connect(file, self._wake)
        await connection.start()
        return connection

    def _guard(self) -> AbstractAsyncContextManager[object]:
        """Let one at a time open or close the file."""
        if self._opening is None:
            from asyncio import Lock  # noqa: PLC0415 - as above

            self._opening = Lock()
        return self._opening


def _missing(name: str, file: StoreFile, said: str = "") -> QueueNotFound:
    if (folder := file.missing_folder()) is not None:
        return QueueNotFound(folder)
    path = file.path
    near = Path(path.name)
    is_near = path.parent == Path("/") and near.is_file() and not path.exists()
    hint = f"; {near} in this folder is sqlite://{near}/{name}" if is_near else ""
    ways = "the first push makes it, or `jobq QUEUE create`"
    return QueueNotFound(f"{said or f'queue {name!r} does not exist'}; {ways} (looked in {path}){hint}")
