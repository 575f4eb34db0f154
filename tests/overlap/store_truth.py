"""What the store itself says of each lease, written by SQLite in the very transaction that granted or ended it.

A trigger copies each change of a task's state or expiry into a table of the test's. So a renewal whose answer was
lost or came late is there if, and only if, the store committed it.
"""

import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

_TABLE = "CREATE TABLE overlap_record (id TEXT, deliveries INTEGER, state TEXT, expires_at REAL, was_settled INTEGER)"
_TRIGGER = (
    "CREATE TRIGGER overlap_recorder AFTER UPDATE OF state, expires_at ON task BEGIN INSERT INTO overlap_record"
    " VALUES (new.id, new.deliveries, new.state, new.expires_at, new.settlements <> old.settlements); END"
)


class Attempt(NamedTuple):
    """One delivery of one task: its number is the last part of the fencing token, and JOBQ_ATTEMPT."""

    task: str
    number: int


@dataclass
class Lease:
    """The lease of one delivery: all its expiries, oldest first, and the settlements that the store accepted."""

    expiries: list[float] = field(default_factory=list)
    settlements: list[str] = field(default_factory=list)


def record_from_now_on(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(_TABLE)
        database.execute(_TRIGGER)


def leases(path: Path) -> dict[Attempt, Lease]:
    found: dict[Attempt, Lease] = defaultdict(Lease)
    for task, number, state, expires_at, was_settled in _ask(
        path, "SELECT id, deliveries, state, expires_at, was_settled FROM overlap_record ORDER BY rowid"
    ):
        lease = found[Attempt(task, number)]
        if state == "leased":
            lease.expiries.append(expires_at)
        if was_settled:
            lease.settlements.append(state)
    return dict(found)


def states(path: Path) -> dict[str, str]:
    return dict(_ask(path, "SELECT id, state FROM task"))


def _ask(path: Path, question: str) -> list[Any]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        return database.execute(question).fetchall()
