"""A task that a program has taken, and whose end it says itself: what `Queue.get` hands out."""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from jobq.backend import Delivery
from jobq.errors import JobqError, LockLost, SettlementUnknown
from jobq.lease.keeper import LeaseKeeper
from jobq.run.attempt.runner import Running
from jobq.run.attempt.settle import Settled
from jobq.run.callbacks.inline_runner import FutureRunning
from jobq.run.callbacks.task_context import TaskContext
from jobq.run.process.spawner import Deadline
from jobq.task import OutcomeKind, Task

if TYPE_CHECKING:
    from jobq.run.attempt.supervisor import DeliveryReport


class SaidToFail(JobqError):
    """What a program said of a task that failed."""


class TakenTask(TaskContext):
    """A task under its lease, which is renewed until its end is reported, or its context is left.

    Nothing can end the code that works on it: look at `lock_lost`, and at `stop_requested`, before each step that must
    not overlap with another's.

    Attributes:
        stop_requested: set when it was canceled, is over its time limit or is to be given back: end soon.
    """

    def __init__(self, task: Task, delivery: Delivery, keeper: LeaseKeeper) -> None:
        super().__init__(task, delivery, keeper)
        self.stop_requested: Final = asyncio.Event()
        self.said: Final[asyncio.Future[Any]] = asyncio.get_running_loop().create_future()
        self.reported: Final[asyncio.Future[DeliveryReport | None]] = asyncio.get_running_loop().create_future()

    async def complete(self, value: Any = None) -> None:
        """End the task as done.

        Args:
            value: its result, which must be JSON; see docs/library.md.

        Raises:
            LockLost: too late: the lease is, or may be, another's, or its end was reported before. Nothing was changed.
            SettlementUnknown: nobody knows whether it counts; if it does not, the task comes back.
        """
        self._check()
        self.said.set_result(value)
        await self._acknowledged(OutcomeKind.SUCCEEDED)

    async def fail(self, error: BaseException | str) -> None:
        """End the attempt as failed: the task is retried later, or becomes a dead letter when its budget is used up.

        Args:
            error: what went wrong; of an exception of others the type alone is kept, for its text may hold a secret.

        Raises:
            LockLost, SettlementUnknown: as `complete`.
        """
        self._check()
        self.said.set_exception(_exception(error))
        await self._acknowledged(OutcomeKind.FAILED)

    def _check(self) -> None:
        if self.said.done() or self.reported.done() or self.lock_lost:
            raise LockLost(f"task {self.id}: its end was reported before, or its lease is, or may be, another's by now")

    async def _acknowledged(self, kind: OutcomeKind) -> None:
        report = await asyncio.shield(self.reported)
        if report is not None and report.outcome is not None and report.outcome.kind is kind:
            if report.settled is Settled.YES:
                return
            if report.settled is Settled.UNKNOWN:
                raise SettlementUnknown(f"task {self.id}: nobody knows whether its end was heard")
            raise LockLost(f"task {self.id}: its end was reported too late: {report.outcome.detail}")
        raise LockLost(f"task {self.id}: its end was reported too late: its lease is, or may be, another's")


class HandOut:
    """A runner that gives the task to a program of this process.

    Attributes:
        taken: done when there is one.
        is_left: whether its program has left it: then it ends when it is asked to.
    """

    def __init__(self) -> None:
        self.taken: Final[asyncio.Future[TakenTask]] = asyncio.get_running_loop().create_future()
        self.is_left = False

    async def start(self, task: Task, delivery: Delivery, *, deadline: Deadline, keeper: LeaseKeeper) -> Running:  # noqa: ARG002 - nobody else can stop it: the keeper's event is all there is
        """Hand it out."""
        taken = TakenTask(task, delivery, keeper)

        def stop() -> None:
            taken.stop_requested.set()
            if self.is_left:
                taken.said.cancel()

        self.taken.set_result(taken)
        return FutureRunning(taken.said, task.id, stop=stop, patience=0.0)


def _exception(error: BaseException | str) -> Exception:
    """Return what a future takes, and asyncio does not take for its own end."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return SaidToFail(error if isinstance(error, str) else type(error).__name__)
