"""An SQLite connection that does what it is asked at once, on the thread that asks, without an event loop.

Short commands use it as it is: a loop and a thread are a fifth of their start. Its subclasses answer later.
"""

import sqlite3
import time
from collections.abc import Callable, Generator, Sequence
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

from jobq.errors import BackendUnavailable, JobqError
from jobq_sqlite import transaction
from jobq_sqlite.bulk import ROWS_AT_ONCE, some
from jobq_sqlite.errors import translate
from jobq_sqlite.open_file import OpenFile
from jobq_sqlite.task_sql import Now
from jobq_sqlite.transaction import Operation, Work

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
ItemT = TypeVar("ItemT")


class Answered(Protocol[T_co]):
    """What `submit` returns: an `asyncio.Future`, or what has come to its end already."""

    def __await__(self) -> Generator[object, None, T_co]:
        """Wait for the result; raises what the work raised."""
        ...


class _Done(Generic[T]):
    """An operation that was run."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    def __await__(self) -> Generator[object, None, T]:
        yield from ()
        if self._operation.error is not None:
            raise self._operation.error
        value: T = self._operation.value
        return value


class Link(NamedTuple):
    """An open connection, and the queue's number in the file."""

    connection: "SqliteConnection"
    queue: int


class SqliteConnection:
    """Runs functions on an SQLite connection.

    Args:
        file: opened by `start`.
        on_foreign_write: called after another process has written, while anyone watches, and after tasks were added
            that nobody here has pushed; never by this class.

    Attributes:
        shares_file: whether other processes may use the file.
    """

    shares_file: ClassVar[bool] = True

    def __init__(self, file: OpenFile, on_foreign_write: Callable[[], None]) -> None:
        self.file = file
        self._path = file.path
        self._on_foreign_write = on_foreign_write
        self._stopping = False
        self._database: sqlite3.Connection

    async def start(self) -> None:
        """Open the file; raises what that raises."""
        try:
            self._database = self.file.open()
        except sqlite3.Error as error:
            raise translate(error, self._path) from error

    async def stop(self) -> None:
        """Finish what was handed in, and close the file."""
        self._stopping = True
        self.file.close(self._database)

    async def flush(self) -> None:
        """Return once all that was handed in before is answered, and what was abandoned of it is being given back."""

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
    ) -> Answered[T]:
        """Hand in a function; its result is there once it is durably committed.

        The arguments are those of `Operation`.

        Raises:
            BackendUnavailable: the connection is closed.
        """
        if self._stopping:
            raise BackendUnavailable(f"{self._path} is closed")
        operation = Operation(work, None, writes, may_undo, look_first, unknown, abandoned, patience)
        transaction.run([operation], self._database, self.file)
        return _Done(operation)

    async def each(self, items: Sequence[ItemT], work: Callable[[sqlite3.Connection, Now, ItemT], T]) -> list[T]:
        """Do it for each, in as many transactions as it takes; one that fails leaves what the earlier ones did."""
        done: list[T] = []
        while len(done) < len(items):
            began, rest = time.monotonic(), items[len(done) : len(done) + ROWS_AT_ONCE]

            def step(database: sqlite3.Connection, now: Now, rest: Sequence[ItemT] = rest) -> list[T]:
                return some(rest, lambda item: work(database, now, item), now.bulk_until)

            done += await self.submit(step, may_undo=True)
            if len(done) < len(items):
                await self._pause(time.monotonic() - began)  # who waits for SQLite's lock looks for it now and then
        return done

    async def _pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no loop

    def watch(self, watching: bool) -> None:
        """Begin or end to look for writes of other processes; calls are counted."""
