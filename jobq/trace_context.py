"""W3C trace context as text: what an envelope carries and a process inherits. Needs no OpenTelemetry."""

import os
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
_MOST_STATE_CHARACTERS: Final = 512  # W3C Trace Context 3.3.1.5; it is stored with every task


class TraceIds(NamedTuple):
    """What a `traceparent` names.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16 of them.
        flags: the last two; 01 = sampled.
    """

    trace_id: str
    span_id: str
    flags: str


def ids_of(context: Mapping[str, str]) -> TraceIds | None:
    """Return what a context names; None where it names nothing, or nothing valid: anybody may have written it.

    Args:
        context: as in an envelope (`traceparent`) or in an environment (`TRACEPARENT`).
    """
    text = context.get("traceparent") or context.get("TRACEPARENT", "")
    found = _TRACEPARENT.fullmatch(text)
    return TraceIds(*found.groups()) if found else None


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
