"""One connection of a client: protocol headers, SASL, frames, heartbeats, and what ends it.

Whatever a client sends ends at most its own connection, with an error of the standard. A broker is a subclass: it has
the links' events as methods (`session.Carrier`).
"""

import asyncio
from typing import ClassVar, Final

from jobq.testing.amqp.composite import Composite, composite
from jobq.testing.amqp.encoding import array, read
from jobq.testing.amqp.faults import (
    DECODE_ERROR,
    FRAMING_ERROR,
    ILLEGAL_STATE,
    INVALID_FIELD,
    NOT_ALLOWED,
    RESOURCE_LIMIT,
    ConnectionFault,
)
from jobq.testing.amqp.performatives import (
    Begin,
    Close,
    End,
    Error,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
)
from jobq.testing.amqp.session import Carrier, Session
from jobq.testing.amqp.types import Malformed, Symbol

FRAME_BYTES: Final = 65536
IDLE_SECONDS: Final = 60.0
CHANNEL_MAX: Final = 255
_AMQP: Final = b"AMQP\x00\x01\x00\x00"
_SASL: Final = b"AMQP\x03\x01\x00\x00"
_HEADER_BYTES: Final = 8  # of the protocol, and of each frame
_FEWEST_FRAME_BYTES: Final = 512  # that either side has to take
_AMQP_FRAME, _SASL_FRAME = 0, 1
_ANONYMOUS: Final = "ANONYMOUS"
_LAST_WORDS_SECONDS: Final = 1.0  # for a client to read why it is closed


