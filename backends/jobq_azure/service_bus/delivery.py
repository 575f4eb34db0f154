"""A locked message behind the delivery protocol; every verb is fenced by its lock (S4).

Settling over REST is one request; going back to the queue is two, for a message cannot be changed: a clone is sent,
then the original completed. A crash between the two repeats the task, and loses nothing (S6).
"""

import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from jobq.backend import Renewed
from jobq.delivery import BaseDelivery
from jobq.errors import AnswerLost, ConfigurationError, JobqError, LockLost, MalformedTask
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue, Settlement
from jobq.task import Task
from jobq_azure.common.errors import NoAnswer
from jobq_azure.common.request_chain import Chain
from jobq_azure.service_bus.lock_length import LEAST_SECONDS, LockLength
from jobq_azure.service_bus.message_format import (
    BEFORE,
    DELIVERIES,
    DIED,
    EPOCH,
    ORIGIN,
    clone,
    cut,
    id_in,
    origin_of,
    task_in,
)
from jobq_azure.service_bus.rest_client import Locked, Outgoing, RestClient

if TYPE_CHECKING:
    import asyncio

    from jobq.journal.records import Beat
    from jobq_azure.service_bus.amqp_client import Amqp

_LONGEST_ID: Final = 100  # as of a task's
_MOST_COUNT: Final = 2**31 - 1


