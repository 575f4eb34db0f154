"""Azure Storage Queue behind the backend protocol."""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final, Self, TypeVar

from jobq.backend import Capabilities, Delivery, Peeked, QueueStats
from jobq.backend import DeadLetter as Dead
from jobq.errors import (
    BackendUnavailable,
    ConfigurationError,
    JobqError,
    LeaseError,
    MalformedTask,
    PushUnknown,
    QueueNotFound,
)
from jobq.task import Task
from jobq_azure.answers import NoAnswer, Unreadable
from jobq_azure.blob_leases import BlobLeases
from jobq_azure.connection import Account
from jobq_azure.content import HEADROOM_BYTES, MAX_TEXT_BYTES, Content, size_of
from jobq_azure.dead import SUFFIX, Graveyard, id_in
from jobq_azure.delivery import StorageDelivery
from jobq_azure.polling import Polling
from jobq_azure.wire import LONGEST, MOST_AT_ONCE, Message, Wire, whole_seconds

DEFAULT_LEASE: Final = timedelta(minutes=5)
_PUTS_AT_ONCE: Final = 32
_EARLY_SECONDS: Final = 5.0  # the service counts whole seconds by its own clock: so much is no step of a long delay
_T = TypeVar("_T")
_LEAVE_SECONDS: Final = 5.0  # for what is still on its way when the queue is left, or a receive is given up


class StorageQueueBackend:
    """One queue of one account.

    Args:
        account: not yet entered; this enters and leaves it.
        name: of the queue.
        poll_max: the longest pause of an idle worker.
    """

    def __init__(self, account: Account, name: str, poll_max: timedelta) -> None:
        self._account = account
        self._name = name
        self._polling = Polling(poll_max.total_seconds())
        self._on_their_way: set[asyncio.Task[None]] = set()  # requests of deliveries
        self._stack = AsyncExitStack()
        self._wire: Wire
        self._dead: Graveyard
        self._leases = BlobLeases(lambda: account.blobs(name), time.time)

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What a Storage Queue can and cannot do: facts/azure.md 1.4."""
        return Capabilities(
            default_lease=DEFAULT_LEASE,
            max_lease=LONGEST,
            max_message_bytes=MAX_TEXT_BYTES - HEADROOM_BYTES,
            atomic_requeue=True,
            counts_deliveries=True,
            native_checkpoint=True,
            named_leases=True,
            counts=frozenset({"dead", "total"}),
        )

    @property
    def leases(self) -> BlobLeases:
        """The named leases of this queue: blobs of the same account."""
        return self._leases

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._account)
        self._wire = self._account.wire(self._name)
        self._dead = Graveyard(self._account.wire(self._name + SUFFIX), self._wire)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._on_their_way:
            await asyncio.wait(self._on_their_way, timeout=_LEAVE_SECONDS)
        for sent in self._on_their_way:
            sent.cancel()
        await self._stack.aclose()

    async def create(self, *, exist_ok: bool = True) -> None:
        """Make the queue and QUEUE-failed."""
        if not exist_ok and await self._exists():
            raise ConfigurationError(f"the queue {self._wire.place} exists")
        for place in (self._wire, self._dead):
            await _certain(place.create())

    async def _exists(self) -> bool:
        try:
            await _certain(self._wire.count())
        except QueueNotFound:
            return False
        return True

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        """Add the tasks, a request each; on an error what was added is taken back, or PushUnknown names it."""
        now = time.time()
        texts = [(checked_text(task), _hidden_seconds(task, now)) for task in tasks]
        limit = asyncio.Semaphore(_PUTS_AT_ONCE)
        failed: list[Exception] = []

        async def put(text: str, hidden: int) -> tuple[str, str] | None:
            async with limit:
                if failed:  # nothing more is begun: what is not there need not be taken back
                    return None
                try:
                    return await self._wire.put(text, hidden)
                except Exception as error:
                    failed.append(error)
                    raise

        puts = [asyncio.ensure_future(put(*each)) for each in texts]
        try:
            results = await asyncio.gather(*puts, return_exceptions=True)
        except asyncio.CancelledError:
            for each in puts:
                each.cancel()
            raise
        if failed:
            raise await self._taken_back(tasks, results, failed[0])
        return [task.id for task in tasks]

    async def _taken_back(
        self, tasks: Sequence[Task], results: Sequence["tuple[str, str] | BaseException | None"], error: Exception
    ) -> Exception:
        """Delete what was added; return the error to raise: what happened, or PushUnknown for what may be there."""
        doubtful: list[str] = []
        for task, result in zip(tasks, results, strict=True):
            if isinstance(result, NoAnswer):
                doubtful.append(task.id)
            elif isinstance(result, tuple):
                try:
                    await self._wire.delete(*result)
                except (JobqError, NoAnswer):  # a worker has it by now, or nobody knows
                    doubtful.append(task.id)
        if not doubtful:
            return error
        return PushUnknown(f"{error}; {len(doubtful)} of {len(tasks)} tasks may or may not be queued", doubtful)

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        """Lease up to 32; an idle queue is asked more and more seldom, up to the longest pause."""
        asked = whole_seconds(lease or DEFAULT_LEASE)
        end = time.monotonic() + wait.total_seconds()
        looked = False
        while True:
            now = time.monotonic()
            if wait:
                due = self._polling.due
                if due > end and looked:
                    await asyncio.sleep(end - now)
                    return []
                if (pause := min(due, end) - now) > 0:
                    await asyncio.sleep(pause)
            found = await self._look(min(max_tasks, MOST_AT_ONCE), asked)
            looked = True
            if found:
                self._polling.found()
                return found
            self._polling.empty(time.monotonic())
            if time.monotonic() >= end:
                return []

    async def _look(self, count: int, seconds: int) -> list[Delivery]:
        count = self._polling.most(count, time.monotonic())
        looking = asyncio.ensure_future(self._wire.get(count, seconds))
        try:
            messages = await asyncio.shield(looking)
        except asyncio.CancelledError:
            await self._give_back(looking, seconds)
            raise
        except NoAnswer as error:
            if isinstance(error, Unreadable):
                self._polling.stumbled(time.monotonic(), seconds)
            # Up to 32 messages may be hidden for a lease; they come again, one delivery older.
            raise BackendUnavailable(str(error)) from None
        deliveries = [self._delivery(message, seconds) for message in messages]
        early = [each for each in deliveries if _too_early(each)]
        for each in early:
            with contextlib.suppress(LeaseError):  # it comes again when its lease has run out
                await each.put_off(_too_early(each))
        return [each for each in deliveries if each not in early]

    async def _give_back(self, looking: "asyncio.Task[list[Message]]", seconds: int) -> None:
        """Put back what a receive was granted that nobody waits for any more."""
        await asyncio.wait({looking}, timeout=_LEAVE_SECONDS)
        if not looking.done():
            looking.cancel()
            return
        if looking.cancelled() or looking.exception() is not None:
            return
        releases = (self._delivery(message, seconds).release() for message in looking.result())
        await asyncio.gather(*releases, return_exceptions=True)  # what is not given back comes when its lease is over

    def _delivery(self, message: Message, seconds: int) -> StorageDelivery:
        lease = timedelta(seconds=seconds)
        return StorageDelivery(self._wire, self._dead, message, lease, self._on_their_way)

    async def peek(self, limit: int) -> list[Peeked]:
        """Look at the first tasks; the service shows 32 at most."""
        found = [
            (message, Content.read(message.text))
            for message in await _certain(self._wire.peek(min(limit, MOST_AT_ONCE)))
        ]
        return [
            Peeked(
                id=id_in(content.body) or content.beside.id or message.id,
                body=content.body,
                deliveries=content.beside.before + message.deliveries,
            )
            for message, content in found
        ]

    async def stats(self) -> QueueStats:
        """Count what the service counts: all messages together, and the dead letters."""
        total = await _certain(self._wire.count())
        try:
            dead = await _certain(self._dead.count())
        except QueueNotFound:  # another program made the queue
            dead = 0
        return QueueStats(visible=None, leased=None, scheduled=None, dead=dead, total=total)

    async def clear(self) -> int:
        """Delete all messages; the number is the service's estimate."""
        count = await _certain(self._wire.count())
        await _certain(self._wire.clear())
        return count

    async def dead_letters(self, limit: int) -> list[Dead]:
        """Look at what jobq gave up on, oldest first."""
        return await _certain(self._dead.letters(limit))

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back."""
        return await _certain(self._dead.redrive(ids))

    async def purge_dead(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters for good."""
        return await _certain(self._dead.purge(ids))


