"""What a queue's dead letters ask of a ledger, where tasks of batches are kept in one (`jobq_azure.ledger`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from jobq.errors import ConfigurationError, MalformedTask
from jobq.task import Task

NEEDED: Final = (
    "is of a batch, which is kept in a table that this process does not use: set JOBQ_JOURNAL=tables for whoever pushes"
    " and works (on Service Bus tables://ACCOUNT)"
)
MOST_ROOTS: Final = 100  # that a message says; one of more says the first, and the last
PUT_OFF: Final = timedelta(seconds=30)  # a task that cannot be had without the ledger, or whose ledger is away


@dataclass(frozen=True)
class Buried:
    """The message that a dead letter was, where the service moves it there.

    Attributes:
        step: the epoch and the generation that stand in it.
        origin: what no other message had; empty = it is not known, for the service has moved it by itself.
        roots: as of `KeptInLedger.message_roots`; likewise.
    """

    step: tuple[int, int]
    origin: str
    roots: Sequence[str]


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
    payload is lost); those with `buried` the message that the letter was, where it was moved there as it was: then its
    task may have ended by that alone. Raises JobqError: nothing is to be done now.
    """

    async def redriving(self, book: str, task_id: str, epoch: int, work: str, buried: Buried | None = None) -> bool:
        """Note that it is being put back as of this epoch; return whether to send it, else its letter is left over.

        Raises:
            OtherWork: the task is other work than the letter holds, and no matter of it.
        """
        ...

    async def redriven(self, book: str, task_id: str, epoch: int) -> None:
        """Note that it has been sent."""
        ...

    async def purging(self, book: str, task_id: str, work: str, buried: Buried | None = None) -> None:
        """Note that it is being deleted, unless the task is other work."""
        ...


def ledger_of(task: Task) -> str:
    """Return the book in which a task is kept; empty = in none."""
    return (task.work.ledger if task.work is not None else None) or ""


def ledger_in(body: bytes) -> str:
    """Return the book in which the task of a message is kept; empty = in none, or it is no task."""
    if b'"ledger"' not in body:
        return ""
    try:
        return ledger_of(Task.decode(body))
    except MalformedTask:
        return ""


def not_kept(task_id: str) -> ConfigurationError:
    """Return what to say of a dead letter whose ledger is not at hand."""
    return ConfigurationError(f"dead letter {task_id} {NEEDED}, and for you")
