"""A queue in few numbers, each counted no further than is shown, as SQL; see `jobq.journal.views.QueueLine`."""

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from jobq.journal.records import TaskState
from jobq.journal.task_search import total
from jobq.journal.views import MOST_COUNTED, RECENT, Count, QueueLine, SearchedTo, ViewPage
from jobq.pausing import Pause
from jobq_sqlite.bounded_read import UntilCut, bounded
from jobq_sqlite.journal import OLDEST
from jobq_sqlite.task_sql import DELETED, Now

QUEUES: Final = (
    f"SELECT queue_id, name, paused FROM queue WHERE name > ? AND substr(name, 1, {len(DELETED)}) <> '{DELETED}'"  # noqa: S608 - constants of ours
    " ORDER BY name LIMIT ?"
)
_COUNTED: Final = "SELECT count(*) FROM (SELECT 1 FROM task WHERE queue_id = :queue AND {} LIMIT :most + 1)"
# Each by the index of its state: none is looked for among others.
COUNTS: Final = {
    name: _COUNTED.format(where)
    for name, where in {
        "ready": "state = 'ready'",
        "due": "state = 'scheduled' AND available_at <= :wall",
        "scheduled": "state = 'scheduled' AND available_at > :wall",
        "running": "state = 'leased' AND expires_at > :boottime",
        "expired": "state = 'leased' AND expires_at <= :boottime",
        "dead": "state = 'dead'",
        "done": "state = 'done'",
    }.items()
}
OTHERWISE: Final = (
    "SELECT outcome, count(*) FROM (SELECT outcome FROM task WHERE queue_id = :queue AND outcome IS NOT NULL"
    " LIMIT :most + 1) GROUP BY outcome"
)
ENDED: Final = (
    "SELECT outcome, count(*) FROM (SELECT outcome FROM task WHERE queue_id = :queue AND state = '{}'"
    " AND finished_at > :since ORDER BY finished_at DESC LIMIT :most + 1) GROUP BY outcome"
)


def state_counts(
    database: sqlite3.Connection, queue: int, now: Now, most: int = MOST_COUNTED
) -> Iterator[tuple[TaskState, Count]]:
    """Yield each state with its count, as far as they are known when it is cut off."""
    values = {"queue": queue, "wall": now.wall, "boottime": now.boottime, "most": most}

    def count(name: str, more: int = 0) -> int:
        found = database.execute(COUNTS[name], {**values, "most": most + more}).fetchone()
        return int(found[0])

    yield TaskState.READY, _capped(count("ready") + count("due"), most)
    for state in (TaskState.RUNNING, TaskState.EXPIRED, TaskState.DEAD, TaskState.SCHEDULED):
        yield state, _capped(count(state), most)
    otherwise: dict[str, int] = dict(database.execute(OTHERWISE, values).fetchall())
    others = sum(otherwise.values())
    is_all = others <= most
    for state in (TaskState.CANCELED, TaskState.MOVED):
        found = otherwise.get(state, 0)
        yield state, Count(number=min(found, most), is_exact=is_all)
    succeeded = count("done", others) - others
    yield TaskState.SUCCEEDED, Count(number=min(succeeded, most), is_exact=is_all and succeeded <= most)


def count(
    database: sqlite3.Connection, queue: int, states: frozenset[TaskState], most: int, now: Now, budget: timedelta
) -> Count:
    """Return how many tasks are in these states; of none: in all."""
    counts: list[Count] = []
    with bounded(database, budget), UntilCut():
        for state, number in state_counts(database, queue, now, most):
            if not states or state in states:
                counts.append(number)
        return total(counts, most)
    return total([*counts, Count(number=0, is_exact=False)], most)


def page(database: sqlite3.Connection, after: str, limit: int, now: Now, budget: timedelta) -> ViewPage[QueueLine]:
    """Return lines until the time is over, one in any case: the next page would be the same else.

    Args:
        database: is only read.
        after: the name that they are behind.
        limit: how many.
        now: the time of day.
        budget: the time that counting may take.
    """
    found = database.execute(QUEUES, (after, limit + 1)).fetchall()
    lines: list[QueueLine] = []
    with bounded(database, budget) as is_over:
        for queue, name, paused in found[:limit]:
            if lines and is_over():
                break
            lines.append(_line(database, queue, name, Pause.decode(paused), now))
    is_cut = len(lines) < min(len(found), limit)
    return ViewPage(
        rows=lines,
        after=None if len(lines) == len(found) else lines[-1].name,
        searched_to=SearchedTo(looked_at=len(lines)) if is_cut else None,
    )


def line(database: sqlite3.Connection, queue: int, now: Now, budget: timedelta) -> QueueLine:
    """Return the line of one queue, as far as the time is enough."""
    name, paused = database.execute("SELECT name, paused FROM queue WHERE queue_id = ?", (queue,)).fetchone()
    with bounded(database, budget):
        return _line(database, queue, name, Pause.decode(paused), now)


def _line(database: sqlite3.Connection, queue: int, name: str, paused: Pause | None, now: Now) -> QueueLine:
    counts: dict[TaskState, Count] = {}
    ended: dict[TaskState, Count] = {}
    oldest: float | None = None
    with UntilCut():
        counts.update(state_counts(database, queue, now))  # one by one: those before a cut stay
        ended.update(_ended(database, queue, now))
        (oldest,) = database.execute(OLDEST, {"queue": queue}).fetchone()
    waited = None if oldest is None else max(0.0, now.wall - oldest)
    return QueueLine(name=name, counts=counts, oldest_ready_seconds=waited, ended=ended, paused=paused)


def _ended(database: sqlite3.Connection, queue: int, now: Now) -> Iterator[tuple[TaskState, Count]]:
    since = now.wall - RECENT.total_seconds()
    for stored, state in (("done", TaskState.SUCCEEDED), ("dead", TaskState.DEAD)):
        values = {"queue": queue, "since": since, "most": MOST_COUNTED}
        found = database.execute(ENDED.format(stored), values).fetchall()
        is_all = sum(number for _, number in found) <= MOST_COUNTED
        for outcome, number in found:
            yield (
                state if outcome is None else TaskState(outcome),
                Count(number=min(number, MOST_COUNTED), is_exact=is_all),
            )


def _capped(number: int, most: int) -> Count:
    return Count(number=min(number, most), is_exact=number <= most)
