"""Going through the tasks of a queue for a page or a count, step by step: what to read next, and when it is enough.

No store is touched here: each reads what a step says, in its own order, and gives it back (`take`).
"""

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from jobq.errors import ConfigurationError
from jobq.formats.lazy_dataclass import dataclass
from jobq.journal.records import TaskRecord, TaskState
from jobq.journal.task_filter import Needles, TaskFilter
from jobq.journal.task_rows import MOST_LISTED, MOST_SHOWN, TaskRow, row_of
from jobq.journal.views import MOST_COUNTED, Count, SearchedTo, ViewPage

MOST_ENDED: Final = 20_000  # tasks that one search looks at: those have their records looked up, too
MOST_WAITING: Final = 50_000
_LOOKED_AT_ONCE: Final = 1000  # of one step: what it has found is kept when the next one is cut off
_WANTED_AT_ONCE: Final = 200  # and of those that have to be read with their bodies no more than these
_MOST_KEY: Final = 500  # characters of a part of a place


class TaskOrder(StrEnum):
    """A part of the tasks that has an order of its own; a list shows one after the other."""

    EXPIRED = "expired"
    RUNNING = "running"
    READY = "ready"
    DUE = "due"  # scheduled, and its time has come since somebody last asked for tasks
    SCHEDULED = "scheduled"
    DEAD = "dead"
    ENDED = "ended"

    @property
    def is_leased(self) -> bool:
        """Whether somebody has these tasks, or had them to the end of a lease."""
        return self in (TaskOrder.EXPIRED, TaskOrder.RUNNING)


_SHOWN_BY: Final = {
    TaskState.EXPIRED: {TaskOrder.EXPIRED},
    TaskState.RUNNING: {TaskOrder.RUNNING},
    TaskState.READY: {TaskOrder.READY, TaskOrder.DUE},
    TaskState.SCHEDULED: {TaskOrder.SCHEDULED},
    TaskState.DEAD: {TaskOrder.DEAD},
}
_ENDS: Final = {TaskOrder.DEAD, TaskOrder.ENDED}
Key = tuple[str, ...]  # where one row stands in an order, as its store writes it; () = before the first


class SearchStep(NamedTuple):
    """What to read next.

    Attributes:
        order: which tasks.
        key: from behind which.
        look: how many to look at.
        want: how many to return, of those that may be meant.
        needles: by which others are passed over.
        states: of those that have ended otherwise than dead, which; none = all.
        newest, oldest: wall times between which those ended that may be meant, dead or not; infinite = any, for a
            clock that was put back has ends that are to come.
        asks_body: whether bodies are wanted; else they may be left empty.
        asks_last: whether last attempts are; else they may be left out.
    """

    order: TaskOrder
    key: Key
    look: int
    want: int
    needles: Needles
    states: frozenset[TaskState]
    newest: float
    oldest: float
    asks_body: bool
    asks_last: bool


class FoundTask(NamedTuple):
    """One that may be meant.

    Attributes:
        key: where it stands.
        record: with its last attempt, if it was asked for; an empty body where that is too large, or was not.
        body_bytes: how large it is.
    """

    key: Key
    record: TaskRecord
    body_bytes: int


@dataclass(frozen=True, kw_only=True)
class Walked:
    """What a step has read.

    Attributes:
        tasks: of those that were looked at, those that may be meant, in order.
        looked_at: how many were.
        key: of the last one; None = there are no more in this order.
        at: its time, as of `TaskRow.at`, where that is known.
    """

    tasks: Sequence[FoundTask] = ()
    looked_at: int = 0
    key: Key | None = None
    at: float | None = None


