"""Forgetting batches: JOBQ_KEEP after the last round has finished, a batch as a whole, with all that is kept of it.

One of which a task is a dead letter stays, and so does one that was never finished: what is there is never forgotten.
"""

from contextlib import suppress
from typing import Final

from jobq_azure.ledger import heads
from jobq_azure.ledger.entries import DEAD, REDRIVING, partitions_of
from jobq_azure.ledger.heads import Head, Heads
from jobq_azure.ledger.ledger import Ledger
from jobq_azure.table_journal.client import MOST_ROWS, Row, Verb, Write
from jobq_azure.table_journal.errors import WriteRefused
from jobq_azure.table_journal.lookup import answered

_MOST_BATCHES: Final = 20  # of one sweep


class LedgerRetention:
    """Of one queue.

    Args:
        ledger: of the queue.
        batches: of the queue.
        keep_seconds: for how long a batch is kept that has finished.
    """

    def __init__(self, ledger: Ledger, batches: Heads, keep_seconds: float) -> None:
        self._ledger = ledger
        self._heads = batches
        self._keep_seconds = keep_seconds

    async def once(self) -> None:
        """Forget some batches that finished long ago."""
        old = self._ledger.wire.now() - self._keep_seconds
        where = f"((State eq '{heads.FINISHED}' and Finished lt {old:.3f}) or State eq '{heads.FORGETTING}')"
        for head in await self._heads.list("", _MOST_BATCHES, where=where, forgetting=True):
            if head.state == heads.FORGETTING:
                await self.forget(head)
            elif not await self._is_needed(head):
                own = await answered(self._heads.replace(head, {"State": heads.FORGETTING}))
                if own is not None:
                    await self.forget(own)

    async def _is_needed(self, head: Head) -> bool:
        """Return whether something of it may still be run: a dead letter, or what was queued at its end."""
        where = f"(Then eq '{DEAD}' or State eq '{REDRIVING}')"
        for book in (head.book, head.book_of_end):
            for partition in partitions_of(self._ledger.queue, book):
                look = self._ledger.wire.all(partition, "m!", 'm"', where=where, select="Then", most=1)
                if await answered(look):
                    return True
        # What is run at its end may wait for longer than a batch is kept.
        for partition in partitions_of(self._ledger.queue, head.book_of_end):
            if await answered(self._ledger.wire.all(partition, "u!", 'u"', select="RowKey", most=1)):
                return True
        return False

    async def forget(self, head: Head) -> None:
        """Delete all rows of a batch that is `forgetting`, its own last: who begins it anew meets none of them."""
        for book in (head.book, head.book_of_end):
            for partition in partitions_of(self._ledger.queue, book):
                while found := await answered(self._ledger.wire.all(partition, "m!", 'u"', most=MOST_ROWS)):
                    await answered(self._delete(partition, found))
        with suppress(WriteRefused):
            await answered(self._heads.forget(head))

    async def _delete(self, partition: str, found: list[Row]) -> None:
        with suppress(WriteRefused):  # another forgets it, too
            await self._ledger.wire.write(partition, [Write(Verb.DELETE, row["RowKey"], {}) for row in found])
