"""How long a lock of a queue lasts now: an operator may change that under the tasks that run.

A renewal extends a lock by what the queue says at that moment. One that is shorter than the lease that was granted
would let the next worker have the task while it still runs here (P1). It is read wherever it is shown: by each receive,
by the answer to a renewal, whose reference promises nothing of the kind, and else by a look at the queue.

An answer shows a length by its own date, and one front end's may be off, or its answer late: what differs from what is
known counts when a second answer agrees, or the queue is looked at. Until then it shortens no lease but its own.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from jobq.errors import AccessDenied, JobqError
from jobq_azure.common.errors import NoAnswer
from jobq_azure.service_bus.rest_client import GRAIN_SECONDS

_LOOK_SECONDS: Final = 60.0  # between two looks of a process: each is billed as ten messages
_PATIENCE_SECONDS: Final = 1.0  # that a renewal waits for one
_SHORTEST_SECONDS: Final = 5.0  # of a lock, by the service
LEAST_SECONDS: Final = _SHORTEST_SECONDS - GRAIN_SECONDS  # that an answer can show of a whole one


class LockLength:
    """What is known of the locks of one queue.

    Args:
        look: returns the length from the queue's description.
        now: seconds, boottime.
    """

    def __init__(self, look: Callable[[], Awaitable[timedelta]], now: Callable[[], float]) -> None:
        self._look = look
        self._now = now
        self._known: float | None = None
        self._doubted: float | None = None  # what one answer has shown that differs from it
        self._looking: asyncio.Task[None] | None = None
        self._due = now() + _LOOK_SECONDS
        self._may_look = True

    @property
    def heard(self) -> timedelta:
        """How long a lock lasts at the most, by what was heard last; zero = nothing was."""
        return timedelta(0) if self._known is None else timedelta(seconds=self._known + GRAIN_SECONDS)

    def hear(self, seconds: float) -> None:
        """Take what an answer shows: how long a lock surely lasts. Less than any does is no length of a lock."""
        if seconds < LEAST_SECONDS:
            return
        alike = [each for each in (self._known, self._doubted) if each is not None]
        if self._known is None or any(abs(seconds - each) <= 2 * GRAIN_SECONDS for each in alike):
            self.know(seconds)
        else:
            self._doubted, self._due = seconds, self._now()  # a look at the queue says more

    def know(self, seconds: float) -> None:
        """Take what is certain."""
        self._known, self._doubted = seconds, None

    def at_most(self, seconds: float) -> float:
        """Return for how long a lock counts that an answer shows to last for so long: no longer than is known."""
        return seconds if self._known is None else min(seconds, self._known)

    def shorter_than(self, lease: timedelta, shown: float | None = None) -> timedelta | None:
        """Return the length, if a lock is shorter than this lease, by more than two answers about one differ.

        Args:
            lease: that is kept.
            shown: by the answer to its own renewal, which counts for it alone.
        """
        known = min((each for each in (self._known, shown) if each is not None), default=None)
        if known is None or known >= lease.total_seconds() - GRAIN_SECONDS:
            return None
        return timedelta(seconds=known)

    async def ask(self) -> None:
        """Look at the queue if that is due, for as long as a renewal may wait; what comes later counts for the next."""
        if self._looking is None and self._may_look and self._now() >= self._due:
            self._due = self._now() + _LOOK_SECONDS
            self._looking = asyncio.create_task(self._looked(), name="a look at the queue's lock")
        if self._looking is not None:
            await asyncio.wait({self._looking}, timeout=_PATIENCE_SECONDS)

    async def aclose(self) -> None:
        """End a look."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    async def _looked(self) -> None:
        try:
            self.know((await self._look()).total_seconds() - GRAIN_SECONDS)
        except AccessDenied:  # only who may manage the queue may read this
            self._may_look = False
        except (JobqError, NoAnswer):
            pass
        finally:
            self._looking = None
