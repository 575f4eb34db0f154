"""An SQLite connection on a thread of its own, with group commit.

Callers on the event loop hand in functions; the thread runs all that wait in one transaction, commits once
(`synchronous=FULL`: one fsync for all of them) and only then answers any of them (S1). While nobody asks, the thread
sleeps, or, while a receive waits, looks every 50 ms whether another process has written.
"""

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from jobq.errors import BackendUnavailable, JobqError, StoreUnusable
from jobq_sqlite import stops, transaction
from jobq_sqlite.connection import SqliteConnection
from jobq_sqlite.errors import translate
from jobq_sqlite.open_file import OpenFile
from jobq_sqlite.task_sql import Now
from jobq_sqlite.transaction import GAP_SECONDS, Operation, Work

T = TypeVar("T")

POLL_SECONDS: Final = 0.05  # a push by another process is seen within this; costs about 0.2 % of a core
_TURN_SECONDS: Final = 0.1  # of one batch after the other, before others get the lock
_MAX_BATCH: Final = 1000  # bounds how long one transaction holds the write lock
_log = logging.getLogger(__name__)


class ThreadConnection(SqliteConnection):
    """Runs functions on an SQLite connection that a thread of its own owns.

    Args:
        file: opened and used on the thread; what that raises is raised by `start`.
        on_foreign_write: called on the event loop after another process has written, while anyone watches.
    """

    def __init__(self, file: OpenFile, on_foreign_write: Callable[[], None]) -> None:
        super().__init__(file, on_foreign_write)
        self._handed_in: list[Operation] = []  # in this turn of the loop; one commit for all of them
        # From loop to thread; an empty list is a nudge: look again at `_watchers` and `_stopping`.
        self._waiting: SimpleQueue[list[Operation]] = SimpleQueue()
        self._backlog: list[Operation] = []  # the thread's own: what did not fit into the last batch
        self._watchers = 0
        self._turn = 0.0  # seconds of batches without a gap
        self._ended_at = 0.0  # the last of them, by the monotonic clock
        self._thread = threading.Thread(target=self._main, name=f"jobq-sqlite {file.path.name}", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._opened: asyncio.Future[None]
        self._ended: asyncio.Future[None]

    async def start(self) -> None:
        """Open the file; raises what that raises."""
        self._loop = asyncio.get_running_loop()
        self._opened = self._loop.create_future()
        self._ended = self._loop.create_future()
        stops.watch(self.file.undisturbed)
        self._thread.start()
        try:
            await self._opened
        except asyncio.CancelledError:
            self._end()  # nobody will ever stop it
            raise

    async def stop(self) -> None:
        """Finish what was handed in, give back what was abandoned meanwhile, close the file and end the thread."""
        try:
            if not self._stopping:
                await self.flush()
        finally:
            self._end()
        await self._ended
        self._thread.join()
        stops.forget(self.file.undisturbed)

    async def flush(self) -> None:
        """Return once all that was handed in before is answered, and what was abandoned of it is being given back."""
        await asyncio.gather(
            self.submit(_nothing, writes=False), return_exceptions=True
        )  # a file that is gone or damaged

    def submit(
        self,
        work: Work[T],
        *,
        writes: bool = True,
        may_undo: bool = False,
        look_first: Work[T | None] | None = None,
        unknown: Callable[[str], JobqError] | None = None,
        abandoned: Callable[[T], None] | None = None,
        patience: float | None = None,
    ) -> "asyncio.Future[T]":
        """Hand in a function; the future has its result once it is durably committed.

        The arguments are those of `Operation`. A future that is cancelled before the thread comes to it is never run.

        Raises:
            BackendUnavailable: the connection is closed.
        """
        if self._stopping:
            raise BackendUnavailable(f"{self._path} is closed")
        answer: asyncio.Future[T] = self._loop.create_future()
        if not self._handed_in:
            self._loop.call_soon(self._hand_over)
        self._handed_in.append(Operation(work, answer, writes, may_undo, look_first, unknown, abandoned, patience))
        return answer

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def watch(self, watching: bool) -> None:
        """Begin or end to look for writes of other processes; calls are counted."""
        self._watchers += 1 if watching else -1
        if watching and self._watchers == 1:
            self._waiting.put([])  # the thread may sleep without a time limit

    def _hand_over(self) -> None:
        if self._handed_in:
            self._waiting.put(self._handed_in)
            self._handed_in = []

    def _end(self) -> None:
        self._hand_over()
        self._stopping = True
        self._waiting.put([])

    def _main(self) -> None:
        try:
            database = self.file.open()
        except BaseException as error:  # noqa: BLE001 - raised by start()
            self._stopping = True
            failure = translate(error, self._path) if isinstance(error, sqlite3.Error) else error
            self._call_on_loop(_settle, self._opened, failure)
            return
        try:
            self._call_on_loop(_settle, self._opened, None)
            self._serve(database)
        finally:
            # Nothing waits after an orderly stop. After a fault of ours nobody may wait for ever.
            self._stopping = True
            with contextlib.suppress(sqlite3.Error):
                self.file.close(database)
            self._refuse_the_rest()
            self._call_on_loop(_settle, self._ended, None)

    def _serve(self, database: sqlite3.Connection) -> None:
        seen: int | None = None
        next_look = 0.0
        while True:
            ending = self._stopping  # read before the queue: all that was handed in stands in it by then
            batch = self._next_batch(next_look if self._watchers else None, block=not ending)
            if batch:
                self._run(batch, database)
            elif ending:
                return
            if self._watchers and time.monotonic() >= next_look:
                seen = self._look_for_foreign_writes(database, seen)
                next_look = time.monotonic() + POLL_SECONDS

    def _next_batch(self, until: float | None, *, block: bool) -> list[Operation]:
        """Return what waits; nothing after a nudge, or at the given time."""
        if block and not self._backlog:
            timeout = None if until is None else max(0.0, until - time.monotonic())
            with contextlib.suppress(Empty):
                self._backlog = self._waiting.get(timeout=timeout)
        with contextlib.suppress(Empty):
            while len(self._backlog) < _MAX_BATCH:
                self._backlog = self._backlog + self._waiting.get_nowait()
        batch, self._backlog = self._backlog[:_MAX_BATCH], self._backlog[_MAX_BATCH:]
        return batch

    def _run(self, batch: list[Operation], database: sqlite3.Connection) -> None:
        self._let_others_in()
        wanted = [operation for operation in batch if not operation.answer.cancelled()]
        began = time.monotonic()
        try:
            if transaction.run(wanted, database, self.file):
                self._call_on_loop(self._on_foreign_write)
        except BaseException:
            _refuse(wanted, f"the thread that writes {self._path} has failed")
            raise
        finally:
            self._call_on_loop(deliver, wanted)
            self._ended_at = time.monotonic()
            self._turn += self._ended_at - began

    def _let_others_in(self) -> None:
        """Leave a gap now and then between batches: SQLite's lock has no queue, and others need it (S11)."""
        if time.monotonic() - self._ended_at >= GAP_SECONDS:
            self._turn = 0.0
        elif self._turn >= _TURN_SECONDS:
            time.sleep(GAP_SECONDS)
            self._turn = 0.0

    def _look_for_foreign_writes(self, database: sqlite3.Connection, seen: int | None) -> int | None:
        try:
            self.file.now(database)
            (now,) = database.execute("PRAGMA data_version").fetchone()
        except StoreUnusable:
            self._call_on_loop(self._on_foreign_write)  # who waits asks, and hears it
            return seen
        except sqlite3.Error:
            _log.exception("cannot look for changes in %s", self._path)
            return seen
        if now != seen:
            self._call_on_loop(self._on_foreign_write)
        return int(now)

    def _refuse_the_rest(self) -> None:
        rest = self._backlog
        with contextlib.suppress(Empty):
            while True:
                rest = rest + self._waiting.get_nowait()
        _refuse(rest, f"the thread that writes {self._path} has ended")
        self._call_on_loop(deliver, rest)

    def _call_on_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop was closed: nobody is left to hear it
            _log.debug("an answer from %s found its event loop closed", self._path)


def _nothing(database: sqlite3.Connection, now: Now) -> None:
    del database, now


def _settle(future: "asyncio.Future[None]", error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _refuse(operations: list[Operation], text: str) -> None:
    for operation in operations:
        operation.error = BackendUnavailable(text)


def deliver(operations: list[Operation]) -> None:
    """Give each its answer, on the event loop."""
    for operation in operations:
        answer, error = operation.answer, operation.error
        if answer.done():  # cancelled while it ran
            if operation.abandoned is not None and error is None:
                operation.abandoned(operation.value)
        elif error is None:
            answer.set_result(operation.value)
        else:
            answer.set_exception(error)
