"""The ways over a network to a queue, of which each request can be struck."""

import uuid
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from jobq.backend import Backend
from jobq.errors import BackendUnavailable, LockLost, PushUnknown, SettlementUnknown
from jobq_http import HttpBackend, HttpConnection
from jobq_postgres import PostgresBackend
from tests.azure.emulator import Azurite
from tests.azure.stage import staged
from tests.postgres.server import Database
from tests.service.server import HttpServer
from tests.support.http_proxy import HttpProxy, Strike
from tests.support.tcp_proxy import TcpProxy, TcpStrike


@dataclass
class Way:
    """A queue, and the way to it.

    Attributes:
        near: reaches it undisturbed.
        far: reaches it through the proxy.
        proxy: may lose what is asked over it.
    """

    near: Backend
    far: Backend
    proxy: TcpProxy | HttpProxy

    async def struck(self, lost: str, number: int, call: Awaitable[object]) -> tuple[bool, Exception | None]:
        """Strike that request of a call; return whether there was one, and what the call has raised."""
        sent = 0

        def matches(_sent: object) -> bool:
            nonlocal sent
            sent += 1
            return sent == number

        error: Exception | None = None
        if isinstance(self.proxy, HttpProxy):
            self.proxy.strike(Strike(lost), matches=matches)
        else:
            self.proxy.strike(TcpStrike(lost), matches)
        try:
            await call
        except (PushUnknown, SettlementUnknown, BackendUnavailable, LockLost) as raised:
            error = raised
        await self.proxy.heal()
        return 0 < number <= sent, error


@asynccontextmanager
async def to_postgres(database: Database) -> AsyncIterator[Way]:
    """PostgreSQL."""
    name = f"q-{uuid.uuid4().hex[:12]}"
    async with TcpProxy(database.port) as proxy, PostgresBackend(database.server(), name) as near:
        await near.create()
        async with PostgresBackend(database.through(proxy.port).server(), name) as far:
            yield Way(near, far, proxy)


@asynccontextmanager
async def to_service(server: HttpServer) -> AsyncIterator[Way]:
    """A service, by HTTP; it stands on SQLite."""
    name = f"q-{uuid.uuid4().hex[:12]}"
    async with TcpProxy(server.port) as proxy, HttpBackend(HttpConnection(server.url), name) as near:
        await near.create()
        async with HttpBackend(HttpConnection(f"http://127.0.0.1:{proxy.port}"), name) as far:
            yield Way(near, far, proxy)


@asynccontextmanager
async def to_storage(azurite: Azurite, folder: Path) -> AsyncIterator[Way]:
    """Azure Storage Queue."""
    async with staged(azurite, folder) as stage:
        yield Way(stage.behind, stage.backend, stage.proxy)
