"""The protocol's face of the router: one queue, and one delivery of it."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from jobq.backend import Capabilities, DeadLetter, Delivery, FencingNumber, Hastened, Peeked, QueueStats, Renewed
from jobq.delivery import BaseDelivery
from jobq.errors import ConfigurationError
from jobq.pausing import Pause
from jobq.resources.room import Room
from jobq.selecting import WaitingShape
from jobq.settlement import Settlement
from jobq.task import Task
from jobq_memory.batches import MemoryBatches
from jobq_memory.journal import MemoryJournal
from jobq_memory.leases import MemoryLeases
from jobq_memory.observations import MemoryObservations
from jobq_memory.queue_state import DeliveryGrant
from jobq_memory.router import Router, Waiter
from jobq_memory.views import MemoryViews

if TYPE_CHECKING:
    from jobq.journal.records import Beat


class MemoryBackend:
    """One queue of a router; any number of handles may share it, in any thread.

    Args:
        router: holds the tasks.
        name: the queue's.
    """

    def __init__(self, router: Router, name: str) -> None:
        self._router = router
        self._name = name

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """Everything: the model that other services are measured by."""
        return self._router.capabilities

    @property
    def leases(self) -> MemoryLeases:
        """The named leases of this queue."""
        return MemoryLeases(self._router.leases, self._name)

    @property
    def journal(self) -> MemoryJournal:
        """The journal of this queue."""
        return MemoryJournal(self._router, self._name)

    @property
    def batches(self) -> MemoryBatches:
        """The batches of this queue."""
        return MemoryBatches(self._router, self._name)

    def observations(self, queue: str = "") -> MemoryObservations | None:
        """Return the notes of a queue of this router; None = nobody looks at it."""
        return MemoryObservations(self._router, queue or self._name) if self._router.is_observed else None

    def views(self) -> MemoryViews:
        """Return what reads all queues of this router."""
        return MemoryViews(self._router)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    async def create(self, *, exist_ok: bool = True) -> None:
        """Make the queue."""
        self._router.create(self._name, exist_ok=exist_ok)

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        """Add all tasks, or none; in this process durable means held (S1)."""
        with self._router.opened(self._name) as store:
            ids = store.push(tasks)
        self._router.wake(self._name)
        return ids

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        """Lease at most `max_tasks`, or none after `wait`; woken by changes and by the next due time, never polling."""
        return await self._receive(max_tasks, lease, wait, None)

    async def receive_fitting(
        self,
        room: Room,
        max_tasks: int,
        lease: timedelta | None,
        wait: timedelta,
        *,
        worker_id: str = "",  # noqa: ARG002 - leases of a process need no holder
    ) -> list[Delivery]:
        """Lease what there is room for."""
        return await self._receive(max_tasks, lease, wait, room)

    async def waiting_shapes(self) -> list[WaitingShape]:
        """Count what waits by what it asks for."""
        with self._router.opened(self._name) as store:
            return store.waiting_shapes()

    async def _receive(
        self, max_tasks: int, lease: timedelta | None, wait: timedelta, room: Room | None
    ) -> list[Delivery]:
        if max_tasks < 1:
            raise ConfigurationError(f"cannot receive {max_tasks} tasks; ask for at least one")
        length = self._checked(self.capabilities.default_lease if lease is None else lease)
        until = self._router.clock.boottime() + wait.total_seconds()
        while True:
            with self._router.waiting(self._name) as waiter:
                with self._router.opened(self._name) as store:
                    # No await between the grant and the return: a cancelled receive has taken nothing.
                    grants = store.take(max_tasks, length, room)
                    due = store.next_due()
                if grants or self._router.clock.boottime() >= until:
                    return [MemoryDelivery(self._router, self._name, grant) for grant in grants]
                await self._woken(waiter, min(due, until))

    async def peek(self, limit: int) -> list[Peeked]:
        """Return up to `limit` ready tasks, next first, without leasing them."""
        with self._router.opened(self._name) as store:
            return store.peek(limit)

    async def stats(self) -> QueueStats:
        """Count by state."""
        with self._router.opened(self._name) as store:
            return store.stats()

    async def pause(self, mark: Pause) -> None:
        """Hand nothing out."""
        with self._router.opened(self._name) as store:
            store.paused = mark

    async def resume(self) -> Pause | None:
        """Hand tasks out again."""
        with self._router.opened(self._name) as store:
            former, store.paused = store.paused, None
        self._router.wake(self._name)
        return former

    async def paused(self) -> Pause | None:
        """Return the mark."""
        with self._router.opened(self._name) as store:
            return store.paused

    async def hasten(self, ids: Sequence[str]) -> list[Hastened]:
        """Let tasks that are put off be due now."""
        with self._router.opened(self._name) as store:
            answers = [store.hasten(each) for each in ids]
        self._router.wake(self._name)
        return answers

    async def clear(self) -> int:
        """Delete every task that waits or is leased; their ids may be pushed anew."""
        with self._router.opened(self._name) as store:
            count = store.clear()
        self._router.wake(self._name)  # a batch may have finished, and brought tasks
        return count

    async def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Return up to `limit` dead letters, oldest first."""
        with self._router.opened(self._name) as store:
            return store.dead_letters(limit)

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back in a new epoch; the checkpoint stays (S9)."""
        with self._router.opened(self._name) as store:
            found = store.redrive(ids)
        self._router.wake(self._name)
        return found

    async def purge_dead(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters for good."""
        with self._router.opened(self._name) as store:
            return store.purge_dead(ids)

    async def _woken(self, waiter: Waiter, boottime: float) -> None:
        """Return when the queue has changed, or at the given time."""
        sleeper = asyncio.create_task(self._router.clock.sleep_until(boottime), name=f"wake receive of {self._name}")
        sleeper.add_done_callback(lambda _: waiter.woken.set())
        try:
            await waiter.woken.wait()
        finally:
            sleeper.cancel()
            await asyncio.wait({sleeper})

    def _checked(self, lease: timedelta) -> timedelta:
        if lease < self.capabilities.min_lease:
            raise ConfigurationError(
                f"a lease of {lease} is shorter than the {self.capabilities.min_lease} granted here"
            )
        return lease


