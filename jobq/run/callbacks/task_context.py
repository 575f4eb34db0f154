"""What a callback that runs in this process knows of its task, and how it reaches the keeper of the lease."""

import asyncio
import copy

from jobq.backend import Delivery
from jobq.errors import LockLost
from jobq.formats.checkpoint_format import StoredCheckpoint
from jobq.lease.keeper import LeaseKeeper
from jobq.run.callbacks.sync_task_context import SyncTaskContext
from jobq.task import Task
from jobq.task_client import checked_checkpoint


class TaskContext:
    """What an asynchronous callback gets as `delivery`.

    Attributes:
        id: the task's id.
        attempt: the number of this attempt, counted from 1.
        fencing_number: only rises for one task; its text is what JOBQ_LEASE_TOKEN holds (S3).
        task: as it was delivered; a copy.
        checkpoint: what an earlier attempt saved last; None = nothing.
        lock_lost_event: set when the lease is, or may be, no longer ours; the callback is cancelled then.
    """

    def __init__(self, task: Task, delivery: Delivery, keeper: LeaseKeeper) -> None:
        self.id = task.id
        self.attempt = delivery.deliveries
        self.fencing_number = delivery.fencing
        self.task = copy.deepcopy(task)  # what a callback does to it must not travel on with a retry
        self.checkpoint = StoredCheckpoint.decode(delivery.checkpoint_value).value
        self.lock_lost_event = keeper.lock_lost_event
        self._keeper = keeper

    async def save_checkpoint(self, value: str) -> None:
        """Durably save the task's progress; see `SyncTaskContext.save_checkpoint`, also for what it raises."""
        await self._keeper.checkpoint(checked_checkpoint(value))

    def remaining(self) -> float:
        """Return the seconds to the lease's deadline; each renewal moves it, 0 means it has passed."""
        return self._keeper.remaining()

    @property
    def lock_lost(self) -> bool:
        """Whether the lease is, or may be, no longer ours; also for a callback that was left by its worker."""
        return self._keeper.is_lost


class _ThreadLink:
    """From a thread to the keeper, which lives on the event loop."""

    def __init__(self, keeper: LeaseKeeper) -> None:
        self._keeper = keeper
        self._loop = asyncio.get_running_loop()

    def save_checkpoint(self, value: str) -> None:
        saving = self._keeper.checkpoint(value)
        try:
            saved = asyncio.run_coroutine_threadsafe(saving, self._loop)
        except RuntimeError:  # the loop is closed
            saving.close()
            raise LockLost("the worker has ended before this thread did, and keeps its lease no more") from None
        saved.result()

    def lease(self) -> tuple[float, bool]:
        return self._keeper.remaining(), self._keeper.is_lost


def thread_context(task: Task, delivery: Delivery, keeper: LeaseKeeper) -> SyncTaskContext:
    """Return the context for a callback that runs in a thread of this process."""
    return SyncTaskContext(
        task_id=task.id,
        attempt=delivery.deliveries,
        fencing_number=delivery.fencing,
        checkpoint=StoredCheckpoint.decode(delivery.checkpoint_value).value,
        link=_ThreadLink(keeper),
    )
