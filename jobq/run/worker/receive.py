"""How a worker receives: through faults of the broker, never for longer than it should, and not when it has to stop."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from jobq.backend import Backend, Delivery
from jobq.clock import Clock
from jobq.errors import AccessDenied, AllPutBack, AnswerLost, ConfigurationError, JobqError, QueueNotFound
from jobq.events import Events
from jobq.lease.outage import Outage
from jobq.pausing import Pausable, Pause
from jobq.racing import first_done, first_of, racing
from jobq.run.stopping import Stopping

RECEIVE_SECONDS: Final = 10.0  # how much longer than its wait a receive may take: a hung one must not hang the worker
GIVE_BACK_SECONDS: Final = 6.0  # how long a cancelled receive may take to give back what it was granted
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0
_PATIENCE_SECONDS: Final = 10.0  # how long the very first receive may be refused before the worker gives up
# How long a worker that was served lives through "access denied" and "no such queue" (L4). A gateway, a key that is
# being rotated or a firewall rule that spreads says so for a moment, and a role that is granted anew takes up to five
# minutes to be known; after that it is a matter of configuration.
_DENIED_SECONDS: Final = 300.0
_NOT_FOUND_SECONDS: Final = 3.0  # of a fresh worker, where a service may say so for a moment of a queue that it has
_log: Final = logging.getLogger(__name__)


class Receiving:
    """Receives for one worker.

    Args:
        backend: an entered backend.
        receive: its, or one that says more of who receives.
        clock: for leases.
        stopping: what ends a wait.
        events: where refusals are published.
        free: returns how many slots are free now.
        attempts: those that run now; when the last one ends, an empty queue may be a finished one.
        expected_until: boottime in seconds until which a task that this worker gave back may still come.
        chance: spreads the pauses of many workers.
        on_lost: called with the seconds of a lease when an answer is lost: tasks may be leased, for nobody.
        outage: what else the service does not answer; None = nothing else is asked.
        outdated: returns what is done when something else can be received than when it was called; None = nothing is.
    """

    def __init__(
        self,
        backend: Backend,
        receive: Callable[[int, timedelta, timedelta], Awaitable[list[Delivery]]],
        *,
        clock: Clock,
        stopping: Stopping,
        events: Events,
        free: Callable[[], int],
        attempts: "set[asyncio.Task[Any]]",
        expected_until: Callable[[], float],
        chance: random.Random,
        on_lost: Callable[[float], None] = lambda _seconds: None,
        outage: Outage | None = None,
        outdated: Callable[[], Awaitable[object] | None] = lambda: None,
    ) -> None:
        self._backend = backend
        self._receive = receive
        self._clock = clock
        self._stopping = stopping
        self._events = events
        self._free = free
        self._attempts = attempts
        self._expected_until = expected_until
        self._chance = chance
        self._on_lost = on_lost
        self._outage = outage or Outage(clock, f"queue {backend.name}")
        self._outdated = outdated
        self._was_served = False
        self._was_outdated = False  # the last receive, which was cut short

    async def receive(self, lease: timedelta, wait: timedelta) -> list[Delivery] | None:
        """Receive for the free slots, through faults of the broker (L4); None when something cut the wait short.

        Args:
            lease: to ask for.
            wait: how long to stay for a task.

        Raises:
            ConfigurationError, QueueNotFound: the queue cannot be used; once a worker was served, "access denied" and
                "no such queue" are believed when they have been said for five minutes without a break.
            JobqError: the queue could never be used so far, for longer than is worth waiting.
        """
        pause = _FIRST_PAUSE_SECONDS
        began = self._clock.boottime()
        denied_since: float | None = None
        while not self._stopping.receiving.is_set():
            try:
                # What a refusal has taken of the wait is over: a service that stumbles must not keep a worker for ever.
                left = max(0.0, began + wait.total_seconds() - self._clock.boottime())
                deliveries = await self._receive_or_stop(lease, timedelta(seconds=left))
            except AllPutBack as error:  # the service serves, and the next receive may bring another task
                self._was_served, denied_since = True, None
                self._outage.answered(self)
                _log.debug("%s", error)
                await self._pause(_FIRST_PAUSE_SECONDS * self._chance.uniform(0.5, 1.0))
            except JobqError as error:
                now = self._clock.boottime()
                if isinstance(error, AccessDenied | QueueNotFound):
                    denied_since = now if denied_since is None else denied_since
                    if now - denied_since >= self._believed_after(error):
                        raise
                elif isinstance(error, ConfigurationError):
                    raise
                else:
                    denied_since = None
                if isinstance(error, AnswerLost):
                    self._on_lost(self._backend.capabilities.longest_lease(lease).total_seconds())
                self._events.emit(
                    "worker.receive_failed",
                    self._outage.failed(self),
                    queue=self._backend.name,
                    error_type=type(error).__name__,
                    detail=str(error),
                    again_in_s=pause,
                )
                if not self._was_served and now - began >= _PATIENCE_SECONDS:
                    raise
                await self._pause(pause * self._chance.uniform(0.5, 1.0))
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
            else:
                self._was_served = True
                self._outage.answered(self)
                return deliveries
        return None

    def _believed_after(self, error: JobqError) -> float:
        """Return for how many seconds without a break a refusal has to be repeated before it is believed."""
        if self._was_served:
            return _DENIED_SECONDS
        is_hasty = isinstance(error, QueueNotFound) and not self._backend.capabilities.finds_at_once
        return _NOT_FOUND_SECONDS if is_hasty else 0.0

    async def _receive_or_stop(self, lease: timedelta, wait: timedelta) -> list[Delivery] | None:
        if self._was_outdated:  # else the next end would cut this one short, too, and what it has granted go back
            self._was_outdated, wait = False, timedelta(0)
        receiving = asyncio.ensure_future(self._receive(self._free(), lease, wait))
        reasons: list[Awaitable[object]] = [self._stopping.receiving.future(), self._stopping.interrupted.future()]
        if wait and self._attempts:
            reasons.append(self._worked_off())
        outdated = self._outdated() if wait else None
        if outdated is not None:
            reasons.append(outdated)
        limit = wait.total_seconds() + RECEIVE_SECONDS
        overdue = self._clock.sleep_until(self._clock.boottime() + limit)
        with racing(receiving, overdue, *reasons) as futures:
            await first_done(*futures)
            if not receiving.done():
                self._was_outdated = outdated is not None and futures[-1].done()
                receiving.cancel()
                await asyncio.wait([receiving], timeout=GIVE_BACK_SECONDS)
                if not receiving.done():  # it may have leased tasks, and not given them back yet
                    self._on_lost(self._backend.capabilities.longest_lease(lease).total_seconds())
            if futures[1].done() and not (receiving.done() and not receiving.cancelled()):
                raise AnswerLost(f"no answer to a receive within {limit:.3g} s")
            return None if not receiving.done() or receiving.cancelled() else receiving.result()

    async def paused(self, known: Pause | None) -> Pause | None:
        """Return the mark by which nothing is handed out; what was known of it where there is no answer (L4)."""
        if not isinstance(self._backend, Pausable):
            return None
        try:
            async with asyncio.timeout(RECEIVE_SECONDS):
                return await self._backend.paused()
        except (JobqError, TimeoutError):
            return known

    async def is_bare(self) -> bool:
        """Return whether the queue holds nothing at all, so that nothing can come back: cleared, or worked off."""
        try:
            async with asyncio.timeout(RECEIVE_SECONDS):
                stats = await self._backend.stats()
        except (JobqError, TimeoutError):
            return False  # it is asked again after the next look
        if stats.total is not None:  # of a service that counts them only together; hidden ones are among them
            return stats.total == 0
        return (stats.visible, stats.leased, stats.scheduled) == (0, 0, 0)

    async def _worked_off(self) -> None:
        """Return when the last attempt has ended: an empty queue may now be a finished one."""
        await asyncio.wait(self._attempts)
        # A task granted at the very instant at which a receive is cut short has cost a delivery for nothing.
        await self._clock.sleep_until(self._expected_until())

    async def _pause(self, seconds: float) -> None:
        await first_of(self._clock.sleep_until(self._clock.boottime() + seconds), self._stopping.receiving.wait())
