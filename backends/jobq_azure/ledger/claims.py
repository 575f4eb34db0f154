"""A delivery of a task of a batch: claimed in the ledger before it starts, ended there before it is settled.

The message says who it is (`origin`), and by epoch and generation which step of its task. A push or a redrive that was
repeated leaves two messages of a task; the first to be claimed is the task, any other is superfluous. All of that is
what its sender says: only the work that was pushed is the task, and what holds other work touches no entry.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from jobq.errors import LockLost
from jobq.fencing import FencingNumber
from jobq_azure.ledger.entries import DEAD, ENDED, GONE, REDRIVING, REVOKED, RUNNING, WAITING, LedgerEntry
from jobq_azure.ledger.ledger import EntryChange, Ledger
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.lookup import answered

_MOST_DESCRIPTION: Final = 8192


class Standing(StrEnum):
    """What the ledger says to a delivery."""

    HELD = "held"  # it is claimed, and may start
    SUPERFLUOUS = "superfluous"  # its task has ended, or is another message: to be completed unrun
    DEAD = "dead"  # its task is dead, and its way to the dead letters was cut off: to be moved there
    RETURNED = "returned"  # likewise; it was a dead letter, and somebody has put that back by hand
    STALE = "stale"  # a later delivery has claimed it: to be left alone
    UNKNOWN = "unknown"  # no ledger knows of it
    FOREIGN = "foreign"  # it names a task of the ledger, and holds other work: nothing of the task is its matter


@dataclass(frozen=True, kw_only=True)
class HandedMessage:
    """A message of a task that a ledger keeps, handed out.

    Attributes:
        book: in which its task is kept.
        id: of its task.
        birth: of its life.
        origin: what no other message has.
        fencing: the epoch and the generation that stand in it, and which delivery this is.
        lease_seconds: how long it was leased for.
        work: `letter_work.work_of` what it holds; empty = its payload is lost.
    """

    book: str
    id: str
    birth: int
    origin: str
    fencing: FencingNumber
    lease_seconds: float
    work: str


class LedgerHold:
    """A task that was claimed for a delivery.

    Args:
        ledger: says so.
        message: for which.
        entry: as it was written.
    """

    def __init__(self, ledger: Ledger, message: HandedMessage, entry: LedgerEntry) -> None:
        self._ledger = ledger
        self._message = message
        self._entry: LedgerEntry | None = entry

    @property
    def is_to_end(self) -> bool:
        """Whether its batch was canceled, as far as is known here."""
        return self._entry is not None and self._entry.is_to_end

    async def end(self, then: str, *, reason: str = "", description: str = "") -> None:
        """Record how the task has ended; repeating it is safe.

        Raises:
            LockLost: it is another's, or has ended in another way.
            BackendUnavailable: nobody knows; it may be repeated.
        """
        values: dict[str, Any] = {"State": ENDED, "Then": then, "At": self._ledger.wire.now()}
        if then == DEAD:
            values["Reason"] = reason[:100]
            rows.put(values, "Description", description[-_MOST_DESCRIPTION:].encode(errors="replace"))

        def decide(entry: LedgerEntry | None) -> EntryChange | None:
            own = self._own(entry)
            if own.state == ENDED and own.then == then:
                return None
            if own.state == ENDED:
                raise LockLost(f"task {self._message.id} has ended already: it is {own.then}")
            return EntryChange(values, opens=False)

        await self._change(decide)

    async def put_back(self, delay: float) -> bool:
        """Record that the task waits again; return False where it is to end instead, for its batch was canceled.

        Args:
            delay: seconds for which it is not handed out.

        Raises:
            LockLost, BackendUnavailable: as of `end`.
        """
        is_to_end = False
        now = self._ledger.wire.now()
        values: dict[str, Any] = {"State": WAITING, "At": now, "Due": now + delay}

        def decide(entry: LedgerEntry | None) -> EntryChange | None:
            nonlocal is_to_end
            own = self._own(entry)
            is_to_end = own.is_to_end
            if own.state == ENDED:
                raise LockLost(f"task {self._message.id} has ended already: it is {own.then}")
            return None if is_to_end else EntryChange(values)

        await self._change(decide)
        return not is_to_end

    async def is_dead(self) -> bool:
        """Return whether the task is dead since this delivery, and has not been put back or deleted."""
        entry = await answered(self._ledger.find(self._message.book, self._message.id))
        is_own = entry is not None and entry.fencing == self._message.fencing and entry.origin == self._message.origin
        return is_own and entry is not None and entry.state == ENDED and entry.then == DEAD

    def _own(self, entry: LedgerEntry | None) -> LedgerEntry:
        own, origin = self._message.fencing, self._message.origin
        if entry is not None and (entry.fencing, entry.origin) == (own, origin):
            return entry
        raise LockLost(f"task {self._message.id} is another delivery's by now, as its batch has it")

    async def _change(self, decide: Any) -> None:
        known, self._entry = self._entry, None  # of an answer that is lost nobody knows what it has changed
        self._entry = await self._ledger.change(self._message.book, self._message.id, decide, known)


async def claim(ledger: Ledger, message: HandedMessage) -> tuple[Standing, LedgerHold | LedgerEntry | None]:
    """Claim a task for a delivery, where it is its turn.

    Returns:
        What the ledger says; and the hold, or what it says of a task that is dead.

    Raises:
        BackendUnavailable: nobody knows; it must not start.
    """
    standing = Standing.UNKNOWN
    values: dict[str, Any] = {
        "State": RUNNING,
        "Fencing": rows.order(message.fencing),
        "Origin": message.origin,
        "Born": str(message.birth),
        "Lease": float(message.lease_seconds),
        "At": ledger.wire.now(),
        "Unproven": not message.work,
    }

    def decide(entry: LedgerEntry | None) -> EntryChange | None:
        nonlocal standing
        standing = standing_of(message, entry)
        if standing is Standing.RETURNED and entry is not None and entry.then == GONE:
            return EntryChange({"Then": DEAD})
        if standing is not Standing.HELD or entry is None:
            return None
        is_claimed = entry.state == RUNNING and entry.fencing == message.fencing  # by this very call
        return None if is_claimed and entry.origin == message.origin else EntryChange(values)

    entry = await ledger.change(message.book, message.id, decide)
    if standing is Standing.HELD and entry is not None:
        return standing, LedgerHold(ledger, message, entry)
    return standing, entry


def standing_of(message: HandedMessage, entry: LedgerEntry | None) -> Standing:
    """Return what an entry says to a delivery."""
    if entry is None or not entry.may_be(message.work):
        return Standing.UNKNOWN if entry is None else Standing.FOREIGN
    if message.work and entry.is_unproven and entry.then not in ("canceled", REVOKED):
        # By who only says that its payload is lost, and has run nothing.
        return Standing.RETURNED if entry.is_dead or entry.then == GONE else Standing.HELD
    if not entry.is_claimed_as(message.origin, message.fencing[:2]):
        return Standing.RETURNED if _is_back(message, entry) else Standing.SUPERFLUOUS
    if entry.state == ENDED:
        return Standing.DEAD if entry.then == DEAD else Standing.SUPERFLUOUS
    return Standing.STALE if message.fencing < entry.fencing else Standing.HELD


def _is_back(message: HandedMessage, entry: LedgerEntry) -> bool:
    """Return whether it is a dead letter that somebody has put back by hand: the task is dead, and of this step.

    While one is being put back by jobq, the step is that of the message that is sent then.
    """
    return entry.is_dead and (entry.state == REDRIVING or message.fencing[:2] >= entry.fencing[:2])
