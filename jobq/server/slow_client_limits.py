"""Connections that are slow, endless or too many: each has so long to bring a request's head, and so many bytes.

The server below (uvicorn) waits for ever for the first byte of a request, and keeps whatever heads bring.
"""

import asyncio
import json
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from jobq.server import schemas

HEAD_SECONDS: Final = 10.0
_HEAD_BYTES: Final = 32 * 1024
_AROUND_HEADER: Final = 4  # ": " and the end of the line
_MOST_HEADERS: Final = 100
MOST_CONNECTIONS: Final = 4_000


class SlowClientProtocol(HttpToolsProtocol):
    """One connection: HTTP/1.1 with limits on the head of a request."""

    _idle: ClassVar[dict["SlowClientProtocol", None]] = {}  # those that have no whole head of a request, oldest first
    _deadline: asyncio.TimerHandle | None = None
    _read_bytes = 0  # of the head that is read: of its parts that have an end
    _head_bytes = 0
    _is_in_head = True
    _is_closed = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it; where there are too many, in place of the one that has said nothing for longest."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            if not self._idle:
                self._refuse(503, "too_many_connections", "there are too many connections")
                return
            # Else who only connects, and needs no token for that, keeps all others out.
            next(iter(self._idle)).give_up()
        self._idle[self] = None
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let it go."""
        self._idle.pop(self, None)
        self._stop_waiting()
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
        super().on_response_complete()
        cycle: Any = self.cycle  # of the request that is read now, which need not be the one that was answered
        if cycle.response_complete and not self._is_closed:
            self._idle[self] = None
        if not self._is_in_head and cycle.response_complete and self._deadline is None and not self._is_closed:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.give_up)

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
        """Hang up without an answer."""
        self._idle.pop(self, None)
        self._stop_waiting()
        self._is_closed = True
        self.transport.close()

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


_PHRASES: Final[dict[int, Any]] = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
