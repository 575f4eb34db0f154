"""A leased message behind the delivery protocol; every verb is fenced by its receipt (S4)."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Final

from jobq.backend import FencingNumber
from jobq.errors import JobqError, LockLost, MalformedTask
from jobq.task import Task, TaskResult
from jobq_azure.common.request_chain import Chain
from jobq_azure.storage.dead_letters import Graveyard
from jobq_azure.storage.envelope import Envelope, spilled
from jobq_azure.storage.large_payloads import Payloads
from jobq_azure.storage.message_format import HEADROOM_BYTES, MAX_TEXT_BYTES, Content, size_of
from jobq_azure.storage.queue_client import LONGEST, Message, Wire, whole_seconds

_LONGEST_ID: Final = 100  # as of a task's


class StorageDelivery:
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
        wire: Wire,
        payloads: Payloads,
        dead: Graveyard,
        message: Message,
        envelope: Envelope,
        lease: timedelta,
        on_their_way: "set[asyncio.Task[None]]",
    ) -> None:
        self.lease = lease
        self._wire = wire
        self._payloads = payloads
        self._dead = dead
        self._message_id = message.id
        self._inserted = message.inserted
        self._receipt: str | None = message.receipt  # None = settled, so far as is known
        self._envelope = envelope
        self._checkpoint_number = 0
        self.deliveries = envelope.content.beside.before + message.deliveries
        self._asked = whole_seconds(lease)
        self._requests = Chain(wire.place, on_their_way)
        self._on_their_way = on_their_way

    @property
    def id(self) -> str:
        """The task's id; the message's for one that is not a task."""
        try:
            return self.task.id
        except MalformedTask:
            # Whoever may send messages may write a long one.
            return self._envelope.content.beside.id[:_LONGEST_ID] or self._message_id

    @property
    def body(self) -> bytes:
        """What was queued, without a checkpoint beside it."""
        return self._envelope.body

    @property
    def checkpoint_value(self) -> str | None:
        """The checkpoint as it was at the receive, or as it was saved since."""
        return self._envelope.content.beside.checkpoint

    @cached_property
    def task(self) -> Task:
        """The task in the body; raises MalformedTask.

        Its epoch is when the service took its message, or later: of two tasks of one id the later one has higher
        fencing numbers, though nobody knows the ids of a Storage Queue (S3).
        """
        task = self._envelope.task()
        return task.in_epoch(max(task.epoch, self._inserted))

    @property
    def fencing(self) -> FencingNumber:
        """The number that the task may show to others."""
        try:
            return FencingNumber(self.task.epoch, self.task.generation, self.deliveries)
        except MalformedTask:
            return FencingNumber(0, 0, self.deliveries)

    async def renew(self, lease: timedelta) -> None:
        """Extend the lease from now, by whole seconds; the body is not sent again."""
        self._asked = whole_seconds(lease)

        async def update() -> None:
            self._receipt = await self._wire.update(self._message_id, self._held(), self._asked)

        await self._chain(update)

    async def complete(self, result: TaskResult) -> None:  # noqa: ARG002 - the journal's, when there is one
        """End the task as done."""

        async def delete() -> None:
            await self._wire.delete(self._message_id, self._held())
            self._deleted()

        await self._chain(delete)

    async def requeue(self, task: Task, delay: timedelta) -> None:
        """Put it back with another body in the same message, in one request (S6)."""
        if delay > LONGEST:  # hidden again in steps, by whoever receives it too early
            task = task.model_copy(update={"not_before": time.time() + delay.total_seconds()})
        seconds = 0 if delay <= timedelta(0) else whole_seconds(delay)
        task = task.in_epoch(max(task.epoch, self.fencing.epoch))  # a caller may hold it as it was pushed

        async def update() -> None:
            content = self._envelope.holding(task)
            if size_of(content.text()) > MAX_TEXT_BYTES:
                await self._requeue_in_blob(task, content, seconds)
            else:
                await self._wire.update(self._message_id, self._held(), seconds, content.text())
            self._receipt = None

        await self._chain(update)

    async def _requeue_in_blob(self, task: Task, content: Content, seconds: int) -> None:
        """Put back a task that another program wrote in fewer words than we do, and that has outgrown its message."""
        if not self._payloads.are_possible:
            raise MalformedTask("has no room for its counters in a message, and there is no BlobEndpoint for it")
        blob = await self._payloads.store(task.encode())
        try:
            text = spilled(task, blob, content.beside).text()
            await self._wire.update(self._message_id, self._held(), seconds, text)
        except JobqError:  # it is certain that the message does not name it
            await self._payloads.remove(blob)
            raise

    async def release(self) -> None:
        """Put it back unstarted: one more end is recorded, so that it is no crash (S7)."""
        await self.put_off(0)

    async def put_off(self, seconds: int) -> None:
        """Put it back unstarted, hidden for so long."""

        async def update() -> None:
            content = self._envelope.with_one_more_end()
            text = None if content is None else content.text()
            if text is not None and size_of(text) > MAX_TEXT_BYTES:
                text = None  # then it counts as a crash, and comes back all the same
            await self._wire.update(self._message_id, self._held(), seconds, text)
            self._receipt = None

        await self._chain(update)

    async def dead_letter(self, reason: str, description: str) -> None:
        """Write it to the dead-letter queue, then delete it: a crash between leaves two, which readers fold (S6)."""

        async def bury() -> None:
            # First the fence: a stale worker must not bury what another one runs (S4).
            self._receipt = await self._wire.update(self._message_id, self._held(), self._asked)
            await self._dead.bury(self, self._envelope, self._message_id, reason, description)
            await self._wire.delete(self._message_id, self._receipt)
            self._deleted()

        await self._chain(bury)

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

        await self._chain(update)

    def _held(self) -> str:
        if self._receipt is None:
            raise LockLost("this delivery was settled before")
        return self._receipt

    def _deleted(self) -> None:
        """Note that the message is gone; its blob may go too, and nobody waits for that."""
        self._receipt = None
        if self._envelope.payload is not None:
            removal = asyncio.ensure_future(self._payloads.remove(self._envelope.content.beside.blob))
            self._on_their_way.add(removal)
            removal.add_done_callback(self._on_their_way.discard)

    async def _chain(self, request: Callable[[], Awaitable[None]]) -> None:
        await self._requests.send(request, self._asked)
