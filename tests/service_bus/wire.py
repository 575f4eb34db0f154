"""A client that speaks AMQP by the byte, for what no SDK would send."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from jobq.testing.amqp.composite import Composite, composite
from jobq.testing.amqp.encoding import encode, read
from jobq.testing.amqp.performatives import Attach, Begin, Close, Flow, Open, Source, Target, Transfer
from jobq.testing.amqp.types import Described, ULong
from jobq.testing.service_bus.codec import encode_message
from jobq.testing.service_bus.emulator import HOST, Emulator
from jobq.testing.service_bus.message import Content, Message

from .support import QUEUE, SOON

AMQP: Final = b"AMQP\x00\x01\x00\x00"
SASL: Final = b"AMQP\x03\x01\x00\x00"
_WINDOW: Final = 2**31 - 1


def frame_of(body: bytes, channel: int = 0, *, kind: int = 0, offset: int = 2) -> bytes:
    return (8 + len(body)).to_bytes(4) + bytes([offset, kind]) + channel.to_bytes(2) + body


def message_of(body: bytes) -> bytes:
    return encode_message(Message(1, Content(body), 0.0, {}))


@dataclass
class Wire:
    """One connection.

    Attributes:
        answers: frames that came, oldest first.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    answers: list[Composite] = field(default_factory=list)

    def put(self, *frames: Composite | bytes, channel: int = 0) -> None:
        for each in frames:
            self.writer.write(each if isinstance(each, bytes) else frame_of(each.encode(), channel))

    async def header(self) -> bytes:
        async with asyncio.timeout(SOON):
            return await self.reader.readexactly(8)

    async def frame(self) -> tuple[Composite | None, bytes]:
        """Return the next frame, None for a heartbeat; raises IncompleteReadError at the end."""
        async with asyncio.timeout(SOON):
            head = await self.reader.readexactly(8)
            body = await self.reader.readexactly(int.from_bytes(head[:4]) - 8)
        if not body:
            return None, b""
        value, end = read(body)
        found = composite(value)
        self.answers.append(found)
        return found, body[end:]

    async def until(self, kind: type[Composite]) -> Any:
        while True:
            found, _ = await self.frame()
            if isinstance(found, kind):
                return found

    async def end(self) -> list[Composite]:
        """Return all that comes until the server has closed the connection."""
        seen = len(self.answers)
        try:
            while True:
                await self.frame()
        except (asyncio.IncompleteReadError, ConnectionError):
            return self.answers[seen:]

    async def closed_with(self) -> str | None:
        """Return the condition with which the server closes the connection; None = without a word."""
        closes = [found for found in await self.end() if isinstance(found, Close)]
        return str(closes[0].error.condition) if closes and closes[0].error else None

    async def open(self, **more: Any) -> None:
        self.put(AMQP, Open(container_id="wire", **more))
        assert await self.header() == AMQP
        await self.until(Open)

    async def begin(self, **more: Any) -> None:
        await self.open(**more)
        self.put(Begin(next_outgoing_id=0, incoming_window=_WINDOW, outgoing_window=_WINDOW))
        await self.until(Begin)

    async def attach(self, address: str, handle: int, *, receives: bool, **more: Any) -> Attach:
        """Attach a link; return the server's half."""
        ends = {"source": Source(address=address), "target": Target(address=address)} | more
        count = None if receives else 0
        self.put(Attach(name=f"{address}-{handle}", handle=handle, role=receives, initial_delivery_count=count, **ends))
        found: Attach = await self.until(Attach)
        return found

    async def authorize(self, emulator: Emulator) -> None:
        """Put a token for all."""
        await self.attach("$cbs", 200, receives=True)
        self.put(flow_of(200, 10))
        await self.attach("$cbs", 201, receives=False)
        own = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": "amqp://any/"}
        request = encode(Described(ULong(0x74), own)) + encode(Described(ULong(0x77), emulator.authorization()))
        self.put(frame_of(Transfer(handle=201, delivery_id=0, delivery_tag=b"t").encode() + request))
        await self.until(Transfer)

    async def sender(self, emulator: Emulator) -> None:
        """Be ready to send over the handle 0, from the delivery 1 on."""
        await self.begin()
        await self.authorize(emulator)
        await self.attach(QUEUE, 0, receives=False)
        await self.until(Flow)

    def transfer(self, number: int, payload: bytes, **more: Any) -> None:
        first = Transfer(handle=0, delivery_id=number, delivery_tag=b"%d" % number, **more)
        self.put(frame_of(first.encode() + payload))


def flow_of(handle: int, credit: int, **more: Any) -> Flow:
    own = {"next_incoming_id": 0, "incoming_window": _WINDOW, "delivery_count": 0} | more
    return Flow(next_outgoing_id=0, outgoing_window=_WINDOW, handle=handle, link_credit=credit, **own)


@asynccontextmanager
async def wire_to(emulator: Emulator) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection(HOST, emulator.amqp_port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
