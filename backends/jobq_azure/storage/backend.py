"""Azure Storage Queue behind the backend protocol."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from jobq.backend import UNKNOWN_ID, Capabilities, Delivery, Peeked, QueueStats
from jobq.backend import DeadLetter as Dead
from jobq.batch_ids import IdInBatch
from jobq.errors import (
    AnswerLost,
    BackendUnavailable,
    ConfigurationError,
    JobqError,
    MalformedTask,
    QueueNotFound,
)
from jobq.examination import Finding
from jobq.pausing import Pause
from jobq.settlement import Release
from jobq.task import Task
from jobq_azure.common.errors import NoAnswer, ServiceFailed, Unreadable, certain
from jobq_azure.common.put_off_times import PutOffTimes
from jobq_azure.storage.account import Account
from jobq_azure.storage.dead_letter_format import id_in
from jobq_azure.storage.dead_letters import SUFFIX, StorageDeadLetters
from jobq_azure.storage.delivery import StorageDelivery
from jobq_azure.storage.envelope import Envelope
from jobq_azure.storage.examination import findings
from jobq_azure.storage.large_payloads import Payloads, within
from jobq_azure.storage.letter_ledger import NEEDED, PUT_OFF, LetterLedger
from jobq_azure.storage.message_format import HEADROOM_BYTES, MAX_TEXT_BYTES, MessageContent
from jobq_azure.storage.named_leases import BlobLeases
from jobq_azure.storage.pause_look import PauseLook
from jobq_azure.storage.poll_interval import PollInterval
from jobq_azure.storage.push import push, text_or_none
from jobq_azure.storage.queue_client import (
    EPOCH_SECONDS,
    LONGEST,
    MOST_AT_ONCE,
    StorageQueueClient,
    whole_seconds,
)
from jobq_azure.storage.queue_messages import Message
from jobq_azure.storage.views import StorageViews

DEFAULT_LEASE: Final = timedelta(minutes=5)
_EARLY_SECONDS: Final = 5.0  # the service counts whole seconds by its own clock: so much is no step of a long delay
# How long a payload may be waited for, of a lease and at most; the others of its receive wait with it.
_BLOB_SHARE: Final = 1 / 8
_BLOB_SECONDS: Final = 5.0
_UNREADABLE_SECONDS: Final = 30  # a task whose payload cannot be had now is hidden for so long, times its deliveries
_UNREADABLE_AT_MOST_SECONDS: Final = 600
_PUT_OFF_SECONDS: Final = 60.0  # a receive looks for so long past what it puts off
_log: Final = logging.getLogger(__name__)
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
        self._polling = PollInterval(poll_max.total_seconds())
        self._on_their_way: set[asyncio.Task[None]] = set()  # requests of deliveries
        self._put_off_times = PutOffTimes()
        self._stack = AsyncExitStack()
        self._spills = account.has_blobs
        self._wire: StorageQueueClient
        self._payloads: Payloads
        self._dead: StorageDeadLetters
        self._pause: PauseLook
        self._is_expiry_told = False
        self._keeps_ledger = False
        self._leases = BlobLeases(lambda: account.lease_blobs(name), time.time)

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What a Storage Queue can and cannot do."""
        return Capabilities(
            finds_at_once=False,
            default_lease=DEFAULT_LEASE,
            max_lease=LONGEST,
            max_message_bytes=None if self._spills else MAX_TEXT_BYTES - HEADROOM_BYTES,
            atomic_requeue=True,
            counts_deliveries=True,
            fenced_settle=True,
            native_checkpoint=True,
            max_peek=MOST_AT_ONCE,
            named_leases=True,
            pauses=True,
            counts=frozenset({"dead", "total"}),
        )

    @property
    def leases(self) -> BlobLeases:
        """The named leases of this queue: blobs of the same account."""
        return self._leases

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:  # whatever fails here leaves nothing open
            await stack.enter_async_context(self._account)
            self._wire = self._account.wire(self._name)
            self._payloads = self._account.payloads(self._name)
            dead = self._name + SUFFIX
            self._pause = PauseLook(self._wire)
            self._dead = StorageDeadLetters(
                self._account.wire(dead), self._account.payloads(dead), self._wire, self._payloads
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._on_their_way:
            await asyncio.wait(self._on_their_way, timeout=_LEAVE_SECONDS)
        for sent in self._on_their_way:
            sent.cancel()
        await self._stack.aclose()

    def keep_ledger(self, ledger: LetterLedger) -> None:
        """Hand out tasks of batches, too, once entered: whoever calls this claims each in a ledger before it starts."""
        self._keeps_ledger, self._dead.ledger = True, ledger

    async def create(self, *, exist_ok: bool = True) -> None:
        """Make the queue and QUEUE-failed."""
        if not exist_ok and await self._exists():
            raise ConfigurationError(f"the queue {self._wire.place} exists")
        for place in (self._wire, self._dead):
            await certain(place.create())
        await self._payloads.create()

    async def prepare(self) -> None:
        """Make QUEUE-failed where it is missing, or warn."""
        await self._dead.make_ready()

    async def _exists(self) -> bool:
        try:
            await certain(self._wire.count())
        except QueueNotFound:
            return False
        return True

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        """Add the tasks, a request each; on an error what was added is taken back, or PushUnknown names it."""
        self._refuse_dead_letters()
        return await push(self._wire, self._payloads, tasks)

    def check_room(self, task: Task) -> None:
        """Raise MalformedTask for a task that could not be pushed for its size."""
        text_or_none(task, self._payloads)

    def _refuse_dead_letters(self) -> None:
        """Raise ConfigurationError where the queue is another's dead-letter place: those tasks were given up."""
        if self._name.endswith(SUFFIX):
            place = self._wire.place
            main = place.removesuffix(SUFFIX)
            raise ConfigurationError(
                f"{place} is where {main} keeps its dead letters: nothing is pushed to it or run from it. To list them:"
                f" jobq {main} dead list; to put them back: jobq {main} dead retry --all"
            )

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        """Lease up to 32; an idle queue is asked more and more seldom, up to the longest pause."""
        if max_tasks < 1:  # the service would answer that it refuses the request
            raise ConfigurationError(f"cannot receive {max_tasks} tasks; ask for at least one")
        self._refuse_dead_letters()
        asked = whole_seconds(lease or DEFAULT_LEASE)
        end = time.monotonic() + wait.total_seconds()
        looked = False
        while True:
            if (wait and await self._waited_in_vain(end, looked=looked)) or await self._pause.holds_until(end):
                return []
            found = await self._look(min(max_tasks, MOST_AT_ONCE), asked)
            looked = True
            if found:
                self._polling.found()
                ready: list[Delivery] = [each for each in found if each is not None]
                if ready:
                    return ready
                if time.monotonic() < end + _PUT_OFF_SECONDS:
                    continue  # all of it was put off: what waits behind it must not pass for an empty queue (L1, L3)
                raise BackendUnavailable(f"{self._wire.place}: nothing but tasks that cannot be handed out yet")
            self._polling.empty(time.monotonic())
            if time.monotonic() >= end:
                return []

    async def _waited_in_vain(self, end: float, *, looked: bool) -> bool:
        """Wait until the next look is due; return whether that is too late, which a first one never is."""
        due, now = self._polling.due, time.monotonic()
        await asyncio.sleep(max(0.0, min(due, end) - now))
        return due > end and looked

    async def _look(self, count: int, seconds: int) -> "list[StorageDelivery | None]":
        """Return what was received; None stands for what was put off."""
        count = self._polling.most(count, time.monotonic())
        looking = asyncio.ensure_future(self._granted(count, seconds))
        try:
            deliveries = await asyncio.shield(looking)
        except asyncio.CancelledError:
            await self._give_back(looking, seconds)
            raise
        except NoAnswer as error:
            if isinstance(error, Unreadable):
                self._polling.stumbled(time.monotonic(), seconds)
            elif isinstance(error, ServiceFailed):
                self._polling.failed(count)
            # Up to 32 messages may be hidden for a lease; they come again, one delivery older.
            raise AnswerLost(str(error)) from None
        return deliveries

    async def _granted(self, count: int, seconds: int) -> "list[StorageDelivery | None]":
        """Lease messages, and open them; one that is too early, or whose payload cannot be had now, is put off."""
        limit = min(seconds * _BLOB_SHARE, _BLOB_SECONDS)

        async def opened(message: Message) -> StorageDelivery | None:
            self._warn_of_expiry(message)
            try:
                envelope = await within(limit, self._payloads.opened(message.text))
            except JobqError as error:
                unread = self._delivery(
                    message, Envelope(MessageContent.read(message.text), text=message.text), seconds
                )
                _log.warning("%s: task %s is put off: %s", self._wire.place, unread.id, error)
                hidden = min(_UNREADABLE_SECONDS * message.deliveries, _UNREADABLE_AT_MOST_SECONDS)
                is_back = await put_off(unread, hidden)
                if isinstance(error, BackendUnavailable):
                    self._put_off_times.add(unread.id, hidden if is_back else max(hidden, seconds))
                return None
            delivery = self._delivery(message, envelope, seconds)
            if not self._keeps_ledger and delivery.message_ledger:
                self._put_off_times.misplaced = f"task {delivery.id} {NEEDED}"
                _log.warning("%s: task %s is put back, for it %s", self._wire.place, delivery.id, NEEDED)
                await put_off(delivery, whole_seconds(PUT_OFF))
                return None
            if message.expires_under_lease:
                # Half of what is left to it: a worker with a shorter lease may run it.
                await put_off(delivery, max(0, (message.expires - message.leased_until + seconds) // 2))
                return None
            if not (early := _too_early(delivery)):
                return delivery
            await put_off(delivery, early)
            return None

        async def put_off(delivery: StorageDelivery, hidden: int) -> bool:
            try:
                await delivery.settle(Release(timedelta(seconds=hidden)))
            except JobqError as error:  # the others of its receive must not suffer (S11)
                _log.warning("%s: task %s comes when its lease is over: %s", self._wire.place, delivery.id, error)
                return False
            return True

        return await asyncio.gather(*(opened(message) for message in await self._wire.get(count, seconds)))

    def _warn_of_expiry(self, message: Message) -> None:
        """Warn of a message that another program has sent with a time to live, the first time."""
        if not message.expires or (self._is_expiry_told and not message.expires_under_lease):
            return
        self._is_expiry_told = True
        when = datetime.fromtimestamp(message.expires, UTC).isoformat()
        effect = (
            "given back, for it would expire under its lease"
            if message.expires_under_lease
            else "lost then, also while it runs"
        )
        _log.warning(
            "%s: message %s expires at %s and is %s: let the program that sends it use a time to live of -1",
            self._wire.place,
            message.id,
            when,
            effect,
        )

    @property
    def misplaced(self) -> str:
        """Why tasks were put back that need other settings than these; empty = none were."""
        return self._put_off_times.misplaced

    def take_put_off(self) -> Mapping[str, float]:
        """Return what was put off since the last call, for its payload could not be had, or is leased to nobody."""
        return self._put_off_times.take()

    async def _give_back(self, looking: "asyncio.Task[list[StorageDelivery | None]]", seconds: int) -> None:
        """Put back what a receive was granted that nobody waits for any more; what cannot be is noted."""
        await asyncio.wait({looking}, timeout=_LEAVE_SECONDS)
        if not looking.done() or looking.cancelled() or isinstance(looking.exception(), NoAnswer):
            looking.cancel()
            self._put_off_times.add(UNKNOWN_ID, seconds)  # whatever it was granted is hidden for so long
            return
        if looking.exception() is not None:
            return

        async def release(delivery: StorageDelivery) -> None:
            try:
                await delivery.settle(Release())
            except JobqError as error:
                _log.debug("task %s comes when its lease is over: %s", delivery.id, error)
                self._put_off_times.add(delivery.id, seconds)

        await asyncio.gather(*(release(each) for each in looking.result() if each is not None))

    def _delivery(self, message: Message, envelope: Envelope, seconds: int) -> StorageDelivery:
        lease = timedelta(seconds=seconds)
        return StorageDelivery(self._wire, self._payloads, self._dead, message, envelope, lease, self._on_their_way)

    async def peek(self, limit: int) -> list[Peeked]:
        """Look at the first tasks; the service shows 32 at most."""
        messages = await certain(self._wire.peek(min(limit, MOST_AT_ONCE)))
        envelopes = await asyncio.gather(*(self._shown(message) for message in messages))
        return [
            Peeked(
                id=id_in(envelope) or envelope.content.beside.id or message.id,
                body=envelope.body,
                deliveries=envelope.content.beside.before + message.deliveries,
            )
            for message, envelope in zip(messages, envelopes, strict=True)
        ]

    async def _shown(self, message: Message) -> Envelope:
        """Return what a message holds; one whose payload cannot be had now is shown as it stands there (S11)."""
        try:
            return await within(_BLOB_SECONDS, self._payloads.opened(message.text))
        except JobqError:
            content = MessageContent.read(message.text)
            return Envelope(content, fault=MalformedTask("its payload cannot be had now"), text=message.text)

    async def stats(self) -> QueueStats:
        """Count what the service counts: all messages together, and the dead letters."""
        return await self.stats_of(self._name)

    async def stats_of(self, name: str) -> QueueStats:
        """Count likewise those of a queue of this account."""
        is_own = name == self._name
        facts = await certain((self._wire if is_own else self._account.wire(name)).look())
        try:
            dead = await certain((self._dead if is_own else self._account.wire(name + SUFFIX)).count())
        except QueueNotFound:  # another program made the queue
            dead = 0
        paused = (self._pause if is_own else PauseLook(self._wire)).take_in(facts)
        return QueueStats(visible=None, leased=None, scheduled=None, dead=dead, total=facts.messages, paused=paused)

    async def pause(self, mark: Pause) -> None:
        """Hand nothing out: every worker sees it within a minute."""
        await self._pause.set(mark)

    async def resume(self) -> Pause | None:
        """Hand tasks out again, within ten seconds."""
        return await self._pause.set(None)

    async def paused(self) -> Pause | None:
        """Return the mark that the last look has found."""
        return self._pause.mark

    async def clear(self) -> int:
        """Delete all messages; the number is the service's estimate.

        What is pushed after it begins in another second of the service's clock than all that it took away (S3).
        """
        count = await certain(self._wire.count())
        await certain(self._wire.clear())
        if count:
            await asyncio.sleep(EPOCH_SECONDS)
        await self._payloads.sweep()
        return count

    async def dead_letters(self, limit: int) -> list[Dead]:
        """Look at what jobq gave up on, oldest first."""
        return await certain(self._dead.letters(limit))

    async def walk_dead(self) -> AsyncGenerator[list[IdInBatch]]:
        """Yield the ids of all dead letters, and hold each for who puts it back, or deletes it, before the next."""
        try:
            async with aclosing(self._dead.walk()) as walk:
                async for ids in walk:
                    yield ids
        except NoAnswer as error:
            raise error.as_unavailable() from None

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back."""
        return await certain(self._dead.redrive(ids))

    async def purge_dead(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters for good."""
        return await certain(self._dead.purge(ids))

    async def delete(self, *, only_empty: bool = False) -> None:  # noqa: ARG002 - the service cannot do both in one step
        """Delete the queue and QUEUE-failed."""
        for place in (self._wire, self._account.wire(self._name + SUFFIX)):
            await certain(place.delete_queue())

    def views(self) -> StorageViews:
        """Return what shows the service's counts; all else needs a journal."""
        own = StorageQueueBackend(self._account.another(), self._name, timedelta(0))
        return StorageViews(own, own.leases, self._account.name)

    def findings(self) -> AsyncIterator[Finding]:
        """Look at what the queue needs beside itself."""
        dead = self._account.wire(self._name + SUFFIX)
        return findings(self._account, dead, f"jobq {self._wire.place} create")


def _too_early(delivery: StorageDelivery) -> int:
    """Return for how many seconds a delivery is to be hidden again: its delay was longer than the service hides."""
    try:
        not_before = delivery.task.not_before
    except MalformedTask:
        return 0
    early = 0.0 if not_before is None else not_before - time.time()
    return min(math.ceil(early), int(LONGEST.total_seconds())) if early > _EARLY_SECONDS else 0
