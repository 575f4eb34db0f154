"""Where traces and metrics go: OTLP over HTTP as the OTEL_* variables say, or Azure Monitor by a connection string."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal

from jobq.errors import ConfigurationError

_log = logging.getLogger(__name__)
_FLUSH_SECONDS: Final = 3.0  # a stop has little time (DESIGN section 11)
_is_active = False
_AZURE_VARIABLE: Final = "APPLICATIONINSIGHTS_CONNECTION_STRING"


@contextmanager
def exported(to: Literal["otlp", "azure-monitor"]) -> Iterator[None]:
    """Send what is traced and measured while the context lasts; what cannot be sent is dropped, and harms no task.

    Args:
        to: where.

    Raises:
        ConfigurationError: the extra is not installed, or nothing says where.
    """
    global _is_active  # noqa: PLW0603 - as are OpenTelemetry's providers, which can be set once in a process
    if _is_active:
        yield
        return
    with _sent(to):
        _is_active = True
        try:
            yield
        finally:
            _is_active = False


@contextmanager
def _sent(to: Literal["otlp", "azure-monitor"]) -> Iterator[None]:
    if to == "azure-monitor":
        _to_azure_monitor()
        yield
        return
    try:
        from opentelemetry import metrics, trace  # noqa: PLC0415 - an extra
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError("JOBQ_TELEMETRY=otlp needs the extra otel: pip install 'jobq[otel]'") from error
    # The variables OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over this name.
    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "jobq"})
    spans = TracerProvider(resource=resource, shutdown_on_exit=False)
    spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    meters = MeterProvider(resource=resource, metric_readers=[reader], shutdown_on_exit=False)
    trace.set_tracer_provider(spans)
    metrics.set_meter_provider(meters)
    try:
        yield
    finally:
        _flush(spans.shutdown, meters.shutdown)


def _flush(*shutdowns: Callable[[], object]) -> None:
    """Send what is left, each side by side; what takes too long, as with a collector that hangs, is left behind."""
    threads = [threading.Thread(target=shutdown, daemon=True) for shutdown in shutdowns]
    end = time.monotonic() + _FLUSH_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        _log.warning("the last traces or metrics were not sent within %g s", _FLUSH_SECONDS)


def _to_azure_monitor() -> None:
    if not os.environ.get(_AZURE_VARIABLE):
        raise ConfigurationError(f"JOBQ_TELEMETRY=azure-monitor needs {_AZURE_VARIABLE}, from the resource's overview")
    try:
        from azure.monitor.opentelemetry import configure_azure_monitor  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        message = "JOBQ_TELEMETRY=azure-monitor needs an extra: pip install 'jobq[azuremonitor]'"
        raise ConfigurationError(message) from error
    configure_azure_monitor(logger_name="jobq.telemetry.azure")  # no logs: those go to standard error
