"""A service that answers with the bytes that a test gives, whatever they are, and keeps what it was asked."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

HOST: Final = "127.0.0.1"
RECEIPT: Final = "AgAAAAMAAAAAAAAA/+8cOQ8g3AE="  # holds all that a query must quote
_MESSAGE: Final = (
    "<QueueMessage><MessageId>the-id</MessageId><InsertionTime>Fri, 20 Nov 2026 10:00:00 GMT</InsertionTime>"
    "<ExpirationTime>{expires}</ExpirationTime>{receipt}<TimeNextVisible>Fri, 20 Nov 2026 10:00:30 GMT"
    "</TimeNextVisible>{more}</QueueMessage>"
)


@dataclass(frozen=True)
class Asked:
    """One request, as it came."""

    method: str
    path: str
    raw_query: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.raw_query, keep_blank_values=True).items()}


@dataclass(frozen=True)
class Cut:
    """Bytes after which the connection breaks."""

    bytes_: bytes


@dataclass(frozen=True)
class Late:
    """Bytes that come after a while, the last of them after one more."""

    bytes_: bytes
    seconds: float


Reply = bytes | Cut | Late | None


@dataclass
class RawService:
    """Answers in order; the last answer serves for all that follow.

    Attributes:
        answers: None = never.
        asked: what has come.
    """

    answers: list[Reply]
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while True:
                self.asked.append(await _asked(reader, number))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is None:
                    await reader.read()
                    return
                if isinstance(answer, Late):
                    await asyncio.sleep(answer.seconds)
                    writer.write(answer.bytes_[:-1])
                    await asyncio.sleep(answer.seconds)
                    writer.write(answer.bytes_[-1:])
                else:
                    writer.write(answer.bytes_ if isinstance(answer, Cut) else answer)
                await writer.drain()
                if isinstance(answer, Cut):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(*answers: Reply, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawService]:
    """Serve on a free port."""
    service = RawService(list(answers))
    server = await asyncio.start_server(service.serve, HOST, 0, ssl=tls)
    async with server:
        service.port = server.sockets[0].getsockname()[1]
        yield service
        server.close()


async def _asked(reader: asyncio.StreamReader, connection: int) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ")
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    return Asked(method, parts.path, parts.query, headers, body, connection)


def answer(
    status: int, body: bytes = b"", *, is_theirs: bool = True, length: int | None = None, **headers: str
) -> bytes:
    """Return an answer; `is_theirs` = with the header that the service sets on all of its own."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if is_theirs:
        named = {"x-ms-request-id": "1", "Date": formatdate(usegmt=True)} | named
    if status != 204:
        named = {"Content-Length": str(len(body) if length is None else length)} | named
    return "\r\n".join([f"HTTP/1.1 {status} Words", *(f"{n}: {v}" for n, v in named.items()), "", ""]).encode() + body


def refusal(status: int, code: str, **headers: str) -> bytes:
    """Return an error in the service's form."""
    body = f'\ufeff<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>No.</Message></Error>'
    named: Any = {"x_ms_error_code": code} if code else {}
    return answer(status, body.encode(), Content_Type="application/xml", **(named | headers))


def messages(*texts: str, receipt: str = RECEIPT, expires: str = "Fri, 31 Dec 9999 23:59:59 GMT") -> bytes:
    """Return the body of an answer to a receive; texts are XML already. None at all: of an answer to a put."""
    held = f"<PopReceipt>{receipt}</PopReceipt>" if receipt else ""

    def one(more: str) -> str:
        return _MESSAGE.format(expires=expires, receipt=held, more=more)

    mores = [f"<DequeueCount>3</DequeueCount><MessageText>{text}</MessageText>" for text in texts]
    return (
        f'\ufeff<?xml version="1.0" encoding="utf-8"?><QueueMessagesList>{"".join(map(one, mores or [""]))}'
        "</QueueMessagesList>".encode()
    )


DONE: Final = {
    "put": answer(201, messages(), Content_Type="application/xml"),
    "get": answer(200, messages("one"), Content_Type="application/xml"),
    "update": answer(204, x_ms_popreceipt="new", x_ms_time_next_visible="Fri, 20 Nov 2026 10:00:30 GMT"),
    "delete": answer(204),
    "count": answer(200, x_ms_approximate_messages_count="7"),
}
