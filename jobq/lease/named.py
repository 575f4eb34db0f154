"""A lease on a name: `async with queue.lease("nightly") as lease`; taken, kept by the one heartbeat, given back (S10).

A lost answer is never guessed at: an acquire is repeated under the same key, which the store answers as it did the
first time; so are a release, a confirmation and a save. What stays unknown is said to be so, and left to expire.
"""

import asyncio
import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from jobq.clock import Clock, Moment, SystemClock
from jobq.errors import BackendUnavailable, ConfigurationError, LockLost, SettlementUnknown
from jobq.formats import durations
from jobq.lease.acquirer import LONGEST_PAUSE_SECONDS, PAUSE_SECONDS, Acquirer
from jobq.lease.keeper import LeaseKeeper, Loss
from jobq.lease.store import Confirmation, Grant, LeaseStore, checked_name
from jobq.lease.timing import LeaseTiming, timing_for
from jobq.settings import Settings

T = TypeVar("T")
_log: Final = logging.getLogger(__name__)
_MOST_TEXT_BYTES: Final = 64 * 1024  # of a cursor and the like: it is written with every batch


def this_holder() -> str:
    """Return the name of a lease's holder for people: HOST:PID."""
    return f"{socket.gethostname()}:{os.getpid()}"


class NamedLease:
    """A lease on a name while its context is entered; `Queue.lease` makes one. To be entered once.

    Args:
        store: keeps it.
        name: of the lease.
        timing: what follows from its length.
        wait: True = for as long as it takes; False = not at all; a time = at most so long.
        holder: for display only; None = HOST:PID.
        clock: the machine's, but for tests.
        on_extended: called with each new deadline (boottime, seconds), for others that enforce it, too (rule 7).
        on_busy: called, each time that it is not to be had, with a text of who has it and under which token.
        chance: spreads the looks of all who wait, and keeps no secret.

    Attributes:
        token: rises with every grant of this name and is never used again (S3): show it to whatever you write to, and
            let that refuse a lower one. No lease is a mutex without its token (S10).
        lost: set when the lease is, or may be, no longer ours; at the local deadline at the latest, whatever the
            network does.
    """

    def __init__(
        self,
        store: LeaseStore,
        name: str,
        *,
        timing: LeaseTiming,
        wait: bool | timedelta = True,
        holder: str | None = None,
        clock: Clock | None = None,
        on_extended: Callable[[float], None] | None = None,
        on_busy: Callable[[str, int], None] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.name: Final = checked_name(name)
        self.lost = asyncio.Event()
        self._store = store
        self._timing = timing
        self._clock: Clock = clock or SystemClock()
        self._on_extended = on_extended
        self._acquirer = Acquirer(
            store,
            self.name,
            timing=timing,
            wait=wait,
            holder=_checked_text(holder or this_holder(), "a holder's name"),
            clock=self._clock,
            on_busy=on_busy,
            chance=chance or random.Random(),  # noqa: S311
        )
        self._grant: Grant | None = None
        self._keeper: LeaseKeeper | None = None
        self._is_over = False  # released or confirmed, for certain
        self._is_left = False
        self._cursor: str | None = None
        self._version = 0
        self._saving = asyncio.Lock()

    @property
    def token(self) -> int:
        """The fencing token."""
        return self._granted.token

    @property
    def cursor(self) -> str | None:
        """The last cursor that was acknowledged, by this holder or by one before it (S9)."""
        return self._cursor

    @property
    def deadline(self) -> float:
        """Boottime in seconds by which whatever the lease protects must have ended (rule 2)."""
        return self._kept.deadline

    @property
    def loss(self) -> Loss | None:
        """Why the lease was given up; None = it was not."""
        return self._kept.loss

    def remaining(self) -> float:
        """Return the seconds that are left to the deadline."""
        return self._kept.remaining()

    @property
    def is_entered(self) -> bool:
        """Whether it was granted; it may be lost or over by now."""
        return self._keeper is not None

    @property
    def is_lost(self) -> bool:
        """Whether the lease is, or may be, no longer ours, also when the event loop could not say so yet."""
        return self._keeper is None or (self._keeper.is_lost and not self._is_over)

    def check(self) -> None:
        """Raise LockLost if the lease is, or may be, no longer ours."""
        if self.is_lost:
            raise LockLost(f"lease {self.name}: {self._why()}")

    async def __aenter__(self) -> Self:
        if self._grant is not None:
            raise RuntimeError("a lease is entered once; make another one")
        await self._acquirer.acquire(self._begin)
        await self._kept.__aenter__()
        self.lost = self._kept.lock_lost_event
        if self._on_extended is not None:
            self._on_extended(self.deadline)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back; raises LockLost when it was lost meanwhile and the body does not raise anything itself."""
        try:
            if not (self._is_over or self._is_left):
                await self._give_back(raises=error is None)
        finally:
            await self._kept.__aexit__(kind, error, trace)

    async def release(self) -> None:
        """Give it back now; leaving the context does so too.

        Raises:
            LockLost: it is no longer ours.
            SettlementUnknown, BackendUnavailable: no answer came while it was; it expires.
        """
        if not self._is_over:
            await self._certainly(lambda: self._kept.settle(lambda: self._store.release(self.name, self.token)))
            self._is_over = True

    def leave_to_expire(self) -> None:
        """Leave the context without giving it back: what it protects may still live, and ends with it at the latest."""
        self._is_left = True

    async def confirm(self, value: str = "") -> Confirmation:
        """Take the name for good, as in reserve, confirm: it never expires, until its token is released.

        Repeating it, also from elsewhere by `Queue.confirm_lease`, gets the same answer.

        Args:
            value: kept with it.

        Raises:
            LockLost: it is no longer ours.
            ConfirmationDiffers: this token has confirmed another value.
            SettlementUnknown, BackendUnavailable: no answer came while it was ours; confirm again to learn.
        """
        _checked_text(value, "a confirmation's value")
        answers: list[Confirmation] = []

        async def send() -> None:
            answers.append(await self._store.confirm(self.name, self.token, value))

        if self._is_over:  # nothing is kept any more: the store knows what was confirmed
            await send()
        else:
            await self._certainly(lambda: self._kept.settle(send))
            self._is_over = True
        return answers[-1]

    async def save(self, cursor: str) -> None:
        """Save how far the work has come, durably, fenced by the token (S9); the next holder finds it.

        Raises:
            LockLost: it is no longer ours; nothing was saved.
            SettlementUnknown, BackendUnavailable: no answer came while it was.
        """
        _checked_text(cursor, "a cursor")
        # Cancelling the caller does not cancel what was sent: it holds its version until it is answered.
        saving = asyncio.create_task(self._save(cursor), name=f"cursor of lease {self.name}")
        saving.add_done_callback(_forget)
        await asyncio.shield(saving)

    async def _save(self, cursor: str) -> None:
        async with self._saving:  # one at a time, so that versions rise in the order of the calls
            if self._is_over:
                raise LockLost(f"lease {self.name} was released or confirmed before")
            self._version += 1
            await self._certainly(lambda: self._kept.checkpoint(cursor))
            self._cursor = cursor

    @property
    def _granted(self) -> Grant:
        if self._grant is None:
            raise RuntimeError("the lease is not held: use it as `async with`")
        return self._grant

    @property
    def _kept(self) -> LeaseKeeper:
        if self._keeper is None:
            raise RuntimeError("the lease is not held: use it as `async with`")
        return self._keeper

    async def _begin(self, grant: Grant, since: Moment) -> bool:
        self._version = grant.version
        keeper = LeaseKeeper(
            _Leased(self._store, grant, lambda: self._version),
            since=since,
            timing=self._timing,
            clock=self._clock,
            on_extended=self._on_extended,
            kind="lease",
        )
        if not await keeper.confirm():  # rule 5: an answer that took long
            return False
        self._grant, self._keeper, self._cursor = grant, keeper, grant.cursor
        return True

    async def _certainly(self, verb: Callable[[], Awaitable[None]]) -> None:
        """Repeat a verb until its answer is certain, for as long as the lease is kept."""
        pause = PAUSE_SECONDS
        while True:
            try:
                return await verb()
            except (SettlementUnknown, BackendUnavailable) as error:
                if self._kept.is_lost:
                    raise
                _log.warning("lease %s: %s; trying again", self.name, error)
            await self._clock.sleep_until(min(self._clock.boottime() + pause, self.deadline))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _give_back(self, *, raises: bool) -> None:
        try:
            self.check()
            await self.release()
        except LockLost as error:
            if raises:
                raise
            _log.warning("%s", error)
        except (SettlementUnknown, BackendUnavailable) as error:
            _log.warning("lease %s may not have been released, it expires: %s", self.name, error)

    def _why(self) -> str:
        if self._keeper is None:
            return "not held"
        return self._keeper.loss.cause if self._keeper.loss is not None else "its deadline has passed"


class _Leased:
    """A grant as the keeper sees it."""

    def __init__(self, store: LeaseStore, grant: Grant, version: Callable[[], int]) -> None:
        self.id = grant.name
        self._store = store
        self._grant = grant
        self._version = version

    async def renew(self, lease: timedelta) -> None:
        await self._store.renew(self._grant, lease)

    async def checkpoint(self, value: str, number: int) -> None:
        del number  # the cursor's version says the same for longer than one holder keeps it
        await self._store.save(self._grant, value, self._version())


def _forget(saving: "asyncio.Task[None]") -> None:
    if not saving.cancelled() and saving.exception() is not None:
        _log.debug("a cursor was not saved: %r", saving.exception())


def named_lease(
    store: LeaseStore, settings: Settings, name: str, *, ttl: timedelta | None = None, **more: Any
) -> NamedLease:
    """Return a lease on a name, not yet entered.

    Args:
        store: keeps it.
        settings: margins, and whether short leases are allowed.
        name: of the lease.
        ttl: None = the store's default.
        more: as for `NamedLease`.

    Raises:
        ConfigurationError: it cannot be kept, or the store does not take this length.
    """
    limits = store.limits
    length = ttl or limits.default_ttl
    if length < limits.min_ttl or (limits.max_ttl is not None and length > limits.max_ttl):
        most = "" if limits.max_ttl is None else f" to {durations.show(limits.max_ttl)}"
        raise ConfigurationError(
            f"a ttl of {durations.show(length)} is not to be had here: this store grants"
            f" {durations.show(limits.min_ttl)}{most}. It is renewed for as long as it is held, so it need not cover"
            " the work"
        )
    if limits.whole_seconds and length.microseconds:
        raise ConfigurationError(f"a ttl of {durations.show(length)} is not to be had here: whole seconds only")
    timing = timing_for(length, settings)
    timing.check(allow_short=settings.allow_short_lease, option="the ttl")
    return NamedLease(store, name, timing=timing, **more)


def _checked_text(text: str, what: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(f"{what} is text that UTF-8 has; this holds a lone surrogate") from None
    if size > _MOST_TEXT_BYTES:
        raise ConfigurationError(f"{what} has at most {_MOST_TEXT_BYTES} bytes, this has {size}")
    return text
