"""What a plain (not asynchronous) callback knows of its task; imported by its process, so it imports little."""

from typing import Final, Protocol

from jobq.fencing import FencingNumber
from jobq.task_client import checked_checkpoint


class KeeperLink(Protocol):
    """The way to the keeper of the lease."""

    def save_checkpoint(self, value: str) -> None:
        """Save; raises as `LeaseKeeper.checkpoint` does."""
        ...

    def lease(self) -> tuple[float, bool]:
        """Return the seconds to the lease's deadline, and whether the lease is lost."""
        ...


class SyncTaskContext:
    """What a plain callback gets as `delivery`.

    Attributes:
        id: the task's id.
        attempt: the number of this attempt, counted from 1.
        fencing_number: only rises for one task; its text is what JOBQ_LEASE_TOKEN holds (S3).
        checkpoint: what an earlier attempt saved last; None = nothing.
    """

    def __init__(
        self, *, task_id: str, attempt: int, fencing_number: FencingNumber, checkpoint: str | None, link: KeeperLink
    ) -> None:
        self.id: Final = task_id
        self.attempt: Final = attempt
        self.fencing_number: Final = fencing_number
        self.checkpoint: Final = checkpoint
        self._link = link

    def save_checkpoint(self, value: str) -> None:
        """Durably save the task's progress; the next attempt finds it as `checkpoint`, a command as JOBQ_CHECKPOINT.

        Args:
            value: text of at most `MAX_CHECKPOINT_BYTES`; for more, save where it is.

        Raises:
            LockLost: the lease is not ours any more; nothing was saved.
            SettlementUnknown: no answer came; saving again is safe.
            BackendUnavailable: it was not saved.
            TypeError, ValueError: it is no text that can be saved.
        """
        self._link.save_checkpoint(checked_checkpoint(value))

    def remaining(self) -> float:
        """Return the seconds to the lease's deadline; each renewal moves it, 0 means it has passed."""
        return self._link.lease()[0]

    @property
    def lock_lost(self) -> bool:
        """Whether the lease is, or may be, no longer ours: a thread should end at once, a process is being killed."""
        return self._link.lease()[1]
