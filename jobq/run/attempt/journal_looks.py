"""What is asked of running attempts where workers and users share a machine: seen at once, not with the next renewal.

A look is one read of a file there, for all attempts of a worker, and decides nothing: what it finds makes a renewal
come sooner, and that is fenced (S4).
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from jobq.backend import Backend
from jobq.clock import Clock
from jobq.errors import JobqError
from jobq.journal.store import Journal, KeepsJournal
from jobq.lease.keeper import LeaseKeeper
from jobq.run.attempt.attempt_journal import AttemptJournal

_LOOK_SECONDS: Final = 1.0


class JournalLooks:
    """Looks for the attempts of one worker while any of them runs.

    Args:
        backend: whose journal.
        clock: when to look.
    """

    def __init__(self, backend: Backend, clock: Clock) -> None:
        is_near = backend.capabilities.shares_machine and isinstance(backend, KeepsJournal)
        self._journal: Journal | None = backend.journal if is_near else None  # type: ignore[attr-defined]
        self._clock = clock
        self._kept: dict[AttemptJournal, LeaseKeeper] = {}
        self._loop: asyncio.Task[None] | None = None

    @contextmanager
    def keeping(self, attempt: AttemptJournal, keeper: LeaseKeeper) -> Iterator[None]:
        """Renew sooner, while this is entered, when the attempt has printed more or is to be canceled."""
        if self._journal is None:
            yield
            return
        self._kept[attempt] = keeper
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._look(self._journal), name="looks at the journal")
        try:
            yield
        finally:
            del self._kept[attempt]

    def close(self) -> None:
        """Look no more."""
        if self._loop is not None:
            self._loop.cancel()
            self._loop = None

    async def _look(self, journal: Journal) -> None:
        while True:
            await self._clock.sleep_until(self._clock.boottime() + _LOOK_SECONDS)
            if not self._kept:
                return
            canceled: set[str] = set()
            with suppress(JobqError):  # the renewals hear of it, and say what is wrong
                found = await journal.find([attempt.id for attempt in self._kept])
                canceled = {record.id for record in found if record.cancel_requested}
            for attempt, keeper in self._kept.items():
                if attempt.has_news or (attempt.id in canceled and not attempt.is_canceled):
                    keeper.nudge()
