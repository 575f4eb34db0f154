"""Counts of a batch, and its tasks by id: read from the ledger whenever somebody asks."""

import asyncio
import heapq
import json
import math
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jobq.batches import PACE_SECONDS, PACE_TASKS, Member, pace
from jobq.formats.wire_v3 import batch_of_book
from jobq_azure.ledger.entries import DEAD, ENDED, GONE, REDRIVING, REVOKED, RUNNING, LedgerEntry, key, partitions_of
from jobq_azure.ledger.ledger import Ledger
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.client import PAGE_ROWS, Row
from jobq_azure.table_journal.lookup import answered

_COUNTED: Final = "State,Then,Born,At,Due,Lease"
_LISTED: Final = "State,Then,Born,At,Due,Lease,Params0"  # params have 4 KiB at most
_LEAST_PAGE: Final = 16  # members of one partition, of one look
_MOST_RUNNING: Final = 1_000_000
_NAMES: Final = {"done": "succeeded", DEAD: "dead", "canceled": "canceled", GONE: "gone"}


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What a look at all tasks of a batch has found.

    Attributes:
        counts: by the names of COUNTED.
        rate: how many ended in a second, of late; None = too few did.
        left: a partition in which something has not ended; empty = in none.
    """

    counts: Mapping[str, int]
    rate: float | None
    left: str


class Counting:
    """Counts the tasks of one queue's batches.

    Args:
        ledger: of the queue.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def counted(self, book: str, since: float = 0.0) -> Counted:
        """Count: the tasks of a thousand are one request, so it takes the longer the more there are.

        Args:
            book: of the batch.
            since: wall time in seconds; what ended before is no pace.
        """
        counts, long_ones = Counter[str](), list[LedgerEntry]()
        ends, now, left = list[float](), self._ledger.wire.now(), ""
        since = max(since, now - PACE_SECONDS)
        prefix = f"{self._ledger.queue}!b!{book}"
        after: Mapping[str, str] | None = None
        while True:
            page, after = await answered(
                self._ledger.wire.look(f"{prefix}!", "m!", 'm"', select=_COUNTED, after=after, behind=f'{prefix}"')
            )
            for row in page:
                entry = LedgerEntry(row)
                state = self.state(entry)
                if entry.state != ENDED:
                    left = str(row["PartitionKey"])
                if state == "expired":
                    long_ones.append(entry)
                elif state:
                    counts[state] += 1
                if state in ("succeeded", DEAD) and entry.at > since:
                    (heapq.heappush if len(ends) < PACE_TASKS else heapq.heappushpop)(ends, entry.at)
            if after is None:
                break
        for state in (await self._leased(book, long_ones)).values():
            counts[state] += 1
        return Counted(counts=counts, rate=pace(len(ends), now - ends[0] if ends else None), left=left)

    def state(self, entry: LedgerEntry) -> str:
        """Return where a task is, by COUNTED; empty = it counts for nothing. `expired` is one that may be running yet.

        Its lease, as it was granted, is over; how often it was renewed only the journal knows.
        """
        if entry.state == ENDED:
            return "" if entry.then == REVOKED else _NAMES.get(entry.then, "succeeded")
        if entry.state == REDRIVING:
            return DEAD
        if entry.state == RUNNING:
            left = float(entry.row.get("Lease") or 0.0) - rows.age(entry.row, self._ledger.wire.now())
            return "running" if left > 0 else "expired"
        return "scheduled" if entry.due > self._ledger.wire.now() else "ready"

    async def _leased(self, book: str, found: Sequence[LedgerEntry]) -> dict[str, str]:
        """Return of tasks whose first lease is over whether it was renewed, by id.

        The journal knows that of all that runs of a batch: a request for a thousand, not one or more for each task.
        """
        states = dict.fromkeys((str(entry.id) for entry in found), "expired")
        if found:
            births = {str(entry.id): entry.id.birth for entry in found}
            where = f"State eq 'running' and Batch eq '{batch_of_book(book)}'"
            look = self._ledger.wire.all(
                self._ledger.queue, *rows.below("l"), where=where, select="LeaseLeft", most=_MOST_RUNNING
            )
            now = self._ledger.wire.now()
            for row in await answered(look):
                id_ = rows.id_of(row)
                if births.get(id_) == id_.birth and rows.lease_left(row, now) > 0:
                    states[str(id_)] = "running"
        return states

    async def members(self, book: str, after: str, limit: int, state: str | None = None) -> list[Member]:
        """Return up to `limit` tasks in the order of their keys, from behind one; none only where there are no more.

        Args:
            book: of the batch.
            after: an id; "" = the first.
            limit: how many.
            state: `dead` = those alone.
        """
        partitions = partitions_of(self._ledger.queue, book)
        size = min(PAGE_ROWS, max(_LEAST_PAGE, 2 * math.ceil(limit / len(partitions))))
        where = f"(Then eq '{DEAD}' or State eq '{REDRIVING}')" if state == DEAD else ""
        first = f"{key('m', after)}!" if after else "m!"
        while True:
            looks = (
                self._ledger.wire.all(partition, first, 'm"', where=where, select=_LISTED, most=size)
                for partition in partitions
            )
            pages = await answered(_gathered(looks))
            # Behind the last one of a page there may be more of its partition.
            bound = min((page[-1]["RowKey"] for page in pages if len(page) >= size), default='m"')
            found = sorted(
                (row for page in pages for row in page if row["RowKey"] <= bound), key=lambda row: str(row["RowKey"])
            )
            shown = await self._shown(book, [LedgerEntry(row) for row in found], state)
            if shown or bound == 'm"':
                return shown[:limit]
            first = f"{bound}!"  # all of these are gone

    async def _shown(self, book: str, found: Sequence[LedgerEntry], wanted: str | None) -> list[Member]:
        states = [(entry, self.state(entry)) for entry in found]
        leased = await self._leased(book, [entry for entry, state in states if state == "expired"])
        members = (
            Member(
                id=entry.id,
                state=leased.get(str(entry.id), state),
                params=json.loads(entry.params) if entry.params else {},
            )
            for entry, state in states
            if state not in ("", GONE)
        )
        return [member for member in members if wanted in (None, member.state)]


async def _gathered(looks: "Sequence[Awaitable[list[Row]]] | object") -> list[list[Row]]:
    return list(await asyncio.gather(*looks))  # type: ignore[misc]
