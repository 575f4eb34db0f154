"""Faults for any backend: a wrapper whose verbs refuse, hang, answer late or lose their answer, as a script says.

    faults = Faults()
    backend = FaultyBackend(inner, faults)
    faults.next("renew", Fault.REFUSE, times=2)
    await faults.begun("renew", 3)

The script is `jobq.testing.fault_script`. A fault strikes around the inner verb, never inside it.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Self, TypeVar

from jobq.backend import Backend, Capabilities, DeadLetter, Delivery, FencingNumber, Peeked, QueueStats, Renewed
from jobq.errors import BackendUnavailable, JobqError, PushUnknown, SettlementUnknown
from jobq.journal.records import Beat
from jobq.settlement import Settlement
from jobq.task import Task
from jobq.testing.fault_script import BACKEND_VERBS, DELIVERY_VERBS, SETTLE_VERBS, BackendCall, Fault, Faults

__all__ = [
    "BACKEND_VERBS",
    "DELIVERY_VERBS",
    "SETTLE_VERBS",
    "BackendCall",
    "Fault",
    "Faults",
    "FaultyBackend",
    "FaultyDelivery",
]

_T = TypeVar("_T")


async def _struck(
    faults: Faults, verb: str, subject: str, action: Callable[[], Awaitable[_T]], lost: Callable[[], JobqError]
) -> _T:
    """Do one call of a verb under the fault that the script has for it; `lost` makes the error of a lost answer."""
    planned = faults.begin(verb, subject)
    if planned.fault is Fault.REFUSE:
        raise BackendUnavailable(f"{verb} of {subject} was refused (injected); nothing was done")
    if planned.fault is Fault.HANG:
        await planned.held()
        raise BackendUnavailable(f"{verb} of {subject} hung (injected); nothing was done")
    if planned.fault is Fault.LOSE_ANSWER:
        try:
            await action()
        except JobqError as answer:  # an error is an answer too, and lost like any other
            raise lost() from answer
        raise lost()
    try:
        return await action()
    finally:
        if planned.fault is Fault.ANSWER_LATE:
            await planned.held()


class FaultyBackend:
    """A backend under faults.

    Args:
        inner: does the work.
        faults: the script and the record; a new empty one when none is given. Handles may share one.
    """

    def __init__(self, inner: Backend, faults: Faults | None = None) -> None:
        self.inner = inner
        self.faults = faults if faults is not None else Faults()

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.inner.name

    @property
    def capabilities(self) -> Capabilities:
        """Those of the wrapped backend."""
        return self.inner.capabilities

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.inner.__aexit__(*exc_info)

    async def create(self, *, exist_ok: bool = True) -> None:
        """Make the queue."""
        await self._do("create", lambda: self.inner.create(exist_ok=exist_ok))

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        """Add the tasks; a lost answer raises PushUnknown with their ids (S8)."""
        ids = [task.id for task in tasks]
        return await _struck(
            self.faults,
            "push",
            ", ".join(ids),
            lambda: self.inner.push(tasks),
            lambda: PushUnknown("the answer to a push was lost (injected)", ids),
        )

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        """Lease tasks; with a lost answer they stay leased, by nobody, until their leases expire."""
        deliveries = await self._do("receive", lambda: self.inner.receive(max_tasks, lease, wait))
        return [FaultyDelivery(delivery, self.faults) for delivery in deliveries]

    async def peek(self, limit: int) -> list[Peeked]:
        """Look."""
        return await self._do("peek", lambda: self.inner.peek(limit))

    async def stats(self) -> QueueStats:
        """Count."""
        return await self._do("stats", self.inner.stats)

    async def clear(self) -> int:
        """Delete what waits or is leased."""
        return await self._do("clear", self.inner.clear)

    async def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Show dead letters."""
        return await self._do("dead_letters", lambda: self.inner.dead_letters(limit))

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back."""
        return await self._do("redrive", lambda: self.inner.redrive(ids))

    async def purge_dead(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters."""
        return await self._do("purge_dead", lambda: self.inner.purge_dead(ids))

    async def _do(self, verb: str, action: Callable[[], Awaitable[_T]]) -> _T:
        return await _struck(self.faults, verb, self.name, action, lambda: _unanswered(verb, self.name))


class FaultyDelivery:
    """A delivery under faults.

    Args:
        inner: does the work.
        faults: the script and the record.
    """

    def __init__(self, inner: Delivery, faults: Faults) -> None:
        self.inner = inner
        self.faults = faults

    @property
    def id(self) -> str:
        """The task's id, or the service's of a message that is none."""
        return self.inner.id

    @property
    def body(self) -> bytes:
        """The message as stored."""
        return self.inner.body

    @property
    def task(self) -> Task:
        """The task in the body. Raises MalformedTask, each time, for a body that is none."""
        return self.inner.task

    @property
    def lease(self) -> timedelta:
        """The length that was granted."""
        return self.inner.lease

    @property
    def deliveries(self) -> int:
        """How often this task has been handed out."""
        return self.inner.deliveries

    @property
    def fencing(self) -> FencingNumber:
        """Rises with every delivery (S3)."""
        return self.inner.fencing

    @property
    def checkpoint_value(self) -> str | None:
        """The last accepted checkpoint (S9)."""
        return self.inner.checkpoint_value

    @property
    def journaled(self) -> bool:
        """Whether the queue keeps a journal."""
        return self.inner.journaled

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody wanted the task to end."""
        return self.inner.cancel_requested

    async def renew(self, lease: timedelta, beat: Beat | None = None) -> Renewed:
        """Extend the lease."""
        return await self._do("renew", lambda: self.inner.renew(lease, beat))

    async def settle(self, settlement: Settlement) -> None:
        """End the delivery; the script names it by what it is: complete, requeue, release or dead_letter."""
        await self._do(settlement.verb, lambda: self.inner.settle(settlement))

    async def checkpoint(self, value: str, number: int = 0) -> None:
        """Save the progress."""
        await self._do("checkpoint", lambda: self.inner.checkpoint(value, number))

    async def _do(self, verb: str, action: Callable[[], Awaitable[_T]]) -> _T:
        return await _struck(self.faults, verb, self.id, action, lambda: _unanswered(verb, self.id))


def _unanswered(verb: str, subject: str) -> JobqError:
    """A lost answer is SettlementUnknown for a delivery's verb (S5); to repeat any other is safe, done or not."""
    kind = SettlementUnknown if verb in DELIVERY_VERBS else BackendUnavailable
    return kind(f"the answer to {verb} of {subject} was lost (injected)")
