"""What the SQLite tests share: files on a virtual clock, a look into the file, processes that start fast."""

import multiprocessing
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from jobq.clock import Clock, SystemClock
from jobq.task import Task, TaskResult
from jobq.testing.clock import VirtualClock
from jobq_sqlite import SqliteBackend, StoreFile
from jobq_sqlite.host import BootedHost, this_host

HOST = BootedHost("machine-a", "boot-1")
LEASE = timedelta(seconds=10)
NOW = timedelta(0)
DONE = TaskResult(exit_code=0)

# Processes are forked from a server that has imported everything: 10 ms each instead of 400.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["__main__", "tests.sqlite.children"])


def virtual_file(folder: Path, clock: Clock | None = None, **settings: Any) -> StoreFile:
    settings = {"host": HOST, **settings}
    return StoreFile(path=folder / "jobs.db", clock=clock or VirtualClock(), **settings)


def real_file(path: Path, **settings: Any) -> StoreFile:
    return StoreFile(path=path, clock=SystemClock(), host=this_host(), **settings)


def backend(file: StoreFile, queue: str = "q") -> SqliteBackend:
    return SqliteBackend(file, queue)


def tasks(count: int, prefix: str = "t", **fields: Any) -> list[Task]:
    return [Task.new(command="true", id=f"{prefix}-{number:05}", **fields) for number in range(count)]


def ask(path: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Ask the file itself, past the backend."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as database:
        return database.execute(sql, values).fetchall()


def states(path: Path) -> dict[str, str]:
    return dict(ask(path, "SELECT id, state FROM task"))


def intact(path: Path) -> bool:
    return ask(path, "PRAGMA integrity_check") == [("ok",)]


class Child:
    """A process that reports by lines; `run` gets the arguments and the descriptor to write them to."""

    def __init__(self, run: Callable[..., None], *arguments: object) -> None:
        reader, writer = _processes.Pipe(duplex=False)
        self._reader = reader
        self.process = _processes.Process(target=run, args=(*arguments, writer), daemon=True)
        self.process.start()
        writer.close()
        self._rest = b""

    def line(self) -> str | None:
        """Return the next line, None when the process has ended."""
        while b"\n" not in self._rest:
            more = os.read(self._reader.fileno(), 65536)
            if not more:
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def lines(self) -> list[str]:
        """Return all lines to the end of the process."""
        found = []
        while (line := self.line()) is not None:
            found.append(line)
        self.process.join()
        self._reader.close()
        return found

    def kill(self) -> list[str]:
        """SIGKILL; return what it had said."""
        self.process.kill()
        return self.lines()
