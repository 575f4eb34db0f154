"""A Storage Queue whose journal in a table also keeps batches: their tasks are in its ledger before they are queued.

That is the reverse of what the journal does, and holds for tasks of batches alone: a table that is away puts off their
starts, and leaves their ends to the lease. All other tasks go the way of `table_journal.backend`.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final, Self
from weakref import WeakKeyDictionary

from jobq.backend import Capabilities, Delivery
from jobq.clock import SystemClock
from jobq.errors import BackendUnavailable, ConfigurationError, JobqError, PushUnknown, QueueNotFound, SettlementUnknown
from jobq.fencing import FencingNumber
from jobq.formats.wire_v3 import batch_of_book
from jobq.settlement import Complete, MoveToDeadLetters, Settlement
from jobq.task import Task
from jobq_azure.common.errors import NoAnswer
from jobq_azure.common.letter_work import ledger_of
from jobq_azure.ledger.batches import LedgerBatches
from jobq_azure.ledger.claims import HandedMessage, LedgerHold, Standing, claim
from jobq_azure.ledger.counting import Counting
from jobq_azure.ledger.delivery import LedgerDelivery
from jobq_azure.ledger.entries import LedgerEntry
from jobq_azure.ledger.finishing import Finishing
from jobq_azure.ledger.heads import Heads
from jobq_azure.ledger.journal_notes import JournalNotes
from jobq_azure.ledger.ledger import Ledger
from jobq_azure.ledger.pushes import LedgerPush
from jobq_azure.ledger.redrives import Redrives
from jobq_azure.ledger.retention import LedgerRetention
from jobq_azure.ledger.unended_pushes import UnendedPushes
from jobq_azure.ledger.walk import LedgerWalk
from jobq_azure.storage.backend import StorageQueueBackend
from jobq_azure.storage.delivery import StorageDelivery
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.backend import ANSWER_SECONDS, JournaledQueue
from jobq_azure.table_journal.delivery import JournaledDelivery
from jobq_azure.table_journal.errors import TableMissing
from jobq_azure.table_journal.location import TablePlace

_CLAIM_SHARE: Final = 1 / 3  # of a lease
_TAKE_BACK_SECONDS: Final = 4.0
_POLL_SECONDS: Final = 1.0  # while the end of a batch is seen to
_NOT_THERE: Final = "it names no task that is known of the batch {}, or that was forgotten; it was not run"
_OF_NO_BATCH: Final = (
    "it is of the batch {0}, of which {1} knows nothing: JOBQ_JOURNAL names another table than for who has pushed it,"
    " or the batch was forgotten, or its table deleted"
)
_OTHER_WORK: Final = "it names a task of the batch {}, and holds other work than was pushed; it was not run"
_ODD: Final = {Standing.UNKNOWN, Standing.FOREIGN, Standing.RETURNED}  # told as warnings
_LEFT_OVER_SECONDS: Final = 5.0  # a receive goes on so long past what was left over
_CLOCK: Final = SystemClock()
_NOW: Final = timedelta(0)
_log: Final = logging.getLogger(__name__)


class LedgerQueue(JournaledQueue):
    """A queue, its journal, and the ledger of its batches.

    Args:
        inner: as of a `JournaledQueue`.
        place: of the table.
        keep: for how long what has ended is kept.
    """

    def __init__(self, inner: StorageQueueBackend, place: TablePlace, keep: timedelta) -> None:
        super().__init__(inner, place, keep)
        self._holds = WeakKeyDictionary[Delivery, LedgerHold]()  # of deliveries that were claimed
        self._turned = 0  # messages that are done with unrun
        self._ledger = Ledger(self._wire)
        self._heads = Heads(self._wire)
        self._retention = LedgerRetention(self._ledger, self._heads, keep.total_seconds())
        self._notes: JournalNotes
        self._walk: LedgerWalk
        self._redrives: Redrives
        self._finishing: Finishing
        self._batches: LedgerBatches

    @property
    def capabilities(self) -> Capabilities:
        """Those of the queue and its journal; and batches."""
        return replace(super().capabilities, batches=True, knows_batch_ids=True)

    @property
    def batches(self) -> LedgerBatches:
        """The batches."""
        return self._batches

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        counting, pushing = Counting(self._ledger), UnendedPushes(self._ledger)
        self._notes = JournalNotes(self._wire, self.writer)
        self._walk = LedgerWalk(self._ledger, self._notes, self._cancel_requests)
        self._finishing = Finishing(
            self._ledger, self._heads, self._walk, pushing, counting, self._push_kept, self._is_bare
        )
        self._batches = LedgerBatches(
            self._ledger, self._heads, pushing, counting, self._finishing, self._retention, self._inner.check_room
        )
        self._redrives = Redrives(self._ledger, self._heads, self._finishing)
        self._inner.keep_ledger(self._redrives)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await self._finishing.aclose()
        finally:
            await super().__aexit__(*exc_info)

    async def prepare(self) -> None:
        """As the queue does it; and finish batches whose last task was ended by who died then."""
        await super().prepare()
        await self._finishing.start()

    async def _is_bare(self) -> bool:
        return (await self._inner.stats()).total == 0  # which is never too low

    async def _swept(self) -> None:
        await self._finishing.start()
        await self._retention.once()

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        """Add the tasks; those of batches are in the ledger before."""
        kept = [(task.batch, task) for task in tasks if task.batch is not None]
        if not kept:
            return await super().push([_of_none(task) for task in tasks])
        try:
            ids = await self._push_kept(kept, [_of_none(task) for task in tasks if task.batch is None])
        except TableMissing as error:  # whoever makes a missing queue makes it, too
            raise QueueNotFound(str(error)) from None
        return [ids.get(task.id, task.id) for task in tasks]

    async def _push_kept(self, kept: Sequence[tuple[str, Task]], others: Sequence[Task] = ()) -> dict[str, str]:
        """Add tasks of the ledger, each with the book in which it is kept, and others; return the ids of what is new.

        Raises:
            PushUnknown: as `push`; a repetition queues nothing of the ledger twice.
        """
        entering = LedgerPush(self._ledger, self._heads, kept)
        queued = await entering.enter()
        ids: list[str] = []
        try:
            if queued or others:
                ids = await super().push([*others, *queued])
        except PushUnknown:
            raise
        except JobqError:  # surely nothing was added
            await entering.take_back()
            raise
        except asyncio.CancelledError:  # likewise: else it would be PushUnknown
            taking_back = asyncio.ensure_future(entering.take_back())
            await asyncio.wait({taking_back}, timeout=_TAKE_BACK_SECONDS)
            raise
        try:
            await entering.mark()
        except JobqError as error:
            raise PushUnknown(f"these tasks are queued, but their batch does not know yet: {error}", ids) from None
        return {str(id_): id_ for id_ in ids}

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        """Lease tasks; where none waits, look first whether a batch has ended, at whose end some are queued."""
        found = await super().receive(max_tasks, lease, wait)
        if found:
            return found
        looking = asyncio.ensure_future(self._finishing.drained())
        try:
            while not found and not looking.done():  # a large batch takes long to count: what comes meanwhile is run
                await asyncio.wait({looking}, timeout=_POLL_SECONDS)
                if not looking.done() or looking.result():
                    found = await super().receive(max_tasks, lease, _NOW)
            return found
        finally:
            looking.cancel()

    async def _receive(
        self, max_tasks: int, lease: timedelta | None, wait: timedelta
    ) -> list[JournaledDelivery] | None:
        """As without a ledger; behind messages that were left over, and are done with, it is looked at once."""
        until = _CLOCK.boottime() + _LEFT_OVER_SECONDS
        while True:
            before = self._turned
            found = await super()._receive(max_tasks, lease, wait)
            if found is not None or self._turned == before or _CLOCK.boottime() >= until:
                return found

    async def _opened(self, inner: StorageDelivery, since: float, seen_to: list[Delivery]) -> bool:
        """As without a ledger; what that keeps is claimed first."""
        if book := inner.message_ledger:
            hold = await self._claimed(inner, book, since, seen_to)
            if hold is None:
                return False
            self._holds[inner] = hold
        return True

    async def _claimed(
        self, inner: StorageDelivery, book: str, since: float, seen_to: list[Delivery]
    ) -> LedgerHold | None:
        """Claim a task; None = it is not to be run, or not now, and among what is seen to."""
        seconds = inner.lease.total_seconds()
        try:
            message = HandedMessage(
                book=book,
                id=inner.id,
                birth=rows.birth(inner.message_created),
                origin=inner.message_origin,
                fencing=rows.fencing_in(rows.order(inner.message_fencing)),  # a sender may write higher ones
                lease_seconds=seconds,
                work=inner.message_work,
            )
            async with asyncio.timeout(min(ANSWER_SECONDS, seconds * _CLAIM_SHARE)):
                standing, found = await claim(self._ledger, message)
                if standing is Standing.UNKNOWN and not await self._heads.has_had(book):
                    why = _OF_NO_BATCH.format(batch_of_book(book) or book[1:], self._wire.place)
                    self._put_off_times.misplaced = f"task {inner.id} is put back: {why}"
                    raise ConfigurationError(why)
        except (JobqError, NoAnswer, TimeoutError, LookupError, ValueError, TypeError) as error:
            seen_to.append(inner)
            self._put_off_later(inner, since, "its batch cannot be asked", error)
            return None
        if isinstance(found, LedgerHold):
            return found
        seen_to.append(inner)
        await self._turned_away(inner, standing, found, book)
        return None

    async def _turned_away(self, inner: Delivery, standing: Standing, entry: LedgerEntry | None, book: str) -> None:
        """See to a delivery that is not to be run; it comes again where that fails, and whoever works waits for it."""
        name = batch_of_book(book)
        instead, told = _instead(inner, standing, entry, name or book[1:])
        back_in = 0.0
        try:
            if instead is not None:
                await inner.settle(instead)
                level = logging.WARNING if standing in _ODD else logging.INFO
                _log.log(level, "%s: %s", self.name, told)
        except JobqError as error:
            _log.warning("%s: task %s is not to be run, and comes again: %s", self.name, inner.id, error)
            if isinstance(error, BackendUnavailable | SettlementUnknown):
                back_in = self._longest_lease(inner)
        else:
            self._turned += standing is not Standing.STALE
            if entry is not None and standing is not Standing.FOREIGN:
                self._notes.ended(entry, book)  # whoever has ended it may have died before the journal heard of it
            if standing is Standing.SUPERFLUOUS and name is not None:
                self._finishing.has_ended(name)  # likewise before it looked
        if back_in and standing is not Standing.SUPERFLUOUS:
            self._put_off_times.add(inner.id, back_in)

    def _delivery(self, inner: StorageDelivery, since: float) -> JournaledDelivery:
        hold = self._holds.get(inner)
        if hold is None:
            return super()._delivery(inner, since)
        name = batch_of_book(inner.message_ledger)

        def ended() -> None:
            if name is not None:
                self._finishing.has_ended(name)

        return LedgerDelivery(inner, self._notebook, since, self._on_their_way, hold=hold, on_ended=ended)

    def _record_redriven(self, task_id: str, birth: int, dead: FencingNumber) -> None:
        ended = self._redrives.canceled.pop((task_id, birth), None)
        if ended is None:
            super()._record_redriven(task_id, birth, dead)
        else:
            self._notes.ended(*ended)

    async def clear(self) -> int:
        """Delete what waits; of batches it is gone."""
        count = await super().clear()
        with suppress(TableMissing):
            await self._walk.clear()
            await self._finishing.start()
            await self._finishing.drained()
        return count


def _instead(
    inner: Delivery, standing: Standing, entry: LedgerEntry | None, whose: str
) -> tuple[Settlement | None, str]:
    """Return how a delivery that is not to be run is settled, and what is told of it; None = it is left alone."""
    if standing is Standing.SUPERFLUOUS:
        return Complete(), f"a message of task {inner.id} was left over, and is done with"
    if standing is Standing.DEAD and entry is not None:
        dead = MoveToDeadLetters(entry.reason, entry.description)
        return dead, f"task {inner.id} is dead, and is among the dead letters now"
    if standing is Standing.RETURNED and entry is not None:
        dead = MoveToDeadLetters(entry.reason, entry.description)
        return dead, f"task {inner.id} of {whose} was put back by hand: a dead letter again; `dead retry` runs it"
    if standing in (Standing.UNKNOWN, Standing.FOREIGN):
        unknown = (_NOT_THERE if standing is Standing.UNKNOWN else _OTHER_WORK).format(whose)
        return MoveToDeadLetters("unknown", unknown), f"task {inner.id} is a dead letter: {unknown}"
    return None, ""


def _of_none(task: Task) -> Task:
    """Return a task of no batch, as it is pushed: in no ledger, should it come from one."""
    return task if not ledger_of(task) else task.copied({"work": task.work and replace(task.work, ledger=None)})
