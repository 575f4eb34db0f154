"""A delivery of a task of a batch: its end is in the ledger before the queue hears of it.

What the ledger has taken is what became of the task: should the queue's answer be lost then, or the lock with it, the
message comes again and is completed unrun, or goes on to the dead letters (`claims`).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from jobq.errors import BackendUnavailable, ConfigurationError, LockLost, SettlementUnknown
from jobq.settlement import Complete, MoveToDeadLetters, Record, Release, Requeue, Settlement
from jobq.task import OutcomeKind
from jobq_azure.ledger.claims import LedgerHold
from jobq_azure.table_journal.delivery import JournaledDelivery

_log: Final = logging.getLogger(__name__)


class LedgerDelivery(JournaledDelivery):
    """One delivery of a task that was claimed in the ledger.

    Args:
        *given: as of a `JournaledDelivery`.
        hold: the claim.
        on_ended: called when the ledger has its end.
    """

    def __init__(self, *given: Any, hold: LedgerHold, on_ended: Callable[[], None]) -> None:
        super().__init__(*given)
        self._hold = hold
        self._on_ended = on_ended
        self._ended_as = ""  # the settlement that the ledger and the queue have taken
        self.cancel_requested = hold.is_to_end

    async def settle(self, settlement: Settlement) -> None:
        """End the delivery, in the ledger and then in the queue; see `JournaledDelivery.settle`."""
        if self._ended_as:
            if self._ended_as != settlement.key:
                raise LockLost("this delivery was settled before, in another way")
            return
        settling = asyncio.ensure_future(self._settled_in_both(settlement))
        self._on_their_way.add(settling)
        settling.add_done_callback(self._answered)
        await asyncio.shield(settling)

    async def _settled_in_both(self, settlement: Settlement) -> None:
        try:
            done = await self._entered(settlement)
        except ConfigurationError as error:  # of the table: rights may come back, and the table
            raise BackendUnavailable(f"its batch cannot be told of its end: {error}") from None
        try:
            await super().settle(done)
        except (LockLost, SettlementUnknown) as error:
            if isinstance(done, Requeue | Release):
                raise
            # It has ended, by the ledger. Whoever gets the message sees that; nobody does if it was cleared.
            if isinstance(done, MoveToDeadLetters) and isinstance(error, LockLost) and await self._hold.is_dead():
                await self._bury(done)
            _log.info("task %s has ended, and its message may come once more: %s", self.id, error)
            self._is_settled = True
            self._safely(lambda: self._record_ended(done, None))
        self._ended_as = settlement.key

    async def _entered(self, settlement: Settlement) -> Settlement:
        """Tell the ledger; return what the queue is to be told."""
        match settlement:
            case Complete():
                await self._end(settlement.then)
            case MoveToDeadLetters(reason, description):
                await self._end("dead", reason=reason, description=description)
            case Requeue() | Release():
                if not await self._put_back(settlement):
                    return await self._entered(_canceled(settlement))
        return settlement

    async def _put_back(self, settlement: Requeue | Release) -> bool:
        return await self._hold.put_back(max(0.0, settlement.delay.total_seconds()))

    async def _bury(self, dead: MoveToDeadLetters) -> None:
        await self._inner.bury_unfenced(dead.reason, dead.description)

    async def _end(self, then: str, **why: str) -> None:
        await self._hold.end(then, **why)
        self._on_ended()


def _canceled(settlement: Requeue | Release) -> Complete:
    """Return the end of what would have been put back, had its batch not been canceled."""
    if isinstance(settlement, Release) or settlement.record is None:
        return Complete(then="canceled")
    attempt = replace(settlement.record.attempt, then="canceled", outcome=OutcomeKind.CANCELED)
    return Complete(then="canceled", record=Record(attempt, settlement.record.output))
