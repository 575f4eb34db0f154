"""`/metrics` and `/healthz` of a worker, on its own event loop: a loop that is blocked does not answer."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from jobq.backend import Backend
from jobq.clock import Clock, SystemClock
from jobq.errors import ConfigurationError, JobqError
from jobq.telemetry.connection_limits import BACKLOG, ConnectionLimits
from jobq.telemetry.metrics import CONTENT_TYPE, QueueMetrics, WorkerMetrics, exposition
from jobq.telemetry.queue_snapshot import look
from jobq.telemetry.worker_state import WorkerState

_log = logging.getLogger(__name__)
# Services bill each look, and the Service Bus asks 10 credits for one: scrapes in between are answered from memory.
STATS_SECONDS: Final = 30.0
_ANSWER_SECONDS: Final = 5.0  # of the queue's service; a scrape waits no longer (scrapers give up after 10 s)


class QueueWatch:
    """Keeps the counts of a queue, asked for no more often than they are read and than every STATS_SECONDS.

    Args:
        backend: an entered backend.
        metrics: takes what the backend answers.
        clock: measures how old that is.
    """

    def __init__(self, backend: Backend, metrics: QueueMetrics, clock: Clock | None = None) -> None:
        self._backend = backend
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._asked: float | None = None
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Ask again where the last answer is old; a service that does not answer leaves the figures absent."""
        async with self._lock:
            now = self._clock.boottime()
            if self._asked is not None and now - self._asked < STATS_SECONDS:
                return
            self._asked = now
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    self._metrics.seen = await look(self._backend)
            except (JobqError, TimeoutError) as error:
                self._metrics.seen = None
                _log.debug("the queue's counts are not known: %s", error)


@asynccontextmanager
async def served(
    host: str, port: int, watch: QueueWatch, state: WorkerState, figures: Callable[[], bytes]
) -> AsyncIterator[None]:
    """Serve both pages while the context lasts.

    Args:
        host: the address to listen on.
        port: and its port.
        watch: asked before each answer.
        state: of the worker, for /healthz.
        figures: what /metrics shows.

    Raises:
        ConfigurationError: nothing can listen there.
    """

    async def metrics(_request: web.Request) -> web.Response:
        await watch.refresh()
        return _last(web.Response(body=figures(), headers={"Content-Type": CONTENT_TYPE}))

    async def healthz(_request: web.Request) -> web.Response:
        return _last(web.json_response({"state": state.word, "busy": state.busy, "slots": state.slots}))

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz)])
    runner = web.AppRunner(app, access_log=None, logger=_logger_of_one(), shutdown_timeout=1.0)
    await runner.setup()
    assert runner.server is not None
    try:
        try:
            loop = asyncio.get_running_loop()
            listener = await loop.create_server(ConnectionLimits(runner.server), host, port, backlog=BACKLOG)
        except OSError as error:
            reason = error.strerror or error
            raise ConfigurationError(f"cannot serve metrics on {host}:{port}: {reason}") from None
        _log.info("metrics on http://%s:%d/metrics", host, port)
        try:
            yield
        finally:
            listener.close()
    finally:
        await runner.cleanup()


def _logger_of_one() -> logging.Logger:
    """Return a logger that takes one record: aiohttp logs a traceback of each request that is no HTTP."""
    logger = logging.Logger(f"{__name__}.requests")  # noqa: LOG001 - for this server alone
    logger.parent = _log
    left = iter([True])
    logger.addFilter(lambda _record: next(left, False))
    return logger


def _last(response: web.Response) -> web.Response:
    response.force_close()  # else each scraper would keep one of few places
    return response


def figures_of(worker: WorkerMetrics, queue: QueueMetrics) -> Callable[[], bytes]:
    """Return what makes the text of /metrics."""
    return lambda: exposition(worker, queue)
