"""The protocol's face of the batches that a ledger keeps."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from jobq.batch_plan import MOST_ROUND, Plan
from jobq.batches import Batch, Member, check_too_late, checked_name, findable_name
from jobq.errors import AccessDenied, BackendUnavailable, MalformedTask, QueueNotFound
from jobq.formats.wire_v3 import AT_ITS_END
from jobq.task import Task
from jobq_azure.ledger import heads
from jobq_azure.ledger.counting import Counting
from jobq_azure.ledger.finishing import Finishing
from jobq_azure.ledger.heads import Head, Heads, plan_values
from jobq_azure.ledger.ledger import Ledger
from jobq_azure.ledger.retention import LedgerRetention
from jobq_azure.ledger.unended_pushes import UnendedPushes
from jobq_azure.table_journal.errors import TableMissing

_IN_FLIGHT_SECONDS: Final = 2.0  # for which a seal waits for pushes that came before it
_PAUSE_SECONDS: Final = 0.1
_COUNTED_AT_ONCE: Final = 8
_SHOWN: Final = 3
_LIFE_BYTES: Final = 4


class LedgerBatches:
    """The batches of one queue.

    Args:
        ledger: of the queue.
        batches: their heads.
        pushing: pushes to them.
        counting: of them.
        finishing: of them.
        retention: of them.
        check_room: raises MalformedTask for a task that could not be queued for its size.

    Attributes:
        pushing: pushes to them of which nobody knows that they are over.
    """

    def __init__(
        self,
        ledger: Ledger,
        batches: Heads,
        pushing: UnendedPushes,
        counting: Counting,
        finishing: Finishing,
        retention: LedgerRetention,
        check_room: Callable[[Task], None],
    ) -> None:
        self._ledger = ledger
        self._heads = batches
        self.pushing = pushing
        self._counting = counting
        self._finishing = finishing
        self._retention = retention
        self._check_room = check_room

    async def begin(self, name: str, plan: Plan) -> Batch:
        """Open one, or say more of it."""
        plan.checked(checked_name(name))
        self._check_end(name, plan)

        def more(head: Head) -> dict[str, object] | None:
            check_too_late(name, head.shown_state, plan, head.plan)
            said = head.plan.with_later(plan) if head.state == heads.OPEN else head.plan
            return None if said == head.plan else plan_values(said)

        try:
            while (head := await self._heads.get(name, forgetting=True)) is None or head.state == heads.FORGETTING:
                if head is not None:
                    await self._retention.forget(head)
                new = {"State": heads.OPEN, "Round": 1, "Created": self._ledger.wire.now(), **plan_values(plan)}
                new["Life"] = secrets.token_hex(_LIFE_BYTES)
                await self._heads.insert(name, new)
            head = await self._heads.change(name, more)
        except TableMissing as error:  # whoever makes a missing queue makes it, too
            raise QueueNotFound(str(error)) from None
        return await self._seen(head)

    def _check_end(self, name: str, plan: Plan) -> None:
        """Raise MalformedTask for what could not be queued at the end: nobody could do anything about it then."""
        for place, task in enumerate(plan.tasks(name, MOST_ROUND)):
            try:
                self._check_room(task.in_ledger(f"{AT_ITS_END}{name}~{'0' * 2 * _LIFE_BYTES}"))
            except MalformedTask as error:
                raise MalformedTask(error.what, f"then.{place}") from None

    async def seal(self, name: str) -> Batch:
        """Let it take no more tasks; refused while a push to it is not known to be over."""
        head = await self._heads.found(findable_name(name))
        self._refuse(name, await self.pushing.left(head.book))
        head = await self._sealed(name)
        until = time.monotonic() + _IN_FLIGHT_SECONDS
        while left := await self.pushing.left(head.book):  # pushed while it was being sealed
            if time.monotonic() >= until:
                await self._heads.change(name, _opened_again)
                self._refuse(name, left)
            await asyncio.sleep(_PAUSE_SECONDS)
        return await self._ended(head)

    def _refuse(self, name: str, left: Sequence[str]) -> None:
        if left:
            ids = ", ".join(left[:_SHOWN]) + (", ..." if len(left) > _SHOWN else "")
            raise BackendUnavailable(
                f"batch {name!r} is not sealed: {len(left)} tasks of it ({ids}) are being pushed, or their push died;"
                " let it end, or run it again with the same ids. In"
                f" {self.pushing.seconds / 60:.0f} minutes a seal takes it for dead, and nothing of these tasks is run"
            )

    async def _sealed(self, name: str, **more: object) -> Head:
        def decide(head: Head) -> dict[str, object] | None:
            if head.state == heads.OPEN:
                return {"State": heads.SEALED, "Sealed": self._ledger.wire.now(), **more}
            is_news = head.state == heads.SEALED and any(head.row.get(key) != value for key, value in more.items())
            return {**more} if is_news else None

        return await self._heads.change(name, decide)

    async def reopen(self, name: str) -> Batch:
        """Let it take tasks again."""
        findable_name(name)

        def decide(head: Head) -> dict[str, object] | None:
            if head.state == heads.FINISHING or (head.state == heads.OPEN and not head.is_canceled):
                return None
            is_next = head.state == heads.FINISHED
            opened = {"State": heads.OPEN, "Sealed": 0.0, "Finished": 0.0, "Canceled": False}
            return {**opened, "Round": head.round + is_next, **head.next_opening}

        while (head := await self._heads.change(name, decide)).state == heads.FINISHING:
            await self._finishing.ended(head)
        return await self._seen(head)

    async def cancel(self, name: str) -> Batch:
        """Seal it, end what waits, and ask what runs to end."""
        return await self._ended(await self._sealed(findable_name(name), Canceled=True))

    async def _ended(self, head: Head) -> Batch:
        await self._finishing.finish(head.name)
        return await self._seen(await self._heads.found(head.name))

    async def find(self, name: str) -> Batch:
        """Return it, counted, with its rate; finish it where it has ended, and this user may write."""
        head = await self._heads.found(findable_name(name))
        seen = await self._seen(head, with_rate=True)
        if head.state not in (heads.SEALED, heads.FINISHING):
            return seen
        try:
            if not await self._finishing.finish(name) and not head.is_canceled:
                return seen
        except (AccessDenied, MalformedTask):  # who may only look, or can queue no such end, leaves it to others
            return seen
        return await self._seen(await self._heads.found(name), with_rate=True)

    async def _seen(self, head: Head, *, with_rate: bool = False) -> Batch:
        since = max((each.finished for each in head.rounds), default=0.0)
        found = await self._counting.counted(head.book, since)
        if head.state == heads.FINISHED and found.left:  # entered since
            with suppress(AccessDenied):
                await self.pushing.left(head.book, ended=True)
                found = await self._counting.counted(head.book, since)
        elif found.left:
            self._finishing.is_left_in(head.book, found.left)
        return head.seen(found.counts, found.rate if with_rate else None)

    async def list(self, after: str, limit: int, *, unfinished: bool = False) -> Sequence[Batch]:
        """Return some, by name; each is counted, which takes a request or more."""
        found = await self._heads.list(after, limit, where=f"State ne '{heads.FINISHED}'" if unfinished else "")
        turn = asyncio.Semaphore(_COUNTED_AT_ONCE)

        async def seen(head: Head) -> Batch:
            async with turn:
                return await self._seen(head)

        return await asyncio.gather(*map(seen, found))

    async def members(self, name: str, after: str, limit: int, state: str | None = None) -> Sequence[Member]:
        """Return some of its tasks, by id."""
        head = await self._heads.found(findable_name(name))
        return await self._counting.members(head.book, after, limit, state)


def _opened_again(head: Head) -> dict[str, object] | None:
    return {"State": heads.OPEN, "Sealed": 0.0} if head.state == heads.SEALED and not head.is_canceled else None
