"""A delivery of an Azure queue that records itself in the journal: after the queue has answered, never on its way."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from jobq.backend import Delivery, Renewed
from jobq.clock import SystemClock
from jobq.delivery import BaseDelivery
from jobq.errors import LockLost, MalformedTask
from jobq.fencing import FencingNumber
from jobq.journal.records import Attempt, Beat
from jobq.settlement import Complete, MoveToDeadLetters, Record, Release, Requeue, Settlement
from jobq.task import OutcomeKind, Task
from jobq_azure.common.letter_work import work_of
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.cancel_requests import CancelRequest
from jobq_azure.table_journal.checkpoints import Checkpoints, Claim
from jobq_azure.table_journal.recorder import After, Held, Notebook, numbered

if TYPE_CHECKING:
    from collections.abc import MutableSet

_CLOCK: Final = SystemClock()
_log: Final = logging.getLogger(__name__)


@runtime_checkable
class _Copying(Protocol):
    """A delivery that goes back to the queue as a copy, whose original is completed then."""

    @property
    def origin(self) -> str:
        """What all copies of one task have in common, and no other work."""
        ...

    async def settle(self, settlement: Settlement, *, on_copied: Callable[[], None] | None = None) -> None:
        """End it; `on_copied` is called once the service has the copy, before the original is completed."""
        ...


@runtime_checkable
class _Dated(Protocol):
    """A delivery whose message says when its task was made."""

    @property
    def message_created(self) -> float | None:
        """Wall time in seconds since the epoch; None = it does not say."""
        ...


class JournaledDelivery(BaseDelivery):
    """One delivery; each verb is the queue's own, and is recorded once it is confirmed (S5).

    Args:
        inner: the queue's delivery.
        notebook: records it.
        since: boottime in seconds, read before the receive was sent.
        on_their_way: the backend's; holds each settle until it is answered, whether or not anybody waits for it.
        checkpoints: where they are kept if not by the queue; None = by the queue.
        checkpoint: as it was found there.
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
        super().__init__(
            id=inner.id,
            body=inner.body,
            deliveries=inner.deliveries,
            lease=inner.lease,
            checkpoint=inner.checkpoint_value if checkpoints is None else checkpoint,
            journaled=True,
        )
        self._inner = inner
        self._notebook = notebook
        self._on_their_way = on_their_way
        self._checkpoints = checkpoints
        self._since = since
        self._seconds = inner.lease.total_seconds()
        self._leased = notebook.now()
        self._beat: Beat | None = None
        self._request: CancelRequest | None = None
        self._is_settled = False
        self._is_replaced = False  # the queue has a copy, which is recorded: nothing of this one follows
        self._record_held()

    def _decoded(self) -> Task:
        return self._inner.task

    def cancel(self, request: CancelRequest) -> None:
        """Take in that somebody wants the task to end: its next renewal says so."""
        self.cancel_requested, self._request = True, request

    @property
    def fencing(self) -> FencingNumber:
        """The queue's number, which it may know also where the task is lost."""
        return self._inner.fencing

    @property
    def birth(self) -> int:
        """Which life of its id it is."""
        return self._held().birth

    @property
    def lease_seconds(self) -> float:
        """How long the lease is."""
        return self._seconds

    def is_open(self) -> bool:
        """Whether it may still run: it is not settled, and its lease is not over."""
        return not self._is_settled and _CLOCK.boottime() < self._since + self._seconds

    async def renew(self, lease: timedelta, beat: Beat | None = None) -> Renewed:
        """Extend the lease, and record how the attempt is."""
        sent = _CLOCK.boottime()
        renewed = await self._inner.renew(lease)
        self.lease, self._beat = self._inner.lease, beat or self._beat
        self._since, self._seconds = sent, (renewed.lease or lease).total_seconds()
        self._record_held()
        return replace(renewed, cancel=self.cancel_requested)

    async def settle(self, settlement: Settlement) -> None:
        """End the delivery, and record that once it is confirmed, also when nobody waits for it any more."""
        after = self._after(settlement)

        async def settled() -> None:
            if after is not None and isinstance(self._inner, _Copying):
                await self._inner.settle(settlement, on_copied=lambda: self._record_copy(after))
            else:
                await self._inner.settle(settlement)
            self._is_settled = True
            self._safely(lambda: self._record_ended(settlement, None if after is None else after()))

        settling = asyncio.ensure_future(settled())
        self._on_their_way.add(settling)
        settling.add_done_callback(self._answered)
        await asyncio.shield(settling)

    def _after(self, settlement: Settlement) -> Callable[[], After] | None:
        """Return what gives the task's place once this is settled; None = it has ended."""
        if not isinstance(settlement, Requeue | Release):
            return None
        seconds, is_requeue = max(0.0, settlement.delay.total_seconds()), isinstance(settlement, Requeue)

        def after() -> After:  # a copy is of the next generation
            raised = int(is_requeue or self._is_replaced)
            fencing = self.fencing._replace(generation=self.fencing.generation + raised)
            return After(fencing=fencing, due=self._notebook.now() + seconds)

        return after

    async def checkpoint(self, value: str, number: int = 0) -> None:
        """Save the task's progress: beside it, or, where the queue has no place for it, in the journal (S9)."""
        if self._checkpoints is None:
            await self._inner.checkpoint(value, number)
        else:
            # The fence of the queue first: who has lost the lock saves nothing (S4). Then that of the row.
            await self.renew(self._inner.lease)
            await self._checkpoints.save(claim_of(self._inner), value, number)
        self.checkpoint_value = value
        self._record_held()

    def _record_copy(self, after: Callable[[], After]) -> None:
        self._is_replaced = True
        self._safely(lambda: self._notebook.waits(self._held(), after()))

    def _record_held(self) -> None:
        if self._is_replaced:
            return
        self._safely(lambda: self._notebook.held(self._held(self._beat)))

    def _safely(self, record: Callable[[], None]) -> None:
        """Record, and let no fault of that pass for one of the queue: a confirmed renewal or settle stays that."""
        try:
            record()
        except Exception:  # noqa: BLE001 - logged with its traceback
            _log.exception("task %s: internal error of the journal", self.id)

    def _held(self, beat: Beat | None = None) -> Held:
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
            origin=origin_of(self._inner),
            beat=None if beat is None else beat.encode(),
            born=self._inner.message_created if isinstance(self._inner, _Dated) else None,
        )

    def _record_ended(self, settlement: Settlement, after: After | None) -> None:
        record = _record_of(settlement, self.deliveries)
        dead = settlement if isinstance(settlement, MoveToDeadLetters) else None
        self._notebook.ended(
            self._held(),
            numbered(record.attempt, self.deliveries),
            record.output,
            after,
            reason=None if dead is None else dead.reason,
            description="" if dead is None else dead.description,
            request=self._request,
        )
        is_known = self.checkpoint_value is not None or has_been_delivered(self._inner)
        if self._checkpoints is not None and isinstance(settlement, Complete) and is_known:
            self._checkpoints.forget(claim_of(self._inner))

    def _answered(self, settling: "asyncio.Task[None]") -> None:
        self._on_their_way.discard(settling)
        if not settling.cancelled() and isinstance(settling.exception(), LockLost):
            self._is_settled = True


