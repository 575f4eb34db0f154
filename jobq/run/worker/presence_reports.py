"""A worker's word of itself, each half minute, so that an idle one is seen; and its turn to note how the queue is.

Nothing waits for it: what fails is tried again with the next word, and a worker that ends within its first seconds
says nothing at all.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from jobq.backend import Backend
from jobq.clock import Clock

if TYPE_CHECKING:
    from jobq.journal.observing import Observer
    from jobq.journal.presence import WorkerPresence

_FIRST_SECONDS: Final = 2.0
_MOST_SECONDS: Final = 20.0  # of one step: it is tried again, not waited for
_LAST_SECONDS: Final = 0.5  # for the word that it has stopped
_log: Final = logging.getLogger(__name__)


class WorkerLook(NamedTuple):
    """What a worker does at this moment.

    Attributes:
        state: as `jobq.journal.presence.WorkerPresence` has it.
        slots: how many tasks it can run at once.
        busy: how many run.
        counts: what became of others, as `jobq.journal.presence.COUNTS` names it.
    """

    state: str
    slots: int
    busy: int
    counts: Mapping[str, int]


class PresenceReports:
    """The words of one worker.

    Args:
        backend: whose notes they become, where it keeps any.
        clock: of the worker.
        look: says what it does.
    """

    def __init__(self, backend: Backend, clock: Clock, look: Callable[[], WorkerLook]) -> None:
        self._backend = backend
        self._clock = clock
        self._look = look
        self._started = time.time()
        self._version = ""
        self._observer: Observer | None = None

    async def run(self) -> None:
        """Tell until cancelled."""
        await self._sleep(_FIRST_SECONDS)
        try:
            from jobq.journal.presence import REPORT_SECONDS  # noqa: PLC0415 - as in `_made`

            observer = self._observer = self._made()
        except Exception as error:  # noqa: BLE001 - as below: jobq or Python was replaced meanwhile
            _log.warning("nothing is noted of the worker and the queue: %s: %s", type(error).__name__, error)
            return
        if observer is None:
            return
        while True:
            try:
                async with asyncio.timeout(_MOST_SECONDS):
                    await observer.step(self._presence(self._look()))
            except Exception as error:  # noqa: BLE001 - no task depends on it (S11, L4)
                _log.debug("how the worker and the queue are could not be noted: %s: %s", type(error).__name__, error)
            await self._sleep(REPORT_SECONDS)

    def _made(self) -> "Observer | None":
        # Here, not above: a worker that starts, and one that ends soon, must not pay for it.
        from jobq.journal.observations import observations_of  # noqa: PLC0415
        from jobq.journal.observing import Observer  # noqa: PLC0415

        if (notes := observations_of(self._backend)) is None:
            return None
        self._version = _version()
        return Observer(notes, clock=self._clock)

    async def stop(self) -> None:
        """Say that the worker has ended, if it may have said that it works; at most for a moment."""
        if self._observer is None:
            return
        from jobq.journal.presence import STOPPED  # noqa: PLC0415 - as above

        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await self._observer.report(self._presence(self._look()._replace(state=STOPPED, busy=0)))
        except Exception as error:  # noqa: BLE001 - as above: it is taken for gone in a while
            _log.debug("the worker's end could not be noted: %s: %s", type(error).__name__, error)

    def _presence(self, look: WorkerLook) -> "WorkerPresence":
        from jobq.journal.presence import WorkerPresence  # noqa: PLC0415 - as above
        from jobq.journal.records import this_holder  # noqa: PLC0415 - as above

        return WorkerPresence(
            holder=this_holder(),
            host=os.uname().nodename,
            version=self._version,
            slots=look.slots,
            busy=look.busy,
            state=look.state,
            started=self._started,
            **look.counts,
        )

    async def _sleep(self, seconds: float) -> None:
        await self._clock.sleep_until(self._clock.boottime() + seconds)


def _version() -> str:
    # Not `jobq.__version__`: that package imports this module.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - takes long

    try:
        return version("jobq")
    except PackageNotFoundError:  # it was copied, not installed
        return ""
