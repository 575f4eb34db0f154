"""One service on SQLite for a module's tests, each on a queue of its own."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from jobq_http import HttpBackend, HttpConnection
from tests.service.server import HttpServer, running
from tests.support.tcp_proxy import TcpProxy


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = Path(tmp_path_factory.mktemp("service"))
    with running(f"sqlite://{folder}/jobs.db/demo", folder) as made:
        yield made


@pytest.fixture
def queue(server: HttpServer) -> str:
    """A queue of one's own."""
    name = f"q-{uuid.uuid4().hex[:12]}"
    assert server.ask("PUT", f"/api/queues/{name}")[0] == 202
    return name


@pytest.fixture
async def proxy(server: HttpServer) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(server.port) as made:
        yield made


@pytest.fixture
async def near(server: HttpServer, queue: str) -> AsyncIterator[HttpBackend]:
    async with HttpBackend(HttpConnection(server.url), queue) as made:
        yield made


@pytest.fixture
async def far(proxy: TcpProxy, queue: str) -> AsyncIterator[HttpBackend]:
    async with HttpBackend(HttpConnection(f"http://127.0.0.1:{proxy.port}"), queue) as made:
        yield made