def has_been_delivered(inner: Delivery) -> bool:
    """Return whether others may have held this task before."""
    return inner.fencing[1:] > (0, 1)


def claim_of(inner: Delivery) -> Claim:
    """Return who holds a task, for its checkpoint, which other work of that id and time neither reads nor fences."""
    origin = origin_of(inner)
    life = f"{rows.moment(inner.task.created) or origin}-{work_of(inner.task)}"
    return Claim(id=inner.id, life=life, fencing=inner.fencing, origin=origin)


def origin_of(inner: Delivery) -> str:
    """Return what all copies of its task have in common, and no other task; "" = the queue makes no copies."""
    return inner.origin if isinstance(inner, _Copying) else ""


def _record_of(settlement: Settlement, attempt: int) -> Record:
    """Return what is recorded of an attempt; where its worker says nothing, that it ended, and how the task goes on."""
    if isinstance(settlement, Release):
        return Record(Attempt.released(attempt, time.time()))
    if settlement.record is not None:
        return settlement.record
    value, detail = None, ""
    match settlement:
        case Complete(result):
            then, value = settlement.then, result.value
        case Requeue():
            then = "retry"
        case MoveToDeadLetters():
            then, detail = "dead", settlement.description
    outcome = {"done": OutcomeKind.SUCCEEDED, "canceled": OutcomeKind.CANCELED}.get(then, OutcomeKind.FAILED)
    return Record(Attempt(attempt=attempt, outcome=outcome, then=then, ended=time.time(), value=value, detail=detail))
