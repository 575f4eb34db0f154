"""Where traces and metrics go: OTLP over HTTP as the OTEL_* variables say, or Azure Monitor by a connection string."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

from jobq.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter

_log = logging.getLogger(__name__)
_FLUSH_SECONDS: Final = 3.0  # a stop has little time
_is_active = False
_PHONES_HOME: Final = (
    "APPLICATIONINSIGHTS_STATSBEAT_DISABLED_ALL",
    "APPLICATIONINSIGHTS_SDKSTATS_DISABLED",
    "APPLICATIONINSIGHTS_CONTROLPLANE_DISABLED",
)
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
    try:
        from opentelemetry import metrics, trace  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        of_spans, of_metrics = _to_azure_monitor() if to == "azure-monitor" else _to_otlp()
    except ModuleNotFoundError as error:
        extra = "azuremonitor" if to == "azure-monitor" else "otel"
        raise ConfigurationError(f"JOBQ_TELEMETRY={to} needs an extra: pip install 'jobq[{extra}]'") from error
    # The variables OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over this name.
    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "jobq"})
    spans = TracerProvider(resource=resource, shutdown_on_exit=False)
    spans.add_span_processor(BatchSpanProcessor(of_spans))
    reader = PeriodicExportingMetricReader(of_metrics)
    meters = MeterProvider(resource=resource, metric_readers=[reader], shutdown_on_exit=False)
    trace.set_tracer_provider(spans)
    metrics.set_meter_provider(meters)
    try:
        yield
    finally:
        _flush(spans.shutdown, meters.shutdown)


def _to_otlp() -> "tuple[SpanExporter, MetricExporter]":
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415 - an extra
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - as above

    return OTLPSpanExporter(), OTLPMetricExporter()


def _to_azure_monitor() -> "tuple[SpanExporter, MetricExporter]":
    if not os.environ.get(_AZURE_VARIABLE):
        raise ConfigurationError(f"JOBQ_TELEMETRY=azure-monitor needs {_AZURE_VARIABLE}, from the resource's overview")
    with _no_other_logging():
        from azure.monitor.opentelemetry.exporter import (  # noqa: PLC0415 - an extra
            AzureMonitorMetricExporter,
            AzureMonitorTraceExporter,
        )

        # Nothing is kept on disk: the tree may be read-only, and others may read what is exported of a task.
        try:
            return (
                AzureMonitorTraceExporter(disable_offline_storage=True),
                AzureMonitorMetricExporter(disable_offline_storage=True),
            )
        except ValueError:
            # Its words may hold the key (A5).
            raise ConfigurationError(f"{_AZURE_VARIABLE} is no connection string of Application Insights") from None


@contextmanager
def _no_other_logging() -> Iterator[None]:
    """Keep an exporter that is being made from reporting about itself to its vendor, unless somebody asked it to."""
    added = [name for name in _PHONES_HOME if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "true"))
    try:
        yield
    finally:
        for name in added:  # tasks inherit the environment, and decide for themselves (A6)
            os.environ.pop(name, None)


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
