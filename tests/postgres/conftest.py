"""Databases and servers of one's own."""

from collections.abc import AsyncIterator, Iterator

import pytest

from jobq_postgres import PostgresBackend
from tests.postgres.server import Database, PostgresServer
from tests.support.tcp_proxy import TcpProxy


@pytest.fixture
def database(postgres: Database) -> Iterator[Database]:
    """An empty database."""
    made = postgres.fresh()
    try:
        yield made
    finally:
        made.drop()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that may be killed."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
async def proxy(database: Database) -> AsyncIterator[TcpProxy]:
    """A proxy before the database's server."""
    async with TcpProxy(database.port) as made:
        yield made


@pytest.fixture
def far(database: Database, proxy: TcpProxy) -> PostgresBackend:
    """The same queue through the proxy, not yet entered."""
    return PostgresBackend(database.through(proxy.port).server(), "q")


@pytest.fixture
async def queue(database: Database) -> AsyncIterator[PostgresBackend]:
    """A queue in a fresh database."""
    async with PostgresBackend(database.server(), "q") as made:
        await made.create()
        yield made
