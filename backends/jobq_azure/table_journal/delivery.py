"""A delivery of an Azure queue that tells the journal of itself: after the queue has answered, and never on its way."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from jobq.backend import Delivery, FencingNumber
from jobq.clock import SystemClock
from jobq.errors import LockLost, MalformedTask
from jobq.journal.page import Page, final_of
from jobq.journal.records import RELEASED, Attempt
from jobq.task import OutcomeKind, Task, TaskResult
from jobq_azure.table_journal.checkpoints import Checkpoints, Claim
from jobq_azure.table_journal.entities import born
from jobq_azure.table_journal.recorder import After, Held, Notebook, numbered

if TYPE_CHECKING:
    from collections.abc import MutableSet

_CLOCK: Final = SystemClock()
_log: Final = logging.getLogger(__name__)


@runtime_checkable
class _Copying(Protocol):
    """A delivery that goes back to the queue as a copy, whose original is completed then."""

    on_requeued: Callable[[], None]

    @property
    def origin(self) -> str:
        """What all copies of one task have in common, and no other task."""
        ...


class JournaledDelivery:
    """One delivery; each verb is the queue's own, and is told of once it is confirmed (S5).

    Args:
        inner: the queue's delivery.
        notebook: takes what is told.
        since: boottime in seconds, read before the receive was sent.
        on_their_way: the backend's; holds each settle until it is answered, whether or not anybody waits for it.
        checkpoints: where they are kept if not by the queue; None = by the queue.
        checkpoint: as it was found there.

    Attributes:
        page: what the attempt tells.
    """

    def __init__(
        self,
        inner: Delivery,
        notebook: Notebook,
        since: float,
        on_their_way: "MutableSet[asyncio.Task[None]]",
        checkpoints: Checkpoints | None = None,
        checkpoint: str | None = None,
    ) -> None:
        self.page = Page()
        self._inner = inner
        self._notebook = notebook
        self._on_their_way = on_their_way
        self._checkpoints = checkpoints
        self._checkpoint = checkpoint
        self._since = since
        self._seconds = inner.lease.total_seconds()
        self._leased = time.time()
        self._is_settled = False
        self._is_replaced = False  # the queue has a copy, of which the journal was told: no word of this one follows
        self._tell_held()

    @property
    def id(self) -> str:
        """The task's id; see `Delivery`, as for the next."""
        return self._inner.id

    @property
    def body(self) -> bytes:
        """The message as stored."""
        return self._inner.body

    @property
    def task(self) -> Task:
        """The task in the body; raises MalformedTask."""
        return self._inner.task

    @property
    def lease(self) -> timedelta:
        """The length that was granted."""
        return self._inner.lease

    @property
    def deliveries(self) -> int:
        """The service's count."""
        return self._inner.deliveries

    @property
    def fencing(self) -> FencingNumber:
        """The number that the task may show to others."""
        return self._inner.fencing

    @property
    def checkpoint_value(self) -> str | None:
        """The last accepted checkpoint."""
        return self._inner.checkpoint_value if self._checkpoints is None else self._checkpoint

    @property
    def born(self) -> str:
        """What tells the task from another of this id; "" = unknown."""
        try:
            return born(self._inner.task)
        except MalformedTask:
            return ""

    @property
    def lease_seconds(self) -> float:
        """How long the lease is."""
        return self._seconds

    def is_open(self) -> bool:
        """Whether it may still run: it is not settled, and its lease is not over."""
        return not self._is_settled and _CLOCK.boottime() < self._since + self._seconds

    async def renew(self, lease: timedelta) -> timedelta | None:
        """Extend the lease, and tell how the attempt is."""
        sent = _CLOCK.boottime()
        shorter = await self._inner.renew(lease)
        self._since, self._seconds = sent, (shorter or lease).total_seconds()
        self._tell_held()
        return shorter

    async def complete(self, result: TaskResult) -> None:
        """End the task as done, or as canceled or moved where that was judged."""

        def tell() -> None:
            attempt = self.page.attempt or _attempt_of(result)
            self._tell_ended(replace(attempt, then=final_of(self.page) or "done"), None)
            if self._checkpoints is not None and (self._checkpoint is not None or has_been_delivered(self._inner)):
                self._checkpoints.forget(claim_of(self._inner))

        await self._settle(self._inner.complete(result), tell)

    async def requeue(self, task: Task, delay: timedelta) -> None:
        """Put it back."""
        fencing = max(
            self.fencing, FencingNumber(max(task.epoch, self.fencing.epoch), task.generation, self.deliveries)
        )

        def after() -> After:
            return After(fencing=fencing, due=time.time() + max(0.0, delay.total_seconds()))

        def tell() -> None:
            attempt = self.page.attempt or Attempt(
                attempt=self.deliveries, outcome=OutcomeKind.FAILED, then="retry", ended=time.time()
            )
            self._tell_ended(replace(attempt, then="retry"), after())

        if isinstance(self._inner, _Copying):
            self._inner.on_requeued = lambda: self._tell_of_copy(after())
        await self._settle(self._inner.requeue(task, delay), tell)

    async def release(self) -> None:
        """Put it back unstarted."""
        fencing = self.fencing
        if isinstance(self._inner, _Copying):  # its clone is of the next generation
            fencing = fencing._replace(generation=fencing.generation + 1)
            self._inner.on_requeued = lambda: self._tell_of_copy(After(fencing=fencing, due=time.time()))

        def tell() -> None:
            attempt = Attempt(attempt=self.deliveries, outcome=RELEASED, then="retry", ended=time.time())
            self._tell_ended(attempt, After(fencing=fencing, due=time.time()))

        await self._settle(self._inner.release(), tell)

    async def dead_letter(self, reason: str, description: str) -> None:
        """Move it to the dead-letter place."""

        def tell() -> None:
            attempt = self.page.attempt or Attempt(
                attempt=self.deliveries, outcome=reason, then="dead", ended=time.time(), detail=description[:2000]
            )
            self._tell_ended(replace(attempt, then="dead"), None, reason, description)

        await self._settle(self._inner.dead_letter(reason, description), tell)

    async def checkpoint(self, value: str, number: int = 0) -> None:
        """Save the task's progress: beside it, or, where the queue has no place for it, in the journal (S9)."""
        if self._checkpoints is None:
            await self._inner.checkpoint(value, number)
        else:
            # The fence of the queue first: who has lost the lock saves nothing (S4). Then that of the row.
            await self.renew(self._inner.lease)
            await self._checkpoints.save(claim_of(self._inner), value, number)
            self._checkpoint = value
        self._tell_held()

    def _tell_of_copy(self, after: After) -> None:
        self._is_replaced = True
        self._safely(lambda: self._notebook.replaced(self._held(), after))

    def _tell_held(self) -> None:
        if self._is_replaced:
            return
        self._safely(lambda: self._notebook.held(self._held(self.page.told())))

    def _safely(self, tell: Callable[[], None]) -> None:
        """Tell, and let no fault of that pass for one of the queue: a confirmed renewal or settle stays what it is."""
        try:
            tell()
        except Exception:  # noqa: BLE001 - told with its traceback
            _log.exception("task %s: internal error of the journal", self.id)

    def _held(self, beat: str | None = None) -> Held:
        try:
            task: Task | None = self._inner.task
        except MalformedTask:
            task = None
        return Held(
            id=self.id,
            fencing=self.fencing,
            task=task,
            checkpoint=self.checkpoint_value,
            since=self._since,
            lease_seconds=self._seconds,
            leased=self._leased,
            beat=beat,
        )

    def _tell_ended(
        self, attempt: Attempt, after: After | None, reason: str | None = None, description: str = ""
    ) -> None:
        self._notebook.ended(
            self._held(),
            numbered(attempt, self.deliveries),
            self.page.output,
            after,
            reason=reason,
            description=description,
            wished=self.page.cancel.is_set() and after is None,
        )

    async def _settle(self, request: Awaitable[None], tell: Callable[[], None]) -> None:
        """Settle, and tell of it once that is confirmed, also when nobody waits for it any more."""

        async def settled() -> None:
            await request
            self._is_settled = True
            self._safely(tell)

        settling = asyncio.ensure_future(settled())
        self._on_their_way.add(settling)
        settling.add_done_callback(self._answered)
        await asyncio.shield(settling)

    def _answered(self, settling: "asyncio.Task[None]") -> None:
        self._on_their_way.discard(settling)
        if not settling.cancelled() and isinstance(settling.exception(), LockLost):
            self._is_settled = True


def has_been_delivered(inner: Delivery) -> bool:
    """Tell whether others may have held this task before."""
    return inner.fencing[1:] > (0, 1)


def claim_of(inner: Delivery) -> Claim:
    """Return who holds a task, for its checkpoint."""
    origin = inner.origin if isinstance(inner, _Copying) else ""
    return Claim(id=inner.id, life=born(inner.task) or origin, fencing=inner.fencing)


def _attempt_of(result: TaskResult) -> Attempt:
    return Attempt(
        attempt=result.attempt or 0,
        outcome=str(result.outcome),
        then="done",
        ended=time.time() if result.ended is None else result.ended,
        started=result.started,
        exit_code=result.exit_code,
        value=result.value,
    )
