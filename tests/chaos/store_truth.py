"""What the store itself says of each lease, written by SQLite in the very transaction that granted or ended it.

A trigger copies each change of a task's state or expiry into a table of the test's. So a renewal whose answer was
lost or came late is there if, and only if, the store committed it.
"""

import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

_TABLE = (
    "CREATE TABLE chaos_record"
    " (id TEXT, deliveries INTEGER, state TEXT, expires_at REAL, was_settled INTEGER, wall REAL)"
)
_TRIGGER = (
    "CREATE TRIGGER chaos_recorder AFTER UPDATE OF state, expires_at ON task BEGIN INSERT INTO chaos_record"
    " VALUES (new.id, new.deliveries, new.state, new.expires_at, new.settlements <> old.settlements,"
    " (julianday('now') - 2440587.5) * 86400.0); END"
)


class Attempt(NamedTuple):
    """One delivery of one task: its number is the last part of the fencing token, and JOBQ_ATTEMPT."""

    task: str
    number: int


@dataclass
class Lease:
    """The lease of one delivery, in boottime.

    Attributes:
        expiries: all that were granted, oldest first.
        settlements: what the store accepted.
        ended: when the store ended it, by a settlement or because its holder was known to be dead; None = it ran out,
            or nobody has looked yet.
    """

    expiries: list[float] = field(default_factory=list)
    settlements: list[str] = field(default_factory=list)
    ended: float | None = None


def record_from_now_on(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(_TABLE)
        database.execute(_TRIGGER)


def leases(path: Path) -> dict[Attempt, Lease]:
    ahead = wall_ahead_of_boottime()
    return leases_of(
        (*changed, wall - ahead)
        for *changed, wall in _ask(
            path, "SELECT id, deliveries, state, expires_at, was_settled, wall FROM chaos_record ORDER BY rowid"
        )
    )


def leases_of(changes: Iterable[Any]) -> dict[Attempt, Lease]:
    """Return the leases that a store's changes show: (task, delivery, state, expiry, was settled, moment)."""
    found: dict[Attempt, Lease] = defaultdict(Lease)
    for task, number, state, expires_at, was_settled, moment in changes:
        lease = found[Attempt(task, number)]
        if state == "leased":
            lease.expiries.append(expires_at)
        elif lease.ended is None:
            lease.ended = moment
        if was_settled:
            lease.settlements.append(state)
    return dict(found)


def states(path: Path) -> dict[str, str]:
    return dict(_ask(path, "SELECT id, coalesce(outcome, state) FROM task"))


def wall_ahead_of_boottime() -> float:
    """Return what a wall time of a store on this machine exceeds boottime by."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _ask(path: Path, question: str) -> list[Any]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        return database.execute(question).fetchall()
