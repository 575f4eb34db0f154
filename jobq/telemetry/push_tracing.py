"""The trace context that a push gives to its tasks: that of the pusher, or of a span of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from jobq.formats.trace_context import inherited_context


@contextmanager
def traced_push(queue: str, kind: str, telemetry: Literal["off", "otlp", "azure-monitor"]) -> Iterator[dict[str, str]]:
    """Yield the trace context for what is pushed meanwhile: with telemetry that of a PRODUCER span `send QUEUE`.

    Args:
        queue: its name.
        kind: the word for its kind of service.
        telemetry: the setting.

    Raises:
        ConfigurationError: see `exported`.
    """
    inherited = inherited_context()
    if telemetry == "off":
        yield inherited
        return
    from jobq.telemetry.exporters import exported  # noqa: PLC0415 - an extra

    with exported(telemetry):
        from opentelemetry import trace  # noqa: PLC0415 - as above

        from jobq.telemetry.tracing import carried, context_of, messaging_attributes, tracer  # noqa: PLC0415 - as above

        sending = tracer().start_as_current_span(
            f"send {queue}",
            context=context_of(inherited),
            kind=trace.SpanKind.PRODUCER,
            attributes=messaging_attributes(queue, kind, operation="send"),
        )
        with sending as span:
            yield carried(span.get_span_context()) or inherited
