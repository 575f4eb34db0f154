"""A leased row behind the delivery protocol; every verb is fenced by its receipt (S4)."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

from jobq.backend import Renewed
from jobq.delivery import BaseDelivery
from jobq.servable import packed
from jobq.settlement import Settlement
from jobq_postgres.settle import Change, LeasedRow, settling
from jobq_postgres.stored_text import bytes_of, text_of

if TYPE_CHECKING:
    from jobq.journal.records import Beat

_LONGEST_SECONDS: Final = 5.0


class Verbs(Protocol):
    """The groups that run the verbs of many deliveries."""

    def run(self, verb: str, change: Change, seconds: float) -> Awaitable[bool]:
        """Run one, and return whether the task is to be canceled; a lost answer is SettlementUnknown."""
        ...


class PostgresDelivery(BaseDelivery):
    """One task leased from a PostgreSQL queue.

    Args:
        verbs: runs its verbs.
        row: what was claimed, with the receipt.
        lease: the length that was granted.
        changed: called when something may have become ready in this process's sight.
        queue: the queue's name, for a receipt that others may use (`jobq.servable`).
        journaled: whether a journal is kept.
    """

    def __init__(
        self,
        verbs: Verbs,
        row: LeasedRow,
        lease: timedelta,
        changed: Callable[[], None],
        *,
        queue: str = "",
        journaled: bool = False,
    ) -> None:
        super().__init__(
            id=row.id,
            body=row.body,
            deliveries=row.deliveries,
            lease=lease,
            checkpoint=None if row.checkpoint is None else text_of(row.checkpoint),
            journaled=journaled,
            cancel_requested=row.cancel_requested,
        )
        self._queue = queue
        self._verbs = verbs
        self._row = row
        self._changed = changed
        # As long as the keeper waits for one attempt (1.3 rule 4): a black hole holds up the next one no longer.
        self._seconds = max(0.5, min(lease.total_seconds() / 8, _LONGEST_SECONDS))

    async def renew(self, lease: timedelta, beat: "Beat | None" = None) -> Renewed:
        """Extend the lease from now."""
        sign = None if beat is None or not self.journaled else beat.encode()
        canceled = await self._run("renew", lease, sign)
        return Renewed(cancel=canceled)

    async def settle(self, settlement: Settlement, said: str = "") -> None:
        """End the delivery, in one statement (S6).

        Args:
            settlement: how.
            said: what distinguishes it from another one, where its values do not (`jobq.servable`).
        """
        verb, *values = settling(
            settlement,
            self.body_after(settlement),
            said or settlement.key,
            self._row.deliveries if self.journaled else None,
            place=self._row.position,
        )
        await self._run(verb, *values)

    @property
    def receipt(self) -> str:
        """What finds this delivery again."""
        return packed(self._queue, self.id, self._row.seq, self._row.receipt.hex)

    async def checkpoint(self, value: str, number: int = 0) -> None:
        """Save the task's progress in its row (S9)."""
        await self._run("checkpoint", bytes_of(value), number)

    async def _run(self, verb: str, *values: object) -> bool:
        canceled = await self._verbs.run(verb, Change(self._row, values), self._seconds)
        if verb in ("requeue", "renew"):
            self._changed()
        return canceled
