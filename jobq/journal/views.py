"""The protocol for reading a whole location: what people look at, of all its queues, found in bounded time.

Every verb but those for one task has a time, and returns what it has when that is over, with how far it has looked;
none raises for being slow. Nothing it reads with is shared with who claims, renews or settles.

What comes from users (commands, output, names) is given as it is: whoever shows it escapes it. Bodies and the values
of variables are never given.

What every verb may raise is what a backend's verbs raise, and:
    ConfigurationError: `after` is no place where a page has ended, or a limit is out of range.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, Generic, Protocol, Self, TypeVar, runtime_checkable

from jobq.errors import ConfigurationError
from jobq.formats.lazy_dataclass import dataclass
from jobq.journal.notes import NoteKind, QueueNote
from jobq.journal.records import TaskState
from jobq.journal.task_filter import TaskFilter
from jobq.journal.task_rows import TaskDetail, TaskRow
from jobq.lease.store import LeaseRecord
from jobq.pausing import Pause

T = TypeVar("T")
BUDGET: Final = timedelta(milliseconds=300)  # of one look
MOST_ROWS: Final = 500  # of one page
MOST_COUNTED: Final = 10_000  # rows are counted one by one: beyond, "at least" is said
RECENT: Final = timedelta(minutes=1)  # of `QueueLine.ended`


@dataclass(frozen=True, kw_only=True)
class Count:
    """How many there are.

    Attributes:
        number: as many were counted.
        is_exact: whether there are no more; else these are the least.
        now: the store's time when `Views.count` looked, wall time in seconds since the epoch: tasks that are so since
            then are not among them.
        searched_to: how far was looked, where the time or the number of rows to look at ended it.
    """

    number: int
    is_exact: bool = True
    now: float = 0.0
    searched_to: "SearchedTo | None" = None


@dataclass(frozen=True, kw_only=True)
class SearchedTo:
    """How far a look came that ended before its limit and before the end.

    Attributes:
        looked_at: how many were looked at, these that were found included.
        at: the time of the last of them (`TaskRow.at`); None = nothing was looked at, or it has none.
    """

    looked_at: int
    at: float | None = None


@dataclass(frozen=True, kw_only=True)
class ViewPage(Generic[T]):
    """Some rows of a list.

    Attributes:
        rows: in the order of the list.
        after: what the verb takes to go on behind them; None = this is the end of the list.
        searched_to: how far was looked, where neither the limit nor the end of the list ended it; there may be more, or
            any at all, behind. None = all was looked at up to `after`.
    """

    rows: Sequence[T]
    after: str | None = None
    searched_to: SearchedTo | None = None


@dataclass(frozen=True, kw_only=True)
class QueueLine:
    """A queue in a list.

    Attributes:
        name: of the queue.
        counts: how many tasks are in each state, each up to MOST_COUNTED; one that there was no time for is missing.
        oldest_ready_seconds: for how long the oldest ready task has waited, or the next one where only that is known;
            None = none waits, or there was no time.
        ended: how many tasks ended within RECENT, by state; states without any, and without time, are missing.
        paused: the mark by which nothing is handed out; None = there is none.
        total: about how many tasks there are that are not dead, by the service's own count; None = `counts` says it.
    """

    name: str
    counts: Mapping[TaskState, Count]
    oldest_ready_seconds: float | None = None
    ended: Mapping[TaskState, Count]
    paused: Pause | None = None
    total: int | None = None


@dataclass(frozen=True, kw_only=True)
class DeadGroup:
    """Dead letters that have something in common.

    Attributes:
        name: as `dead list --group-by` names it, `jobq.journal.error_grouping.group_of`.
        facts: what they have in common, by the names that are grouped by.
        count: how many were found.
        hosts: on how many different hosts their last attempts ran, where that is known.
        first, last: when the first and the last of them died, wall time in seconds since the epoch.
        example: the id of the last one.
    """

    name: str
    facts: Mapping[str, str]
    count: int
    hosts: int
    first: float
    last: float
    example: str


@dataclass(frozen=True, kw_only=True)
class DeadGroups:
    """The groups of a queue's dead letters, the largest first.

    Attributes:
        groups: as many as were asked for.
        others: how many further groups there are.
        searched_to: how far was looked, from the newest back; None = at all of them.
    """

    groups: Sequence[DeadGroup]
    others: int = 0
    searched_to: SearchedTo | None = None


class Views(Protocol):
    """The queues of a location, to be looked at; an asynchronous context manager, which connects with its first look.

    QueueNotFound is raised by all but `queues` and `leases` where there is no such queue, and by all where the place
    itself is not there.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    async def queues(self, after: str, limit: int, *, budget: timedelta = BUDGET) -> ViewPage[QueueLine]:
        """Return queues in the store's order of names.

        Args:
            after: "" = from the first; else what a page gave.
            limit: 1 to MOST_ROWS.
            budget: the time; the queues that it was not enough for are on the next page.
        """
        ...

    async def queue(self, name: str, *, budget: timedelta = BUDGET) -> QueueLine:
        """Return one queue, as `queues` lists it."""
        ...

    async def tasks(
        self, queue: str, wanted: TaskFilter, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> ViewPage[TaskRow]:
        """Return tasks, one kind of state after the other.

        These are: expired and running ones, the longest first; ready ones in the order of delivery, but by what they
        ask for first, where the store keeps them so, and then those whose time has come since somebody last asked for
        tasks; scheduled ones, the next first; dead ones and those that ended otherwise, the newest first. Those of a
        batch: in an order of the store's.

        A filter that no index serves (`TaskFilter.is_search`) looks at a bounded number of tasks in one call.

        Args:
            queue: its name.
            wanted: which.
            after: as for `queues`; of the same filter.
            limit: 1 to MOST_ROWS.
            budget: the time.
        """
        ...

    async def count(
        self, queue: str, wanted: TaskFilter, *, most: int = MOST_COUNTED, budget: timedelta = BUDGET
    ) -> Count:
        """Return how many tasks these are.

        Args:
            queue: its name.
            wanted: which.
            most: where counting ends.
            budget: the time.
        """
        ...

    async def task(self, queue: str, task_id: str) -> TaskDetail | None:
        """Return one task with its attempts, found by its id; None = it is forgotten, or never was here."""
        ...

    async def output(self, queue: str, task_id: str, attempt: int | None = None) -> tuple[int, str] | None:
        """Return the number of an attempt that has ended, the last by default, and the end of its output."""
        ...

    async def leases(
        self, queue: str, prefix: str, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> ViewPage[LeaseRecord]:
        """Return named leases with their cursors, in the store's order of names; the queue need not be there.

        Args:
            queue: its name.
            prefix: what their names begin with; "" = all.
            after: as for `queues`.
            limit: 1 to MOST_ROWS.
            budget: the time.
        """
        ...

    async def dead_groups(
        self,
        queue: str,
        grouping: Sequence[str],
        limit: int,
        *,
        max_age_seconds: float | None = None,
        budget: timedelta = BUDGET,
    ) -> DeadGroups:
        """Return what the dead letters have in common, looked at from the newest back.

        Args:
            queue: its name.
            grouping: some of `jobq.journal.error_grouping.GROUPINGS`.
            limit: 1 to MOST_ROWS groups.
            max_age_seconds: of those that died no longer ago; None = of all.
            budget: the time.
        """
        ...

    async def notes(
        self, queue: str, kind: NoteKind, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> Sequence[QueueNote]:
        """Return what was seen of a queue from time to time, by key; without a journal nothing is.

        Args:
            queue: its name.
            kind: of the notes.
            after: the key that they are behind; "" = from the first.
            limit: 1 to `jobq.journal.notes.MOST_NOTES`; fewer than that: there are no more.
            budget: the time.

        Raises:
            BackendUnavailable: there was no time for them.
        """
        ...


@runtime_checkable
class KeepsViews(Protocol):
    """A backend that declares `views`."""

    def views(self) -> Views:
        """Return what reads the whole location of this queue, with connections of its own; not yet entered."""
        ...


@runtime_checkable
class BilledViews(Protocol):
    """Views of a service that bills each look, and perhaps knows no more than counts.

    Attributes:
        refresh_seconds: a page looks again no sooner.
        counts_alone: what is missing, and how to have it, in a sentence; "" = nothing is. Else the verbs that tell of
            tasks raise ConfigurationError, and say this.
    """

    refresh_seconds: int
    counts_alone: str


def views_of(backend: object) -> Views:
    """Return what reads the location of a backend's queue, not yet entered.

    Raises:
        ConfigurationError: nothing can; says what can be looked at.
    """
    if not isinstance(backend, KeepsViews):
        raise ConfigurationError(
            f"the service of queue {getattr(backend, 'name', '?')!r} cannot be looked at as a whole; embedded, SQLite,"
            " PostgreSQL and Azure Storage queues can, the former also over HTTP"
        )
    return backend.views()


def checked_limit(limit: int) -> int:
    """Return the limit of a page; raises ConfigurationError."""
    if not 1 <= limit <= MOST_ROWS:
        raise ConfigurationError(f"a page has 1 to {MOST_ROWS} rows, not {limit}")
    return limit


def is_storable(text: str) -> bool:
    """Return whether each store can hold this text as a name or an id: what none can hold is not there."""
    return not any(each == "\0" or "\ud800" <= each <= "\udfff" for each in text)
