"""Pushes of which a ledger does not know that they are over: waited for, and after a time taken for dead.

A task is entered before it is queued, and has a row `p!TASK` until its push knows that it is queued. A push that has
died leaves the row behind; one whose word was long on its way may enter a task when its batch is sealed, or has even
finished. Nobody was told that such a task is queued: it is revoked, and counts for nothing.
"""

from contextlib import suppress
from typing import Final

from jobq_azure.ledger import entries
from jobq_azure.ledger.entries import ENDED, REVOKED, id_in, partitions_of
from jobq_azure.ledger.ledger import EntryChange, Ledger
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.client import Row, Verb, Write
from jobq_azure.table_journal.errors import WriteRefused
from jobq_azure.table_journal.lookup import answered, for_each

_SECONDS: Final = 600.0
_MOST_PUSHED: Final = 1_000_000  # tasks of one partition whose push is not known to be over


class UnendedPushes:
    """Of one queue.

    Args:
        ledger: of the queue.

    Attributes:
        seconds: after which a push that has not said that its tasks are queued is taken for dead.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.seconds = _SECONDS

    async def left(self, book: str, partition: str = "", *, ended: bool = False) -> list[str]:
        """Return the ids of tasks whose push may go on; take for dead what is older, and forget what is over.

        Args:
            book: in which they are kept.
            partition: to look into that one alone.
            ended: whether its batch has finished: no push to it can go on.
        """

        async def look(partition: str) -> list[tuple[str, Row]]:
            found = await self._ledger.wire.all(partition, "p!", 'p"', most=_MOST_PUSHED, etags=True)
            return [(partition, row) for row in found]

        places = [partition] if partition else partitions_of(self._ledger.queue, book)
        found = [each for some in await answered(for_each(places, look)) for each in some]
        left = await for_each(found, lambda each: self._is_left(book, *each, ended=ended))
        return [id_in(row) for (_, row), is_left in zip(found, left, strict=True) if is_left]

    async def _is_left(self, book: str, partition: str, row: Row, *, ended: bool) -> bool:
        is_old = ended or rows.age(row, self._ledger.wire.now()) > self.seconds
        now: Row | None = row
        while now is not None:
            entry = await answered(self._ledger.find(book, id_in(row)))
            waits = entry is not None and entry.was_never_claimed
            if waits and not is_old:
                return True
            writes = [Write(Verb.DELETE, now["RowKey"], {}, str(now["odata.etag"]))]
            if entry is not None and waits:
                # Should its message come, it is completed unrun. In one step with its mark: a push that has come so
                # far meanwhile is acknowledged, and not revoked.
                revoked = EntryChange({"State": ENDED, "Then": REVOKED, "At": self._ledger.wire.now()}, opens=False)
                writes += revoked.writes(str(entry.id), entry)
            with suppress(WriteRefused):
                await answered(self._ledger.wire.write(partition, writes))
                return False
            # Its push is over, or it was claimed in this moment, which is as good: another look says so.
            now = await answered(self._ledger.wire.get(partition, entries.key("p", id_in(row))))
        return False
