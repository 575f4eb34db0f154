"""A proxy before several replicas: each connection goes to the next one that takes it."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Self


class RoundRobin:
    """Forwards bytes.

    Args:
        ports: of the replicas, on this machine; may be changed while it runs.

    Attributes:
        port: its own.
        served: how many connections each replica has got.
    """

    port: int

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = list(ports)
        self.served: dict[int, int] = dict.fromkeys(ports, 0)
        self._next = 0
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        self._server.close()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)
        for _ in range(len(self.ports)):
            port = self.ports[self._next % len(self.ports)]
            self._next += 1
            try:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            self.served[port] += 1
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
            far_writer.close()
            break
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
