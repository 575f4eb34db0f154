"""What `jobq check` asks of a Storage Queue: whether all it needs is there, and what is known from documents alone."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Final

from jobq.errors import JobqError, LockLost, QueueNotFound
from jobq.examination import Finding, Verdict
from jobq_azure.common.errors import NoAnswer, certain
from jobq_azure.common.examination import clock
from jobq_azure.storage.account import Account
from jobq_azure.storage.queue_client import StorageQueueClient
from jobq_azure.storage.queue_messages import Message

_SHORT_SECONDS: Final = 1
_LONG_SECONDS: Final = 30
_LATE_SECONDS: Final = 1.5  # past the end of a lease, by a clock with a grain of one


async def findings(account: Account, dead: StorageQueueClient, create: str) -> AsyncIterator[Finding]:
    """Look at what a queue needs beside itself; changes nothing.

    Args:
        account: entered.
        dead: to the place of its dead letters.
        create: the command that makes what is missing.
    """
    yield clock(await certain(account.now()), time.time())
    try:
        await dead.peek(1)
    except (JobqError, NoAnswer) as error:
        is_missing = isinstance(error, QueueNotFound)
        advice = f"make it with: {create}" if is_missing else str(error)
        found = "is not there" if is_missing else "cannot be looked at"
        yield Finding(what="the place of dead letters", found=found, verdict=Verdict.DIFFERS, advice=advice)
    else:
        yield Finding(what="the place of dead letters", found="is there")
    if account.has_blobs:
        yield Finding(what="blobs, for large tasks", found="known")
    else:
        advice = "add the BlobEndpoint to the connection string"
        yield Finding(what="blobs, for large tasks", found="not known", verdict=Verdict.NOTED, advice=advice)


async def _is_refused(call: Awaitable[object]) -> bool:
    try:
        await call
    except LockLost:
        return True
    return False


@dataclass(frozen=True, kw_only=True)
class StorageProbes:
    """Tries the service out on a queue that is new and nobody else's.

    Attributes:
        wire: to the queue.
    """

    wire: StorageQueueClient

    async def run(self) -> AsyncIterator[Finding]:
        """Try out one after the other."""
        for probe in (self._delivery, self._update, self._receipts, self._expired):
            try:
                async for finding in probe():
                    yield finding
            except (JobqError, NoAnswer) as error:
                what = probe.__name__.strip("_")
                yield Finding(what=what, found="it failed", verdict=Verdict.UNKNOWN, advice=str(error))
            await self.wire.clear()

    async def _put_and_get(self, seconds: int) -> Message:
        await self.wire.put("check")
        return await self._got(seconds)

    async def _got(self, seconds: int) -> Message:
        found = await self.wire.get(1, seconds)
        if not found:
            raise NoAnswer(f"{self.wire.place}: a message that was sent is not handed out")
        return found[0]

    async def _delivery(self) -> AsyncIterator[Finding]:
        message = await self._put_and_get(_LONG_SECONDS)
        yield Finding.compared("count of a first delivery", message.deliveries, 1)
        yield Finding.compared("a message without an end never expires", message.expires == 0, True)
        yield Finding.compared("what is leased is hidden from others", await self.wire.get(1, 1) == [], True)
        yield Finding.compared("what is leased is not shown by a look", await self.wire.peek(1) == [], True)
        yield Finding.compared("what is leased is counted", await self.wire.count(), 1, also={0})

    async def _update(self) -> AsyncIterator[Finding]:
        message = await self._put_and_get(_LONG_SECONDS)
        await self.wire.update(message.id, message.receipt, _SHORT_SECONDS, "changed")
        await asyncio.sleep(_SHORT_SECONDS + _LATE_SECONDS)
        again = await self._got(_LONG_SECONDS)
        yield Finding.compared("a renewal may be shorter than the lease before", again.id == message.id, True)
        yield Finding.compared("an update replaces the text", again.text, "changed")
        yield Finding.compared("an expired lease counts as a delivery", again.deliveries, 2)

    async def _receipts(self) -> AsyncIterator[Finding]:
        message = await self._put_and_get(_LONG_SECONDS)
        receipt = await self.wire.update(message.id, message.receipt, _LONG_SECONDS)
        is_refused = await _is_refused(self.wire.update(message.id, message.receipt, _LONG_SECONDS))
        yield Finding.compared("a receipt is refused once a renewal has replaced it", is_refused, True)
        await self.wire.delete(message.id, receipt)
        is_refused = await _is_refused(self.wire.delete(message.id, receipt))
        yield Finding.compared("what is deleted is refused", is_refused, True)

    async def _expired(self) -> AsyncIterator[Finding]:
        message = await self._put_and_get(_SHORT_SECONDS)
        await asyncio.sleep(_SHORT_SECONDS + _LATE_SECONDS)
        renewal = self.wire.update(message.id, message.receipt, _SHORT_SECONDS)
        still = not await _is_refused(renewal)
        yield Finding.compared("a lease that ran out is held until somebody else has it", still, True, also={False})
        await asyncio.sleep(_SHORT_SECONDS + _LATE_SECONDS)
        taken = await self._got(_LONG_SECONDS)
        is_refused = await _is_refused(self.wire.update(message.id, message.receipt, _LONG_SECONDS))
        yield Finding.compared("a lease that somebody else has is lost", is_refused, True)
        await self.wire.delete(taken.id, taken.receipt)
