"""When one process does steps of `advance`: soon after it told of ends, one at a time, seldom where they are slow."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import asyncpg

from jobq_postgres.add_tasks import FORMER_EPOCH
from jobq_postgres.advance import Advanced, advance
from jobq_postgres.lane import Lane

_LEAST_PAUSE_SECONDS: Final = 0.08
_RESTRAINT: Final = 20.0  # times what the last step took
_STEP_SECONDS: Final = 30.0
_log: Final = logging.getLogger(__name__)


class Advancing:
    """The steps of one process, for one queue.

    Args:
        queue: its number.
        made_ready: called, on the event loop, with what a step made ready, by rank.
    """

    def __init__(self, queue: int, made_ready: Callable[[Mapping[int, int]], None]) -> None:
        self._queue = queue
        self._made_ready = made_ready
        self._after = 0.0  # time.monotonic() before which no step is begun
        self._timer: asyncio.TimerHandle | None = None
        self._begins: Callable[[], None] = lambda: None  # what the timer does
        self._is_running = False
        self._again = False  # something was told while a step was under way
        self._closed = False

    def soon(self, lane: Lane) -> None:
        """Do a step on a lane, and others while there is more to do; should it fail, the next sweep does them."""
        if self._is_running:
            self._again = True
        elif self._timer is None and not self._closed:
            self._begins = partial(self._begin, lane)
            delay = max(0.0, self._after - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._begins)

    def close(self) -> None:
        """Begin at once what waits for its time, and nothing any more; whoever calls it closes the lanes next."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._begins()

    async def step(self, connection: Any, batch: int | None = None) -> Advanced:
        """Do a step now; see `advance`."""
        began = time.monotonic()
        while True:
            try:
                done = await advance(connection, self._queue, batch)
            except asyncpg.PostgresError as error:
                if error.sqlstate != FORMER_EPOCH:
                    raise
            else:
                break
        ended = time.monotonic()
        self._after = ended + max(_LEAST_PAUSE_SECONDS, _RESTRAINT * (ended - began))
        if done.lowest:
            self._made_ready(done.lowest)
        return done

    def _begin(self, lane: Lane) -> None:
        self._timer = None
        self._is_running = True
        lane.submit(self.step, seconds=_STEP_SECONDS).add_done_callback(partial(self._ended, lane))

    def _ended(self, lane: Lane, job: "asyncio.Future[Advanced]") -> None:
        self._is_running = False
        goes_on, self._again = self._again, False
        if job.cancelled():
            return
        if (error := job.exception()) is not None:
            _log.debug("what follows from the ends of tasks is left to others: %s", error)
        elif goes_on or job.result().goes_on:
            self.soon(lane)
