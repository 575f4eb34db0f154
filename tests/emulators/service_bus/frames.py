"""The frames of one AMQP connection, as the server: protocol headers, SASL, open and close, heartbeats."""

import asyncio
import itertools
from typing import Any, Final

from tests.emulators.service_bus import sdk_codec

FRAME_BYTES: Final = 65536
WINDOW: Final = 2**31 - 1  # of transfers: nothing is held back
ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH = range(0x12, 0x17)
_OPEN, _BEGIN, _END, _CLOSE, _SASL_INIT = 0x10, 0x11, 0x17, 0x18, 0x41
_SASL: Final = b"AMQP\x03\x01\x00\x00"
_SASL_KIND: Final = b"\x01"
_HEADER_BYTES: Final = 8  # of the protocol, and of each frame
_CHANNELS: Final = 255
_HANDLES: Final = 255


class Frames(asyncio.Protocol):
    """A connection of a client that keeps to the protocol, as the SDK does; what it breaks ends the connection.

    Attributes:
        loop: the one that it lives in.
        is_open: whether it is to be spoken to.
        frame_bytes: the largest frame that the client takes.
        deliveries: numbers of what is sent to the client.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self.is_open = False
        self.frame_bytes = FRAME_BYTES
        self.deliveries = itertools.count()
        self._input = bytearray()
        self._beating: asyncio.TimerHandle | None = None

    def on_frame(self, channel: int, code: int, fields: list[Any]) -> None:
        """Take a frame of a session."""
        raise NotImplementedError

    def on_lost(self) -> None:
        """Forget the connection: its links are not detached one by one."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self.loop, self._socket, self.is_open = asyncio.get_running_loop(), transport, True

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self.is_open = False
        if self._beating is not None:
            self._beating.cancel()
        self.on_lost()

    def data_received(self, data: bytes) -> None:
        """Read as many frames as have come."""
        self._input += data
        while self.is_open and len(self._input) >= _HEADER_BYTES:
            is_header = self._input[:4] == b"AMQP"
            size = _HEADER_BYTES if is_header else int.from_bytes(self._input[:4])
            if len(self._input) < size:
                return
            frame = bytes(self._input[:size])
            del self._input[:size]
            if is_header:
                self._answer_header(frame)
            elif size > _HEADER_BYTES:  # else a heartbeat
                self._handle(int.from_bytes(frame[6:8]), *sdk_codec.read_frame(frame[_HEADER_BYTES:]))

    def send(self, frame: Any, channel: int = 0, kind: bytes = b"\x00") -> None:
        """Send a frame; None is a heartbeat."""
        if self.is_open:
            self._socket.write(sdk_codec.write_frame(frame, channel, kind))

    def drop(self) -> None:
        """Break the connection without a word."""
        self.is_open = False
        self._socket.abort()

    def close(self, error: Any = None) -> None:
        """End the connection, and say why."""
        self.send(sdk_codec.frame("Close", error=error))
        self.is_open = False
        self._socket.close()

    def _answer_header(self, header: bytes) -> None:
        self._socket.write(header)
        if header == _SASL:  # who it is comes later, on a node
            self.send(sdk_codec.frame("SASLMechanism", sasl_server_mechanisms=[b"ANONYMOUS"]), kind=_SASL_KIND)

    def _handle(self, channel: int, code: int, fields: list[Any]) -> None:
        if code == _SASL_INIT:
            self.send(sdk_codec.frame("SASLOutcome", code=0, additional_data=None), kind=_SASL_KIND)
        elif code == _OPEN:
            self._opened(fields)
        elif code == _BEGIN:
            self.send(
                sdk_codec.frame(
                    "Begin",
                    remote_channel=channel,
                    next_outgoing_id=0,
                    incoming_window=WINDOW,
                    outgoing_window=WINDOW,
                    handle_max=_HANDLES,
                ),
                channel,
            )
        elif code == _END:
            self.send(sdk_codec.frame("End"), channel)
        elif code == _CLOSE:
            self.close()
        else:
            self.on_frame(channel, code, fields)

    def _opened(self, fields: list[Any]) -> None:
        self.frame_bytes = min(fields[2], FRAME_BYTES)
        self.send(sdk_codec.frame("Open", container_id="emulator", max_frame_size=FRAME_BYTES, channel_max=_CHANNELS))
        if fields[4]:  # milliseconds after which the client gives up a server that says nothing
            self._beat(fields[4] / 2000)

    def _beat(self, seconds: float) -> None:
        self._beating = self.loop.call_later(seconds, self._beat, seconds)
        self.send(None)
