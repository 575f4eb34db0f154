"""What a queue's dead letters ask of a ledger, where tasks of batches are kept in one (`jobq_azure.ledger`)."""

from datetime import timedelta
from typing import Final, Protocol

from jobq.errors import ConfigurationError

NEEDED: Final = (
    "is of a batch, which is kept in a table that this process does not use: set JOBQ_JOURNAL=tables for whoever pushes"
    " and works"
)
PUT_OFF: Final = timedelta(seconds=30)  # a task that cannot be had without the ledger, or whose ledger is away


class OtherWork(ConfigurationError):
    """A dead letter names a task of a batch, and holds other work than was pushed under that id."""

    def __init__(self, task_id: str, batch: str) -> None:
        super().__init__(
            f"dead letter {task_id} names a task of the batch {batch} and holds other work than was pushed, or its"
            " payload is gone: it is not put back. `dead show` shows it, and `dead purge` deletes it"
        )


class LetterLedger(Protocol):
    """Is told of each dead letter of a task of a batch, or of the end of one, before something is done with it.

    Each verb takes the book in which the task is kept, and its id; those with `work` what the letter holds (empty: its
    payload is lost). Raises JobqError: nothing is to be done now.
    """

    async def redriving(self, book: str, task_id: str, epoch: int, work: str) -> bool:
        """Note that it is being put back as of this epoch; return whether to send it, else its letter is left over.

        Raises:
            OtherWork: the task is other work than the letter holds, and no matter of it.
        """
        ...

    async def redriven(self, book: str, task_id: str, epoch: int) -> None:
        """Note that it has been sent."""
        ...

    async def purging(self, book: str, task_id: str, work: str) -> None:
        """Note that it is being deleted, unless the task is other work."""
        ...


def not_kept(task_id: str) -> ConfigurationError:
    """Return what to say of a dead letter whose ledger is not at hand."""
    return ConfigurationError(f"dead letter {task_id} {NEEDED}, and for you")
