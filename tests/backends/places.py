"""How tests reach a store, and change in it what only time would."""

import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from jobq.backend import Backend, Delivery
from jobq.clock import SystemClock
from jobq.task import Task, TaskResult
from jobq_postgres import PostgresBackend
from jobq_sqlite import SqliteBackend, StoreFile
from jobq_sqlite.host import this_host
from tests.postgres.server import Database

Table = SqliteBackend | PostgresBackend
LEASE: Final = timedelta(seconds=10)
NOW: Final = timedelta(0)
DONE: Final = TaskResult(exit_code=0)


class Place(ABC):
    """A store that keeps a table of tasks, on this machine's time."""

    @abstractmethod
    def handle(self, queue: str = "q", *, keep: timedelta = timedelta(days=30)) -> Table:
        """Return another handle, not yet entered; it keeps what has ended for so long."""

    @abstractmethod
    def pass_days(self, days: int) -> None:
        """Let all that has ended have ended so many days earlier, and batches have begun so."""

    @abstractmethod
    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run SQL on the store, past the backend; its tables are in the schema `jobq`."""


@dataclass
class FilePlace(Place):
    """SQLite."""

    path: Path

    def handle(self, queue: str = "q", *, keep: timedelta = timedelta(days=30)) -> Table:
        return SqliteBackend(StoreFile(path=self.path, clock=SystemClock(), host=this_host()), queue, keep=keep)

    def pass_days(self, days: int) -> None:
        seconds = days * 86400
        self.run(f"UPDATE task SET finished_at = finished_at - {seconds}")
        self.run(f"UPDATE attempt SET ended_at = ended_at - {seconds}")
        self.run(f"UPDATE batch SET created_at = created_at - {seconds}, finished_at = finished_at - {seconds}")

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=30)) as database:
            return database.execute(sql.replace("jobq.", "")).fetchall()


@dataclass
class ServerPlace(Place):
    """PostgreSQL."""

    database: Database

    def handle(self, queue: str = "q", *, keep: timedelta = timedelta(days=30)) -> Table:
        return PostgresBackend(self.database.server(), queue, keep=keep)

    def pass_days(self, days: int) -> None:
        age = f"interval '{days} days'"
        self.run(f"UPDATE jobq.submission SET ended_at = ended_at - {age}")
        self.run(f"UPDATE jobq.dead SET died_at = died_at - {age}")
        self.run(f"UPDATE jobq.attempt SET ended_at = ended_at - {age}")
        self.run(f"UPDATE jobq.batch SET created_at = created_at - {age}, finished_at = finished_at - {age}")

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        return self.database.run(sql)


def tasks(count: int, prefix: str = "t", **fields: Any) -> list[Task]:
    """Return new tasks, whose ids are numbered."""
    return [Task.new(command="true", id=f"{prefix}-{number:05}", **fields) for number in range(count)]


async def take(backend: Backend, lease: timedelta = LEASE) -> Delivery:
    """Receive the one task that must be there."""
    (delivery,) = await backend.receive(1, lease, NOW)
    return delivery
