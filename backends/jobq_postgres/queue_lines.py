"""A queue in few numbers, each counted no further than is shown, as SQL; see `jobq.journal.views.QueueLine`."""

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from jobq.journal.records import TaskState
from jobq.journal.task_search import total
from jobq.journal.views import MOST_COUNTED, RECENT, Count, QueueLine, SearchedTo, ViewPage
from jobq.pausing import Pause
from jobq_postgres.bounded_read import BoundedRead, TimeIsOver
from jobq_postgres.journal import OLDEST, age_of

QUEUES: Final = "SELECT queue_id, name, paused FROM jobq.queue WHERE name > $1 ORDER BY name LIMIT $2"
QUEUE: Final = "SELECT name, paused FROM jobq.queue WHERE queue_id = $1"
_COUNTED: Final = "(SELECT count(*) FROM (SELECT FROM jobq.{} LIMIT $2 + 1) AS counted)"
_OURS: Final = "WHERE queue_id = $1 AND"
_WHERE: Final = {
    TaskState.READY: (f"task {_OURS} position IS NOT NULL", f"task {_OURS} due <= $3"),
    TaskState.RUNNING: (f"task {_OURS} expires_at > $3",),
    TaskState.EXPIRED: (f"task {_OURS} expires_at <= $3",),
    TaskState.DEAD: ("dead WHERE queue_id = $1 AND $3::timestamptz IS NOT NULL",),
    TaskState.SCHEDULED: (f"task {_OURS} due > $3",),
}
# Each by the index of its state: none is looked for among others.
COUNTS: Final = {state: "SELECT " + " + ".join(map(_COUNTED.format, where)) for state, where in _WHERE.items()}
ALL_STATES: Final = frozenset(TaskState)
_ENDED_OTHERWISE: Final = frozenset({TaskState.SUCCEEDED, TaskState.CANCELED})
DONE: Final = f"SELECT {_COUNTED.format(f'submission {_OURS} ended_at IS NOT NULL')}"
OTHERWISE: Final = f"""
    SELECT outcome, count(*) FROM (
        SELECT outcome FROM jobq.submission {_OURS} outcome IS NOT NULL LIMIT $2 + 1) AS counted GROUP BY outcome
"""  # noqa: S608 - a constant of ours, every value is bound; so below
ENDED: Final = f"""
    SELECT outcome, count(*) FROM (SELECT outcome FROM jobq.submission {_OURS} ended_at > $3
        ORDER BY ended_at DESC LIMIT $2 + 1) AS counted GROUP BY outcome
"""  # noqa: S608
DIED: Final = """
    SELECT count(*) FROM (SELECT FROM jobq.dead WHERE queue_id = $1 AND died_at > $3
        ORDER BY died_at DESC LIMIT $2 + 1) AS counted
"""


async def state_counts(
    read: BoundedRead, queue: int, wanted: frozenset[TaskState], most: int = MOST_COUNTED
) -> AsyncIterator[tuple[TaskState, Count]]:
    """Yield each of these states with its count; raises TimeIsOver."""
    for state, statement in COUNTS.items():
        if state in wanted:
            (number,) = await read.fetch_one(statement, queue, most, read.now)
            yield state, _capped(number, most)
    if _ENDED_OTHERWISE.isdisjoint(wanted):
        return
    otherwise = {row[0]: int(row[1]) for row in await read.fetch(OTHERWISE, queue, most)}
    others = sum(otherwise.values())
    if TaskState.CANCELED in wanted:
        yield TaskState.CANCELED, Count(number=min(otherwise.get(TaskState.CANCELED, 0), most), is_exact=others <= most)
    if TaskState.SUCCEEDED in wanted:
        (done,) = await read.fetch_one(DONE, queue, most + others)
        is_exact = others <= most and done - others <= most
        yield TaskState.SUCCEEDED, Count(number=max(0, min(done - others, most)), is_exact=is_exact)


async def count(read: BoundedRead, queue: int, states: frozenset[TaskState], most: int) -> Count:
    """Return how many tasks are in these states; of none: in all."""
    counts: list[Count] = []
    try:
        async for _, number in state_counts(read, queue, states or ALL_STATES, most):
            counts.append(number)
    except TimeIsOver:
        counts.append(Count(number=0, is_exact=False))
    return total(counts, most)


async def page(read: BoundedRead, after: str, limit: int, budget: timedelta) -> ViewPage[QueueLine]:
    """Return lines until the time is over, one in any case: the next page would be the same else.

    Args:
        read: whose time has not begun.
        after: the name that they are behind.
        limit: how many.
        budget: the time that counting may take.
    """
    found = await read.fetch(QUEUES, after, limit + 1)
    read.limit(budget)
    lines: list[QueueLine] = []
    for queue, name, paused in found[:limit]:
        if lines and read.is_over:
            break
        lines.append(await _line(read, queue, name, Pause.decode(paused)))
    is_cut = len(lines) < min(len(found), limit)
    return ViewPage(
        rows=lines,
        after=None if len(lines) == len(found) else lines[-1].name,
        searched_to=SearchedTo(looked_at=len(lines)) if is_cut else None,
    )


async def line(read: BoundedRead, queue: int, budget: timedelta) -> QueueLine:
    """Return the line of one queue, as far as the time is enough."""
    name, paused = await read.fetch_one(QUEUE, queue)
    read.limit(budget)
    return await _line(read, queue, name, Pause.decode(paused))


async def _line(read: BoundedRead, queue: int, name: str, paused: Pause | None) -> QueueLine:
    counts: dict[TaskState, Count] = {}
    ended: dict[TaskState, Count] = {}
    oldest: float | None = None
    with suppress(TimeIsOver):
        async for state, number in state_counts(read, queue, ALL_STATES):
            counts |= {state: number}  # those before a cut stay
        async for state, number in _ended(read, queue):
            ended |= {state: number}
        row = await read.fetch_one(OLDEST, queue)
        oldest = None if row is None else age_of(row[0])
    return QueueLine(name=name, counts=counts, oldest_ready_seconds=oldest, ended=ended, paused=paused)


async def _ended(read: BoundedRead, queue: int) -> AsyncIterator[tuple[TaskState, Count]]:
    values: tuple[Any, ...] = queue, MOST_COUNTED, read.now - RECENT
    found = await read.fetch(ENDED, *values)
    is_all = sum(number for _, number in found) <= MOST_COUNTED
    for outcome, number in found:
        state = TaskState.SUCCEEDED if outcome is None else TaskState(outcome)
        yield state, Count(number=min(number, MOST_COUNTED), is_exact=is_all)
    (dead,) = await read.fetch_one(DIED, *values)
    if dead:
        yield TaskState.DEAD, _capped(dead, MOST_COUNTED)


def _capped(number: int, most: int) -> Count:
    return Count(number=min(number, most), is_exact=number <= most)
