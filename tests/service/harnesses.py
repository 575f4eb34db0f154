"""How the suites reach the service: through its client, over a socket."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from jobq.testing.clock import RealTime
from jobq.testing.conformance import Harness
from jobq.testing.named_leases import LeaseHarness
from jobq_http import HttpBackend, HttpConnection
from tests.service.server import HttpServer


def tasks(server: HttpServer, inject: Callable[[str, bytes], Awaitable[str]] | None = None) -> Harness:
    """A service that keeps its own time."""
    return Harness(
        connect=lambda queue: HttpBackend(HttpConnection(server.url), queue),
        clock=RealTime(),
        inject=inject,
        lease=timedelta(seconds=8),
        case_timeout=timedelta(seconds=120),
    )


def leases(server: HttpServer) -> LeaseHarness:
    """The named leases of the same."""
    return LeaseHarness(
        connect=lambda queue: HttpBackend(HttpConnection(server.url), queue), clock=RealTime(), creates=True
    )
