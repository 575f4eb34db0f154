"""The trace context that a push gives to its tasks: that of whoever pushes, or of a span of its own."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal

_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_MOST_STATE_CHARACTERS: Final = 512  # W3C Trace Context 3.3.1.5; it is stored with every task


def inherited_context(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the context that the process was started with: TRACEPARENT and TRACESTATE, where they are valid.

    Baggage is left out: it may be 8 KiB, and every task would carry it.
    """
    environment = os.environ if environment is None else environment
    parent, state = environment.get("TRACEPARENT", ""), environment.get("TRACESTATE", "")
    if not _TRACEPARENT.fullmatch(parent):
        return {}
    kept = {"tracestate": state} if state and len(state) <= _MOST_STATE_CHARACTERS else {}
    return {"traceparent": parent, **kept}


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
    from jobq.telemetry.exporting import exported  # noqa: PLC0415 - an extra

    with exported(telemetry):
        from opentelemetry import propagate, trace  # noqa: PLC0415 - as above

        from jobq.telemetry.tracing import messaging_attributes, tracer  # noqa: PLC0415 - as above

        span = tracer().start_as_current_span(
            f"send {queue}",
            context=propagate.extract(inherited),
            kind=trace.SpanKind.PRODUCER,
            attributes=messaging_attributes(queue, kind, operation="send"),
        )
        with span:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            yield carrier or inherited
