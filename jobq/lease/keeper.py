"""The only heartbeat: keeps one lease, of a delivery or of a name, and says in time when it cannot (rules.md 1.3).

The network must not be able to delay the verdict: renewals have a task of their own, from the first that is due, and
the deadline is watched on the local clock, by one `Ticker` for all leases of a worker. `lock_lost_event` is set at the
deadline at the latest, whatever the network does.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from jobq.clock import Clock, Moment
from jobq.errors import LockLost, SettlementUnknown
from jobq.flag import Flag
from jobq.lease.outage import Outage
from jobq.lease.ticker import Call, Ticker
from jobq.lease.timing import LeaseTiming
from jobq.racing import first_done

T = TypeVar("T")
_log = logging.getLogger(__name__)
STOPPING_ATTEMPT_SECONDS: Final = 2.0  # rule 4: one attempt while stopping
_TRIES_LEFT: Final = 8  # of renewals that failed, in the time that is left
NUDGED_SECONDS: Final = 2.0
TICK_SECONDS: Final = 1.0
FREEZE_SECONDS: Final = 1.0  # rule 8: how far the wall clock may get ahead of CLOCK_BOOTTIME between two ticks,
FREEZE_RATE: Final = 0.01  # and for each second between them


class Renewable(Protocol):
    """What the keeper keeps: a `jobq.backend.Delivery`, or the grant of a named lease; all verbs are fenced (S4)."""

    @property
    def id(self) -> str:
        """The name of what is leased."""
        ...

    async def renew(self, lease: timedelta) -> timedelta | None:
        """Extend the lease to this length from now; return the length that was granted, if that is less."""
        ...

    async def checkpoint(self, value: str, number: int) -> None:
        """Durably save the progress, unless one with a higher number was saved (S9)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Why a lease was given up; times are boottime in seconds.

    Attributes:
        cause: in plain words.
        refused: the lease is gone for sure, or may be; otherwise there may be time left for a SIGTERM (P6).
        last_success: before the last request that certainly extended the lease.
        deadline: when the task's tree must be dead.
    """

    cause: str
    refused: bool
    last_success: float
    deadline: float


class LeaseKeeper:
    """Keeps one lease while its context is entered.

    Args:
        leased: what is leased.
        since: read before the request that granted the lease was sent (rule 1).
        timing: the numbers of rules 2 and 4.
        clock: the clock `since` was read from; where it is the store's own, no jump of the wall clock ends a lease.
        on_extended: called with each new deadline, for others that enforce it, too (rule 7).
        kind: what is leased, for messages; "lease" for a named one.
        outage: what all leases of one service have in common; None = this one stands for itself.
        ticker: what watches it, with others; None = its own.
        on_renewal: called after each renewal: extended, unknown (nothing that decides) or lost; must not block.
    """

    def __init__(
        self,
        leased: Renewable,
        *,
        since: Moment,
        timing: LeaseTiming,
        clock: Clock,
        on_extended: Callable[[float], None] | None = None,
        kind: str = "task",
        on_renewal: Callable[[str], None] = lambda _result: None,
        outage: Outage | None = None,
        ticker: Ticker | None = None,
    ) -> None:
        self.lock_lost_event = Flag()
        self.loss: Loss | None = None
        self.renewals = 0
        self._settled = False
        self._in_doubt = False  # an unanswered settle: repeated by the caller until the deadline, renewed no more
        self._leased = leased
        self._what = f"{kind} {leased.id}"
        self._lease = self._what if kind == "lease" else f"the lease on {self._what}"
        self._timing = timing
        self._clock = clock
        self._is_stores = bool(getattr(clock, "is_stores", False))
        self._since = self._asked = since.boottime
        self._seen = since  # the last moment up to which no freeze of the host was seen
        self._on_extended = on_extended
        self._on_renewal = on_renewal
        self._outage = outage or Outage(clock, f"who grants {self._what}")
        self._last_trouble = "no renewal was tried"
        self._troubles = 0  # renewals in a row that came to nothing
        # Receipts rotate: renew, checkpoint and settle of one lease never overlap.
        self._serial = asyncio.Lock()
        self._checkpoints = 0  # that were sent: a late one must not undo a newer one (S9)
        self._saves: set[asyncio.Task[None]] = set()
        self._ticker = ticker or Ticker(clock)
        self._owns_ticker = ticker is None
        self._due = 0.0  # the first renewal
        self._tick: Call | None = None
        self._renewals: asyncio.Task[None] | None = None
        self._nudged = Flag()

    @property
    def last_success(self) -> float:
        """Boottime in seconds, read before the last request that certainly granted or extended the lease was sent."""
        return self._since

    @property
    def deadline(self) -> float:
        """Boottime in seconds by which the task's tree must be dead (rule 2)."""
        return self._since + self._timing.hold

    def remaining(self) -> float:
        """Return the seconds that are left to the deadline, 0 when it has passed."""
        return max(0.0, self.deadline - self._clock.boottime())

    @property
    def is_lost(self) -> bool:
        """Whether the lease is, or may be, no longer ours, also once nobody keeps it any more."""
        return self.lock_lost_event.is_set() or not self.remaining()

    @property
    def stop_at(self) -> float:
        """Boottime in seconds at which the lock counts as lost: the deadline less the grace (P6)."""
        return self._since + self._timing.stop_after

    async def __aenter__(self) -> Self:
        self._due = self._since + self._timing.period
        self._watch()
        if self._nudged.is_set():
            self._begin_to_renew()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._outage.left(self)
        for save in list(self._saves):
            save.cancel()
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        if self._owns_ticker:
            self._ticker.close()
        if self._renewals is not None:
            self._renewals.cancel()
            with suppress(asyncio.CancelledError):  # ours, from the line above; a fault of the loop is raised
                await self._renewals

    async def confirm(self) -> bool:
        """Renew once before anything is started, when the grant is no longer fresh (rule 5); then enter the context.

        A receive that waited for a task longer than the lease lasts is no loss: nothing runs yet, and a renewal that
        succeeds proves the lease to be ours from when it was sent. So it is with a host that froze meanwhile (rule 8).

        Returns:
            Whether the lease is surely ours for long enough to start.
        """
        if not self._is_stale() and not self._jump():
            return True
        self._seen = Moment.of(self._clock)
        return await self._renew_once() and not self._is_stale() and not self._jump()

    async def renew(self) -> bool:
        """Renew now, for what the service may have to say with its answer; return whether it surely did."""
        return await self._renew_once()

    def _is_stale(self) -> bool:
        return self._clock.boottime() - self._since > self._timing.stale

    def nudge(self) -> None:
        """Renew sooner than is due, since there is something to send with it; every NUDGED_SECONDS at most."""
        self._nudged.set()
        if self._tick is not None:
            self._begin_to_renew()

    async def settle(self, verb: Callable[[], Awaitable[None]], *, attempt: float | None = None) -> None:
        """Run a settle, one at a time with renewals, for at most one attempt.

        Args:
            verb: calls the delivery; repeated by the caller where that is safe.
            attempt: seconds it may take; the timing's own by default.

        Raises:
            LockLost: the lease was lost before it was sent, or the service says so.
            SettlementUnknown: no answer came in time.
            Exception: whatever else the verb raises.
        """
        async with self._serial:
            try:
                await self._send(verb, self._timing.attempt if attempt is None else min(attempt, self._timing.attempt))
            except SettlementUnknown:
                self._in_doubt = True  # a renewal of what may be settled would be refused, and say nothing
                raise
            self._settled = True  # nothing is left to keep, and nothing to lose

    async def checkpoint(self, value: str) -> None:
        """Save the task's progress, one at a time with renewals; raises as `settle` does.

        Cancelling the caller does not cancel what was sent: the settle that may follow has to wait for its answer,
        which may have changed the receipt.
        """
        save = asyncio.create_task(self._checkpoint(value), name=f"checkpoint of {self._leased.id}")
        self._saves.add(save)
        save.add_done_callback(self._saves.discard)
        try:
            await asyncio.shield(save)
        except asyncio.CancelledError:
            if save.cancelled():  # not the caller: the lease is kept no more
                raise LockLost(f"the attempt at {self._what} has ended") from None
            save.add_done_callback(_forget)
            raise

    async def _checkpoint(self, value: str) -> None:
        async with self._serial:
            if self._settled or self._in_doubt:
                raise LockLost(f"{self._what} was settled before this was sent")
            self._checkpoints = number = self._checkpoints + 1
            await self._send(lambda: self._leased.checkpoint(value, number), self._timing.attempt)

    async def _send(self, verb: Callable[[], Awaitable[None]], seconds: float) -> None:
        if self.lock_lost_event.is_set():
            raise LockLost(f"{self._lease} was lost before this was sent")
        if not await answered_within(self._clock, seconds, verb()):
            raise SettlementUnknown(f"no answer about {self._what} within {seconds:.3g} s")

    def _watch(self) -> None:
        """Look at both clocks, begin to renew when that is due, and look again in a moment."""
        self._tick = None
        if self.lock_lost_event.is_set() or self._settled:
            return
        if self._clock.boottime() >= self.stop_at and (self._is_stores or not self._is_ahead()):
            self._lose(f"no renewal succeeded in time; last trouble: {self._last_trouble}", refused=False)
            return
        if (ahead := self._jump()) and self._is_stores:
            self._nudged.set()  # rule 12: the store says at once whether it is still ours
            self._begin_to_renew()
        elif ahead:
            # Rule 8: the host froze this guest and its clock; nobody knows for how long the lease has been over.
            self._lose(f"the wall clock jumped {ahead:.1f} s: this machine may have been frozen", refused=True)
            return
        if self._clock.boottime() >= self._due:
            self._begin_to_renew()
        begins = self._due if self._renewals is None else math.inf
        soon = min(self.stop_at, self._seen.boottime + TICK_SECONDS, begins)
        self._tick = self._ticker.at(soon, self._watch)

    def _begin_to_renew(self) -> None:
        if self._renewals is None:
            name = f"lease renewal of {self._leased.id}"
            self._renewals = asyncio.create_task(self._renew_for_ever(self._due), name=name)

    def _is_ahead(self) -> float:
        """Return by how many seconds the wall clock got ahead since it was last seen; 0 = by no more than it may."""
        passed = self._clock.boottime() - self._seen.boottime
        ahead = self._clock.wall() - self._seen.wall - passed
        return ahead if ahead > FREEZE_SECONDS + FREEZE_RATE * passed else 0.0

    def _jump(self) -> float:
        """As `_is_ahead`, and look from here on."""
        ahead = self._is_ahead()
        self._seen = Moment.of(self._clock)
        return ahead

    async def _renew_for_ever(self, due: float) -> None:
        while not (self.lock_lost_event.is_set() or self._settled or self._in_doubt):
            await self._until(due)
            if await self._renew_once():
                due = self._since + self._timing.period
            else:
                due = self._clock.boottime() + self._pause()

    def _pause(self) -> float:
        """Return seconds to the next try: twice as many each time, and so few that several come before the end."""
        soon = self._timing.backoff
        share = max(soon, (self.stop_at - self._clock.boottime()) / _TRIES_LEFT)
        return min(soon * 2.0 ** min(max(0, self._troubles - 1), 16), share)

    async def _until(self, due: float) -> None:
        """Wait until a renewal is due, or wanted sooner."""
        asleep = asyncio.ensure_future(self._clock.sleep_until(due))
        nudged = self._nudged.future()
        try:
            await first_done(asleep, nudged)
        finally:
            asleep.cancel()
            nudged.cancel()
        if self._nudged.is_set():
            self._nudged.clear()
            # From the last that was tried: a service in trouble is asked no more often than for what a task sends.
            await self._clock.sleep_until(min(due, self._asked + NUDGED_SECONDS))

    async def _renew_once(self) -> bool:
        """Send one renewal; a definite answer moves the deadline or ends the lease, anything else changes nothing."""
        async with self._serial:
            if self.lock_lost_event.is_set() or self._settled or self._in_doubt:
                return False
            sent = self._asked = self._clock.boottime()  # rule 1: before the request, never after the answer
            granted: timedelta | None = None

            async def renew() -> None:
                nonlocal granted
                granted = await self._leased.renew(timedelta(seconds=self._timing.lease))

            try:
                answered = await answered_within(self._clock, self._timing.attempt, renew())
            except LockLost as error:
                self._lose(str(error), refused=True)
                self._on_renewal("lost")
                return False
            except Exception as error:  # noqa: BLE001 - rule 3: unknown is no extension; the deadline decides
                self._note_trouble(f"{type(error).__name__}: {error}")
                return False
            if not answered:
                self._note_trouble(f"no answer within {self._timing.attempt:.3g} s")
                return False
            if self.lock_lost_event.is_set():
                return False  # it was given up while the answer was on its way; that stands
            self._since = sent
            if granted is not None and granted.total_seconds() < self._timing.lease:
                self._shorten(granted.total_seconds())
            self.renewals += 1
            self._outage.answered(self)
            self._troubles = 0
            if self._on_extended is not None:
                self._on_extended(self.deadline)
            self._on_renewal("extended")
            return True

    def _shorten(self, seconds: float) -> None:
        """Keep from now on what was granted: the queue's own length was changed under this lease."""
        former, self._timing = self._timing.lease, replace(self._timing, lease=seconds)
        _log.warning("%s is renewed for %.3g s only, no more for %.3g s", self._lease, seconds, former)

    def _note_trouble(self, trouble: str) -> None:
        """Warn once for all leases: an outage brings the same words every second, for each task."""
        self._troubles += 1
        self._last_trouble = trouble
        _log.log(self._outage.failed(self), "renewal of %s failed: %s", self._what, trouble)
        self._on_renewal("unknown")

    def _lose(self, cause: str, *, refused: bool) -> None:
        if self.loss is None:
            self.loss = Loss(cause=cause, refused=refused, last_success=self._since, deadline=self.deadline)
            self.lock_lost_event.set()


async def answered_within(clock: Clock, seconds: float, request: Awaitable[T]) -> bool:
    """Run one request for at most so long on this clock; return whether it was answered, raise what it raises."""
    sending = asyncio.ensure_future(request)
    timer = asyncio.ensure_future(clock.sleep_until(clock.boottime() + seconds))
    try:
        await first_done(sending, timer)
        if sending.done():
            sending.result()
            return True
        return False
    finally:
        timer.cancel()
        # A request that ignores its cancellation is not waited for: it must not hold up the verdict. Its late
        # answer is looked at by nobody; what it may have done is "unknown" already. Who is cancelled in the instant in
        # which it fails does not look either.
        sending.add_done_callback(_forget)
        sending.cancel()


def _forget(late: "asyncio.Future[Any]") -> None:
    if not late.cancelled() and late.exception() is not None:
        _log.debug("a late answer: %r", late.exception())
