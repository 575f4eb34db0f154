"""Bugs that the search must find, planted where the store speaks to SQLite."""

import contextlib
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

from tests.crash.workload import Opens, Store


class AcknowledgesFirst(Store):
    """A COMMIT is acknowledged at once, and made with the next statement."""

    _owed = False

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if self._owed:
            self._owed = False
            super().execute("COMMIT")
            if sql == "ROLLBACK":  # of what was left open, as the store takes it
                return super().execute("SELECT 1")
        if sql == "COMMIT":
            self._owed = True
            return super().execute("SELECT 1")
        return super().execute(sql, *arguments)

    def close(self) -> None:
        if self._owed:
            super().execute("COMMIT")
        super().close()


class NeverSyncs(Store):
    """`synchronous` is OFF: a crash of the process loses nothing, the loss of power does."""

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql == "PRAGMA synchronous = FULL":
            sql = "PRAGMA synchronous = OFF"
        return super().execute(sql, *arguments)


class DropsLog(Store):
    """The first of a process to open the file takes its log for rubbish."""

    _open: ClassVar[Counter[Path]] = Counter()

    def __init__(self, database: str, **settings: Any) -> None:
        self._path = Path(unquote(urlsplit(database).path))
        for beside in ("-wal", "-shm") if not self._open[self._path] else ():
            with contextlib.suppress(FileNotFoundError):
                self._path.with_name(f"{self._path.name}{beside}").unlink()
        super().__init__(database, **settings)
        self._open[self._path] += 1

    def close(self) -> None:
        self._open[self._path] -= 1
        super().close()


# By name: what the child opens the file with, and what opens it after the crash.
BUGS: Final[dict[str, tuple[Opens, Opens]]] = {
    "acknowledged before the commit": (AcknowledgesFirst, Store),
    "synchronous=OFF": (NeverSyncs, Store),
    "log deleted on open": (DropsLog, DropsLog),
}
