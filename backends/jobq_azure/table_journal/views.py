"""What people can look at of an Azure queue with a journal, by requests that are few and counted: each is billed."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Final, Self

from jobq.errors import BackendUnavailable
from jobq.journal.dead_grouping import MOST_GROUPED, DeadGrouping
from jobq.journal.error_grouping import checked_grouping
from jobq.journal.notes import NoteKind, QueueNote
from jobq.journal.records import TaskState
from jobq.journal.task_filter import TaskFilter
from jobq.journal.task_rows import TaskDetail, TaskRow, detail_of
from jobq.journal.task_search import TaskSearch
from jobq.journal.views import (
    BUDGET,
    MOST_COUNTED,
    Count,
    DeadGroups,
    QueueLine,
    ViewPage,
    checked_limit,
    is_storable,
)
from jobq.lease.store import LeaseRecord
from jobq_azure.storage.views import REFRESH_SECONDS, StorageViews
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.cancel_requests import CancelRequest, CancelRequests, meant
from jobq_azure.table_journal.client import TableWire
from jobq_azure.table_journal.ended_walk import EndedWalk
from jobq_azure.table_journal.location import TablePlace
from jobq_azure.table_journal.looks import MOST_LOOKS, Looks, LooksUsedUp
from jobq_azure.table_journal.lookup import answered
from jobq_azure.table_journal.pushed_tasks import PushedTasks
from jobq_azure.table_journal.queue_line import ASKED_BEFORE, line_with
from jobq_azure.table_journal.queue_notes import notes_page
from jobq_azure.table_journal.reader import TableJournal
from jobq_azure.table_journal.task_walk import searched

_ANSWER_SECONDS: Final = 5.0
_FAR: Final = 10  # times the time of a look at a database that is near
_NEWEST: Final = float("inf")


class TableViews:
    """One queue with its journal.

    Args:
        counts: of the service; not yet entered, this enters and leaves it.
        name: of the queue.
        place: of the table.

    Attributes:
        refresh_seconds, counts_alone: as of `StorageViews`.
    """

    refresh_seconds = REFRESH_SECONDS
    counts_alone = ""

    def __init__(self, counts: StorageViews, name: str, place: TablePlace) -> None:
        self._service = counts
        self._name = name
        self._wire = TableWire(place, _ANSWER_SECONDS)
        self._cancel_requests = CancelRequests(self._wire)
        self._journal = TableJournal(self._wire, self._cancel_requests, PushedTasks(), _nobody_asks)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._service)
            await stack.enter_async_context(self._wire)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def queues(self, after: str, limit: int, *, budget: timedelta = BUDGET) -> ViewPage[QueueLine]:
        """List this queue, where it is there."""
        found = await self._service.queues(after, limit)
        return ViewPage(rows=[await self._line(line, budget) for line in found.rows])

    async def queue(self, name: str, *, budget: timedelta = BUDGET) -> QueueLine:
        """Count what the service does and what the journal says has not ended, up to two thousand."""
        return await self._line(await self._service.queue(name), budget)

    async def _line(self, line: QueueLine, budget: timedelta) -> QueueLine:
        return await answered(line_with(line, self._looks(budget, MOST_LOOKS - ASKED_BEFORE)))

    async def tasks(
        self, queue: str, wanted: TaskFilter, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> ViewPage[TaskRow]:
        """List what waits in the order of ids, what runs the longest first, what ended the newest first."""
        self._service.checked(queue)
        looks = self._looks(budget, MOST_LOOKS - 1)  # one is for what is to be canceled
        search = TaskSearch(wanted, after, checked_limit(limit), looks.now(), budget * _FAR)
        await answered(searched(search, looks))
        page = search.page()
        if not page.rows and page.after is None:
            await self._service.queue(queue)  # which raises where there is none
        live = [row.id for row in page.rows if not row.state.is_final]
        if not live:
            return page
        requests = await answered(self._cancel_requests.among(live))
        return replace(page, rows=[_marked(row, requests.get(row.id, ())) for row in page.rows])

    async def count(
        self, queue: str, wanted: TaskFilter, *, most: int = MOST_COUNTED, budget: timedelta = BUDGET
    ) -> Count:
        """Count up to some thousand."""
        self._service.checked(queue)
        looks = self._looks(budget, MOST_LOOKS)
        now = looks.now()
        search = TaskSearch(wanted, "", most, now, budget * _FAR, keeps=False)
        await answered(searched(search, looks))
        return replace(search.count(), now=now)

    async def task(self, queue: str, task_id: str) -> TaskDetail | None:
        """Look at one task."""
        self._service.checked(queue)
        if not is_storable(task_id):
            return None
        found = await self._journal.find([task_id])
        return detail_of(found[0], await self._journal.attempts(task_id)) if found else None

    async def output(self, queue: str, task_id: str, attempt: int | None = None) -> tuple[int, str] | None:
        """Return the end of an attempt's output."""
        self._service.checked(queue)
        return await self._journal.output(task_id, attempt) if is_storable(task_id) else None

    async def leases(
        self, queue: str, prefix: str, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> ViewPage[LeaseRecord]:
        """List named leases."""
        return await self._service.leases(queue, prefix, after, limit, budget=budget)

    async def dead_groups(
        self,
        queue: str,
        grouping: Sequence[str],
        limit: int,
        *,
        max_age_seconds: float | None = None,
        budget: timedelta = BUDGET,
    ) -> DeadGroups:
        """Group those that the journal knows to be dead: to see the letters themselves is to lease them."""
        self._service.checked(queue)
        checked_limit(limit)
        found = DeadGrouping(checked_grouping(",".join(grouping)))
        try:
            is_all = await answered(self._group(found, max_age_seconds, self._looks(budget, MOST_LOOKS)))
        except LooksUsedUp:
            is_all = False
        return found.groups(limit, is_all=is_all)

    async def _group(self, found: DeadGrouping, max_age_seconds: float | None, looks: Looks) -> bool:
        """Count dead letters; return whether these were all."""
        key: tuple[str, ...] = ()
        now = looks.now()
        oldest = -_NEWEST if max_age_seconds is None else now - max_age_seconds
        ends = EndedWalk(looks, now)
        while looks.left and found.looked_at < MOST_GROUPED:
            walked = await ends.before(key, _NEWEST, oldest)
            for record in (task.record for task in walked.tasks if task.record.state is TaskState.DEAD):
                host = "" if record.last is None else record.last.host
                found.add(record.id, record.reason or "", record.description or "", host, record.at or 0.0)
            if walked.key is None:
                return True
            key = walked.key
        return False

    async def notes(
        self, queue: str, kind: NoteKind, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> Sequence[QueueNote]:
        """List notes, up to two thousand by two requests."""
        self._service.checked(queue)
        try:
            async with asyncio.timeout(budget.total_seconds() * _FAR):
                return await notes_page(self._wire, self._wire.place.queue, kind, after, limit)
        except TimeoutError:
            raise BackendUnavailable(f"{self._wire.place}: there was no time for the notes") from None

    def _looks(self, budget: timedelta, most: int) -> Looks:
        return Looks(self._wire, time.monotonic() + budget.total_seconds() * _FAR, most)


def _marked(row: TaskRow, requests: Sequence[CancelRequest]) -> TaskRow:
    assert isinstance(row.id, rows.IdOfLife)
    return replace(row, cancel_requested=meant(requests, row.id.birth) is not None)


async def _nobody_asks() -> int | None:
    return None
