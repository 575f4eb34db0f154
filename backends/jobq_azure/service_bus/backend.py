"""Azure Service Bus behind the backend protocol: `sb://NAMESPACE/QUEUE`."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Final, Self

from jobq.backend import UNKNOWN_ID, Capabilities, Delivery, Peeked, QueueStats
from jobq.backend import DeadLetter as Dead
from jobq.errors import AccessDenied, AllPutBack, AnswerLost, BackendUnavailable, ConfigurationError, JobqError
from jobq.examination import Finding
from jobq.task import Task
from jobq_azure.common.errors import NoAnswer, NotSignedIn, certain
from jobq_azure.common.giving_back import give_back
from jobq_azure.common.letter_work import ledger_in
from jobq_azure.common.put_off_times import PutOffTimes
from jobq_azure.service_bus.admin_client import Admin, Description
from jobq_azure.service_bus.clear_queue import cleared
from jobq_azure.service_bus.dead_letters import ServiceBusDeadLetters
from jobq_azure.service_bus.delivery import ServiceBusDelivery
from jobq_azure.service_bus.examination import DELIVERIES_TO_SPARE, MOST_DELIVERIES, findings, trouble
from jobq_azure.service_bus.lock_length import LEAST_SECONDS, LockLength
from jobq_azure.service_bus.message_format import BEFORE, id_in
from jobq_azure.service_bus.message_receiver import MessageReceiver
from jobq_azure.service_bus.namespace import Namespace
from jobq_azure.service_bus.options import NO_TABLES, Options
from jobq_azure.service_bus.push import HEADROOM_BYTES, STANDARD_BYTES, push
from jobq_azure.service_bus.rest_client import GRAIN_SECONDS, Locked, RestClient

if TYPE_CHECKING:
    from jobq_azure.service_bus.amqp_client import Amqp

LONGEST_LOCK: Final = timedelta(minutes=5)  # by the service
_DESCRIBE_SECONDS: Final = 3.0  # for which a command waits to know more of its queue
_LEAVE_SECONDS: Final = 5.0  # for what is still on its way when the queue is left
_REST_BYTES: Final = 1024 * 1024  # of a message over REST, in any tier
_SDK: Final = "jobq_azure.service_bus.amqp_client"
_PUT_OFF: Final = timedelta(seconds=30)  # a task of a batch
_OF_A_BATCH: Final = f"is of a batch: {NO_TABLES}"
_PUT_OFF_SECONDS: Final = 60.0  # a receive looks for so long past what it puts off
_log: Final = logging.getLogger(__name__)


class Sdk:
    """Gives what speaks AMQP, which few commands need, and which takes half a second to import."""

    async def load(self) -> None:
        """Import it: the loop must not stand still for that when a first task is given up under its lease."""
        await asyncio.to_thread(import_module, _SDK)

    def connect(self, namespace: Namespace, *, websocket: bool) -> "Amqp":
        """Return a client of the namespace's queue; it connects when it is first needed."""
        from jobq_azure.service_bus.amqp_client import Amqp  # noqa: PLC0415 - see above

        # Its log names each link that the service closes; what matters of it is raised.
        logging.getLogger("azure.servicebus").setLevel(logging.CRITICAL)
        return Amqp(namespace, websocket=websocket)