class TaskSearch:
    """One call of `Views.tasks`, or of `Views.count`.

    Args:
        wanted: which tasks.
        after: the place to begin at; "" = the first.
        limit: how many are enough.
        now: wall time of the store, in seconds since the epoch.
        keeps: whether the rows are wanted; else they are counted.
        budget: how long it may take, from now on.

    Raises:
        ConfigurationError: `after` is no place.
    """

    def __init__(
        self, wanted: TaskFilter, after: str, limit: int, now: float, budget: timedelta, *, keeps: bool = True
    ) -> None:
        self._wanted = wanted
        self._limit = limit
        self._now = now
        self._keeps = keeps
        self._most_shown = MOST_SHOWN if keeps or wanted.asks_body else 0
        self._asks_error = keeps or bool(wanted.error)
        self.ends = time.monotonic() + budget.total_seconds()
        self._orders = orders_of(wanted)
        self._order, self._key = _place_of(after, self._orders)
        self._rows: list[tuple[TaskOrder, Key, TaskRow]] = []
        self._count = 0
        self._looked_at = 0
        self._cost = 0.0  # share of what a search may look at
        self._at: float | None = None
        self._is_cut = False

    @property
    def is_over(self) -> bool:
        """Whether the time is over; then `cut` it."""
        return time.monotonic() >= self.ends

    def cut(self) -> None:
        """End it where it is."""
        self._is_cut = True

    def step(self) -> SearchStep | None:
        """Return what to read next; None = it has ended."""
        if self.is_over or self._cost >= 1.0:
            self._is_cut = self._is_cut or self._order is not None
        if self._order is None or self._is_cut or self._count > self._limit:
            return None
        want = self._limit + 1 - self._count
        if not self._keeps:
            want = min(want, _WANTED_AT_ONCE if self._most_shown else _LOOKED_AT_ONCE)
        look = _LOOKED_AT_ONCE if self._wanted.is_search else want
        is_ended = self._order is TaskOrder.ENDED
        return SearchStep(
            order=self._order,
            key=self._key,
            look=look,
            want=min(want, look),
            needles=Needles.of(
                self._wanted,
                is_leased=self._order.is_leased,
                is_dead=self._order is TaskOrder.DEAD,
                is_ended=is_ended,
            ),
            states=self._wanted.states if is_ended else frozenset(),
            newest=math.inf if self._wanted.min_age_seconds is None else self._now - self._wanted.min_age_seconds,
            oldest=-math.inf if self._wanted.max_age_seconds is None else self._now - self._wanted.max_age_seconds,
            asks_body=self._most_shown > 0,
            asks_last=self._keeps or self._wanted.asks_last(is_dead=self._order is TaskOrder.DEAD),
        )

    def take(self, step: SearchStep, walked: Walked) -> None:
        """Take in what a step has read."""
        self.take_tasks(step, walked.tasks)
        self.go_on(step, walked)

    def take_tasks(self, step: SearchStep, tasks: Iterable[FoundTask]) -> None:
        """Take in some of what it has read: for who has other things to do in between; then `go_on`."""
        for task in tasks:
            self._take_one(step.order, task)

    def go_on(self, step: SearchStep, walked: Walked) -> None:
        """Go on behind what a step has read."""
        self._looked_at += walked.looked_at
        if self._wanted.is_search:
            self._cost += walked.looked_at / (MOST_ENDED if step.order in _ENDS else MOST_WAITING)
        if walked.key is not None:
            self._key, self._at = walked.key, walked.at
            return
        at = self._orders.index(step.order) + 1
        self._order, self._key = (self._orders[at] if at < len(self._orders) else None), ()

    def _take_one(self, order: TaskOrder, task: FoundTask) -> None:
        row = row_of(task.record, task.body_bytes, self._most_shown, asks_error=self._asks_error)
        if not self._wanted.takes(row, self._now):
            return
        self._count += 1
        if self._keeps:
            shown = row if len(row.runs) <= MOST_LISTED else replace(row, runs=row.runs[:MOST_LISTED])
            self._rows.append((order, task.key, shown))

    def page(self) -> ViewPage[TaskRow]:
        """Return what was found."""
        shown = self._rows[: self._limit]
        if len(self._rows) > self._limit:
            order, key, _ = shown[-1]
            return ViewPage(rows=[row for *_, row in shown], after=_place(order, key))
        rows = [row for *_, row in shown]
        if self._order is None:
            return ViewPage(rows=rows)
        return ViewPage(rows=rows, after=_place(self._order, self._key), searched_to=self._searched_to())

    def count(self) -> Count:
        """Return how many were found."""
        if self._count > self._limit:
            return Count(number=self._limit, is_exact=False)
        if self._order is None:
            return Count(number=self._count)
        return Count(number=self._count, is_exact=False, searched_to=self._searched_to())

    def _searched_to(self) -> SearchedTo:
        return SearchedTo(looked_at=self._looked_at, at=self._at)


def orders_of(wanted: TaskFilter) -> list[TaskOrder]:
    """Return in which orders there may be tasks that are meant."""
    if not wanted.states:
        return list(TaskOrder)
    shown = {order for state in wanted.states for order in _SHOWN_BY.get(state, {TaskOrder.ENDED})}
    return [order for order in TaskOrder if order in shown]


def total(counts: Iterable[Count], most: int = MOST_COUNTED) -> Count:
    """Return how many these are together."""
    found = list(counts)
    number = sum(count.number for count in found)
    return Count(number=min(number, most), is_exact=number <= most and all(count.is_exact for count in found))


def key_of(parts: Sequence[object]) -> Key:
    """Return the values that say where a row stands as texts, without a loss."""
    return tuple([part.hex() if isinstance(part, float) else str(part) for part in parts])


def no_place() -> ConfigurationError:
    """Return what to say of an `after` that no page has given."""
    return ConfigurationError("this is no place in a list of tasks")


def float_of(text: str) -> float:
    """Return the number in a place; raises ConfigurationError."""
    try:
        found = float.fromhex(text)
    except (ValueError, OverflowError):
        raise no_place() from None
    if not math.isfinite(found):
        raise no_place()
    return found


def whole_of(text: str) -> int:
    """Return the whole number of 64 bits in a place; raises ConfigurationError."""
    if not (text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 20):  # noqa: PLR2004 - digits
        raise no_place()
    found = int(text)
    if not -(2**63) <= found < 2**63:
        raise no_place()
    return found


def _place(order: TaskOrder, key: Key) -> str:
    return f"{order}:{json.dumps(key)}"


def _place_of(after: str, orders: Sequence[TaskOrder]) -> tuple[TaskOrder | None, Key]:
    if not after:
        return (orders[0] if orders else None), ()
    name, _, text = after.partition(":")
    try:
        key = json.loads(text)
    except (ValueError, RecursionError):
        raise no_place() from None
    is_key = isinstance(key, list) and all(isinstance(part, str) and len(part) <= _MOST_KEY for part in key)
    if not (is_key and name in orders) or any("\0" in part for part in key):
        raise no_place()
    return TaskOrder(name), tuple(key)
