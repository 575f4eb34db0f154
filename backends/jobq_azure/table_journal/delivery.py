"""A delivery of an Azure queue that records itself in the journal: after the queue has answered, never on its way."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from jobq.backend import Renewed
from jobq.clock import SystemClock
from jobq.delivery import BaseDelivery
from jobq.errors import LockLost, MalformedTask
from jobq.fencing import FencingNumber
from jobq.journal.records import Attempt, Beat
from jobq.settlement import Complete, MoveToDeadLetters, Record, Release, Requeue, Settlement
from jobq.task import OutcomeKind, Task
from jobq_azure.storage.delivery import StorageDelivery
from jobq_azure.table_journal.cancel_requests import CancelRequest
from jobq_azure.table_journal.recorder import After, Held, Notebook, numbered

if TYPE_CHECKING:
    from collections.abc import MutableSet

_CLOCK: Final = SystemClock()
_log: Final = logging.getLogger(__name__)


class JournaledDelivery(BaseDelivery):
    """One delivery; each verb is the queue's own, and is recorded once it is confirmed (S5).

    Args:
        inner: the queue's delivery.
        notebook: records it.
        since: boottime in seconds, read before the receive was sent.
        on_their_way: the backend's; holds each settle until it is answered, whether or not anybody waits for it.
    """

    def __init__(
        self,
        inner: StorageDelivery,
        notebook: Notebook,
        since: float,
        on_their_way: "MutableSet[asyncio.Task[None]]",
    ) -> None:
        super().__init__(
            id=inner.id,
            body=inner.body,
            deliveries=inner.deliveries,
            lease=inner.lease,
            checkpoint=inner.checkpoint_value,
            journaled=True,
        )
        self._inner = inner
        self._notebook = notebook
        self._on_their_way = on_their_way
        self._since = since
        self._seconds = inner.lease.total_seconds()
        self._leased = notebook.now()
        self._beat: Beat | None = None
        self._request: CancelRequest | None = None
        self._is_settled = False
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

        def after() -> After:
            fencing = self.fencing._replace(generation=self.fencing.generation + int(is_requeue))
            return After(fencing=fencing, due=self._notebook.now() + seconds)

        return after

    async def checkpoint(self, value: str, number: int = 0) -> None:
        """Save the task's progress in its message (S9)."""
        await self._inner.checkpoint(value, number)
        self.checkpoint_value = value
        self._record_held()

    def _record_held(self) -> None:
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
            beat=None if beat is None else beat.encode(),
            born=self._inner.message_created,
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

    def _answered(self, settling: "asyncio.Task[None]") -> None:
        self._on_their_way.discard(settling)
        if not settling.cancelled() and isinstance(settling.exception(), LockLost):
            self._is_settled = True


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
