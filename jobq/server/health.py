"""The endpoints about the service itself: is it alive, is it ready, its figures and its OpenAPI."""

import asyncio
from dataclasses import dataclass
from typing import Final

from jobq.errors import JobqError
from jobq.server import answers, metrics
from jobq.server.endpoint import Endpoints, Reply
from jobq.server.error_responses import RequestRefused
from jobq.server.request import RequestCall
from jobq.server.tokens import Scope

_READY_SECONDS: Final = 3.0


@dataclass(frozen=True)
class TextAnswer:
    """An answer that is no JSON, or JSON that is written already."""

    body: bytes
    kind: bytes


ENDPOINTS: Final = Endpoints("")


@ENDPOINTS.add("GET", "/healthz", None, is_open=True, has_queue=False, answers={200: answers.HealthAnswer})
async def healthz(call: RequestCall) -> Reply:  # noqa: ARG001 - as every handler
    """Is this process alive?"""
    return 200, {"status": "ok"}


@ENDPOINTS.add("GET", "/readyz", None, is_open=True, has_queue=False, answers={200: answers.HealthAnswer})
async def readyz(call: RequestCall) -> Reply:
    """Can requests be served?"""
    if call.service.is_stopping:
        raise RequestRefused(503, "stopping", "the service stops")
    try:
        async with asyncio.timeout(_READY_SECONDS):
            await call.service.places.root.document("tokens")
    except (JobqError, TimeoutError):
        raise RequestRefused(503, "unavailable", "the store does not answer") from None
    return 200, {"status": "ready", "replica": call.service.replica}


@ENDPOINTS.add("GET", "/metrics", Scope.WATCH, has_queue=False, answers={200: None})
async def figures(call: RequestCall) -> Reply:
    """Figures for Prometheus."""
    shown = call.service.metrics
    try:
        async with asyncio.timeout(_READY_SECONDS):
            stats = await call.service.places.root.stats()
    except (JobqError, RequestRefused, TimeoutError):
        shown.tasks.clear()
    else:
        for state in ("visible", "leased", "scheduled", "dead"):
            shown.tasks.labels(state).set(getattr(stats, state) or 0)
    return 200, TextAnswer(shown.text(), metrics.CONTENT_TYPE.encode())


@ENDPOINTS.add("GET", "/openapi.json", None, is_open=True, has_queue=False, answers={200: answers.Answer})
async def openapi(call: RequestCall) -> Reply:
    """This document."""
    return 200, TextAnswer(call.service.openapi, b"application/json")
