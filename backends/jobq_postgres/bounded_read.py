"""Reading for a bounded time: the server ends the statement that is under way when that is over."""

import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

import asyncpg

KEYED_SECONDS: Final = 5.0  # of a statement that finds what it reads by a key, and so is no matter of time
_SET: Final = "SELECT set_config('statement_timeout', $1, true)"
_NOW: Final = "SELECT set_config('statement_timeout', $1, true), clock_timestamp()"


class TimeIsOver(Exception):
    """There was no time for a statement, or not enough; the transaction is over."""


class BoundedRead:
    """Statements of one transaction that only reads.

    Args:
        connection: of asyncpg, in such a transaction.

    Attributes:
        now: the server's time.
    """

    now: datetime

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._ends: float | None = None

    async def begin(self) -> None:
        """Take the server's time."""
        _, self.now = await self._connection.fetchrow(_NOW, _milliseconds(KEYED_SECONDS))

    @property
    def wall(self) -> float:
        """The server's time in seconds since the epoch."""
        return self.now.timestamp()

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self._ends is not None and time.monotonic() >= self._ends

    def limit(self, budget: timedelta) -> None:
        """Let the time begin; what was read before has taken none of it."""
        self._ends = time.monotonic() + budget.total_seconds()

    async def fetch(self, statement: str, *values: object) -> list[Any]:
        """Run a statement; raises TimeIsOver."""
        if self._ends is None:
            return list(await self._connection.fetch(statement, *values))
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeIsOver
        await self._connection.fetchrow(_SET, _milliseconds(left))
        try:
            return list(await self._connection.fetch(statement, *values))
        except asyncpg.QueryCanceledError:
            if not self.is_over:  # somebody else has ended it
                raise
            raise TimeIsOver from None

    async def fetch_one(self, statement: str, *values: object) -> Any:
        """As `fetch`, of one row; None = there is none."""
        return next(iter(await self.fetch(statement, *values)), None)


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def text_keys(parts: Iterable[object]) -> list[str]:
    """Return the values of a row's place as texts, without a loss."""
    return [part.isoformat() if isinstance(part, datetime) else str(part) for part in parts]
