"""A proxy before an HTTP service that loses answers, breaks connections, goes silent or away, and counts requests.

Lives in the loop of the test; clients may be in other processes. HTTP/1.1 without TLS, as emulators speak it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from enum import StrEnum
from typing import Final
from urllib.parse import parse_qs, urlsplit

from jobq.clock import SystemClock
from tests.support.proxy import HOST, Proxy, Streams

_CLOCK: Final = SystemClock()
_DATE: Final = formatdate(usegmt=True)  # the one that answers dates it
_BODILESS: Final = frozenset({204, 304})


class Strike(StrEnum):
    """What can befall one request."""

    LOSE_ANSWER = "lose_answer"  # done by the service; then the connection breaks
    SWALLOW_ANSWER = "swallow_answer"  # done by the service; no answer, the connection stays
    BREAK = "break"  # read and not passed on; the connection breaks, as a kept one does that was given up meanwhile
    HANG = "hang"  # read and not passed on; no answer, the connection stays: a black hole
    BUSY = "busy"  # 503 ServerBusy
    DENY = "deny"  # 403 AuthorizationPermissionMismatch
    THROTTLE = "throttle"  # 429
    TIME_OUT = "time_out"  # 500 OperationTimedOut: it may have been done all the same
    MISSING = "missing"  # 404 without a code, as a gateway says it
    BARE = "bare"  # 204 from a proxy in between, without a header of the service's
    PAGE = "page"  # 200 and a page for people, as a portal before the network answers
    GATEWAY = "gateway"  # done by the service; then 503 from a proxy in between
    REDIRECT = "redirect"  # 307 to the same place under another name


def _plain(head: str, body: str = "") -> bytes:
    return f"HTTP/1.1 {head}\r\nDate: {_DATE}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def _refusal(status: int, phrase: str, code: str) -> bytes:
    body = f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>{phrase}</Message></Error>'
    return _plain(
        f"{status} {phrase}\r\nContent-Type: application/xml\r\nx-ms-error-code: {code}\r\nx-ms-request-id: 0", body
    )


_ANSWERS: Final = {
    Strike.BUSY: (503, _refusal(503, "Server Busy", "ServerBusy")),
    Strike.DENY: (403, _refusal(403, "Forbidden", "AuthorizationPermissionMismatch")),
    Strike.THROTTLE: (429, _refusal(429, "Too Many Requests", "")),
    Strike.TIME_OUT: (500, _refusal(500, "Operation Timed Out", "OperationTimedOut")),
    Strike.MISSING: (404, _plain("404 Not Found")),
    Strike.BARE: (204, f"HTTP/1.1 204 No Content\r\nDate: {_DATE}\r\n\r\n".encode()),
    Strike.PAGE: (200, _plain("200 OK\r\nContent-Type: text/html", "<html><body>Please sign in<br></body>")),
    Strike.REDIRECT: (307, _plain("307 Temporary Redirect\r\nLocation: http://localhost/elsewhere")),
}


@dataclass
class ProxiedRequest:
    """One request that the proxy read.

    Attributes:
        method: such as PUT.
        path: without the query.
        query: each parameter's first value.
        body: as sent.
        strike: what befell it.
        status, answer: the service's, once it is there; also where the client never saw it.
        began, ended: boottime in seconds at which it was read, and at which the answer was there.
    """

    method: str
    path: str
    query: dict[str, str]
    body: bytes
    strike: Strike | None = None
    status: int | None = None
    answer: bytes = b""
    began: float = 0.0
    ended: float | None = None


Matches = Callable[[ProxiedRequest], bool]


@dataclass
class _Plan:
    strike: Strike
    matches: Matches
    left: float  # how many requests it still strikes


@dataclass
class HttpProxy(Proxy):
    """Passes requests on to a port of this machine; an asynchronous context manager.

    Attributes:
        requests: all that were read, in order.
    """

    requests: list[ProxiedRequest] = field(default_factory=list)
    _plans: list[_Plan] = field(default_factory=list)

    def strike(
        self, strike: Strike, method: str = "", path: str = "", *, count: float = 1, matches: Matches | None = None
    ) -> None:
        """Let something befall the next requests that match.

        Args:
            strike: what.
            method: empty = any.
            path: a part of it; empty = any.
            count: how many requests; math.inf = until `heal`.
            matches: a closer look.
        """

        def both(request: ProxiedRequest) -> bool:
            return method in ("", request.method) and path in request.path and (matches is None or matches(request))

        self._plans.append(_Plan(strike, both, count))

    async def heal(self) -> None:
        """Pass everything on again, except what has been swallowed."""
        self._plans.clear()
        await self._listen()

    def seen(self, method: str = "", path: str = "") -> list[ProxiedRequest]:
        """Return the requests that match."""
        return [each for each in self.requests if method in ("", each.method) and path in each.path]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: Streams) -> None:
        answers: asyncio.StreamReader | None = None
        while head := await _head(reader):
            raw_body, body = await _body(reader, head)
            request = self._record(head, body)
            if request.strike in (Strike.BREAK, Strike.HANG):
                if request.strike is Strike.HANG:
                    await reader.read()  # until the client gives up
                return
            if request.strike in _ANSWERS:
                request.status, refusal = _ANSWERS[request.strike]
                writer.write(refusal)
                continue
            if answers is None or answers.at_eof():  # a kept connection that the service has closed meanwhile
                answers, to_service = await asyncio.open_connection(HOST, self.target)
                upstream.append(to_service)
            upstream[-1].write(head + raw_body)
            if not (answer := await _head(answers)):
                return  # the service has gone
            request.status = int(answer.split(b" ", 2)[1])
            raw_answer, request.answer = (b"", b"") if request.status in _BODILESS else await _body(answers, answer)
            request.ended = _CLOCK.boottime()
            self._changed.set()
            if request.strike is Strike.SWALLOW_ANSWER:
                await reader.read()
                return
            if request.strike is Strike.LOSE_ANSWER:
                return
            if request.strike is Strike.GATEWAY:
                writer.write(_plain("503 Service Unavailable"))
                continue
            writer.write(answer + raw_answer)
            await writer.drain()

    def _record(self, head: bytes, body: bytes) -> ProxiedRequest:
        method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        request = ProxiedRequest(method=method, path=parts.path, query=query, body=body, began=_CLOCK.boottime())
        for plan in self._plans:
            if plan.left > 0 and plan.matches(request):
                plan.left -= 1
                request.strike = plan.strike
                break
        self.requests.append(request)
        self._changed.set()
        return request


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""  # the other side has closed


async def _body(reader: asyncio.StreamReader, head: bytes) -> tuple[bytes, bytes]:
    """Return a body as it came, and without its chunks' frames."""
    headers = dict(_header(line) for line in head.split(b"\r\n")[1:] if b":" in line)
    if b"chunked" not in headers.get(b"transfer-encoding", b""):
        body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
        return body, body
    raw, body = b"", b""
    while True:
        line = await reader.readline()
        chunk = await reader.readexactly(int(line.split(b";")[0], 16) + 2)
        raw += line + chunk
        if len(chunk) == 2:
            return raw, body
        body += chunk[:-2]


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.strip().lower(), value.strip().lower()
