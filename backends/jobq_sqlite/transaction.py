"""Running a batch of operations in one transaction: what is read, written, undone, and said of it when it fails."""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from jobq.errors import BackendUnavailable, JobqError
from jobq_sqlite import batch_sql
from jobq_sqlite.bulk import SECONDS_AT_ONCE
from jobq_sqlite.errors import leaves_doubt, translate
from jobq_sqlite.open_file import OpenFile
from jobq_sqlite.task_sql import Now

T = TypeVar("T")
Work = Callable[[sqlite3.Connection, Now], T]
GAP_SECONDS: Final = 0.004  # for which one that has written for long leaves the lock to others
_LOOK_SECONDS: Final = 0.001  # between two looks whether the lock is free; often within the gap


@dataclass(slots=True, eq=False)
class Operation:
    """A function that someone on the event loop waits for.

    Attributes:
        work: what to do.
        answer: a future that gets the result, and belongs to the event loop; None = its caller looks at once.
        writes: whether it needs the write lock.
        may_undo: whether it may raise after it has written something; what it wrote is then undone.
        look_first: runs before, without the lock; unless it returns None its result is the answer.
        unknown: makes the error for a commit that may or may not have happened.
        abandoned: called on the event loop with a value that nobody waits for any more.
        patience: seconds to wait for the lock, where nobody in its transaction waits longer; None = as the file says.
        value, error: the answer, before it is delivered.
    """

    work: Work[Any]
    answer: Any
    writes: bool
    may_undo: bool
    look_first: Work[Any] | None
    unknown: Callable[[str], JobqError] | None
    abandoned: Callable[[Any], None] | None
    patience: float | None = None
    value: Any = None
    error: BaseException | None = None


def run(batch: Sequence[Operation], database: sqlite3.Connection, file: OpenFile) -> bool:
    """Give every operation its value or error; those that write are durably committed, or were not done at all.

    Returns:
        Whether tasks were added that none of them has pushed: a batch has finished.
    """
    path = file.path
    try:
        now = file.now(database)
    except sqlite3.Error as error:
        _fail(batch, translate(error, path))
        return False
    except JobqError as error:
        _fail(batch, error)
        return False
    writers = [operation for operation in batch if not _answered_without_lock(operation, database, now, path)]
    try:
        return bool(writers) and _run_in_one_transaction(writers, database, file)
    except sqlite3.Error as error:
        _fail(writers, translate(error, path))
    except JobqError as error:
        _fail(writers, error)
    except Exception as error:  # noqa: BLE001 - such as MemoryError: the callers hear of it, the thread lives on
        _fail(writers, BackendUnavailable(f"{path}: {error!r}; nothing was changed"))
    return False


def _answered_without_lock(operation: Operation, database: sqlite3.Connection, now: Now, path: Path) -> bool:
    look = operation.look_first if operation.writes else operation.work
    if look is None:
        return False
    try:
        operation.value = look(database, now)
    except sqlite3.Error as error:
        operation.error = translate(error, path)
    except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
        operation.error = error
    return not operation.writes or operation.value is not None or operation.error is not None


def _run_in_one_transaction(writers: list[Operation], database: sqlite3.Connection, file: OpenFile) -> bool:
    if database.in_transaction:
        database.execute("ROLLBACK")  # the last one could not be rolled back when it failed
    _take_write_lock(database, file, max(_patience(each, file) for each in writers))
    try:
        return _run_and_commit(writers, database, file)
    finally:
        file.undisturbed.end()


def _run_and_commit(writers: list[Operation], database: sqlite3.Connection, file: OpenFile) -> bool:
    try:
        now = file.now_to_write(database)  # after the wait for the lock, so that no lease is judged by an old time (S4)
        now = now._replace(bulk_until=time.monotonic() + SECONDS_AT_ONCE)
        added = batch_sql.advance(database, now)  # what a cancel has left
        for operation in writers:
            _run_one(operation, database, now)
        added = batch_sql.advance(database, now) or added
    except BaseException:
        _roll_back(database)
        raise
    try:
        database.execute("COMMIT")
    except sqlite3.Error as error:
        _roll_back(database)
        if not leaves_doubt(error):
            raise
        text = f"{file.path}: the commit was not confirmed ({error}); it may or may not have taken effect"
        for operation in writers:
            operation.error = (operation.unknown or BackendUnavailable)(text)
    file.confirm()  # S1: what was written to a file that nobody will open is not acknowledged
    return added


def _patience(operation: Operation, file: OpenFile) -> float:
    return file.busy_timeout if operation.patience is None else min(operation.patience, file.busy_timeout)


def _take_write_lock(database: sqlite3.Connection, file: OpenFile, seconds: float) -> None:
    """Begin to write, once the lock is free, and leave it to the caller to end what is undisturbed.

    SQLite's own waiting looks ten times a second, and seldom meets a gap.
    """
    give_up = time.monotonic() + seconds
    database.execute("PRAGMA busy_timeout = 0")
    try:
        while not _begin(database, file, give_up):
            time.sleep(_LOOK_SECONDS)  # a Ctrl-Z acts here, or after the end
    finally:
        database.execute(f"PRAGMA busy_timeout = {round(file.busy_timeout * 1000)}")


def _begin(database: sqlite3.Connection, file: OpenFile, give_up: float) -> bool:
    file.undisturbed.begin()
    try:
        database.execute("BEGIN IMMEDIATE")
    except BaseException as error:
        file.undisturbed.end()
        is_busy = isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
        if not is_busy or time.monotonic() >= give_up:
            raise
        return False
    return True


def _run_one(operation: Operation, database: sqlite3.Connection, now: Now) -> None:
    if operation.may_undo:
        database.execute("SAVEPOINT one")
    try:
        operation.value = operation.work(database, now)
    except sqlite3.Error:
        raise  # a full disk or a damaged file: SQLite may have rolled back all of it, so nobody hears otherwise
    except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
        operation.error = error
        if operation.may_undo:
            database.execute("ROLLBACK TO one")
    if operation.may_undo:
        database.execute("RELEASE one")


def _roll_back(database: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):  # the first error is the one that counts; the next transaction tries again
        if database.in_transaction:
            database.execute("ROLLBACK")


def _fail(writers: Sequence[Operation], error: JobqError) -> None:
    for operation in writers:
        operation.error = error  # also where an operation had one of its own: it may rest on what was undone
