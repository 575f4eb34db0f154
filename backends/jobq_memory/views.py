"""All queues of a router, looked at under its lock; see `jobq.journal.views`."""

import math
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final, Self

from jobq.journal.dead_grouping import MOST_GROUPED, DeadGrouping
from jobq.journal.error_grouping import checked_grouping
from jobq.journal.notes import NoteKind, QueueNote
from jobq.journal.records import TaskRecord, TaskState
from jobq.journal.task_filter import TaskFilter
from jobq.journal.task_rows import MOST_BODY_BYTES, TaskDetail, TaskRow, detail_of
from jobq.journal.task_search import FoundTask, SearchStep, TaskOrder, TaskSearch, Walked, float_of, key_of
from jobq.journal.views import (
    BUDGET,
    MOST_COUNTED,
    RECENT,
    Count,
    DeadGroups,
    QueueLine,
    SearchedTo,
    ViewPage,
    checked_limit,
)
from jobq.lease.store import LeaseRecord
from jobq_memory.entry import Entry, State
from jobq_memory.journal import MemoryJournal, record_of
from jobq_memory.leases import MemoryLeases
from jobq_memory.notes import notes_page
from jobq_memory.queue_state import QueueState
from jobq_memory.router import Router

_RECENT_SECONDS: Final = RECENT.total_seconds()
_Rank = tuple[float, ...]
_Ranked = tuple[_Rank, TaskRecord]