class Connection(asyncio.Protocol, Carrier):
    """One connection; subclasses answer the events.

    Attributes:
        is_open: whether it is to be spoken to.
        idle_seconds: after which a client is given up that sends nothing.
    """

    container_id: ClassVar[str] = "server"

    def __init__(self) -> None:
        self.is_open = False
        self._is_paused = False
        self.idle_seconds = IDLE_SECONDS
        self._sessions: dict[int, Session] = {}
        self._input = bytearray()
        self._output = bytearray()
        self._header: bytes | None = None  # the last protocol header; None = one has to come
        self._is_authenticated = False
        self._is_lost = False
        self._remote: Open | None = None
        self._ticking: asyncio.TimerHandle | None = None

    # Bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self.loop, self._socket = asyncio.get_running_loop(), transport
        self._heard_at = self._spoke_at = self.loop.time()
        self.is_open = True
        self._tick()

    def data_received(self, data: bytes) -> None:
        """Read as many frames as have come."""
        if not self.is_open:
            return
        self._heard_at = self.loop.time()
        self._input += data
        try:
            while self._read():
                pass
        except ConnectionFault as fault:
            self._fail(fault.error)
        except Malformed as malformed:
            self._fail(Error(condition=DECODE_ERROR, description=str(malformed)))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """End."""
        if self._ticking is not None:
            self._ticking.cancel()
        self._forget()

    @property
    def is_writable(self) -> bool:
        """Whether messages are to be sent: the client reads them, and those of this turn are not many."""
        return not self._is_paused and len(self._output) < FRAME_BYTES

    def pause_writing(self) -> None:
        """Send no more messages, and take no more requests: the client does not read what it gets."""
        self._is_paused = True
        self._socket.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        if self._is_paused:
            self._is_paused = False
            self._socket.resume_reading()
        for session in list(self._sessions.values()):
            session.resume()

    def drop(self) -> None:
        """Break the connection without a word."""
        self.is_open = False
        self._output.clear()
        self._socket.abort()

    def send(self, channel: int, frame: Composite, payload: bytes = b"", *, kind: int = _AMQP_FRAME) -> None:
        """Send a frame, with others of this turn of the loop."""
        if not self.is_open:
            return
        if not self._output:
            self.loop.call_soon(self._flush)
        body = frame.encode()
        size = _HEADER_BYTES + len(body) + len(payload)
        self._output += size.to_bytes(4) + bytes([2, kind]) + channel.to_bytes(2) + body
        self._output += payload

    def room_for(self, transfer: Transfer) -> int:
        """Return how many bytes of a message fit into a frame that the client takes."""
        remote = self._remote
        assert remote is not None
        return min(remote.max_frame_size, FRAME_BYTES) - _HEADER_BYTES - len(transfer.encode())

    def _flush(self) -> None:
        if self._output:
            was_full = not self.is_writable
            self._socket.write(bytes(self._output))
            self._output.clear()
            self._spoke_at = self.loop.time()
            if was_full and not self._is_paused:
                self.resume_writing()

    # Frames

    def _read(self) -> bool:
        """Read a protocol header or a frame; return whether it was there."""
        if not self.is_open or len(self._input) < _HEADER_BYTES:
            return False
        if self._header is None:
            self._read_header(bytes(self._input[:_HEADER_BYTES]))
            return True
        size, offset, kind = int.from_bytes(self._input[:4]), self._input[4] * 4, self._input[5]
        if size > FRAME_BYTES or not _HEADER_BYTES <= offset <= size:
            raise ConnectionFault(FRAMING_ERROR, f"A frame of {size} bytes, whose body begins at {offset}.")
        if kind != (_SASL_FRAME if self._header == _SASL else _AMQP_FRAME):
            raise ConnectionFault(FRAMING_ERROR, f"A frame of type {kind} is not awaited.")
        if len(self._input) < size:
            return False
        channel = int.from_bytes(self._input[6:8])
        body = bytes(self._input[offset:size])
        del self._input[:size]
        if body:  # else a heartbeat
            value, end = read(body)
            self._handle(channel, composite(value), body[end:])
        return True

    def _read_header(self, header: bytes) -> None:
        if header not in {_AMQP, _SASL} or (header == _SASL and self._is_authenticated):
            self._write_header(_SASL)
            raise ConnectionFault(FRAMING_ERROR, "No protocol header of AMQP 1.0.")
        del self._input[:_HEADER_BYTES]
        self._write_header(header)
        if header == _SASL:
            mechanisms = SaslMechanisms(sasl_server_mechanisms=array(Symbol, [_ANONYMOUS]))
            self.send(0, mechanisms, kind=_SASL_FRAME)  # who it is comes later, on a node

    def _write_header(self, header: bytes) -> None:
        self._header = header
        if not self._output:
            self.loop.call_soon(self._flush)
        self._output += header

    def _handle(self, channel: int, frame: Composite, payload: bytes) -> None:
        if payload and not isinstance(frame, Transfer):
            raise ConnectionFault(FRAMING_ERROR, f"{len(payload)} bytes follow {type(frame).__name__}.")
        if self._header == _SASL:
            self._authenticate(frame)
        elif self._remote is None:
            self._open(frame)
        else:
            self._handle_opened(channel, frame, payload)

    def _authenticate(self, frame: Composite) -> None:
        if not isinstance(frame, SaslInit):
            raise ConnectionFault(ILLEGAL_STATE, "SASL begins with its init.")
        is_good = frame.mechanism == _ANONYMOUS
        self.send(0, SaslOutcome(outcome=0 if is_good else 1), kind=_SASL_FRAME)
        if not is_good:
            raise ConnectionFault(NOT_ALLOWED, f"Only {_ANONYMOUS} is offered.")
        self._header, self._is_authenticated = None, True

    def _open(self, frame: Composite) -> None:
        if not isinstance(frame, Open):
            raise ConnectionFault(ILLEGAL_STATE, "A connection begins with open.")
        if frame.max_frame_size < _FEWEST_FRAME_BYTES:
            raise ConnectionFault(INVALID_FIELD, f"max-frame-size is below {_FEWEST_FRAME_BYTES}.")
        self._remote = frame
        self._say_open()
        if frame.idle_time_out:
            self._tick()

    def _say_open(self) -> None:
        half = int(self.idle_seconds * 500)  # milliseconds: a client that sends so often is never given up
        mine = Open(
            container_id=self.container_id,
            max_frame_size=FRAME_BYTES,
            channel_max=CHANNEL_MAX,
            idle_time_out=half,
        )
        self.send(0, mine)

    def _handle_opened(self, channel: int, frame: Composite, payload: bytes) -> None:
        session = self._sessions.get(channel)
        match frame:
            case Open():
                raise ConnectionFault(ILLEGAL_STATE, "The connection is open.")
            case Close():
                self._end(Close())
            case Begin():
                self._begin(channel, frame)
            case _ if session is None:
                raise ConnectionFault(NOT_ALLOWED, f"{type(frame).__name__} on channel {channel}, without a session.")
            case End():
                session.end()
                del self._sessions[channel]
            case _:
                session.handle(frame, payload)

    def _begin(self, channel: int, begin: Begin) -> None:
        if channel > CHANNEL_MAX:
            raise ConnectionFault(FRAMING_ERROR, f"Channels end with {CHANNEL_MAX}.")
        if channel in self._sessions:
            raise ConnectionFault(NOT_ALLOWED, f"The channel {channel} is in use.")
        self._sessions[channel] = Session(self, channel, begin)

    # Ends

    def _fail(self, error: Error) -> None:
        """End the connection for what the client did; before it is open there is no way to say why."""
        if self._header == _AMQP:
            if self._remote is None:
                self._say_open()
            self._end(Close(error=error))
        else:
            self._end(None)

    def _end(self, close: Close | None) -> None:
        """Say the last words, and give the client a moment to read them: what it still sends must not destroy them."""
        if close is not None:
            self.send(0, close)
        self._forget()
        self._flush()
        if not self._socket.is_closing():
            self._socket.write_eof()
        if self._ticking is not None:
            self._ticking.cancel()
        self._ticking = self.loop.call_later(_LAST_WORDS_SECONDS, self._socket.abort)

    def _forget(self) -> None:
        self.is_open = False
        self._input.clear()
        self._sessions.clear()
        if not self._is_lost:
            self._is_lost = True
            self.on_lost()

    def _tick(self) -> None:
        """Send a heartbeat, or give the client up, when it is time; look again when it may be."""
        if self._ticking is not None:
            self._ticking.cancel()
        now = self.loop.time()
        if self._is_paused:  # nothing of the client is read, so it may be alive
            self._heard_at = now
        ends = self._heard_at + self.idle_seconds
        if now >= ends:
            self._fail(Error(condition=RESOURCE_LIMIT, description=f"Nothing came for {self.idle_seconds:g} s."))
            return
        if self._remote is not None and self._remote.idle_time_out:
            pause = self._remote.idle_time_out / 2000  # half of it, in seconds
            if now >= self._spoke_at + pause:
                self._heartbeat()
            ends = min(ends, self._spoke_at + pause)
        self._ticking = self.loop.call_later(max(ends - now, 0.05), self._tick)

    def _heartbeat(self) -> None:
        self._output += _HEADER_BYTES.to_bytes(4) + bytes([2, _AMQP_FRAME, 0, 0])
        self._flush()

    def on_lost(self) -> None:
        """Forget the connection: its links are not detached one by one."""
        raise NotImplementedError
