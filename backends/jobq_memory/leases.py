"""Named leases of the router: the rules of `jobq.lease.rules` under the router's lock."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from jobq.clock import Clock
from jobq.errors import LockLost
from jobq.lease import rules
from jobq.lease.rules import LeaseRow
from jobq.lease.store import Busy, Confirmation, Grant, LeaseLimits, LeaseRecord, Request

_LIMITS: Final = LeaseLimits(
    default_ttl=timedelta(seconds=60), min_ttl=timedelta(seconds=1), poll=timedelta(seconds=0.25)
)


class LeaseBook:
    """All named leases of a router, by queue and name; thread-safe.

    Args:
        clock: the one that decides.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.rows: dict[tuple[str, str], LeaseRow] = {}
        self.lock = threading.Lock()


class MemoryLeases:
    """The named leases of one queue.

    Args:
        book: of the router.
        queue: the queue's name.
    """

    def __init__(self, book: LeaseBook, queue: str) -> None:
        self._book = book
        self._queue = queue

    @property
    def limits(self) -> LeaseLimits:
        """Everything: the model that other stores are measured by."""
        return _LIMITS

    async def acquire(self, request: Request) -> Grant | Busy:
        """Take the name if it is free."""
        with self._book.lock:
            row, answer = rules.acquire(self._row(request.name), request, self._now(), self._book.clock.wall())
            self._book.rows[self._queue, request.name] = row
            return answer

    async def withdraw(self, name: str, key: str) -> None:
        """Release what this request was granted."""
        if self._row(name) is not None:
            self._change(name, lambda row, now: rules.withdraw(_known(name, row), key, now))

    async def renew(self, grant: Grant, ttl: timedelta) -> None:
        """Extend it."""
        seconds = ttl.total_seconds()
        self._change(grant.name, lambda row, now: rules.renew(grant.name, row, grant.token, seconds, now))

    async def release(self, name: str, token: int) -> None:
        """Give it back."""
        self._change(name, lambda row, now: rules.release(name, row, token, now))

    async def confirm(self, name: str, token: int, value: str) -> Confirmation:
        """Take it for good."""
        with self._book.lock:
            row, answer = rules.confirm(name, self._row(name), token, value, self._now())
            self._book.rows[self._queue, name] = row
            return answer

    async def save(self, grant: Grant, cursor: str, version: int) -> None:
        """Save the cursor."""
        self._change(grant.name, lambda row, now: rules.save(grant.name, row, grant.token, cursor, version, now))

    async def revoke(self, name: str) -> LeaseRecord | None:
        """Keep the holder from renewing."""
        if self._row(name) is not None:
            self._change(name, lambda row, now: rules.revoke(_known(name, row), now))
        return await self.read(name)

    async def read(self, name: str) -> LeaseRecord | None:
        """Return one."""
        row = self._row(name)
        return None if row is None or not row.token else rules.record(name, row, self._now())

    async def list(self) -> list[LeaseRecord]:
        """Return all, by name."""
        with self._book.lock:
            names = sorted(name for queue, name in self._book.rows if queue == self._queue)
        found = [await self.read(name) for name in names]
        return [record for record in found if record is not None]

    def _row(self, name: str) -> LeaseRow | None:
        return self._book.rows.get((self._queue, name))

    def _now(self) -> float:
        return self._book.clock.boottime()

    def _change(self, name: str, rule: Callable[[LeaseRow | None, float], LeaseRow]) -> None:
        with self._book.lock:
            self._book.rows[self._queue, name] = rule(self._row(name), self._now())


def _known(name: str, row: LeaseRow | None) -> LeaseRow:
    if row is None:
        raise LockLost(f"there is no lease {name}")
    return row
