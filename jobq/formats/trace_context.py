"""W3C trace context as text: what an envelope carries and a process inherits. Needs no OpenTelemetry."""

import logging
import os
import re
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

_log = logging.getLogger(__name__)
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
_MOST_STATE_CHARACTERS: Final = 512  # W3C Trace Context 3.3.1.5; it is stored with every task
_MOST_MEMBERS: Final = 32
_NAME: Final = r"[a-z][a-z0-9_*/-]"
_MEMBER: Final = re.compile(
    rf"(?:{_NAME}{{0,255}}|[a-z0-9][a-z0-9_*/-]{{0,240}}@{_NAME}{{0,13}})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{{1,256}}"
)


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


def state_of(context: Mapping[str, str]) -> str:
    """Return the vendors' part of a context; nothing of one that is too long or not valid: anybody may have written it.

    Args:
        context: as in an envelope (`tracestate`) or in an environment (`TRACESTATE`).
    """
    state = _short(context.get("tracestate") or context.get("TRACESTATE", ""))
    members = state.split(",")
    is_valid = len(members) <= _MOST_MEMBERS and all(_MEMBER.fullmatch(member.strip(" \t")) for member in members)
    return state if is_valid else ""


def _short(state: str) -> str:
    return state if len(state) <= _MOST_STATE_CHARACTERS else ""


def written(trace_id: int, span_id: int, flags: int, state: str = "") -> dict[str, str]:
    """Return a span as a W3C context.

    Args:
        trace_id: as OpenTelemetry counts.
        span_id: likewise.
        flags: a byte.
        state: as in the header; one that is too long to be stored with every task is left out.
    """
    kept = {"tracestate": state} if _short(state) else {}
    return {"traceparent": f"00-{trace_id:032x}-{span_id:016x}-{flags & 0xFF:02x}", **kept}


def current_context() -> dict[str, str]:
    """Return the context of the code that calls: of its OpenTelemetry span, else what the process was started with.

    OpenTelemetry is asked only where the program itself has loaded it: without it nothing is imported.
    """
    api = sys.modules.get("opentelemetry.trace")
    if api is not None:
        try:
            span = api.get_current_span().get_span_context()
            if span.is_valid:
                return written(span.trace_id, span.span_id, span.trace_flags, span.trace_state.to_header())
        except Exception:  # noqa: BLE001 - an odd version of it, or a span of somebody else's making: the push goes on
            _log.debug("the current span is not known", exc_info=True)
    return inherited_context()


def inherited_context(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the context that the process was started with: TRACEPARENT and TRACESTATE, where they are valid.

    Baggage is left out: it may be 8 KiB, and every task would carry it.
    """
    environment = os.environ if environment is None else environment
    parent, state = environment.get("TRACEPARENT", ""), _short(environment.get("TRACESTATE", ""))
    if not _TRACEPARENT.fullmatch(parent):
        return {}
    kept = {"tracestate": state} if state else {}
    return {"traceparent": parent, **kept}