class ServiceBusDelivery(BaseDelivery):
    """One message locked in a queue of Service Bus.

    Args:
        wire: requests to the queue.
        amqp: for what REST cannot do.
        locked: as it was handed out.
        first: the DeliveryCount of a first delivery, 0 or 1.
        lease: the length that surely was granted, or less.
        on_their_way: the backend's; holds each request until it is answered.
        deduplicates: whether the broker is known to drop a second clone.
        length: of the queue's locks.
        on_settled: called once the service has an end of it.
    """

    def __init__(
        self,
        wire: RestClient,
        amqp: "Callable[[], Amqp]",
        locked: Locked,
        *,
        first: int,
        lease: timedelta,
        on_their_way: "set[asyncio.Task[None]]",
        deduplicates: bool,
        length: LockLength,
        on_settled: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            id=id_in(locked)[:_LONGEST_ID],
            body=locked.body,
            deliveries=min(locked.number_in(BEFORE) + max(1, locked.count + 1 - first), _MOST_COUNT),
            lease=lease,  # and no checkpoint: a message cannot be changed, so there is no place for one
        )
        self._wire = wire
        self._amqp = amqp
        self._locked = locked
        self._requests = Chain(wire.place, on_their_way)
        self._deduplicates = deduplicates
        self._length = length
        self._on_settled = on_settled
        self._sent: Outgoing | None = None  # the clone, once the service has it
        self._in_doubt = False  # whether it has the clone
        self._unanswered = ""  # a verb whose answer was lost while the lock stood
        self._is_settled = False

    def _decoded(self) -> Task:
        return task_in(self._locked)

    async def renew(self, lease: timedelta, beat: "Beat | None" = None) -> Renewed:  # noqa: ARG002 - there is no journal
        """Extend the lock by the queue's own duration; return that where it is known to be less than `lease` by now."""
        shown: float | None = None

        async def renew() -> None:
            nonlocal shown
            self._check_held()
            shown = (await self._wire.renew(self._locked)).seconds
            if shown is None or shown < LEAST_SECONDS:  # the latter by a date that is off: it was renewed just now
                shown = None
                await self._length.ask()
            else:
                self._length.hear(shown)

        await self._send(renew)
        if (shorter := self._length.shorter_than(lease, shown)) is not None:
            self.lease = shorter
        return Renewed(lease=shorter)

    async def settle(self, settlement: Settlement) -> None:
        """End the delivery.

        What is put back unstarted is the next generation too, with one more end recorded, so that it is no crash (S7):
        its fencing numbers are none of the original's (S3), and the clone that an original sends which runs beside it
        is dropped (S7).
        """
        match settlement:
            case Complete():
                await self._settle("complete", lambda: self._wire.complete(self._locked))
            case Requeue(counters, delay):
                await self._put_back(self.task.counted(counters), delay)
            case Release():
                await self._release(settlement)
            case MoveToDeadLetters(reason, description):
                await self._settle("dead_letter", lambda: self._bury(reason, description))

    async def _release(self, release: Release) -> None:
        """Put it back unstarted; what cannot be counted is unlocked as it is."""
        try:
            task = self.task.requeued(misfits=release.misfits)
        except MalformedTask:
            if release.delay:
                raise
            await self._settle("unlock", lambda: self._wire.unlock(self._locked))
        else:
            await self._put_back(task, release.delay)

    async def _put_back(self, task: Task, delay: timedelta) -> None:
        """Send a clone, scheduled by the service's clock, to the second; then complete the original (S6)."""

        async def put_back() -> None:
            now, _ = await self._wire.renew(self._locked)  # the fence: who lost the lock sends no clone (S4)
            at = None if delay <= timedelta(0) else float(math.ceil(now + delay.total_seconds()))
            await self._replace(clone(self._locked, task, self.deliveries, at))

        await self._settle("requeue", put_back)

    async def _bury(self, reason: str, description: str) -> None:
        """Move it to the queue's own dead-letter place, in one step."""
        now, _ = await self._wire.renew(self._locked)  # a connection over AMQP may have to be made first
        properties: dict[str, str | int] = {
            DELIVERIES: self.deliveries,
            DIED: int(now),
            ORIGIN: origin_of(self._locked),
            EPOCH: str(self.fencing.epoch),  # a sender's may have more than the 32 bits that the SDK gives a number
        }
        await self._amqp().dead_letter(self._locked.token, reason, cut(description), properties)

    async def checkpoint(self, value: str, number: int = 0) -> None:  # noqa: ARG002 - it cannot be kept
        """Refuse; raises ConfigurationError."""
        raise ConfigurationError(
            f"{self._wire.place}: Service Bus has no place for a task's checkpoint (Capabilities.native_checkpoint):"
            " save it where the task keeps its data, under its JOBQ_TASK_ID"
        )

    async def _replace(self, message: Outgoing) -> None:
        """Send a clone, unless it was sent, and complete the original."""
        if self._sent is None or self._sent.message_id != message.message_id:
            self._in_doubt = True
            try:
                await self._wire.send(message)
            except JobqError:  # it is certain that it was not taken
                self._in_doubt = False
                raise
            self._in_doubt = False
            self._sent = message
        try:
            await self._wire.complete(self._locked)
        except LockLost as error:
            raise NoAnswer(f"{self._wire.place}: {self.id} is back, and perhaps runs elsewhere too: {error}") from None

    async def _settle(self, verb: str, request: Callable[[], Awaitable[None]]) -> None:
        """Settle once; where the answer was lost, ask whether the lock still stands.

        A lock that can be renewed was not settled: the same verb may be sent again, and the lock fences it. One that is
        gone says nothing, and is SettlementUnknown (S5), as where the same verb, sent before, may have landed late.
        """

        async def settle() -> None:
            self._check_held()
            try:
                await request()
            except NoAnswer as error:
                if not (self._in_doubt and not self._deduplicates) and await self._still_stands():
                    self._unanswered = verb
                    raise AnswerLost(f"{error}; the lock still stands") from None  # it may land yet
                raise
            except LockLost as error:
                if self._unanswered == verb:
                    raise NoAnswer(f"{error}; the request before was not answered") from None
                raise
            self._is_settled = True
            self._on_settled()

        await self._send(settle)

    async def _still_stands(self) -> bool:
        try:
            await self._wire.renew(self._locked)
        except (JobqError, NoAnswer):
            return False
        return True

    def _check_held(self) -> None:
        if self._is_settled:
            raise LockLost("this delivery was settled before")

    async def _send(self, request: Callable[[], Awaitable[None]]) -> None:
        await self._requests.send(request, self.lease.total_seconds())