class MemoryViews:
    """The queues of a router.

    Args:
        router: holds the tasks.
    """

    def __init__(self, router: Router) -> None:
        self._router = router

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    async def queues(self, after: str, limit: int, *, budget: timedelta = BUDGET) -> ViewPage[QueueLine]:
        """List queues by name."""
        checked_limit(limit)
        ends = time.monotonic() + budget.total_seconds()
        names = [name for name in self._router.queues() if name > after]
        lines: list[QueueLine] = []
        for name in names[:limit]:
            if lines and time.monotonic() >= ends:
                break
            lines.append(self._line(name))
        is_cut = len(lines) < min(len(names), limit)
        return ViewPage(
            rows=lines,
            after=None if len(lines) == len(names) else lines[-1].name,
            searched_to=SearchedTo(looked_at=len(lines)) if is_cut else None,
        )

    async def queue(self, name: str, *, budget: timedelta = BUDGET) -> QueueLine:  # noqa: ARG002 - it takes none
        """Look at one queue."""
        return self._line(name)

    async def tasks(
        self, queue: str, wanted: TaskFilter, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> ViewPage[TaskRow]:
        """List tasks by state."""
        search = TaskSearch(wanted, after, checked_limit(limit), self._router.clock.wall(), budget)
        self._search(queue, search)
        return search.page()

    async def count(
        self, queue: str, wanted: TaskFilter, *, most: int = MOST_COUNTED, budget: timedelta = BUDGET
    ) -> Count:
        """Count tasks."""
        now = self._router.clock.wall()
        search = TaskSearch(wanted, "", most, now, budget, keeps=False)
        self._search(queue, search)
        return replace(search.count(), now=now)

    async def task(self, queue: str, task_id: str) -> TaskDetail | None:
        """Look at one task."""
        journal = MemoryJournal(self._router, queue)
        found = await journal.find([task_id])
        return detail_of(found[0], await journal.attempts(task_id)) if found else None

    async def output(self, queue: str, task_id: str, attempt: int | None = None) -> tuple[int, str] | None:
        """Return the end of an attempt's output."""
        return await MemoryJournal(self._router, queue).output(task_id, attempt)

    async def leases(
        self,
        queue: str,
        prefix: str,
        after: str,
        limit: int,
        *,
        budget: timedelta = BUDGET,  # noqa: ARG002 - of the protocol
    ) -> ViewPage[LeaseRecord]:
        """List named leases by name."""
        checked_limit(limit)
        records = await MemoryLeases(self._router.leases, queue).list()
        found = [each for each in records if each.name.startswith(prefix) and each.name > after]
        return ViewPage(rows=found[:limit], after=found[limit - 1].name if len(found) > limit else None)

    async def dead_groups(
        self,
        queue: str,
        grouping: Sequence[str],
        limit: int,
        *,
        max_age_seconds: float | None = None,
        budget: timedelta = BUDGET,
    ) -> DeadGroups:
        """Group dead letters."""
        checked_limit(limit)
        ends = time.monotonic() + budget.total_seconds()
        found = DeadGrouping(checked_grouping(",".join(grouping)))
        since = -math.inf if max_age_seconds is None else self._router.clock.wall() - max_age_seconds
        with self._router.opened(queue) as store:
            for letter in reversed(store.dead_letters(len(store.entries))):
                if found.looked_at == MOST_GROUPED or time.monotonic() >= ends:
                    return found.groups(limit, is_all=False)
                if letter.died < since:
                    break
                attempts = store.entries[letter.id].attempts
                host = attempts[-1][0].host if attempts else ""
                found.add(letter.id, letter.reason, letter.description, host, letter.died)
        return found.groups(limit, is_all=True)

    async def notes(
        self,
        queue: str,
        kind: NoteKind,
        after: str,
        limit: int,
        *,
        budget: timedelta = BUDGET,  # noqa: ARG002 - of the protocol
    ) -> Sequence[QueueNote]:
        """List notes."""
        return notes_page(self._router, queue, kind, after, limit)

    def _search(self, queue: str, search: TaskSearch) -> None:
        with self._router.opened(queue) as store:
            orders = self._orders(store)
            while (step := search.step()) is not None:
                search.take(step, _walked(orders.get(step.order, []), step))

    def _orders(self, store: QueueState) -> dict[TaskOrder, list[_Ranked]]:
        found: dict[TaskOrder, list[_Ranked]] = {}
        for entry in store.entries.values():
            record = record_of(entry, self._router.clock)
            order = _order_of(entry, record)
            found.setdefault(order, []).append((_rank(order, entry, record), record))
        for ranked in found.values():
            ranked.sort(key=lambda pair: pair[0])
        return found

    def _line(self, name: str) -> QueueLine:
        now = self._router.clock.wall()
        with self._router.opened(name) as store:
            records = [record_of(entry, self._router.clock) for entry in store.entries.values()]
            paused = store.paused
        states = [record.state for record in records]
        waiting = [record.at for record in records if record.state is TaskState.READY and record.at is not None]
        recent = [
            record.state for record in records if record.state.is_final and (record.at or 0.0) > now - _RECENT_SECONDS
        ]
        return QueueLine(
            name=name,
            counts={state: _counted(states.count(state)) for state in TaskState},
            oldest_ready_seconds=max(0.0, now - min(waiting)) if waiting else None,
            ended={state: _counted(recent.count(state)) for state in dict.fromkeys(recent)},
            paused=paused,
        )


def _counted(number: int) -> Count:
    return Count(number=min(number, MOST_COUNTED), is_exact=number <= MOST_COUNTED)


def _order_of(entry: Entry, record: TaskRecord) -> TaskOrder:
    if entry.state is State.SCHEDULED and record.state is TaskState.READY:
        return TaskOrder.DUE
    is_ended = record.state.is_final and record.state is not TaskState.DEAD
    return TaskOrder.ENDED if is_ended else TaskOrder(record.state)


def _rank(order: TaskOrder, entry: Entry, record: TaskRecord) -> _Rank:
    at = record.at or 0.0
    match order:
        case TaskOrder.READY:
            return tuple(map(float, entry.rank))
        case TaskOrder.DEAD | TaskOrder.ENDED:
            return -at, -float(entry.order)
    return at, float(entry.order)


def _walked(ranked: Sequence[_Ranked], step: SearchStep) -> Walked:
    behind = tuple(map(float_of, step.key))
    start = bisect_right(ranked, behind, key=lambda pair: pair[0])
    looked = ranked[start : start + step.look]
    tasks = [FoundTask(key_of(rank), _listed(record), len(record.body)) for rank, record in looked]
    is_all = start + step.look >= len(ranked)
    if is_all or not tasks:
        return Walked(tasks=tasks, looked_at=len(looked))
    return Walked(tasks=tasks, looked_at=len(looked), key=tasks[-1].key, at=tasks[-1].record.at)


def _listed(record: TaskRecord) -> TaskRecord:
    return record if len(record.body) <= MOST_BODY_BYTES else replace(record, body=b"")
