"""Connections that are slow, endless or too many: each has so long to bring a request's head, and so many bytes.

The server below (uvicorn) waits for ever for the first byte of a request, and keeps whatever heads bring. With TLS it
would know of a connection only after the handshake: so the handshake is made here, and counts from the accept on.
"""

import asyncio
import errno
import json
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final, NoReturn, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from jobq.server import schemas

HEAD_SECONDS: Final = 10.0
_HEAD_BYTES: Final = 32 * 1024
_AROUND_HEADER: Final = 4  # ": " and the end of the line
_MOST_HEADERS: Final = 100
MOST_CONNECTIONS: Final = 4_000
HANDSHAKE_SECONDS: Final = 10.0
UNREAD_SECONDS: Final = 5.0  # after which who does not read its answer makes room for others
_LEAST_READ: Final = 64 * 1024  # bytes that who reads takes in that time
_MOST_UNREAD: Final = 12  # times in a row that it does not
_CLOSE_SECONDS: Final = 1.0  # that a last answer has to arrive
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_AGAIN_SECONDS: Final = 1.0
_log: Final = logging.getLogger("jobq.server")


class _Silent(Protocol):
    def give_up(self) -> None:
        """Hang up without an answer."""
        ...


class SlowClientProtocol(HttpToolsProtocol):
    """One connection: HTTP/1.1 with limits on the head of a request."""

    _idle: ClassVar[dict[_Silent, None]] = {}  # those that have no whole head of a request, oldest first
    _handshakes: ClassVar[set[_Silent]] = set()  # those of them that are not among the server's connections yet
    _deadline: asyncio.TimerHandle | None = None
    _read_bytes = 0  # of the head that is read: of its parts that have an end
    _head_bytes = 0
    _is_in_head = True
    _is_closed = False
    _handshake: _Silent | None = None
    _reader: asyncio.TimerHandle | None = None  # looks whether what was written is read
    _unread_bytes = 0
    _unread_times = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it; where there are too many, in place of the one that has said nothing for longest."""
        self.end_handshake()
        self._asked: deque[Any] = deque()  # requests without a whole answer
        super().connection_made(transport)
        if not self.makes_room():
            self._refuse(503, "too_many_connections", "there are too many connections")
            return
        self._idle[self] = None
        self._await_head()

    def makes_room(self) -> bool:
        """Return whether it may stay; hangs up on the one that has said nothing for longest where there are too many.

        Else who only connects, and needs no token for that, would keep all others out.
        """
        if len(self.connections) + len(self._handshakes) <= MOST_CONNECTIONS:
            return True
        if self._idle:
            next(iter(self._idle)).give_up()
            return True
        return False

    def begin_handshake(self, handshake: _Silent) -> None:
        """Count a connection that will be this one after its handshake."""
        self._handshake = handshake
        self._handshakes.add(handshake)
        self._idle[handshake] = None

    def end_handshake(self) -> None:
        """Count it no more as such."""
        handshake, self._handshake = self._handshake, None
        if handshake is not None:
            self._handshakes.discard(handshake)
            self._idle.pop(handshake, None)

    @classmethod
    def give_up_handshakes(cls) -> None:
        """Hang up on those that are under way."""
        for each in list(cls._handshakes):
            each.give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let it go."""
        self._idle.pop(self, None)
        self._stop_waiting()
        if self._reader is not None:
            self._reader.cancel()
        for cycle in self._asked:  # the server below tells the last of them alone; an earlier one would write on
            cycle.disconnected = True
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; refuse a head without an end."""
        if self._is_closed:
            return
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._deadline is None:
                self._await_head()  # the next request of a connection that is kept
        super().data_received(data)
        if self._is_in_head and self._head_bytes > _HEAD_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self._is_in_head = True
        self._read_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the path and the query."""
        if self._fits(len(url)):
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header; what stands behind a body (a trailer) is none, since proxies look at heads alone."""
        if not self._is_in_head or not self._fits(len(name) + len(value) + _AROUND_HEADER):
            return
        super().on_header(name, value)
        if len(self.headers) > _MOST_HEADERS:
            self._refuse(431, "head_too_large", "the request has too many headers")

    def on_headers_complete(self) -> None:
        """End a head."""
        self._idle.pop(self, None)
        self._is_in_head = False
        self._head_bytes = 0
        self._stop_waiting()
        if not self._is_closed:
            super().on_headers_complete()
            self._asked.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        if not self._is_closed:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if not self._is_closed:
            super().on_message_complete()
        self._is_in_head = True
        self._stop_waiting()

    def on_response_complete(self) -> None:
        """End an answer; the rest of a request that was answered before its end has to come soon."""
        self._asked.popleft()
        super().on_response_complete()
        cycle: Any = self.cycle  # of the request that is read now, which need not be the one that was answered
        if cycle.response_complete and not self._is_closed:
            self._idle[self] = None
        if not self._is_in_head and cycle.response_complete and self._deadline is None and not self._is_closed:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.give_up)

        self._watch_reader()

    def pause_writing(self) -> None:
        """Write no more until what was written is read."""
        super().pause_writing()
        self._watch_reader()

    def _watch_reader(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        if self._unread_bytes and self._reader is None:
            self._reader = self.loop.call_later(UNREAD_SECONDS, self._look_at_reader)

    def _look_at_reader(self) -> None:
        """Let one that reads nothing, or asks for more than it reads, make room; in the end hang up on it."""
        self._reader = None
        before = self._unread_bytes
        cycle: Any = self.cycle
        asks = cycle is not None and not cycle.response_complete
        self._watch_reader()
        if self._unread_bytes and (asks or self._unread_bytes > before - _LEAST_READ):
            self._unread_times += 1
            self._idle.setdefault(self)
        else:
            self._unread_times = 0
            if asks:
                self._idle.pop(self, None)
        if self._unread_times == _MOST_UNREAD:
            self.give_up()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        self._refuse(400, "malformed_request", msg)

    def _fits(self, size: int) -> bool:
        """Count a part of a head: one that comes all at once has an end before its bytes are counted as they come."""
        self._read_bytes += size
        if self._read_bytes > _HEAD_BYTES:
            self._refuse_head()
        return not self._is_closed

    def _refuse_head(self) -> None:
        self._refuse(431, "head_too_large", f"the head of the request is larger than {_HEAD_BYTES} bytes")

    def _await_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._too_late)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if self._is_in_head:
            self._refuse(408, "too_slow", "the head of the request did not arrive in time")

    def give_up(self) -> None:
        """Hang up without an answer, and at once: who reads nothing would have a mere close wait for ever."""
        self._idle.pop(self, None)
        self._stop_waiting()
        self._is_closed = True
        self.transport.abort()

    def _refuse(self, status: int, code: str, message: str) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._stop_waiting()
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle  # None before the first request, whatever its type says
        busy = cycle is not None and not cycle.response_complete
        if not busy:  # else an answer is under way, which is not to be mixed with ours
            body = json.dumps({"error": {"code": code, "message": message}}).encode()
            head = (
                f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\n"
                f"{schemas.SERVICE_HEADER}: {schemas.API_VERSION}\r\nconnection: close\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
        self.loop.call_later(_CLOSE_SECONDS, self.transport.abort)


class TlsHandshake:
    """A connection from its accept to the end of its TLS handshake.

    Args:
        connection: that was accepted.
        context: of the server.
        then: the protocol that has the connection after that.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, then: SlowClientProtocol) -> None:
        self._connection = connection
        self._has_begun = False
        self._then = then
        self._shaking = asyncio.create_task(self._shake_hands(context), name="TLS handshake")
        self._shaking.add_done_callback(self._close)
        then.begin_handshake(self)
        if not then.makes_room():
            self.give_up()

    def give_up(self) -> None:
        """Hang up without an answer."""
        self._then.end_handshake()
        self._shaking.cancel()

    async def _shake_hands(self, context: ssl.SSLContext) -> None:
        self._has_begun = True
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._then, self._connection, ssl=context, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError as error:  # of TLS too: it speaks something else, took too long, or has gone
            _log.debug("a TLS handshake has failed: %s", error)
        finally:
            self._then.end_handshake()

    def _close(self, _: "asyncio.Task[None]") -> None:
        if not self._has_begun:  # else the event loop does
            self._connection.close()


async def accept_tls(
    listener: socket.socket, context: ssl.SSLContext, make: Callable[[], SlowClientProtocol]
) -> NoReturn:
    """Accept connections for ever, each with a handshake that holds up no other.

    Args:
        listener: that listens, and does not block.
        context: of the server.
        make: makes the protocol of one connection.
    """
    try:
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    _log.warning("no connection can be accepted: %s", error)
                    await asyncio.sleep(_AGAIN_SECONDS)
                continue  # else the client has gone already
            TlsHandshake(connection, context, make())
    finally:
        SlowClientProtocol.give_up_handshakes()


_PHRASES: Final[dict[int, Any]] = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
