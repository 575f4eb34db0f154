"""Walks over the tasks of a queue's batches that have not ended: to cancel them, or because the queue was cleared."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from jobq_azure.ledger.entries import (
    ENDED,
    GONE,
    RUNNING,
    WAITING,
    LedgerEntry,
    book_in,
    partitions_of,
)
from jobq_azure.ledger.journal_notes import JournalNotes
from jobq_azure.ledger.ledger import EntryChange, Ledger
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.cancel_requests import CancelRequest, CancelRequests
from jobq_azure.table_journal.client import MOST_ROWS
from jobq_azure.table_journal.entities import IdOfLife
from jobq_azure.table_journal.lookup import answered, for_each

MOST_AT_ONCE: Final = 500  # tasks that one step of a cancel ends
_LOST_SECONDS: Final = 60.0  # for which nothing has changed of what an empty queue has no message of
_TURNS: Final = 3  # of a cancel that meets tasks which start meanwhile
_WALKED: Final = "State,Then,Fencing,Origin,Born,At,Cancel,Opening"


class LedgerWalk:
    """Of one queue.

    Args:
        ledger: of the queue.
        notes: records in the journal what ends without having run.
        requests: ask what runs to end.
    """

    def __init__(self, ledger: Ledger, notes: JournalNotes, requests: CancelRequests) -> None:
        self._ledger = ledger
        self._notes = notes
        self._requests = requests

    async def is_left(self, book: str, first: str = "") -> str:
        """Return a partition in which something has not ended; empty = there is none.

        Args:
            book: of a batch.
            first: which one to look at first.
        """
        partitions = partitions_of(self._ledger.queue, book)
        first = first or partitions[0]

        async def look(partition: str) -> bool:
            # Not one page: the service may answer with none of the rows, and where to go on.
            return bool(await self._ledger.wire.all(partition, "u!", 'u"', most=1))

        if await answered(look(first)):
            return first
        others = [partition for partition in partitions if partition != first]
        left = await answered(for_each(others, look))
        return next((partition for partition, is_left in zip(others, left, strict=True) if is_left), "")

    async def cancel(self, book: str, opening: int) -> bool:
        """End what waits of a batch, and ask what runs to end; return whether there is more to do.

        Args:
            book: of the batch.
            opening: of it when it was canceled: what was entered or put back since is not meant, however late this is.
        """
        changed = 0
        async for _, page in self._unended(f"{self._ledger.queue}!b!{book}"):
            some, asked = page, set[str]()
            for _ in range(_TURNS):
                found = await for_each(some, lambda entry, asked=asked: self._cancel(book, entry, opening, asked))  # type: ignore[misc]
                changed += self._ended(book, found)
                # The request is recorded before the mark that says so: whoever is cut off in between does it again.
                some = [entry for entry, is_new in found if entry is not None and is_new is None]
                await self._ask_to_end([entry.id for entry in some])
                asked.update(str(entry.id) for entry in some)
                if not some:
                    break
            if changed >= MOST_AT_ONCE:
                break
        return changed >= MOST_AT_ONCE

    def _ended(self, book: str, found: Sequence[tuple[LedgerEntry | None, bool | None]]) -> int:
        """Record in the journal what has ended unrun; return how many entries were changed."""
        changed = [entry for entry, is_new in found if entry is not None and is_new]
        for entry in changed:
            self._notes.ended(entry, book)
        return len(changed)

    async def _ask_to_end(self, running: Sequence[IdOfLife]) -> None:
        for start in range(0, len(running), MOST_ROWS):
            some = running[start : start + MOST_ROWS]
            now = self._ledger.wire.now()
            await answered(self._requests.record(CancelRequest.of(str(id_), id_.birth, at=now) for id_ in some))

    async def _cancel(
        self, book: str, known: LedgerEntry, opening: int, asked: Collection[str]
    ) -> tuple[LedgerEntry | None, bool | None]:
        """Return the entry, and whether it was changed; None = it runs, and is first to be asked to end."""
        is_new: bool | None = False

        def decide(entry: LedgerEntry | None) -> EntryChange | None:
            nonlocal is_new
            is_new = entry is not None and entry.state != ENDED and not entry.is_to_end and entry.opening <= opening
            if entry is None or not is_new:
                return None
            if entry.state == RUNNING and str(entry.id) not in asked:
                is_new = None
                return None
            if entry.state == RUNNING:
                return EntryChange({"Cancel": True})
            return EntryChange({"State": ENDED, "Then": "canceled", "At": self._ledger.wire.now()}, opens=False)

        return await self._ledger.change(book, str(known.id), decide, known), is_new

    async def clear(self) -> None:
        """Note that all is gone that has not ended, of all batches and of what is run at their ends.

        Whatever is there was pushed before this has ended, and so before the clear as well as after it; should its
        message come later, it is completed unrun.
        """

        def decide(entry: LedgerEntry | None) -> EntryChange | None:
            if entry is None or entry.state == ENDED:
                return None
            return EntryChange({"State": ENDED, "Then": GONE, "At": self._ledger.wire.now()}, opens=False)

        async for partition, page in self._unended(f"{self._ledger.queue}!b"):
            book = book_in(partition, self._ledger.queue)
            await for_each(page, lambda known, book=book: self._ledger.change(book, str(known.id), decide, known))  # type: ignore[misc]

    async def lost(self, book: str, is_bare: Callable[[], Awaitable[bool]]) -> bool:
        """Note that all is gone of a batch whose messages are: its queue was deleted and made anew, by other means.

        What has not ended has a message, unless its push or its redrive is under way: what changed lately may be that.

        Args:
            book: of the batch.
            is_bare: returns whether the queue holds no message at all, hidden ones included.
        """
        changed = False
        async for partition, page in self._unended(f"{self._ledger.queue}!b!{book}"):
            now = self._ledger.wire.now()
            pushing = await answered(self._ledger.among(partition, [str(each.id) for each in page], "p"))
            old = [
                each
                for each in page
                if each.state in (WAITING, RUNNING)
                and str(each.id) not in pushing
                and rows.age(each.row, now) > _LOST_SECONDS
            ]
            if not old or not await is_bare():  # after it was read: what is sent since has changed it
                continue

            await for_each(old, partial(self._end_since, book, now))
            changed = True
        return changed

    async def _end_since(self, book: str, now: float, known: LedgerEntry) -> None:
        """End a task as gone, if it is as it was then."""
        await self._ledger.change(book, str(known.id), _gone_since(known.etag, now), known)

    async def _unended(self, prefix: str) -> AsyncIterator[tuple[str, list[LedgerEntry]]]:
        """Yield partitions and what has not ended in them, some at once."""
        after: Mapping[str, str] | None = None
        while True:
            found, after = await answered(
                self._ledger.wire.look(
                    f"{prefix}!", "m!", 'm"', where=f"State ne '{ENDED}'", select=_WALKED, after=after, etags=True,
                    behind=f'{prefix}"',
                )
            )  # fmt: skip
            by_partition: dict[str, list[LedgerEntry]] = {}
            for row in found:
                by_partition.setdefault(str(row["PartitionKey"]), []).append(LedgerEntry(row))
            for partition, page in by_partition.items():
                yield partition, page
            if after is None:
                return


def _gone_since(etag: str, now: float) -> Callable[[LedgerEntry | None], EntryChange | None]:
    """Return what ends a task as gone, if it is as it was then."""

    def decide(entry: LedgerEntry | None) -> EntryChange | None:
        values = {"State": ENDED, "Then": GONE, "At": now}
        return EntryChange(values, opens=False) if entry is not None and entry.etag == etag else None

    return decide
