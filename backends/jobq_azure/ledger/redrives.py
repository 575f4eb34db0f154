"""What is put back from the dead letters, and what is deleted there, of tasks of batches: first in the ledger.

A batch that has finished is sealed again, in its next round, before its task has not ended any more; and its head is
changed once more after that, so that nobody who has looked before finishes it.
"""

from typing import Final

from jobq.errors import ConfigurationError
from jobq.fencing import FencingNumber
from jobq.formats.wire_v3 import batch_of_book
from jobq_azure.ledger import heads
from jobq_azure.ledger.entries import ENDED, GONE, REDRIVING, WAITING, LedgerEntry
from jobq_azure.ledger.finishing import Finishing
from jobq_azure.ledger.heads import Head, Heads
from jobq_azure.ledger.ledger import EntryChange, Ledger
from jobq_azure.storage.letter_ledger import OtherWork
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.lookup import answered

_UNKNOWN: Final = (
    "dead letter {} is of the batch {}, of which nothing is known any more; `dead show` shows its command, which can be"
    " pushed anew, and `dead purge` deletes it"
)
_GOES_BACK: Final = (
    "dead letter {0} is not deleted: it was being put back, and its task may wait in the queue by now; `dead retry {0}`"
    " goes on with that"
)


class Redrives:
    """Of one queue; what its dead letters ask before they put one back, or delete one.

    Args:
        ledger: of the queue.
        batches: of the queue.
        finishing: of those.

    Attributes:
        canceled: what was to be put back into a batch that was canceled, and has ended by that, by id and birth: the
            entry and its book. Whoever records it takes it out.
    """

    def __init__(self, ledger: Ledger, batches: Heads, finishing: Finishing) -> None:
        self._ledger = ledger
        self._heads = batches
        self._finishing = finishing
        self.canceled: dict[tuple[str, int], tuple[LedgerEntry, str]] = {}

    async def redriving(self, book: str, task_id: str, epoch: int, work: str) -> bool:
        """Note that a dead letter is being put back; return whether its message is to be sent, else it is superfluous.

        Args:
            book: in which its task is kept.
            task_id: its id.
            epoch: as which it is put back: more than any before.
            work: that the letter holds.

        Raises:
            ConfigurationError: nothing is known of it.
            OtherWork: it is other work than was pushed.
            BackendUnavailable: it may be repeated.
        """
        name = batch_of_book(book)
        entry = await answered(self._ledger.find(book, task_id))
        if entry is not None and work not in entry.works:
            raise OtherWork(task_id, name or book[1:])
        head = None if name is None else await self._reopened(name, book)
        is_canceled = head is not None and head.is_canceled
        is_sent = False

        def decide(entry: LedgerEntry | None) -> EntryChange | None:
            nonlocal is_sent
            is_sent = False
            if entry is None:
                raise ConfigurationError(_UNKNOWN.format(task_id, name or book[1:]))
            if not (entry.is_dead or entry.was_never_claimed or (entry.state == ENDED and entry.then == GONE)):
                return None  # it is back already, or has been, and ended: the letter was left behind
            if is_canceled:
                return EntryChange({"State": ENDED, "Then": "canceled", "At": self._ledger.wire.now()}, opens=False)
            is_sent = True
            number = rows.order(FencingNumber(epoch, 0, 0))
            if entry.state == REDRIVING and entry.row["Fencing"] == number:
                return None
            back = {"State": REDRIVING, "Then": "", "Fencing": number, "Cancel": False, "At": self._ledger.wire.now()}
            back |= {"Origin": "", "Unproven": False, "Opening": 0 if head is None else head.opening}
            return EntryChange(back, opens=True)

        entry = await self._ledger.change(book, task_id, decide, entry)
        if entry is not None and entry.state == ENDED and entry.then == "canceled":
            self.canceled[task_id, entry.id.birth] = entry, book
        if name is not None and is_sent:
            await self._reopened(name, book, touch=True)
        elif name is not None:
            self._finishing.has_ended(name)
        return is_sent

    async def redriven(self, book: str, task_id: str, epoch: int) -> None:
        """Note that the message of a dead letter that was put back is sent, unless it is claimed by now."""

        def decide(entry: LedgerEntry | None) -> EntryChange | None:
            is_same = entry is not None and entry.state == REDRIVING and entry.fencing.epoch == epoch
            return EntryChange({"State": WAITING, "Due": self._ledger.wire.now()}) if is_same else None

        await self._ledger.change(book, task_id, decide)

    async def purging(self, book: str, task_id: str, work: str) -> None:
        """Note that a dead letter is being deleted: its task is gone; ConfigurationError: it goes back."""

        def decide(entry: LedgerEntry | None) -> EntryChange | None:
            if entry is None or not entry.may_be(work):
                return None
            if entry.state == REDRIVING:
                raise ConfigurationError(_GOES_BACK.format(task_id))
            gone = {"State": ENDED, "Then": GONE, "At": self._ledger.wire.now(), "Unproven": not work}
            # Anybody may write a letter of a task that waits.
            return EntryChange(gone, opens=False) if entry.is_dead else None

        await self._ledger.change(book, task_id, decide)
        if (name := batch_of_book(book)) is not None:
            self._finishing.has_ended(name)

    async def _reopened(self, name: str, book: str, *, touch: bool = False) -> Head | None:
        """Let a batch that has finished go on in its next round; None = there is none.

        Args:
            name: of it.
            book: of it; one that has the name now may have another.
            touch: whether its head is changed in any case: who has read it before finishes nothing.
        """
        if await self._heads.get(name) is None:
            return None

        def decide(head: Head) -> dict[str, object] | None:
            touched: dict[str, object] | None = {"Touched": self._ledger.wire.now()} if touch else None
            return None if head.book != book else _next_round(head) or touched

        while True:
            head = await self._heads.change(name, decide)
            if head.book != book:
                return None
            if head.state != heads.FINISHING:
                return head
            await self._finishing.ended(head)  # it has finished, in a moment


def _next_round(head: Head) -> dict[str, object] | None:
    if head.state != heads.FINISHED:
        return None
    return {"State": heads.SEALED, "Round": head.round + 1, "Canceled": False, "Finished": 0.0, **head.next_opening}
