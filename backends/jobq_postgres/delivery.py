"""A leased row behind the delivery protocol; every verb is fenced by its receipt (S4)."""

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, Protocol

from jobq.backend import FencingNumber
from jobq.errors import MalformedTask
from jobq.journal.page import Page, final_of
from jobq.journal.records import RELEASED, Attempt
from jobq.servable import packed, result_json
from jobq.task import Task, TaskResult
from jobq_postgres.queue_admin import bytes_of, text_of
from jobq_postgres.settle import Change, Leased, no_delay, noted, said

_LONGEST_SECONDS: Final = 5.0


class Verbs(Protocol):
    """The groups that run the verbs of many deliveries."""

    def run(self, verb: str, change: Change, seconds: float) -> Awaitable[bool]:
        """Run one, and tell whether the task is to be canceled; a lost answer is SettlementUnknown."""
        ...


class PostgresDelivery:
    """One task leased from a PostgreSQL queue.

    Args:
        verbs: runs its verbs.
        row: what was claimed, with the receipt.
        lease: the length that was granted.
        changed: called when something may have become ready in this process's sight.
        queue: the queue's name, for a receipt that others may use (`jobq.servable`).
        keeps_result: whether the result of the task is kept with its id, for the service to show.
        journaled: whether a journal is kept.

    Attributes:
        page: what is told the journal of it; None = there is none.
    """

    def __init__(
        self,
        verbs: Verbs,
        row: Leased,
        lease: timedelta,
        changed: Callable[[], None],
        *,
        queue: str = "",
        keeps_result: bool = False,
        journaled: bool = False,
    ) -> None:
        self.lease = lease
        self._queue = queue
        self._keeps_result = keeps_result
        self.page = Page() if journaled else None
        if self.page is not None and row.cancel_requested:
            self.page.cancel.set()
        self._verbs = verbs
        self._row = row
        self._changed = changed
        # As long as the keeper waits for one attempt (1.3 rule 4): a black hole holds up the next one no longer.
        self._seconds = max(0.5, min(lease.total_seconds() / 8, _LONGEST_SECONDS))

    @property
    def id(self) -> str:
        """The task's id."""
        return self._row.id

    @property
    def body(self) -> bytes:
        """The body as stored."""
        return self._row.body

    @property
    def deliveries(self) -> int:
        """The row's count, this delivery included."""
        return self._row.deliveries

    @property
    def checkpoint_value(self) -> str | None:
        """The column, as it was at the claim."""
        return None if self._row.checkpoint is None else text_of(self._row.checkpoint)

    @cached_property
    def task(self) -> Task:
        """The task in the body; raises MalformedTask."""
        return Task.decode(self._row.body)

    @property
    def fencing(self) -> FencingNumber:
        """The number that the task may show to others."""
        try:
            return FencingNumber(self.task.epoch, self.task.generation, self.deliveries)
        except MalformedTask:
            return FencingNumber(0, 0, self.deliveries)

    async def renew(self, lease: timedelta) -> None:
        """Extend the lease from now."""
        canceled = await self._run("renew", lease, None if self.page is None else self.page.told())
        if canceled and self.page is not None:
            self.page.cancel.set()

    async def complete(self, result: TaskResult) -> None:
        """End the task as done."""
        kept = result_json(result) if self._keeps_result else None  # for the service; the journal has its own
        await self._run("complete", said("complete", result), kept, final_of(self.page), *noted(self.page))

    async def requeue(self, task: Task, delay: timedelta) -> None:
        """Put it back with another body, in one UPDATE (S6)."""
        body = task.encode()
        await self._run("requeue", said("requeue", body, delay), body, no_delay(delay), *noted(self.page))

    async def release(self) -> None:
        """Put it back unstarted: one more end is recorded, so that it is no crash (S7)."""
        await self._run("requeue", *release_values(self._row, journaled=self.page is not None))

    async def dead_letter(self, reason: str, description: str) -> None:
        """Move it to the dead-letter place, in one statement (S6)."""
        await self._run(
            "dead_letter", said("dead", reason, description), reason, bytes_of(description), *noted(self.page)
        )

    @property
    def receipt(self) -> str:
        """What finds this delivery again."""
        return packed(self._queue, self.id, self._row.seq, self._row.receipt.hex)

    async def put_back(self, body: bytes, delay: timedelta, said: str) -> None:
        """As `requeue`, with the bytes as they are."""
        await self._run("requeue", said, body, no_delay(delay), *noted(self.page))

    async def bury(self, reason: str, description: str, said: str) -> None:
        """As `dead_letter`, with what tells it from another settle."""
        await self._run("dead_letter", said, reason, bytes_of(description), *noted(self.page))

    async def checkpoint(self, value: str, number: int = 0) -> None:
        """Save the task's progress in its row (S9)."""
        await self._run("checkpoint", bytes_of(value), number)

    async def _run(self, verb: str, *values: object) -> bool:
        canceled = await self._verbs.run(verb, Change(self._row, values), self._seconds)
        if verb in ("requeue", "renew"):
            self._changed()
        return canceled


def release_values(row: Leased, *, journaled: bool) -> tuple[Any, ...]:
    """Return the values of a requeue that gives a delivery back unstarted."""
    page = Page()
    if journaled:
        page.attempt = Attempt(attempt=row.deliveries, outcome=RELEASED, then="retry", ended=time.time())
    return ("release", released(row), timedelta(0), *noted(page))


def released(row: Leased) -> bytes:
    """Return the body of a task that was never started, with that recorded (S7)."""
    try:
        return Task.decode(row.body).released().encode()
    except MalformedTask:
        return row.body
