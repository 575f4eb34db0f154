"""The protocol's face of the router: one queue, and one delivery of it."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from typing import Self

from jobq.backend import Capabilities, DeadLetter, Delivery, FencingNumber, Peeked, QueueStats
from jobq.errors import ConfigurationError
from jobq.journal.page import Page, final_of
from jobq.task import Task, TaskResult
from jobq_memory.entry import Bury, Complete, Release, Requeue, Settlement
from jobq_memory.journal import MemoryJournal
from jobq_memory.leases import MemoryLeases
from jobq_memory.queue_state import Grant
from jobq_memory.router import Router, Waiter


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
        if max_tasks < 1:
            raise ConfigurationError(f"cannot receive {max_tasks} tasks; ask for at least one")
        length = self._checked(self.capabilities.default_lease if lease is None else lease)
        until = self._router.clock.boottime() + wait.total_seconds()
        while True:
            with self._router.waiting(self._name) as waiter:
                with self._router.opened(self._name) as store:
                    # No await between the grant and the return: a cancelled receive has taken nothing.
                    grants = store.take(max_tasks, length)
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

    async def clear(self) -> int:
        """Delete every task that waits or is leased; their ids may be pushed anew."""
        with self._router.opened(self._name) as store:
            return store.clear()

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


class MemoryDelivery:
    """One task leased from a router.

    Args:
        router: holds the task.
        queue: the queue's name.
        grant: what was leased, with the receipt.

    Attributes:
        page: what is told the journal of it.
    """

    def __init__(self, router: Router, queue: str, grant: Grant) -> None:
        self._router = router
        self._queue = queue
        self._grant = grant
        self.page = Page()
        if grant.cancel_requested:
            self.page.cancel.set()

    @property
    def id(self) -> str:
        """The task's id; for a message that is not a task, the router's id of it."""
        return self._grant.id

    @property
    def body(self) -> bytes:
        """The message as stored."""
        return self._grant.body

    @cached_property
    def task(self) -> Task:
        """The task in the body. Raises MalformedTask, each time, for a body that is none."""
        return Task.decode(self._grant.body)

    @property
    def lease(self) -> timedelta:
        """The length that was granted."""
        return self._grant.lease

    @property
    def deliveries(self) -> int:
        """How often this task has been handed out, this time included."""
        return self._grant.deliveries

    @property
    def fencing(self) -> FencingNumber:
        """Rises with every delivery of this task (S3)."""
        return self._grant.fencing

    @property
    def checkpoint_value(self) -> str | None:
        """The last accepted checkpoint at the time of the grant (S9)."""
        return self._grant.checkpoint

    async def renew(self, lease: timedelta) -> None:
        """Let the lease end this long from now (S4)."""
        with self._router.opened(self._queue) as store:
            if store.renew(self._grant, lease, self.page.told()):
                self.page.cancel.set()
        self._router.wake(self._queue)  # the new end may be nearer than the one that waiters know

    async def complete(self, result: TaskResult) -> None:
        """End the task as done."""
        self._settle(Complete(result, final_of(self.page)))

    async def requeue(self, task: Task, delay: timedelta) -> None:
        """Put it back with changed counters and generation, visible after `delay`, in one step (S6)."""
        self._settle(Requeue(task, delay))

    async def release(self) -> None:
        """Put it back at once, at its old place, with one more end recorded (S7)."""
        self._settle(Release())

    async def dead_letter(self, reason: str, description: str) -> None:
        """Move it to the dead letters with its original bytes, in one step (S6)."""
        self._settle(Bury(reason, description))

    async def checkpoint(self, value: str, number: int = 0) -> None:
        """Save the task's progress beside it (S9)."""
        with self._router.opened(self._queue) as store:
            store.checkpoint(self._grant, value, number)

    def _settle(self, settlement: Settlement) -> None:
        with self._router.opened(self._queue) as store:
            store.settle(self._grant, settlement, self.page)
        self._router.wake(self._queue)
