"""A leased message behind the delivery protocol; every verb is fenced by its receipt (S4)."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from jobq.backend import Renewed
from jobq.delivery import BaseDelivery
from jobq.errors import JobqError, LockLost, MalformedTask
from jobq.fencing import FencingNumber
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue, Settlement
from jobq.task import Task
from jobq_azure.common.request_chain import Chain
from jobq_azure.storage.dead_letters import StorageDeadLetters
from jobq_azure.storage.envelope import Envelope, spilled
from jobq_azure.storage.large_payloads import Payloads
from jobq_azure.storage.message_format import HEADROOM_BYTES, MAX_TEXT_BYTES, MessageContent, size_of
from jobq_azure.storage.queue_client import LONGEST, StorageQueueClient, whole_seconds
from jobq_azure.storage.queue_messages import Message

if TYPE_CHECKING:
    from jobq.journal.records import Beat

_LONGEST_ID: Final = 100  # as of a task's


class StorageDelivery(BaseDelivery):
    """One message leased from a Storage Queue.

    Each update gives a new receipt and ends the old one, so the requests of a delivery form a chain: one that its
    caller gave up on goes on, and the next waits for it, since only its answer holds the receipt.

    Args:
        wire: requests to the queue.
        payloads: its blobs.
        dead: where dead letters go.
        message: as it was handed out.
        envelope: what it holds.
        lease: the length that was granted.
        on_their_way: the backend's; holds each request until it is answered, whether or not anybody waits for it.
    """

    def __init__(
        self,
        wire: StorageQueueClient,
        payloads: Payloads,
        dead: StorageDeadLetters,
        message: Message,
        envelope: Envelope,
        lease: timedelta,
        on_their_way: "set[asyncio.Task[None]]",
    ) -> None:
        super().__init__(
            id=envelope.content.beside.id[:_LONGEST_ID] or message.id,  # who may send may write a long one
            body=envelope.body,
            deliveries=envelope.content.beside.before + message.deliveries,
            lease=lease,
            checkpoint=envelope.content.beside.checkpoint,
        )
        self._wire = wire
        self._payloads = payloads
        self._dead = dead
        self._message_id = message.id
        self._inserted = message.inserted
        self._receipt: str | None = message.receipt  # None = settled, so far as is known
        self._envelope = envelope
        self._checkpoint_number = 0
        self._asked = whole_seconds(lease)
        self._requests = Chain(wire.place, on_their_way)
        self._on_their_way = on_their_way
        with suppress(MalformedTask):
            self.id = self.task.id

    @property
    def message_origin(self) -> str:
        """The service's id of the message: what stands beside a body is what its sender says."""
        return self._message_id

    @property
    def message_fencing(self) -> FencingNumber:
        """As `fencing`, with the epoch that the message says itself; raises MalformedTask."""
        return FencingNumber(*self._envelope.numbers(), self.deliveries)

    @property
    def message_ledger(self) -> str:
        """The book in which its task is kept, also where its payload is lost; empty = in none."""
        return self._envelope.ledger

    @property
    def message_work(self) -> str:
        """What it holds; empty = its payload is lost."""
        return self._envelope.work

    @property
    def message_created(self) -> float | None:
        """When its task was made; likewise."""
        return self._envelope.created

    @property
    def fencing(self) -> FencingNumber:
        """The number that the task may show to others; of one whose payload is lost that of its message."""
        try:
            epoch, generation = self._envelope.numbers()
        except MalformedTask:
            return FencingNumber(0, 0, self.deliveries)
        return FencingNumber(max(epoch, self._inserted), generation, self.deliveries)

    def _decoded(self) -> Task:
        """Return the task, in the epoch of when the service took its message, or later.

        So of two tasks of one id the later one has higher fencing numbers, though nobody knows the ids of a Storage
        Queue (S3).
        """
        task = self._envelope.task()
        return task.in_epoch(max(task.epoch, self._inserted))

    async def renew(self, lease: timedelta, beat: "Beat | None" = None) -> Renewed:  # noqa: ARG002 - there is no journal
        """Extend the lease from now, by whole seconds; the body is not sent again."""
        self._asked = whole_seconds(lease)

        async def update() -> None:
            self._receipt = await self._wire.update(self._message_id, self._held(), self._asked)

        await self._chain(update)
        return Renewed()

    async def settle(self, settlement: Settlement) -> None:
        """End the delivery: with one request, but for a dead letter (S6)."""

        async def settle() -> None:
            match settlement:
                case Complete():
                    await self._wire.delete(self._message_id, self._held())
                    self._deleted()
                case Requeue(counters, delay):
                    await self._requeue(self.task.counted(counters), delay)
                case Release():
                    await self._release(settlement)
                case MoveToDeadLetters(reason, description):
                    await self._bury(reason, description)

        await self._chain(settle)

    async def _requeue(self, task: Task, delay: timedelta) -> None:
        """Put it back with another body in the same message, in one request (S6)."""
        if delay > LONGEST:  # hidden again in steps, by each that receives it too early
            task = task.copied({"not_before": time.time() + delay.total_seconds()})
        content = self._envelope.holding(task)
        if size_of(content.text()) > MAX_TEXT_BYTES:
            await self._requeue_in_blob(task, content, _hidden(delay))
        else:
            await self._wire.update(self._message_id, self._held(), _hidden(delay), content.text())
        self._receipt = None

    async def _release(self, release: Release) -> None:
        """Put it back unstarted, hidden for 7 days at most: one more end is recorded, so that it is no crash (S7)."""
        content = self._envelope.released(release.misfits)
        text = None if content is None else content.text()
        if text is not None and size_of(text) > MAX_TEXT_BYTES:
            text = None  # then it counts as a crash, and comes back all the same
        await self._wire.update(self._message_id, self._held(), _hidden(release.delay), text)
        self._receipt = None

    async def _bury(self, reason: str, description: str) -> None:
        """Write it to the dead-letter queue, then delete it: a crash between leaves two, which readers fold (S6)."""
        # First the fence: a stale worker must not bury what another one runs (S4).
        self._receipt = await self._wire.update(self._message_id, self._held(), self._asked)
        await self._dead.bury(self, self._envelope, self._message_id, reason, description)
        await self._wire.delete(self._message_id, self._receipt)
        self._deleted()

    async def bury_unfenced(self, reason: str, description: str) -> None:
        """Write a dead letter though the message is another's, or was deleted: for a task that is dead by its ledger.

        Whoever has the message may write one, too: both are of one message, and are one for readers.
        """
        await self._chain(lambda: self._dead.bury(self, self._envelope, self._message_id, reason, description))

    async def _requeue_in_blob(self, task: Task, content: MessageContent, seconds: int) -> None:
        """Put back a task that another program wrote in fewer words than we do, and that has outgrown its message."""
        if not self._payloads.are_possible:
            raise MalformedTask("has no room for its counters in a message, and there is no BlobEndpoint for it")
        blob = await self._payloads.store(task.encode(), self._message_id)
        try:
            text = spilled(task, blob, content.beside).text()
            await self._wire.update(self._message_id, self._held(), seconds, text)
        except JobqError:  # it is certain that the message does not name it
            await self._payloads.remove(blob)
            raise

    async def checkpoint(self, value: str, number: int = 0) -> None:
        """Save the task's progress in its message (S9); the lease counts anew, which nobody relies on."""
        try:
            size = len(value.encode())
        except UnicodeEncodeError:  # what could not be read again would take the task with it
            raise MalformedTask("holds half a surrogate pair, which is no text", "checkpoint") from None
        former = self._envelope.content
        content = replace(former, beside=replace(former.beside, checkpoint=value))
        if (whole := size_of(content.text())) > MAX_TEXT_BYTES - HEADROOM_BYTES:
            raise MalformedTask(
                f"a checkpoint of {size} bytes makes a message of {whole}, and a Storage Queue has room"
                f" for {MAX_TEXT_BYTES - HEADROOM_BYTES}: save it elsewhere, and its address here",
                "checkpoint",
            )

        async def update() -> None:
            # A request that was given up is fenced by the receipt, which each answer changes; this is for the caller.
            if number < self._checkpoint_number:
                raise LockLost("a newer checkpoint was saved before this one was sent")
            self._receipt = await self._wire.update(self._message_id, self._held(), self._asked, content.text())
            self._checkpoint_number = number
            # Here, and not where the caller waits: one that gave up must not take it back with its next settle (S9).
            self._envelope = replace(self._envelope, content=content)
            self.checkpoint_value = value

        await self._chain(update)

    def _held(self) -> str:
        if self._receipt is None:
            raise LockLost("this delivery was settled before")
        return self._receipt

    def _deleted(self) -> None:
        """Note that the message is gone; the blob that it owns may go too, and nobody waits for that."""
        self._receipt = None
        if self._envelope.payload is not None and self._envelope.owner in ("", self._message_id):
            blob, is_owner = self._envelope.content.beside.blob, bool(self._envelope.owner)  # else it may be by now
            removing = self._payloads.remove(blob) if is_owner else self._payloads.remove_of(blob, self._message_id)
            removal = asyncio.ensure_future(removing)
            self._on_their_way.add(removal)
            removal.add_done_callback(self._on_their_way.discard)

    async def _chain(self, request: Callable[[], Awaitable[None]]) -> None:
        await self._requests.send(request, self._asked)


def _hidden(delay: timedelta) -> int:
    return 0 if delay <= timedelta(0) else whole_seconds(delay)
