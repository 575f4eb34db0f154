"""AMQP over WebSockets: a door on the HTTP port, behind which every connection is one to the AMQP port."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import WSMsgType, web

PATH: Final = "/$servicebus/websocket"
_PROTOCOL: Final = "AMQPWSB10"
_READ_BYTES: Final = 64 * 1024


def door(host: str, port: Callable[[], int]) -> Callable[[web.Request], Awaitable[web.WebSocketResponse]]:
    """Return the handler of `PATH`; `port` is of AMQP on `host`."""

    async def opened(asked: web.Request) -> web.WebSocketResponse:
        outside = web.WebSocketResponse(protocols=[_PROTOCOL])
        await outside.prepare(asked)
        reader, writer = await asyncio.open_connection(host, port())
        back = asyncio.create_task(_back(reader, outside))
        try:
            async for message in outside:
                if message.type is WSMsgType.BINARY:
                    writer.write(message.data)
        finally:
            back.cancel()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        return outside

    return opened


async def _back(reader: asyncio.StreamReader, outside: web.WebSocketResponse) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            await outside.send_bytes(data)
    await outside.close()
