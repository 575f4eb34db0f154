"""What people can look at of a queue that has no journal: what the service counts, and the named leases."""
# ruff: noqa: ARG002 - most verbs of the protocol can only be refused

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NoReturn, Self

from jobq.backend import Backend, QueueStats
from jobq.errors import ConfigurationError, QueueNotFound
from jobq.journal.notes import NoteKind, QueueNote
from jobq.journal.records import TaskState
from jobq.journal.task_filter import TaskFilter
from jobq.journal.task_rows import TaskDetail, TaskRow
from jobq.journal.views import (
    BUDGET,
    MOST_COUNTED,
    Count,
    DeadGroups,
    QueueLine,
    SearchedTo,
    ViewPage,
    checked_limit,
)
from jobq.lease.store import LeaseRecord
from jobq_azure.storage.named_leases import BlobLeases

REFRESH_SECONDS: Final = 30
_LEASES_AT_ONCE: Final = 4  # each is a request, and their names are one
_NO_JOURNAL: Final = (
    "Azure says only about how many tasks there are: for tasks, output, dead letters, charts, hosts and the audit set"
    " JOBQ_JOURNAL=tables for whoever pushes, works and looks"
)


def line_of(name: str, stats: QueueStats) -> QueueLine:
    """Return what a list of queues shows of one by the service's own counts, which are about so."""
    dead = stats.dead or 0
    counts = {TaskState.DEAD: Count(number=min(dead, MOST_COUNTED), is_exact=dead <= MOST_COUNTED)}
    return QueueLine(name=name, counts=counts, ended={}, paused=stats.paused, total=stats.total)


class StorageViews:
    """One queue of an account; the account's other queues are looked at by a dashboard each.

    Args:
        backend: the queue, not yet entered, and nobody else's; this enters and leaves it.
        leases: its named leases.
        account: its account's name.

    Attributes:
        refresh_seconds: each look is billed: a page looks again no sooner.
        counts_alone: what is missing, and how to have it; "" = nothing is.
    """

    refresh_seconds = REFRESH_SECONDS
    counts_alone = _NO_JOURNAL

    def __init__(self, backend: Backend, leases: BlobLeases, account: str) -> None:
        self._backend = backend
        self._name = backend.name
        self._leases = leases
        self._account = account

    async def __aenter__(self) -> Self:
        await self._backend.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._backend.__aexit__(*exc_info)

    async def queues(self, after: str, limit: int, *, budget: timedelta = BUDGET) -> ViewPage[QueueLine]:
        """List this queue, where it is there: to count those of an account would be two requests for each."""
        checked_limit(limit)
        try:
            return ViewPage(rows=[] if after >= self._name else [await self.queue(self._name, budget=budget)])
        except QueueNotFound:
            return ViewPage(rows=[])

    async def queue(self, name: str, *, budget: timedelta = BUDGET) -> QueueLine:
        """Tell what the service counts, about."""
        self.checked(name)
        return line_of(name, await self._backend.stats())

    def checked(self, name: str) -> None:
        """Raise QueueNotFound for another queue than this."""
        if name != self._name:
            raise QueueNotFound(f"{name!a} is not looked at here; `jobq ui {self._account}/QUEUE` shows another queue")

    async def tasks(
        self, queue: str, wanted: TaskFilter, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> ViewPage[TaskRow]:
        """Refuse: nobody knows."""
        self._refuse(queue)

    async def count(
        self, queue: str, wanted: TaskFilter, *, most: int = MOST_COUNTED, budget: timedelta = BUDGET
    ) -> Count:
        """Refuse: nobody knows."""
        self._refuse(queue)

    async def task(self, queue: str, task_id: str) -> TaskDetail | None:
        """Refuse: nobody knows."""
        self._refuse(queue)

    async def output(self, queue: str, task_id: str, attempt: int | None = None) -> tuple[int, str] | None:
        """Refuse: nobody knows."""
        self._refuse(queue)

    async def leases(
        self,
        queue: str,
        prefix: str,
        after: str,
        limit: int,
        *,
        budget: timedelta = BUDGET,
    ) -> ViewPage[LeaseRecord]:
        """List named leases, a few at a time: each is a request."""
        checked_limit(limit)
        if queue != self._name:
            return ViewPage(rows=[])
        names = [name for name in sorted(await self._leases.names()) if name.startswith(prefix) and name > after]
        shown = names[: min(limit, _LEASES_AT_ONCE)]
        found = [record for name in shown if (record := await self._leases.read(name)) is not None]
        if len(shown) == len(names):
            return ViewPage(rows=found)
        is_cut = len(shown) < limit
        return ViewPage(rows=found, after=shown[-1], searched_to=SearchedTo(looked_at=len(shown)) if is_cut else None)

    async def dead_groups(
        self,
        queue: str,
        grouping: Sequence[str],
        limit: int,
        *,
        max_age_seconds: float | None = None,
        budget: timedelta = BUDGET,
    ) -> DeadGroups:
        """Refuse: to see letters is to lease them."""
        self._refuse(queue)

    async def notes(
        self, queue: str, kind: NoteKind, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> Sequence[QueueNote]:
        """Refuse: nobody keeps any."""
        self._refuse(queue)

    def _refuse(self, queue: str) -> NoReturn:
        self.checked(queue)
        raise ConfigurationError(_NO_JOURNAL)
