"""Connections to a worker's pages: few, short-lived, and one answer each, since they share descriptors with the leases.

A worker's loop renews leases. What connects and says nothing, or a word a minute, must not take the descriptors that
its requests need, nor the turns that its loop has (P1, L4). aiohttp limits neither their number nor their time.
"""

import asyncio
from collections.abc import Callable
from typing import Final

MOST_CONNECTIONS: Final = 32
LIFE_SECONDS: Final = 15.0  # a scraper gives up after 10 s
BACKLOG: Final = 16  # Python takes so many at once before anything else has a turn


class ConnectionLimits:
    """Makes the protocols of a server: lets few connections in, and ends each after LIFE_SECONDS.

    Args:
        protocol: makes the protocol that answers.
    """

    def __init__(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._protocol = protocol
        self._inside = 0

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of one more connection."""
        return _Guest(self, self._protocol())

    def enter(self) -> bool:
        """Return whether there is room for one more; if so it counts until it leaves."""
        if self._inside >= MOST_CONNECTIONS:
            return False
        self._inside += 1
        return True

    def leave(self) -> None:
        """Count one less."""
        self._inside -= 1


class _Guest(asyncio.Protocol):
    def __init__(self, door: ConnectionLimits, inner: asyncio.Protocol) -> None:
        self._door = door
        self._inner = inner
        self._end: asyncio.TimerHandle | None = None  # None = it was not let in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._door.enter():
            transport.abort()
            return
        self._end = asyncio.get_running_loop().call_later(LIFE_SECONDS, transport.abort)
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end is None:
            return
        self._end.cancel()
        self._door.leave()
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
