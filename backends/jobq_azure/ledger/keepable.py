"""What a ledger asks of the queue beside which it is kept, and of that queue's deliveries."""

from typing import Protocol

from jobq.fencing import FencingNumber
from jobq.task import Task
from jobq_azure.common.letter_ledger import LetterLedger


class KeptInLedger(Protocol):
    """A delivery whose message says which one it is."""

    @property
    def message_origin(self) -> str:
        """What all copies of the message have in common, and no other message."""
        ...

    @property
    def message_fencing(self) -> FencingNumber:
        """The epoch and the generation that stand in it, and which delivery this is; raises MalformedTask."""
        ...

    @property
    def message_ledger(self) -> str:
        """The book in which its task is kept, also where that is lost; empty = in none."""
        ...

    @property
    def message_created(self) -> float | None:
        """When its task was made; likewise."""
        ...


class HandsOutBatches(Protocol):
    """A queue that hands out tasks of batches to who keeps their ledger."""

    def keep_ledger(self, ledger: LetterLedger) -> None:
        """Hand out tasks of batches, too."""
        ...

    def check_room(self, task: Task) -> None:
        """Raise MalformedTask for a task that could not be pushed for its size."""
        ...
