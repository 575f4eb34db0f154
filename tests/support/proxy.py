"""What the fault-injecting proxies have in common: a port, its connections, and waiting for what they see."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

HOST: Final = "127.0.0.1"
Streams = list[asyncio.StreamWriter]


@dataclass
class Proxy:
    """Takes connections on a port of its own; an asynchronous context manager.

    Attributes:
        target: the service's port.
        port: its own, once it is entered.
    """

    target: int
    port: int = 0
    _server: asyncio.Server | None = None
    _connections: set[asyncio.StreamWriter] = field(default_factory=set)
    _serving: set["asyncio.Task[None]"] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()
        for serving in self._serving:
            serving.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    async def refuse(self) -> None:
        """Refuse connections, and break those that are open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.break_all()

    def break_all(self) -> None:
        """Break the connections that are open."""
        for connection in self._connections:
            connection.transport.abort()

    async def until(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        """Wait for a condition on what the proxy has seen; raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, HOST, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        self._connections.add(writer)
        self._changed.set()
        upstream: Streams = []
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer, upstream)
        finally:
            for each in (writer, *upstream):
                each.transport.abort()
            self._connections.discard(writer)
            self._serving.discard(serving)

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: Streams) -> Awaitable[None]:
        """Serve one connection until it ends; connections to the service are added to `upstream`, and broken then."""
        raise NotImplementedError
