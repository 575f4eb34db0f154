"""One request, from its head to its answer: who asks, may they, is it well formed; then the endpoint's handler.

An ASGI application without a framework: routes, OpenAPI and documentation all come from the table of endpoints, and
nothing stands between it and the socket that would have to be reckoned with.
"""

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pydantic import BaseModel

from jobq.errors import JobqError
from jobq.selecting import selecting
from jobq.server import (
    batches,
    deliveries,
    health,
    journal,
    leases,
    load_generator,
    notes,
    openapi,
    own_token,
    queues,
    refusals,
    schemas,
    tasks,
    views,
)
from jobq.server.backend_pool import ServedPool
from jobq.server.endpoint import QUEUE, Endpoint, Routes
from jobq.server.error_responses import RequestRefused, refused_for
from jobq.server.request import RequestCall, ServiceState
from jobq.server.request_parsing import (
    LARGE_BYTES,
    Message,
    Receive,
    aside,
    body_of,
    headers_of,
    query_of,
    refuse_other_sites,
    validated,
)
from jobq.server.shares import FairShare, RateShare
from jobq.server.tokens import TokenBook, TokenRecord

Send = Callable[[Message], Awaitable[None]]

_log: Final = logging.getLogger("jobq.server")
_ANYONE: Final = "-"
_MANY_VALUED: Final = 2  # bodies of many values that are in memory at once
_LARGE_ANSWERS: Final = 8  # in memory at once, until they are sent
_LARGE_OF_ONE: Final = 2  # of one caller
_ROOM_SECONDS: Final = 20.0  # that a large body waits for others
_TOO_MANY: Final = 429
_SERVICE: Final = (schemas.SERVICE_HEADER.lower().encode(), schemas.API_VERSION.encode())
_JSON: Final = (b"content-type", b"application/json")
_COMMON_HEADERS: Final = [_SERVICE, (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a request may cost.

    Attributes:
        body_bytes: the largest body.
        body_seconds: how long a body may take to arrive.
        all_bodies_bytes, bodies_of_one_bytes: what large bodies have at once, in all and of one caller; the next waits.
        seconds: how long an answer may take, beside what the request itself asks to wait.
        rate, burst: requests a second of one caller, and at once.
        bad_tokens: a second from one address.
    """

    body_bytes: int = 16 * 1024 * 1024
    body_seconds: float = 30.0
    all_bodies_bytes: int = 128 * 1024 * 1024
    bodies_of_one_bytes: int = 32 * 1024 * 1024
    seconds: float = 60.0
    rate: float = 5_000.0
    burst: float = 10_000.0
    bad_tokens: float = 5.0


class App:
    """The application.

    Args:
        places: the queues; open while requests come.
        needs_tokens: whether a token is needed though there may be none; else it is as soon as one was made.
        tokens: that are good; None = those that are kept in the place.
        limits: for each request.

    Attributes:
        service: what its requests share.
    """

    def __init__(
        self,
        places: ServedPool,
        *,
        needs_tokens: bool = False,
        tokens: TokenBook | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._needs_tokens = needs_tokens
        self._limits = limits or Limits()
        self._rate = RateShare(self._limits.rate, self._limits.burst)
        self._bad = RateShare(self._limits.bad_tokens, 4 * self._limits.bad_tokens)
        self._refusals = refusals.Refusals()
        self._room = FairShare(self._limits.all_bodies_bytes, self._limits.bodies_of_one_bytes)
        self._many_valued = FairShare(_MANY_VALUED, 1)
        self._answers = FairShare(_LARGE_ANSWERS, _LARGE_OF_ONE)
        self._book = tokens or TokenBook(places.root)
        self._waiting: set[asyncio.Event] = set()
        self._able = ((schemas.CAPABILITIES_HEADER, "selects"),) if selecting(places.root) is not None else ()
        parts = tasks, deliveries, leases, queues, journal, batches, views, notes, own_token, load_generator, health
        endpoints = [each for part in parts for each in part.ENDPOINTS]
        self._routes = Routes(endpoints)
        document = openapi.document(endpoints, default_queue=places.default, needs_tokens=needs_tokens)
        # Written once: anybody may ask for it, as often as he likes.
        self.service = ServiceState(places, openapi=json.dumps(document, indent=1).encode())

    def stop(self) -> None:
        """Let everything that waits be answered at once, with what there is."""
        self.service.is_stopping = True
        for gone in self._waiting:
            gone.set()
        self._refusals.end()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        began, metrics = time.perf_counter(), self.service.metrics
        metrics.waiting.inc()
        name, status = "unknown", 500
        async with contextlib.AsyncExitStack() as until_sent:
            try:
                endpoint, path = self._routes.find(scope["method"], scope["path"])
                name = endpoint.name
                status, value = await self._answer(endpoint, path, scope, receive, until_sent)
                headers: tuple[tuple[str, str], ...] = ()
            except RequestRefused as refused:
                status, value, headers = refused.status, _problem(refused), refused.headers
            finally:
                metrics.waiting.dec()
            metrics.requests.labels(name, status).inc()
            metrics.seconds.labels(name).observe(time.perf_counter() - began)
            await _send(send, status, value, (*headers, *self._able), is_head=scope["method"] == "HEAD")

    async def _answer(
        self,
        endpoint: Endpoint,
        path: Mapping[str, str],
        scope: MutableMapping[str, Any],
        receive: Receive,
        until_sent: contextlib.AsyncExitStack,
    ) -> tuple[int, Any]:
        call: RequestCall | None = None
        status, has_begun = 500, False
        try:
            headers = headers_of(scope)
            call = self._call(endpoint, path, scope)
            await self._let_in(endpoint, call, headers, until_sent)
            async with contextlib.AsyncExitStack() as held:
                if endpoint.body is not None:
                    await self._read_body(endpoint.body, call, headers, receive, held)
                has_begun = True
                async with asyncio.timeout(self._limits.seconds + getattr(call.body, "wait_seconds", 0.0)):
                    status, value = await self._handled(endpoint, call, receive)
        except RequestRefused as refused:
            status = refused.status
            raise
        except TimeoutError:
            status = 504
            raise RequestRefused(504, "unknown", "it took too long; it may or may not have been done") from None
        except JobqError as error:
            answer = refused_for(error)
            status = answer.status
            if status >= 500 or error.__cause__ is not None:  # noqa: PLR2004 - what HTTP says of the server
                _log.warning("%s: %s: %s", endpoint.name, type(error).__name__, error)
            raise answer from None
        except Exception:  # noqa: BLE001 - the last resort: no stack trace leaves the service
            incident = uuid.uuid4().hex[:8]
            _log.exception("incident %s in %s", incident, endpoint.name)
            raise RequestRefused(500, "internal", f"the service failed; its log says more under {incident}") from None
        finally:
            if call is not None:
                call.end()
                if status in refusals.STATUSES:
                    self._refusals.note(call, endpoint.name, status)
                elif endpoint.changes and has_begun:
                    call.audit(endpoint.name, status)
        return status, value

    async def _handled(self, endpoint: Endpoint, call: RequestCall, receive: Receive) -> tuple[int, Any]:
        if not getattr(call.body, "wait_seconds", 0.0):
            return await _encoded(endpoint, call, await endpoint.handler(call))
        watching = asyncio.create_task(_watch(receive, call.gone), name="client hangs up")
        self._waiting.add(call.gone)
        try:
            if self.service.is_stopping:
                call.gone.set()
            return await _encoded(endpoint, call, await endpoint.handler(call))
        finally:
            self._waiting.discard(call.gone)
            watching.cancel()

    def _call(self, endpoint: Endpoint, path: Mapping[str, str], scope: MutableMapping[str, Any]) -> RequestCall:
        address = str((scope.get("client") or ("unknown",))[0])
        query = query_of(scope["query_string"])
        # What is about no queue is about the default one: so it wants a token of that one, whatever the query says.
        named = query.get("queue") if endpoint.has_queue else None
        queue = path.get("queue", self.service.places.default if named is None else named)
        if not QUEUE.fullmatch(queue):
            raise RequestRefused(
                400, "malformed_request", "queue: 1 to 63 letters, digits, dots, dashes and underscores"
            )
        if endpoint.is_of_default and queue != self.service.places.default:
            raise RequestRefused(
                400, "malformed_request", f"queue: this is about {self.service.places.default!r} alone"
            )
        for parameter in endpoint.parameters if query else ():
            parameter.read(query)
        return RequestCall(
            self.service, queue, path, query, None, _ANYONE, address, asyncio.Event(), lambda _scope, _queue: True
        )

    async def _let_in(
        self,
        endpoint: Endpoint,
        call: RequestCall,
        headers: Mapping[bytes, bytes],
        until_sent: contextlib.AsyncExitStack,
    ) -> None:
        """Say of the call who makes it, if he may, and wait for a turn to have a large answer."""
        if endpoint.is_open:
            return
        if (record := await self._holder(headers, call.address)) is not None:
            call.caller, call.may, call.token = record.id, record.permits, record
        if waits := self._rate.wait(_who(call)):
            raise _too_many("slower", waits)
        if endpoint.scope is not None:
            call.needs(endpoint.scope)
        if endpoint.is_large:
            await _wait_for(until_sent, call, self._answers, 1, "too much is asked for at once; ask for less")

    async def _read_body(
        self,
        model: type[BaseModel],
        call: RequestCall,
        headers: Mapping[bytes, bytes],
        receive: Receive,
        held: contextlib.AsyncExitStack,
    ) -> None:
        async def wait_for(room: FairShare, size: int) -> None:
            await _wait_for(held, call, room, size, "too much is sent at once; send less")

        fields, call.size = await body_of(
            headers,
            receive,
            limit=self._limits.body_bytes,
            seconds=self._limits.body_seconds,
            room=partial(wait_for, self._room),
            turn=partial(wait_for, self._many_valued),
        )
        call.body = await aside(call.size, lambda: validated(model, fields))

    async def _holder(self, headers: Mapping[bytes, bytes], address: str) -> TokenRecord | None:
        """Return whose token this is; None = no token is needed here."""
        given = headers.get(b"authorization", b"").decode("latin-1")
        try:
            if not given and not self._needs_tokens and not await self._book.is_kept():
                refuse_other_sites(headers)
                return None
            kind, _, token = given.partition(" ")
            is_bearer = kind.lower() == "bearer"
            record = await self._book.holder_of(token.strip()) if is_bearer else None
            if record is None and (waits := self._bad.wait(address)):
                raise _too_many("slower", waits)
            if record is None and is_bearer:
                await self._book.read_again()
                record = await self._book.holder_of(token.strip())
        except JobqError as error:
            raise refused_for(error) from None
        if record is None:
            raise RequestRefused(
                401,
                "no_token",
                "a good token is needed: Authorization: Bearer ...",
                headers=(("WWW-Authenticate", "Bearer"),),
            )
        return record


async def _encoded(endpoint: Endpoint, call: RequestCall, reply: tuple[int, Any]) -> tuple[int, Any]:
    """Return a reply whose value is written as JSON where that may take long."""
    status, value = reply
    size = LARGE_BYTES + 1 if endpoint.is_large else call.answer_size
    if size > LARGE_BYTES:
        value = health.TextAnswer(await aside(size, partial(_written, value)), _JSON[1])
    return status, value


def _who(call: RequestCall) -> str:
    """Return whose share a call uses: its token's, or its address's where none is needed."""
    return call.address if call.caller == _ANYONE else call.caller


async def _wait_for(
    held: contextlib.AsyncExitStack, call: RequestCall, room: FairShare, size: int, else_said: str
) -> None:
    try:
        async with asyncio.timeout(_ROOM_SECONDS):
            await held.enter_async_context(room.taken(_who(call), size))
    except TimeoutError:
        raise _too_many(else_said, 1.0) from None


def _too_many(message: str, waits: float) -> RequestRefused:
    return RequestRefused(_TOO_MANY, "too_many_requests", message, headers=(("Retry-After", str(int(waits) + 1)),))


async def _watch(receive: Receive, gone: asyncio.Event) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()


def _problem(refused: RequestRefused) -> dict[str, Any]:
    return {"error": {"code": refused.code, "message": refused.message, **refused.more}}


def _written(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


async def _send(send: Send, status: int, value: Any, more: tuple[tuple[str, str], ...], *, is_head: bool) -> None:
    if isinstance(value, health.TextAnswer):
        body, kind = value.body, (b"content-type", value.kind)
    else:
        body, kind = _written(value), _JSON
    headers = [kind, (b"content-length", b"%d" % len(body)), *_COMMON_HEADERS]
    headers += [(name.lower().encode(), text.encode("latin-1", "replace")) for name, text in more]
    # Who does not read holds nothing up for long: the server below hangs up on it.
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if is_head else body})
