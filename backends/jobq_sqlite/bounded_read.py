"""Reading for a bounded time: another thread interrupts what SQLite is at when that is over.

Not by a progress handler: that is Python, which takes turns with the thread of whoever claims.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, Self

_AGAIN_SECONDS: Final = 0.01  # an interrupt between two statements ends none of them


@contextmanager
def bounded(database: sqlite3.Connection, budget: timedelta) -> Iterator[Callable[[], bool]]:
    """Read in one transaction, in which statements fail once the time is over.

    Args:
        database: only read, by this thread.
        budget: the time, from now on.

    Yields:
        Says whether the time is over; what a statement raises then is for `UntilCut`.
    """
    done, guard = threading.Event(), threading.Lock()
    is_over = threading.Event()

    def watch() -> None:
        left = budget.total_seconds()
        while not done.wait(left):
            is_over.set()
            left = _AGAIN_SECONDS
            with guard:  # what the connection does next is another's
                if not done.is_set():
                    database.interrupt()

    watcher = threading.Thread(target=watch, name="jobq-sqlite time limit", daemon=True)
    database.execute("BEGIN")
    try:
        watcher.start()
        yield is_over.is_set
    finally:
        with guard:
            done.set()
        if watcher.ident is not None:
            watcher.join()
        if database.in_transaction:
            database.execute("ROLLBACK")


class UntilCut:
    """Leaves off where a statement is cut off."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_INTERRUPT
