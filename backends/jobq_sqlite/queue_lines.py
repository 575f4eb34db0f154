"""A queue in few numbers, each counted no further than is shown, as SQL; see `jobq.journal.views.QueueLine`."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
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
_COUNTED_BY: Final = {
    TaskState.READY: ("ready", "due"),
    TaskState.RUNNING: ("running",),
    TaskState.EXPIRED: ("expired",),
    TaskState.DEAD: ("dead",),
    TaskState.SCHEDULED: ("scheduled",),
}
ALL_STATES: Final = frozenset(TaskState)
_ENDED_OTHERWISE: Final = frozenset({TaskState.SUCCEEDED, TaskState.CANCELED})
OTHERWISE: Final = (
    "SELECT outcome, count(*) FROM (SELECT outcome FROM task WHERE queue_id = :queue AND outcome IS NOT NULL"
    " LIMIT :most + 1) GROUP BY outcome"
)
ENDED: Final = (
    "SELECT outcome, count(*) FROM (SELECT outcome FROM task WHERE queue_id = :queue AND state = '{}'"
    " AND finished_at > :since ORDER BY finished_at DESC LIMIT :most + 1) GROUP BY outcome"
)


def state_counts(
    database: sqlite3.Connection, queue: int, wanted: frozenset[TaskState], now: Now, most: int = MOST_COUNTED
) -> Iterator[tuple[TaskState, Count]]:
    """Yield each of these states with its count, as far as they are known when it is cut off."""
    values = {"queue": queue, "wall": now.wall, "boottime": now.boottime, "most": most}

    def counted(name: str, more: int = 0) -> int:
        found = database.execute(COUNTS[name], {**values, "most": most + more}).fetchone()
        return int(found[0])

    for state, names in _COUNTED_BY.items():
        if state in wanted:
            yield state, _capped(sum(map(counted, names)), most)
    if not _ENDED_OTHERWISE.isdisjoint(wanted):
        yield from _ended_otherwise(dict(database.execute(OTHERWISE, values).fetchall()), wanted, counted, most)


def _ended_otherwise(
    otherwise: Mapping[str, int], wanted: frozenset[TaskState], counted: Callable[[str, int], int], most: int
) -> Iterator[tuple[TaskState, Count]]:
    others = sum(otherwise.values())
    if TaskState.CANCELED in wanted:
        yield TaskState.CANCELED, Count(number=min(otherwise.get(TaskState.CANCELED, 0), most), is_exact=others <= most)
    if TaskState.SUCCEEDED in wanted:
        succeeded = counted("done", others) - others
        is_exact = others <= most and succeeded <= most
        yield TaskState.SUCCEEDED, Count(number=max(0, min(succeeded, most)), is_exact=is_exact)


def count(
    database: sqlite3.Connection, queue: int, states: frozenset[TaskState], most: int, now: Now, budget: timedelta
) -> Count:
    """Return how many tasks are in these states; of none: in all."""
    counts: list[Count] = []
    with bounded(database, budget), UntilCut():
        for _, number in state_counts(database, queue, states or ALL_STATES, now, most):
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
        counts.update(state_counts(database, queue, ALL_STATES, now))  # one by one: those before a cut stay
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
