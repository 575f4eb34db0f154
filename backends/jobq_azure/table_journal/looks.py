"""Looks at a table on behalf of somebody who only looks: counted, for each is billed, and in bounded time."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from jobq_azure.table_journal.client import PAGE_ROWS, Row, TableWire

MOST_LOOKS: Final = 5  # of one view


class LooksUsedUp(Exception):
    """There is no look left, or no time."""


class Looks:
    """Those of one view.

    Args:
        wire: to the table.
        ends: by the monotonic clock, when its time is over.
        most: how many there are.
        queue: the partition of the queue; "" = that of the place of `wire`.
    """

    def __init__(self, wire: TableWire, ends: float, most: int, queue: str = "") -> None:
        self._wire = wire
        self._queue = queue or wire.place.queue
        self._ends = ends
        self._known: dict[tuple[object, ...], tuple[list[Row], Mapping[str, str] | None]] = {}
        self.left = most

    def now(self) -> float:
        """Return wall time by the service's clock, as far as that is known."""
        return self._wire.now()

    async def look(
        self,
        first: str,
        end: str,
        *,
        where: str,
        select: str = "",
        limit: int = PAGE_ROWS,
        after: Mapping[str, str] | None = None,
    ) -> tuple[list[Row], Mapping[str, str] | None]:
        """Return rows as `TableWire.look` does; the same again costs nothing. Raises LooksUsedUp."""
        key = (first, end, where, select, limit, *(after or {}).items())
        if key not in self._known:
            if self.left <= 0:
                raise LooksUsedUp
            self.left -= 1
            try:
                async with asyncio.timeout(self._ends - time.monotonic()):
                    self._known[key] = await self._wire.look(
                        self._queue, first, end, where=where, select=select, limit=limit, after=after
                    )
            except TimeoutError:
                self.left = 0
                raise LooksUsedUp from None
        return self._known[key]
