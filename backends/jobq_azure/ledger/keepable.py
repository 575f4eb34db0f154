"""What a ledger asks of the queue beside which it is kept, and of that queue's deliveries."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from jobq.fencing import FencingNumber
from jobq.settlement import Release, Requeue
from jobq.task import Task
from jobq_azure.common.letter_ledger import LetterLedger


class KeptInLedger(Protocol):
    """A delivery whose message says which one it is.

    Attributes:
        is_recorded: whether the ledger has it that the message is put back: what replaces it begins anew there.
    """

    is_recorded: bool

    @property
    def message_origin(self) -> str:
        """What no other message has."""
        ...

    @property
    def message_roots(self) -> Sequence[str]:
        """The origins of the messages that it has replaced while no ledger could be had, in their order.

        The first is the one of which the ledger was told. Its own where there are none; `MOST_ROOTS` of more.
        """
        ...

    @property
    def message_before(self) -> int:
        """How many deliveries there were of the messages that it has replaced."""
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
    def message_work(self) -> str:
        """`letter_work.work_of` its task; empty = its payload is lost."""
        ...

    @property
    def message_created(self) -> float | None:
        """When its task was made; likewise."""
        ...

    def put_back_as(self, settlement: Requeue | Release) -> Task | None:
        """Return the task of the message that replaces it where this puts it back; None = it stays the message it is.

        Raises:
            MalformedTask: as settling it would.
        """
        ...


class HandsOutBatches(Protocol):
    """A queue that hands out tasks of batches to who keeps their ledger."""

    def keep_ledger(self, ledger: LetterLedger) -> None:
        """Hand out tasks of batches, too."""
        ...

    def check_room(self, task: Task) -> None:
        """Raise MalformedTask for a task that could not be pushed for its size."""
        ...

    async def messages_left(self) -> AbstractSet[str]:
        """Return of all messages that it holds, once it was cleared, the origins, and those of what they replaced."""
        ...