class ServiceBusBackend:
    """One queue of one namespace.

    Args:
        namespace: not yet entered; this enters and leaves it.
        options: what the settings say.
        now: seconds by a clock that the service's long polls go by, too.
        sdk: gives what speaks AMQP.
    """

    def __init__(
        self,
        namespace: Namespace,
        options: Options,
        now: Callable[[], float] = time.monotonic,
        sdk: Sdk = Sdk(),  # noqa: B008 - it has no state
    ) -> None:
        self._namespace = namespace
        self._place = namespace.place
        self._options = options
        self._now = now
        self._stack = AsyncExitStack()
        self._on_their_way: set[asyncio.Task[None]] = set()
        self._description: Description | None = None
        self._described = 0.0  # when
        self._first_count = 1  # the DeliveryCount of a first delivery: 1 until a 0 was seen
        self._is_warned = self._is_warm = False
        self._loading: asyncio.Future[None] | None = None
        self._put_off_times = PutOffTimes()
        self._length = LockLength(self._look_at_lock, now)
        self._sdk = sdk
        self._connected: Amqp | None = None
        self._admin: Admin
        self._wire: RestClient
        self._polls: MessageReceiver
        self._dead: ServiceBusDeadLetters

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._place.queue

    @property
    def capabilities(self) -> Capabilities:
        """What Service Bus can and cannot do; some of it is the queue's own matter, and known once it was looked at."""
        known, window = self._description, self._dedup_window()
        most_bytes = min((known and known.max_message_bytes) or STANDARD_BYTES, _REST_BYTES) - HEADROOM_BYTES
        return Capabilities(
            finds_at_once=False,
            default_lease=max(
                self._options.lock if known is None else min(known.lock, LONGEST_LOCK), self._length.heard
            ),
            max_lease=LONGEST_LOCK,
            chooses_lease=False,
            max_message_bytes=most_bytes,
            deduplicates=bool(window),
            dedup_window=window or None,
            frees_ids=False,
            idempotent_push=bool(window),
            atomic_dead_letter=True,
            counts_deliveries=True,
            peeks_leased=True,
            clears_leased=False,
            redelivers_at="front",
            counts=frozenset({"scheduled", "dead", "total"}),
        )

    def _dedup_window(self) -> timedelta:
        """Return for how long the broker remembers an id, as far as is known; zero = it does not."""
        if self._description is not None:
            return self._description.dedup_window
        return self._options.asserted_dedup_window

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:  # whatever fails here leaves nothing open
            await stack.enter_async_context(self._namespace)
            self._admin = Admin(self._namespace)
            self._wire = RestClient(self._namespace, self.name)
            self._dead = ServiceBusDeadLetters(self._amqp, self._wire)
            self._polls = MessageReceiver(
                self._wire, self._give_back, self._options.longest_poll_seconds, self._now, self._lost
            )
            await self._look()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._polls.aclose()
        await self._length.aclose()
        if self._loading is not None:
            await self._loading
        if self._on_their_way:
            await asyncio.wait(self._on_their_way, timeout=_LEAVE_SECONDS)
        for sent in self._on_their_way:
            sent.cancel()
        if self._connected is not None:
            await self._connected.aclose()
        await self._stack.aclose()

    def _amqp(self) -> "Amqp":
        if self._connected is None:
            self._connected = self._sdk.connect(self._namespace, websocket=self._options.websocket)
        return self._connected

    async def _look(self) -> None:
        """Learn what the queue was made with, where rights and the network allow it; nothing depends on it."""
        try:
            await self._look_at_lock()
        except (JobqError, NoAnswer) as error:
            _log.debug("%s: what it was made with is not known: %s", self._place, error)

    async def _look_at_lock(self) -> timedelta:
        self._description = await self._admin.describe(_DESCRIBE_SECONDS)
        self._described = self._now()
        self._length.know(self._description.lock.total_seconds() - GRAIN_SECONDS)
        return self._description.lock

    async def create(self, *, exist_ok: bool = True) -> None:
        """Make the queue: messages without end, and a count of deliveries above all budgets; needs Manage."""
        options = self._options
        deliveries = min(options.budgets + DELIVERIES_TO_SPARE, MOST_DELIVERIES)
        window = options.dedup_window
        await certain(self._admin.create(options.lock, deliveries, window, exist_ok=exist_ok))
        await self._look()

    async def prepare(self) -> None:
        """Warn where AMQP is closed, without which no task is given up."""
        await self._sdk.load()
        try:
            await self._amqp().reach()
        except NoAnswer as error:
            other = (
                "" if self._options.websocket else "; set JOBQ_SERVICE_BUS_WEBSOCKET=1 to go by port 443 and proxies"
            )
            effect = "tasks that fail for good wait for their burial until it is open"
            _log.warning("%s (is port %s open?): %s%s", error, 443 if self._options.websocket else 5671, effect, other)
        except BackendUnavailable as error:
            _log.debug("%s", error)
        except JobqError as error:
            _log.warning("%s: tasks that fail for good wait for their burial", error)

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        """Add the tasks, a hundred or 256 KiB in a request."""
        self._forget_counts()
        return await push(self._wire, tasks, self._most_bytes)

    @property
    def _most_bytes(self) -> int:
        most = self.capabilities.max_message_bytes
        assert most is not None
        return most

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        """Lock messages; the queue says for how long, and `lease` may only be shorter."""
        if max_tasks < 1:
            raise ConfigurationError(f"cannot receive {max_tasks} tasks; ask for at least one")
        self._warn()
        end = self._now() + wait.total_seconds()
        while True:
            try:
                found = await self._polls.receive(max_tasks, max(0.0, end - self._now()))
            except NoAnswer as error:
                raise AnswerLost(str(error)) from None  # what is locked comes again, one delivery older
            if found and not self._is_warm:
                self._is_warm = True
                self._loading = asyncio.ensure_future(self._sdk.load())
            try:
                fresh = [lock for locked in found if (lock := await self._fresh(locked)) is not None]
            except asyncio.CancelledError:  # nobody waits for them any more, and they are locked
                self._lost()
                raise
            ready = [each for locked in fresh if self._is_ready(each := self._delivery(locked, lease))]
            if ready or not found:
                return list(ready)
            if self._now() >= end + _PUT_OFF_SECONDS:
                raise AllPutBack(f"{self._place}: nothing but tasks that cannot be handed out here")

    async def _fresh(self, locked: Locked) -> Locked | None:
        """Return a lock that was granted just now; one that an answer shows as nearly over is renewed first.

        That answer was late, or its date is off. None = it cannot be renewed, and comes again.
        """
        self._length.hear(locked.seconds)
        if locked.seconds >= LEAST_SECONDS or not (whole := self._length.heard.total_seconds() - GRAIN_SECONDS) > 0:
            return replace(locked, seconds=self._length.at_most(locked.seconds))
        try:
            await self._wire.renew(locked)
        except (JobqError, NoAnswer) as error:
            _log.info("%s: message %s comes again, for its lock is over: %s", self._place, locked.number, error)
            self._lost()
            return None
        return replace(locked, seconds=whole)

    def _is_ready(self, delivery: ServiceBusDelivery) -> bool:
        """Return whether a delivery may be handed out; else it is put off, beside what goes on."""
        if not ledger_in(delivery.body):
            return True
        self._put_off_times.misplaced = f"task {delivery.id} {_OF_A_BATCH}"
        _log.warning("%s: task %s is put back, for it %s", self._place, delivery.id, _OF_A_BATCH)
        putting = asyncio.ensure_future(self._put_off(delivery))
        self._on_their_way.add(putting)
        putting.add_done_callback(self._on_their_way.discard)
        return False

    async def _put_off(self, delivery: ServiceBusDelivery) -> None:
        try:
            await give_back(delivery, _PUT_OFF)
        except JobqError as error:
            _log.warning("%s: task %s comes when its lock is over: %s", self._place, delivery.id, error)

    def _delivery(self, locked: Locked, lease: timedelta | None) -> ServiceBusDelivery:
        if locked.count == 0:
            self._first_count = 0
        shortest = [timedelta(seconds=locked.seconds), lease, self._options.shorter_lock]
        return ServiceBusDelivery(
            self._wire,
            self._amqp,
            locked,
            first=self._first_count,
            lease=min(each for each in shortest if each is not None),
            on_their_way=self._on_their_way,
            deduplicates=bool(self._dedup_window()),
            length=self._length,
            on_settled=self._forget_counts,
        )

    def _forget_counts(self) -> None:
        """Have the next look at the counts ask the service: this process has changed them."""
        self._described = -math.inf

    def _lost(self) -> None:
        self._put_off_times.add(UNKNOWN_ID, self.capabilities.default_lease.total_seconds())

    @property
    def misplaced(self) -> str:
        """Why tasks were put back that need other settings than these; empty = none were."""
        return self._put_off_times.misplaced

    def take_put_off(self) -> Mapping[str, float]:
        """Return what may be locked for nobody since the last call."""
        return self._put_off_times.take()

    async def _give_back(self, locked: Locked) -> None:
        await give_back(self._delivery(locked, None))

    def _warn(self) -> None:
        """Say once what of the queue's own rules would take tasks away from jobq's (S1, S7)."""
        known = self._description
        if self._is_warned or known is None:
            return
        self._is_warned = True
        for text in trouble(known, self._options.budgets).values():
            _log.warning("%s %s", self._place, text)

    async def peek(self, limit: int) -> list[Peeked]:
        """Look at the first tasks; those that are leased are shown too, for nothing distinguishes them."""
        found: list[Peeked] = []
        for seen in await certain(self._amqp().peek(limit)):
            if not (seen.is_scheduled or seen.is_deferred):
                deliveries = seen.number_in(BEFORE) + seen.ended
                found.append(Peeked(id=id_in(seen), body=seen.body, deliveries=deliveries))
        return found

    async def stats(self) -> QueueStats:
        """Count what the service counts; it bills a look like ten messages, so one serves until something is changed.

        That is for some seconds, which others have; what this process has pushed or settled since is counted anew.
        """
        if self._description is None or self._now() - self._described >= self._options.stats_seconds:
            try:
                self._description = await certain(self._admin.describe())
            except NotSignedIn:  # the service was never asked
                raise
            except AccessDenied:
                return QueueStats(visible=None, leased=None, scheduled=None, dead=None)
            self._described = self._now()
        known = self._description
        total = known.active + known.scheduled
        return QueueStats(visible=None, leased=None, scheduled=known.scheduled, dead=known.dead, total=total)

    async def clear(self) -> int:
        """Delete what waits; what is leased stays its worker's, for the service lets nobody else touch it."""
        self._forget_counts()
        return await certain(cleared(self._amqp(), self._wire))

    async def dead_letters(self, limit: int) -> list[Dead]:
        """Look at what jobq gave up on, and at what the service did, oldest first."""
        return await certain(self._dead.letters(limit))

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back."""
        self._forget_counts()
        return await certain(self._dead.redrive(ids))

    async def purge_dead(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters for good."""
        self._forget_counts()
        return await certain(self._dead.purge(ids))

    async def delete(self, *, only_empty: bool = False) -> None:  # noqa: ARG002 - the service cannot do both in one step
        """Delete the queue, and its dead letters with it; needs Manage."""
        await certain(self._admin.delete())

    def findings(self) -> AsyncIterator[Finding]:
        """Look at the queue's settings."""
        return findings(self._admin, self._amqp(), self._options)
