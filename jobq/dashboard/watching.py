"""The turn of a service with a dashboard to note how its queues are: where no worker is there, nobody else does.

Where workers are, it finds each minute noted. When it begins it counts the last day, as far as the journal knows.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from jobq.clock import SystemClock
from jobq.journal.observations import observations_of
from jobq.journal.observing import Observer
from jobq.journal.presence import REPORT_SECONDS
from jobq.server.backend_pool import BackendPool

_MOST_QUEUES: Final = 100  # of one round; the others have the next
_MOST_SECONDS: Final = 10.0  # of one step
_SHARE: Final = 0.1  # of the time that it takes: the service has the rest
_log: Final = logging.getLogger("jobq.server")


class NotesWatch:
    """Of one service.

    Args:
        places: whose queues it notes.
    """

    def __init__(self, places: BackendPool) -> None:
        self._places = places
        self._clock = SystemClock()
        self._observers: OrderedDict[str, Observer] = OrderedDict()  # whose turn comes last stands last
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._loop = asyncio.create_task(self._watch(), name="notes of queues")

    async def aclose(self) -> None:
        """Leave off, at once."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait({self._loop})

    async def _watch(self) -> None:
        while True:
            began = self._clock.boottime()
            try:
                await self.round()
            except Exception as error:  # noqa: BLE001 - the pages say what the store says; it is tried again
                _log.debug("how the queues are could not be noted: %s: %s", type(error).__name__, error)
            await asyncio.sleep(max(1.0, began + REPORT_SECONDS - self._clock.boottime()))

    async def round(self) -> None:
        """Have a turn with each queue, or with some of many."""
        names = set(await self._places.names())
        for gone in [name for name in self._observers if name not in names]:
            del self._observers[gone]
        for name in sorted(names - self._observers.keys()):
            if (notes := observations_of(self._places.root, name)) is None:
                return  # no journal is kept here
            self._observers[name] = Observer(notes, clock=self._clock, looks_back=True)
        for name in list(self._observers)[:_MOST_QUEUES]:
            self._observers.move_to_end(name)
            began = self._clock.boottime()
            try:
                async with asyncio.timeout(_MOST_SECONDS):
                    await self._observers[name].step()
            except Exception as error:  # noqa: BLE001 - as above, and the next queue may be another matter
                _log.debug("how queue %r is could not be noted: %s: %s", name, type(error).__name__, error)
            await asyncio.sleep((self._clock.boottime() - began) * (1 / _SHARE - 1))


@asynccontextmanager
async def watched(places: BackendPool, *, is_read_only: bool = False) -> AsyncIterator[None]:
    """Note how the queues of a place are while the context is entered; not where nothing may be changed."""
    watch = NotesWatch(places)
    if not is_read_only:
        watch.start()
    try:
        yield
    finally:
        await watch.aclose()
