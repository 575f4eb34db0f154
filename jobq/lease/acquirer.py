"""Asking for a name until it is granted: repeated where an answer was lost, withdrawn where nobody waits any more."""

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from jobq.clock import Clock, Moment
from jobq.errors import BackendUnavailable, ConfigurationError, LeaseHeld, LockLost, QueueNotFound, SettlementUnknown
from jobq.formats import durations
from jobq.lease.keeper import answered_within
from jobq.lease.store import Busy, Grant, LeaseStore, Request
from jobq.lease.timing import LeaseTiming

_log: Final = logging.getLogger(__name__)
PAUSE_SECONDS: Final = 0.1  # between repetitions, at first
LONGEST_PAUSE_SECONDS: Final = 2.0
_WITHDRAW_SECONDS: Final = 2.0
_LEAST_POLL_SECONDS: Final = 0.02
Begin = Callable[[Grant, Moment], Awaitable[bool]]


class Acquirer:
    """Asks for one name; the arguments are those of `NamedLease`."""

    def __init__(
        self,
        store: LeaseStore,
        name: str,
        *,
        timing: LeaseTiming,
        wait: bool | timedelta,
        holder: str,
        clock: Clock,
        on_busy: Callable[[str, int], None] | None,
        chance: random.Random,
    ) -> None:
        self._store = store
        self._name = name
        self._timing = timing
        self._ttl = timedelta(seconds=timing.lease)
        self._wait = wait
        self._holder = holder
        self._clock = clock
        self._on_busy = on_busy
        self._chance = chance
        self._may_be_granted = False  # what is being asked for

    async def acquire(self, begin: Begin) -> None:
        """Return once a grant was begun.

        Args:
            begin: takes a grant and the boottime before its request; returns whether it is surely ours for long enough.

        Raises:
            LeaseHeld: the name is not to be had, and was waited for.
            JobqError: it could not be asked for; nothing is held, as far as can be known.
        """
        limit = self._wait if isinstance(self._wait, timedelta) else None
        began = self._clock.boottime()
        until = None if limit is None else began + limit.total_seconds()
        while True:
            request = Request(
                name=self._name,
                key=str(uuid.uuid4()),
                holder=self._holder,
                ttl=self._ttl,
            )
            self._may_be_granted = False
            try:
                if await self._try(request, until, begin):
                    return
                if self._wait is not True and self._clock.boottime() >= max(until or 0.0, began + self._timing.hold):
                    raise BackendUnavailable(f"lease {self._name}: answers come too late for so short a lease")
            except LeaseHeld:
                raise
            except BaseException:
                # Cancelled, or nobody knows: what may have been granted is not to stand until it expires.
                if self._may_be_granted:
                    await self._withdraw(request)
                raise

    async def _try(self, request: Request, until: float | None, begin: Begin) -> bool:
        """Ask until this request is granted, or has to be replaced by a new one."""
        pause, gives_up = PAUSE_SECONDS, self._clock.boottime() + self._timing.hold
        while True:
            since = Moment.of(self._clock)  # rule 1: before the request
            try:
                answer = await self._ask(request)
            except LockLost:
                return False  # this request was granted and has ended already: its answer was too late
            except (SettlementUnknown, BackendUnavailable) as error:
                # The same request again: if the first was granted it is answered alike.
                moment = self._clock.boottime()
                waits = self._wait is True or (until is not None and moment < until)
                if not waits and (isinstance(error, BackendUnavailable) or moment >= gives_up):
                    raise
                _log.warning("lease %s: %s; asking again", self._name, error)
                await self._clock.sleep_until(moment + pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                continue
            if isinstance(answer, Busy):
                await self._wait_for(answer, until)
                continue
            if await begin(answer, since):
                return True
            await self._withdraw(request)
            return False

    async def _ask(self, request: Request) -> Grant | Busy:
        answers: list[Grant | Busy] = []

        async def send() -> None:
            answers.append(await self._store.acquire(request))

        doubted, self._may_be_granted = self._may_be_granted, True
        try:
            is_answered = await answered_within(self._clock, self._timing.hold, send())
        except (QueueNotFound, ConfigurationError):
            self._may_be_granted = doubted  # refused for good, and nothing was done
            raise
        if not is_answered:
            raise SettlementUnknown(f"no answer about lease {self._name} within {self._timing.hold:.3g} s")
        return answers[0]

    async def _wait_for(self, busy: Busy, until: float | None) -> None:
        now = self._clock.boottime()
        if self._wait is False or (until is not None and now >= until):
            raise LeaseHeld(_why_busy(self._name, busy))
        if self._on_busy is not None:
            self._on_busy(_why_busy(self._name, busy), busy.token)
        poll = self._store.limits.poll.total_seconds() * self._chance.uniform(0.5, 1)
        wait = poll if busy.remaining is None else min(poll, max(_LEAST_POLL_SECONDS, busy.remaining))
        await self._clock.sleep_until(now + wait if until is None else min(now + wait, until))

    async def _withdraw(self, request: Request) -> None:
        withdrawing = asyncio.ensure_future(
            answered_within(self._clock, _WITHDRAW_SECONDS, self._store.withdraw(self._name, request.key))
        )
        try:
            await asyncio.shield(withdrawing)
        except asyncio.CancelledError:
            await withdrawing
            raise
        except Exception as error:  # noqa: BLE001 - it expires; what brought us here matters more
            _log.warning("lease %s: what may have been granted was not given back, it expires: %s", self._name, error)


def _why_busy(name: str, busy: Busy) -> str:
    if busy.why == "confirmed":
        return (
            f"lease {name} was confirmed by {busy.holder} under token {busy.token}: it is taken until that is released"
        )
    left = "" if busy.remaining is None else f", for {durations.show(round(busy.remaining, 1))} unless it is renewed"
    return f"lease {name} is held by {busy.holder} under token {busy.token}{left}"