async def _certain(call: Awaitable[_T]) -> _T:
    """Return what a verb returns that is safe to repeat: then a lost answer is as good as a refusal."""
    try:
        return await call
    except NoAnswer as error:
        raise BackendUnavailable(str(error)) from None


def checked_text(task: Task) -> str:
    """Return the message of a task that is pushed; raises MalformedTask when it has no room to grow."""
    text = Content(task.encode()).text()
    if (size := size_of(text)) > MAX_TEXT_BYTES - HEADROOM_BYTES:
        raise MalformedTask(
            f"takes {size} bytes as a message, and a Storage Queue has room for {MAX_TEXT_BYTES - HEADROOM_BYTES}"
            f" ({MAX_TEXT_BYTES} less {HEADROOM_BYTES} for what jobq notes of its attempts): put the data into a file"
            " or blob, and its address into the task"
        )
    return text


def _hidden_seconds(task: Task, now: float) -> int:
    if task.not_before is None or task.not_before <= now:
        return 0
    return whole_seconds(timedelta(seconds=min(task.not_before - now, LONGEST.total_seconds())))


def _too_early(delivery: StorageDelivery) -> int:
    """Return for how many seconds a delivery is to be hidden again: its delay was longer than the service hides."""
    try:
        not_before = delivery.task.not_before
    except MalformedTask:
        return 0
    early = 0.0 if not_before is None else not_before - time.time()
    return min(math.ceil(early), int(LONGEST.total_seconds())) if early > _EARLY_SECONDS else 0
