"""Walks over the tasks of a queue's batches that have not ended: to cancel them, or because the queue was cleared."""

import time
from collections.abc import AsyncIterator, Mapping
from typing import Final

from jobq_azure.ledger.entries import (
    ENDED,
    GONE,
    RUNNING,
    LedgerEntry,
    book_in,
    id_in,
    partitions_of,
)
from jobq_azure.ledger.ledger import EntryChange, Ledger
from jobq_azure.table_journal.cancel_requests import CancelRequest, CancelRequests
from jobq_azure.table_journal.client import MOST_ROWS, Row
from jobq_azure.table_journal.entities import IdOfLife
from jobq_azure.table_journal.lookup import answered, for_each
from jobq_azure.table_journal.recorder import Notebook

MOST_AT_ONCE: Final = 500  # tasks that one step of a cancel ends


class LedgerWalk:
    """Of one queue.

    Args:
        ledger: of the queue.
        notebook: records in the journal what ends without having run.
        requests: ask what runs to end.
    """

    def __init__(self, ledger: Ledger, notebook: Notebook, requests: CancelRequests) -> None:
        self._ledger = ledger
        self._notebook = notebook
        self._requests = requests

    async def is_left(self, book: str, first: int = 0) -> int | None:
        """Return in which partition something has not ended; None = in none.

        Args:
            book: of a batch.
            first: which one to look at first.
        """
        partitions = partitions_of(self._ledger.queue, book)

        async def look(number: int) -> bool:
            found, _ = await self._ledger.wire.look(partitions[number], "u!", 'u"', limit=1)
            return bool(found)

        if await answered(look(first)):
            return first
        others = [number for number in range(len(partitions)) if number != first]
        left = await answered(for_each(others, look))
        return next((number for number, is_left in zip(others, left, strict=True) if is_left), None)

    async def pushing(self, name: str) -> list[tuple[str, Row]]:
        """Return the tasks of a batch whose push is not known to be over: the partition of each, and its row."""

        async def look(partition: str) -> list[tuple[str, Row]]:
            found, _ = await self._ledger.wire.look(partition, "p!", 'p"', etags=True)
            return [(partition, row) for row in found]

        looked = await answered(for_each(partitions_of(self._ledger.queue, name), look))
        return [each for some in looked for each in some]

    async def cancel(self, name: str) -> bool:
        """End what waits of a batch, and ask what runs to end; return whether there is more to do."""
        changed, running = 0, list[IdOfLife]()
        async for partition, page in self._unended(f"{self._ledger.queue}!b!{name}"):
            book = book_in(partition, self._ledger.queue)
            found = await for_each([id_in(row) for row in page], lambda id_, book=book: self._cancel(book, id_))  # type: ignore[misc]
            for entry, is_new in found:
                if entry is not None and is_new:
                    changed += 1
                    if entry.state == RUNNING:
                        running.append(entry.id)
                    else:
                        self._notebook.canceled(entry.id, entry.id.birth, entry.fencing)
            if changed >= MOST_AT_ONCE:
                break
        for start in range(0, len(running), MOST_ROWS):
            some = running[start : start + MOST_ROWS]
            await answered(self._requests.record(CancelRequest.of(str(id_), id_.birth) for id_ in some))
        return changed >= MOST_AT_ONCE

    async def _cancel(self, book: str, id_: str) -> tuple[LedgerEntry | None, bool]:
        is_new = False

        def decide(entry: LedgerEntry | None) -> EntryChange | None:
            nonlocal is_new
            is_new = entry is not None and entry.state != ENDED and not entry.is_to_end
            if entry is None or not is_new:
                return None
            if entry.state == RUNNING:
                return EntryChange({"Cancel": True})
            return EntryChange({"State": ENDED, "Then": "canceled", "At": time.time()}, opens=False)

        return await self._ledger.change(book, id_, decide), is_new

    async def clear(self, *, running: bool) -> None:
        """Note that all is gone that has not ended, of all batches and of what is run at their ends.

        Whatever is there was pushed before this has ended, and so before the clear as well as after it; should its
        message come later, it is completed unrun.

        Args:
            running: whether what ran was cleared, too.
        """

        def decide(entry: LedgerEntry | None) -> EntryChange | None:
            is_there = entry is not None and entry.state != ENDED and (running or entry.state != RUNNING)
            return EntryChange({"State": ENDED, "Then": GONE, "At": time.time()}, opens=False) if is_there else None

        async for partition, page in self._unended(f"{self._ledger.queue}!b"):
            book = book_in(partition, self._ledger.queue)
            await for_each(
                [id_in(row) for row in page], lambda id_, book=book: self._ledger.change(book, id_, decide)  # type: ignore[misc]
            )  # fmt: skip

    async def _unended(self, prefix: str) -> AsyncIterator[tuple[str, list[Row]]]:
        """Yield partitions and the rows of what has not ended in them, some at once."""
        after: Mapping[str, str] | None = None
        while True:
            found, after = await answered(
                self._ledger.wire.look(f"{prefix}!", "u!", 'u"', after=after, behind=f'{prefix}"')
            )
            by_partition: dict[str, list[Row]] = {}
            for row in found:
                by_partition.setdefault(str(row["PartitionKey"]), []).append(row)
            for partition, page in by_partition.items():
                yield partition, page
            if after is None:
                return
