"""One SQLite connection on a thread of its own, with group commit.

Callers on the event loop hand in functions; the thread runs all that wait in one transaction, commits once
(`synchronous=FULL`: one fsync for all of them) and only then answers any of them (S1). While nobody asks, the thread
sleeps, or, while a receive waits, looks every 50 ms whether another process has written.
"""

import asyncio
import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from jobq.errors import BackendUnavailable, JobqError
from jobq_sqlite.faults import leaves_doubt, translate

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

POLL_SECONDS: Final = 0.05  # a push by another process is seen within this; costs about 0.2 % of a core
_MAX_BATCH: Final = 1000  # bounds how long one transaction holds the write lock
_log = logging.getLogger(__name__)


@dataclass
class _Operation:
    work: Work[Any]
    answer: "asyncio.Future[Any]"
    writes: bool
    may_undo: bool  # it may raise after it wrote, so it gets a savepoint
    look_first: Work[Any] | None  # answers without the write lock unless it returns None
    unknown: Callable[[str], JobqError] | None  # the error for a commit that no one can vouch for
    value: Any = None
    error: BaseException | None = field(default=None)


class Connection:
    """Runs functions on an SQLite connection that a thread of its own owns.

    Args:
        path: the file, for messages.
        open_: opens and checks the connection, on the thread; what it raises is raised by `start`.
        on_foreign_write: called on the event loop after another process has written, while anyone watches.
    """

    def __init__(
        self, path: Path, open_: Callable[[], sqlite3.Connection], on_foreign_write: Callable[[], None]
    ) -> None:
        self._path = path
        self._open = open_
        self._on_foreign_write = on_foreign_write
        # None is a nudge: look again at `_watchers` and `_stopping`. Both are written on the loop's thread only.
        self._waiting: SimpleQueue[_Operation | None] = SimpleQueue()
        self._watchers = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name=f"jobq-sqlite {path.name}", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._opened: asyncio.Future[None]

    async def start(self) -> None:
        """Open the file; raises what `open_` raises."""
        self._loop = asyncio.get_running_loop()
        self._opened = self._loop.create_future()
        self._thread.start()
        await self._opened

    async def stop(self) -> None:
        """Finish what was handed in, close the file and end the thread."""
        self._stopping = True
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join)

    def submit(
        self,
        work: Work[T],
        *,
        writes: bool = True,
        may_undo: bool = False,
        look_first: Work[T | None] | None = None,
        unknown: Callable[[str], JobqError] | None = None,
    ) -> "asyncio.Future[T]":
        """Hand in a function; the future has its result once it is durably committed.

        Args:
            work: runs on the thread, in a transaction when `writes`, together with others.
            writes: whether it needs the write lock.
            may_undo: whether it may raise after it has written something; what it wrote is then undone.
            look_first: runs before, without the lock; unless it returns None its result is the answer.
            unknown: makes the error for a commit that may or may not have happened.

        A future that is cancelled before the thread comes to it is never run.
        """
        if self._stopping:
            raise BackendUnavailable(f"{self._path} is closed")
        answer: asyncio.Future[T] = self._loop.create_future()
        self._waiting.put(_Operation(work, answer, writes, may_undo, look_first, unknown))
        return answer

    def watch(self, watching: bool) -> None:
        """Begin or end to look for writes of other processes; calls are counted."""
        self._watchers += 1 if watching else -1
        if watching and self._watchers == 1:
            self._waiting.put(None)  # the thread may sleep without a time limit

    def _main(self) -> None:
        try:
            database = self._open()
            seen = _data_version(database)
        except BaseException as error:  # noqa: BLE001 - handed over whole to whoever awaits start()
            self._answer(self._settle_opened, error if isinstance(error, JobqError) else self._translated(error))
            return
        self._answer(self._settle_opened, None)
        try:
            while (batch := self._next_batch()) or not self._stopping:
                if batch:
                    self._run(batch, database)
                else:
                    seen = self._look_for_foreign_writes(database, seen)
        finally:
            database.close()
            self._refuse_the_rest()

    def _refuse_the_rest(self) -> None:
        # Empty after an orderly stop. After a fault of ours nobody may wait for ever.
        self._stopping = True
        rest = self._all_that_wait()
        self._fail(rest, BackendUnavailable(f"the thread that writes {self._path} has ended"))
        self._answer(_deliver, rest)

    def _next_batch(self) -> list[_Operation]:
        """Return what waits; nothing when it is time to look for foreign writes, or to end."""
        batch = self._all_that_wait()
        if batch or self._stopping:
            return batch
        try:
            first = self._waiting.get(timeout=POLL_SECONDS if self._watchers else None)
        except Empty:
            return []
        return ([first] if first is not None else []) + self._all_that_wait()

    def _all_that_wait(self) -> list[_Operation]:
        batch: list[_Operation] = []
        with contextlib.suppress(Empty):
            while len(batch) < _MAX_BATCH:
                operation = self._waiting.get_nowait()
                if operation is not None:
                    batch.append(operation)
        return batch

    def _look_for_foreign_writes(self, database: sqlite3.Connection, seen: int) -> int:
        try:
            now = _data_version(database)
        except sqlite3.Error:
            _log.exception("cannot look for changes in %s", self._path)
            return seen
        if now != seen:
            self._answer(self._on_foreign_write)
        return now

    def _run(self, batch: list[_Operation], database: sqlite3.Connection) -> None:
        wanted = [operation for operation in batch if not operation.answer.cancelled()]
        writers = [operation for operation in wanted if not self._answered_without_lock(operation, database)]
        if writers:
            try:
                self._run_in_one_transaction(writers, database)
            except sqlite3.Error as error:
                self._fail(writers, translate(error, self._path))
        self._answer(_deliver, wanted)

    def _answered_without_lock(self, operation: _Operation, database: sqlite3.Connection) -> bool:
        look = operation.look_first if operation.writes else operation.work
        if look is None:
            return False
        try:
            operation.value = look(database)
        except Exception as error:  # noqa: BLE001 - handed over whole to whoever awaits the answer
            operation.error = self._translated(error)
            return True
        return not operation.writes or operation.value is not None

    def _run_in_one_transaction(self, writers: list[_Operation], database: sqlite3.Connection) -> None:
        database.execute("BEGIN IMMEDIATE")
        try:
            for operation in writers:
                self._run_one(operation, database)
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
        try:
            database.execute("COMMIT")
        except sqlite3.Error as error:
            if database.in_transaction:
                database.execute("ROLLBACK")
            if not leaves_doubt(error):
                raise
            text = f"{self._path}: the commit was not confirmed ({error}); it may or may not have taken effect"
            for operation in writers:
                operation.error = operation.error or (operation.unknown or BackendUnavailable)(text)

    def _run_one(self, operation: _Operation, database: sqlite3.Connection) -> None:
        if operation.may_undo:
            database.execute("SAVEPOINT one")
        try:
            operation.value = operation.work(database)
        except sqlite3.Error:
            raise  # a full disk or a damaged file: SQLite may have rolled back all of it, so nobody is told otherwise
        except Exception as error:  # noqa: BLE001 - handed over whole to whoever awaits the answer
            operation.error = error
            if operation.may_undo:
                database.execute("ROLLBACK TO one")
        if operation.may_undo:
            database.execute("RELEASE one")

    def _fail(self, writers: list[_Operation], error: JobqError) -> None:
        for operation in writers:
            operation.error = operation.error or error

    def _translated(self, error: BaseException) -> BaseException:
        return translate(error, self._path) if isinstance(error, sqlite3.Error) else error

    def _settle_opened(self, error: BaseException | None) -> None:
        if self._opened.cancelled():
            return
        if error is None:
            self._opened.set_result(None)
        else:
            self._opened.set_exception(error)

    def _answer(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop was closed: nobody is left to be told
            _log.debug("an answer from %s found its event loop closed", self._path)


def _data_version(database: sqlite3.Connection) -> int:
    (version,) = database.execute("PRAGMA data_version").fetchone()
    return int(version)


def _deliver(operations: list[_Operation]) -> None:
    for operation in operations:
        if operation.answer.done():
            continue  # cancelled while it ran: the caller's own callback sees to what that means
        if operation.error is None:
            operation.answer.set_result(operation.value)
        else:
            operation.answer.set_exception(operation.error)
