"""More connections than the service takes: who says nothing makes room for who asks (A8)."""

import http.client
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from jobq.server.slow_client_limits import MOST_CONNECTIONS
from tests.service.server import running

FILES = MOST_CONNECTIONS + 500


@pytest.fixture
def files() -> Iterator[None]:
    """As many as this test needs open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        pytest.skip(f"only {hard} files may be open here; this needs {FILES}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("files")
def test_silent_connections_keep_nobody_out(tmp_path: Path) -> None:
    """Anybody could open as many as there may be, without a token, and every other request was answered with 503."""
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path, is_open=False) as server, ExitStack() as held:
        asks = held.enter_context(closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)))
        asks.request("GET", "/healthz")
        asks.getresponse().read()
        first = held.enter_context(closing(socket.create_connection(("127.0.0.1", server.port), timeout=30)))
        asks.request("GET", "/healthz")  # so that it is younger than the first that is silent
        assert asks.getresponse().read()
        for _ in range(MOST_CONNECTIONS):
            held.enter_context(closing(socket.create_connection(("127.0.0.1", server.port), timeout=30)))
        assert first.recv(1) == b"", "it has made room"
        assert server.ask("GET", "/healthz") == (200, {"status": "ok"})
        assert server.ask("GET", "/api/tasks")[0] == 401
        assert server.token_file is not None
        assert server.ask("GET", "/api/tasks", token=server.token_file.read_text())[0] == 200
        assert "Traceback" not in server.log.read_text()
