"""The endpoints about the service itself: is it alive, is it ready, its figures and its OpenAPI."""

import asyncio
from dataclasses import dataclass
from typing import Final

from jobq.errors import JobqError
from jobq.server import metrics, schemas
from jobq.server.endpoint import Call, Endpoint, Reply
from jobq.server.error_responses import Refused
from jobq.server.tokens import Scope

_READY_SECONDS: Final = 3.0


@dataclass(frozen=True)
class Text:
    """An answer that is no JSON, or JSON that is written already."""

    body: bytes
    kind: bytes


async def healthz(call: Call) -> Reply:  # noqa: ARG001 - as every handler
    """Answer that this process runs."""
    return 200, {"status": "ok"}


async def readyz(call: Call) -> Reply:
    """Answer whether requests can be served: the store answers, and the service does not stop."""
    if call.service.is_stopping:
        raise Refused(503, "stopping", "the service stops")
    try:
        async with asyncio.timeout(_READY_SECONDS):
            await call.service.places.root.document("tokens")
    except (JobqError, TimeoutError):
        raise Refused(503, "unavailable", "the store does not answer") from None
    return 200, {"status": "ready", "replica": call.service.replica}


async def figures(call: Call) -> Reply:
    """Answer with the figures, and the counts of the default queue."""
    shown = call.service.metrics
    try:
        async with asyncio.timeout(_READY_SECONDS):
            stats = await call.service.places.root.stats()
    except (JobqError, Refused, TimeoutError):
        shown.tasks.clear()
    else:
        for state in ("visible", "leased", "scheduled", "dead"):
            shown.tasks.labels(state).set(getattr(stats, state) or 0)
    return 200, Text(shown.text(), metrics.CONTENT_TYPE.encode())


async def openapi(call: Call) -> Reply:
    """Return the OpenAPI document."""
    return 200, call.service.openapi


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/healthz",
        scope=None,
        is_open=True,
        has_queue=False,
        handler=healthz,
        answers={200: schemas.Health},
        summary="Is this process alive?",
    ),
    Endpoint(
        method="GET",
        path="/readyz",
        scope=None,
        is_open=True,
        has_queue=False,
        handler=readyz,
        answers={200: schemas.Health},
        summary="Can requests be served?",
    ),
    Endpoint(
        method="GET",
        path="/metrics",
        scope=Scope.WATCH,
        has_queue=False,
        handler=figures,
        answers={200: None},
        summary="Figures for Prometheus.",
    ),
    Endpoint(
        method="GET",
        path="/openapi.json",
        scope=None,
        is_open=True,
        has_queue=False,
        handler=openapi,
        answers={200: schemas.Answer},
        summary="This document.",
    ),
)