class MemoryDelivery(BaseDelivery):
    """One task leased from a router.

    Args:
        router: holds the task.
        queue: the queue's name.
        grant: what was leased, with the receipt.
    """

    def __init__(self, router: Router, queue: str, grant: DeliveryGrant) -> None:
        super().__init__(
            id=grant.id,
            body=grant.body,
            deliveries=grant.deliveries,
            lease=grant.lease,
            checkpoint=grant.checkpoint,
            journaled=True,
            cancel_requested=grant.cancel_requested,
        )
        self._router = router
        self._queue = queue
        self._grant = grant

    @property
    def fencing(self) -> FencingNumber:
        """Rises with every delivery of this task (S3)."""
        return self._grant.fencing

    async def renew(self, lease: timedelta, beat: "Beat | None" = None) -> Renewed:
        """Let the lease end this long from now (S4)."""
        with self._router.opened(self._queue) as store:
            canceled = store.renew(self._grant, lease, None if beat is None else beat.encode())
        self._router.wake(self._queue)  # the new end may be nearer than the one that waiters know
        return Renewed(cancel=canceled)

    async def settle(self, settlement: Settlement) -> None:
        """End the delivery, in one step (S6); what is released goes to its old place."""
        with self._router.opened(self._queue) as store:
            store.settle(self._grant, settlement)
        self._router.wake(self._queue)

    async def checkpoint(self, value: str, number: int = 0) -> None:
        """Save the task's progress beside it (S9)."""
        with self._router.opened(self._queue) as store:
            store.checkpoint(self._grant, value, number)
