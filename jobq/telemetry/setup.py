"""Gives a worker what its settings ask for: health file, metrics, traces; nothing, at no cost, by default."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Final

from jobq.backend import Backend
from jobq.errors import ConfigurationError
from jobq.events import Events
from jobq.own_files import refuse_own_file
from jobq.run.attempt.runner import Runner
from jobq.run.stopping import GIVE_BACK_SECONDS
from jobq.settings import Settings
from jobq.telemetry.health import HealthFile
from jobq.telemetry.worker_state import WorkerState

_log = logging.getLogger(__name__)
Adapt = Callable[[Runner], Runner]
_EXTRA: Final = "metrics need the extra otel: pip install 'jobq[otel]'"


@asynccontextmanager
async def attached(events: Events, settings: Settings, backend: Backend, kind: str) -> AsyncIterator[Adapt]:
    """Watch a worker while the context lasts; yields what makes its runner of tasks a traced one.

    Args:
        events: of the worker, which must not have begun.
        settings: what is wanted.
        backend: the worker's, entered.
        kind: the word for its kind of service, such as sqlite.

    Raises:
        ConfigurationError: what is wanted cannot be had here.
    """
    _check_grace(settings)
    async with AsyncExitStack() as stack:
        await _watched(stack, events, settings, backend, kind)
        yield stack.enter_context(traced(events, settings, backend.name, kind))


async def _watched(stack: AsyncExitStack, events: Events, settings: Settings, backend: Backend, kind: str) -> None:
    if settings.health_file is None and settings.metrics_port is None:
        return
    if settings.health_file is not None:
        refuse_own_file(backend, settings.health_file, "JOBQ_HEALTH_FILE=")
    state = WorkerState()
    events.subscribe(state.on_event)
    if settings.health_file is not None:
        await stack.enter_async_context(_beside(HealthFile(settings.health_file, state.snapshot).run()))
    if settings.metrics_port is not None:
        await _serve_metrics(stack, events, settings, backend, kind, state)


@contextmanager
def traced(events: Events, settings: Settings, queue: str, kind: str) -> Iterator[Adapt]:
    """Trace the attempts of a worker while the context lasts; yields what makes its runner a traced one.

    Args:
        events: of the worker, which must not have begun.
        settings: what is wanted.
        queue: its name.
        kind: the word for its kind of service.

    Raises:
        ConfigurationError: what is wanted cannot be had here.
    """
    if settings.telemetry == "off":
        yield lambda runner: runner
        return
    from jobq.telemetry.exporters import exported  # noqa: PLC0415 - an extra

    with exported(settings.telemetry):
        from jobq.telemetry.tracing import Tracing  # noqa: PLC0415 - as above; `exported` says what is missing

        tracing = Tracing(queue, kind, settings.trace_parent)
        events.subscribe(tracing.on_event)
        events.annotate(tracing.ids)
        try:
            yield tracing.runner
        finally:
            tracing.close()


async def _serve_metrics(
    stack: AsyncExitStack, events: Events, settings: Settings, backend: Backend, kind: str, state: WorkerState
) -> None:
    assert settings.metrics_port is not None
    try:
        from jobq.telemetry.metrics import QueueMetrics, WorkerMetrics  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise ConfigurationError(_EXTRA) from error
    from jobq.telemetry import endpoint  # noqa: PLC0415 - aiohttp takes a quarter of a second

    worker = WorkerMetrics(backend.name, kind, state)
    queue = QueueMetrics(backend.name, kind)
    events.subscribe(worker.on_event)
    figures = endpoint.figures_of(worker, queue)
    watch = endpoint.QueueWatch(backend, queue)
    await stack.enter_async_context(
        endpoint.served(settings.metrics_host, settings.metrics_port, watch, state, figures)
    )


def _check_grace(settings: Settings) -> None:
    """Warn where the platform kills a worker that still stops: its tasks would wait for their leases to run out."""
    if settings.termination_grace is None:
        return
    needed = settings.stop_grace + timedelta(seconds=GIVE_BACK_SECONDS)
    if settings.termination_grace < needed:
        _log.warning(
            "the platform kills %g s after SIGTERM, but stopping may take %g s (JOBQ_STOP_GRACE, and 10 s to give"
            " back): tasks that are cut off come back only when their leases run out; lower JOBQ_STOP_GRACE to %g s, or"
            " raise the platform's grace period",
            settings.termination_grace.total_seconds(),
            needed.total_seconds(),
            max(0.0, (settings.termination_grace - timedelta(seconds=GIVE_BACK_SECONDS)).total_seconds()),
        )


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something beside the worker; whatever becomes of it, the tasks go on."""
    task = asyncio.create_task(_reported(work))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _reported(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception:  # noqa: BLE001 - whatever it is, the work goes on (S11)
        _log.exception("a part of telemetry ended")
