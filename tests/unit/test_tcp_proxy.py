"""What befalls those who speak through the TCP proxy: half of a black hole, a slow line, a line that is cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from tests.support.tcp_proxy import Direction, TcpProxy

LATE_SECONDS = 0.05


@dataclass
class Service:
    """Answers each piece with the same, in capitals."""

    heard: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while sent := await reader.read(100):
            self.heard.append(sent)
            writer.write(sent.upper())
        writer.close()


@asynccontextmanager
async def staged() -> AsyncIterator[tuple[Service, TcpProxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A service, a proxy before it, and a connection that has been answered once."""
    service = Service()
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    async with TcpProxy(server.sockets[0].getsockname()[1]) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"a")
        assert await reader.readexactly(1) == b"A"
        assert proxy.struck == 0
        try:
            yield service, proxy, reader, writer
        finally:
            writer.close()
    server.close()


@pytest.mark.parametrize(
    ("way", "arrives"), [(Direction.BOTH, False), (Direction.REQUESTS, False), (Direction.ANSWERS, True)]
)
async def test_silence_may_have_one_way(way: Direction, arrives: bool) -> None:
    async with staged() as (service, proxy, reader, writer):
        proxy.silence(way)
        writer.write(b"b")
        await proxy.until(lambda: proxy.struck)
        if arrives:
            while service.heard != [b"a", b"b"]:
                await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(LATE_SECONDS):
                await reader.read(1)
        await proxy.heal()
        with suppress(ConnectionResetError):
            assert await reader.read(1) == b""
        assert service.heard == ([b"a", b"b"] if arrives else [b"a"])


async def test_answers_of_what_was_sent_before_are_lost_too() -> None:
    async with staged() as (_, proxy, reader, writer):
        proxy.delay(LATE_SECONDS)
        writer.write(b"b")
        await proxy.until(lambda: proxy.struck)
        proxy.silence(Direction.ANSWERS)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3 * LATE_SECONDS):
                await reader.read(1)


async def test_a_slow_line_is_slow_both_ways_until_it_is_healed() -> None:
    async with staged() as (_, proxy, reader, writer):
        loop = asyncio.get_running_loop()
        proxy.delay(LATE_SECONDS)
        began = loop.time()
        writer.write(b"b")
        assert await reader.readexactly(1) == b"B"
        assert loop.time() - began >= 2 * LATE_SECONDS
        assert proxy.struck == 2
        await proxy.heal()
        writer.write(b"c")
        assert await reader.readexactly(1) == b"C"
        assert proxy.struck == 2


async def test_who_is_cut_off_counts_as_struck() -> None:
    async with staged() as (_, proxy, _reader, _writer):
        await proxy.refuse()
        assert proxy.struck == 1
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
