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
from typing import Any, Final
from urllib.parse import parse_qsl

from jobq import strict_json
from jobq.errors import JobqError, MalformedTask
from jobq.server import generator, leases, openapi, queues, system, tasks, wire
from jobq.server.endpoint import QUEUE, Call, Endpoint, validated
from jobq.server.limits import Rate
from jobq.server.metrics import Metrics
from jobq.server.places import Places
from jobq.server.problems import Refused, refused_for
from jobq.server.tokens import Scope, TokenBook, TokenRecord

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_log: Final = logging.getLogger("jobq.server")
_audit: Final = logging.getLogger("jobq.audit")
_LOOPBACK: Final = {"127.0.0.1", "localhost", "::1", "[::1]"}
_ANYONE: Final = "-"
_MOST_QUERY: Final = 4096
_MOST_PARAMETERS: Final = 20
_SEND_SECONDS: Final = 60.0
_DRAINED: Final = 4  # times the largest body: what is read of a larger one before it is refused
_SERVICE: Final = (wire.SERVICE_HEADER.lower().encode(), wire.API_VERSION.encode())
_JSON: Final = (b"content-type", b"application/json")
_COMMON_HEADERS: Final = [_SERVICE, (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a request may cost.

    Attributes:
        body_bytes: the largest body.
        body_seconds: how long a body may take to arrive.
        seconds: how long an answer may take, beside what the request itself asks to wait.
        rate, burst: requests a second of one caller, and at once.
        bad_tokens: a second from one address.
    """

    body_bytes: int = 16 * 1024 * 1024
    body_seconds: float = 30.0
    seconds: float = 60.0
    rate: float = 5_000.0
    burst: float = 10_000.0
    bad_tokens: float = 5.0


class Service:
    """The application.

    Args:
        places: the queues; open while requests come.
        needs_tokens: whether a token is needed though there may be none; else it is as soon as there is one.
        limits: for each request.

    Attributes:
        is_stopping: no request is to wait any longer.
        replica: names this process.
    """

    def __init__(self, places: Places, *, needs_tokens: bool = False, limits: Limits | None = None) -> None:
        self.places = places
        self.replica = uuid.uuid4().hex[:12]
        self.metrics = Metrics()
        self.is_stopping = False
        self._needs_tokens = needs_tokens
        self._limits = limits or Limits()
        self._rate = Rate(self._limits.rate, self._limits.burst)
        self._bad = Rate(self._limits.bad_tokens, 4 * self._limits.bad_tokens)
        self._book: TokenBook | None = None
        self._waiting: set[asyncio.Event] = set()
        self.endpoints = (
            *tasks.ENDPOINTS,
            *leases.ENDPOINTS,
            *queues.ENDPOINTS,
            *generator.ENDPOINTS,
            *system.ENDPOINTS,
        )
        self._routes = _Routes(self.endpoints)
        self.openapi = openapi.document(self.endpoints, default_queue=places.default)

    def stop(self) -> None:
        """Let everything that waits be answered at once, with what there is."""
        self.is_stopping = True
        for gone in self._waiting:
            gone.set()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        self.metrics.waiting.inc()
        name, status = "unknown", 500
        try:
            endpoint, path = self._routes.find(scope["method"], scope["path"])
            name = endpoint.name
            status, value = await self._answer(endpoint, path, scope, receive)
            headers: tuple[tuple[str, str], ...] = ()
        except Refused as refused:
            status, value, headers = refused.status, _problem(refused), refused.headers
        finally:
            self.metrics.waiting.dec()
        self.metrics.requests.labels(name, status).inc()
        self.metrics.seconds.labels(name).observe(time.perf_counter() - began)
        await _send(send, status, value, headers, is_head=scope["method"] == "HEAD")

    async def _answer(
        self, endpoint: Endpoint, path: Mapping[str, str], scope: MutableMapping[str, Any], receive: Receive
    ) -> tuple[int, Any]:
        call: Call | None = None
        status = 500
        try:
            call = await self._call(endpoint, path, scope, receive)
            async with asyncio.timeout(self._limits.seconds + getattr(call.body, "wait_seconds", 0.0)):
                status, value = await self._handled(endpoint, call, receive)
        except Refused as refused:
            status = refused.status
            raise
        except TimeoutError:
            status = 504
            raise Refused(504, "unknown", "it took too long; it may or may not have been done") from None
        except JobqError as error:
            answer = refused_for(error)
            status = answer.status
            if status >= 500:  # noqa: PLR2004 - what HTTP says of the server
                _log.warning("%s: %s: %s", endpoint.name, type(error).__name__, error)
            raise answer from None
        except Exception:  # noqa: BLE001 - the last resort: no stack trace leaves the service
            incident = uuid.uuid4().hex[:8]
            _log.exception("incident %s in %s", incident, endpoint.name)
            raise Refused(500, "internal", f"the service failed; its log tells more under {incident}") from None
        finally:
            if call is not None:
                call.end()
                if endpoint.changes:
                    self.tell(endpoint.name, call, status)
        return status, value

    async def _handled(self, endpoint: Endpoint, call: Call, receive: Receive) -> tuple[int, Any]:
        if not getattr(call.body, "wait_seconds", 0.0):
            return await endpoint.handler(call)
        watching = asyncio.create_task(_watch(receive, call.gone), name="client hangs up")
        self._waiting.add(call.gone)
        try:
            if self.is_stopping:
                call.gone.set()
            return await endpoint.handler(call)
        finally:
            self._waiting.discard(call.gone)
            watching.cancel()

    async def _call(
        self, endpoint: Endpoint, path: Mapping[str, str], scope: MutableMapping[str, Any], receive: Receive
    ) -> Call:
        headers = _headers(scope)
        address = str((scope.get("client") or ("unknown",))[0])
        query = _query(scope["query_string"])
        queue = path.get("queue") or query.get("queue") or self.places.default
        if not QUEUE.fullmatch(queue):
            raise Refused(400, "malformed_request", "queue: 1 to 63 letters, digits, dots, dashes and underscores")
        record = None if endpoint.is_open else await self._holder(headers, address)
        caller = _ANYONE if record is None else record.id
        if not endpoint.is_open and (waits := self._rate.wait(caller if record else address)):
            raise Refused(429, "too_many_requests", "slower", headers=(("Retry-After", str(int(waits) + 1)),))

        def may(scope_: Scope, queue_: str) -> bool:
            return record is None or record.permits(scope_, queue_)

        call = Call(self, queue, path, query, None, caller, address, asyncio.Event(), may)
        if endpoint.scope is not None:
            call.needs(endpoint.scope)
        if endpoint.body is not None:
            call.body = validated(endpoint.body, await self._body(headers, receive))
        return call

    async def _holder(self, headers: Mapping[bytes, bytes], address: str) -> TokenRecord | None:
        """Return whose token this is; None = no token is needed here."""
        self._book = self._book or TokenBook(self.places.root)
        given = headers.get(b"authorization", b"").decode("latin-1")
        try:
            if not given and not self._needs_tokens and not await self._book.are_there():
                _refuse_stranger_host(headers)
                return None
            kind, _, token = given.partition(" ")
            record = await self._book.holder_of(token.strip()) if kind.lower() == "bearer" else None
        except JobqError as error:
            raise refused_for(error) from None
        if record is None:
            if waits := self._bad.wait(address):
                raise Refused(429, "too_many_requests", "slower", headers=(("Retry-After", str(int(waits) + 1)),))
            raise Refused(
                401,
                "no_token",
                "a good token is needed: Authorization: Bearer ...",
                headers=(("WWW-Authenticate", "Bearer"),),
            )
        return record

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> Any:
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            # Any other type a browser would send for a page of someone else, without asking us first.
            raise Refused(415, "not_json", "send Content-Type: application/json")
        limit, length = self._limits.body_bytes, headers.get(b"content-length", b"0")
        too_large = Refused(
            413, "too_large", f"at most {limit} bytes; send it in parts", headers=(("Connection", "close"),)
        )
        if not length.isdigit() or int(length[:20]) > _DRAINED * limit:
            raise too_large
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                body = await _read(receive, limit)
        except TimeoutError:
            raise Refused(
                408, "too_slow", "the body did not arrive in time", headers=(("Connection", "close"),)
            ) from None
        if body is None:
            raise too_large
        try:
            return strict_json.loads(body)
        except MalformedTask as error:
            raise Refused(400, "malformed_request", str(error)) from None
        except RecursionError:
            raise Refused(400, "malformed_request", "nested too deep") from None

    def tell(self, did: str, call: Call, status: int) -> None:
        """Write the audit's one line: who did what to what, and how it ended; no contents (A5)."""
        fields = {
            "at": round(time.time(), 3),
            "caller": call.caller,
            "from": call.address,
            "did": did,
            "queue": call.queue,
            **call.audited,
            "status": status,
        }
        _audit.info("%s", json.dumps(fields))


async def _read(receive: Receive, limit: int) -> bytes | None:
    """Return the body; None = it is too large, and read to its end: a client that still sends hears no answer."""
    parts: list[bytes] = []
    size, is_last = 0, False
    while not is_last and size <= _DRAINED * limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "malformed_request", "the request ended in the midst of its body")
        part = message.get("body", b"")
        size += len(part)
        if size <= limit:
            parts.append(part)
        is_last = not message.get("more_body")
    return b"".join(parts) if size <= limit else None


class _Routes:
    """Finds the endpoint of a path."""

    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self._fixed: dict[str, dict[str, Endpoint]] = {}
        self._variable: list[tuple[tuple[str, ...], dict[str, Endpoint]]] = []
        for endpoint in endpoints:
            if "{" not in endpoint.path:
                self._fixed.setdefault(endpoint.path, {})[endpoint.method] = endpoint
                continue
            parts = tuple(endpoint.path.split("/"))
            methods = next((known for each, known in self._variable if each == parts), None)
            if methods is None:
                methods = {}
                self._variable.append((parts, methods))
            methods[endpoint.method] = endpoint

    def find(self, method: str, path: str) -> tuple[Endpoint, dict[str, str]]:
        """Return the endpoint, and the variable parts of the path; raises Refused."""
        variables: dict[str, str] = {}
        methods = self._fixed.get(path)
        if methods is None or method not in methods:
            given = path.split("/")
            for parts, known in self._variable:
                if len(parts) == len(given) and all(
                    part[:1] == "{" or part == word for part, word in zip(parts, given, strict=True)
                ):
                    variables = {part[1:-1]: word for part, word in zip(parts, given, strict=True) if part[:1] == "{"}
                    if methods is None or method in known:
                        methods = known
                    break
        if methods is None or any(not word for word in variables.values()):
            raise Refused(404, "no_such_path", "there is nothing here; /openapi.json tells what there is")
        endpoint = methods.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            raise Refused(
                405, "no_such_method", f"not with {method[:20]!a}", headers=(("Allow", ", ".join(sorted(methods))),)
            )
        return endpoint, variables


def _headers(scope: MutableMapping[str, Any]) -> dict[bytes, bytes]:
    return dict(scope["headers"])


def _query(given: bytes) -> dict[str, str]:
    if not given:
        return {}
    if len(given) > _MOST_QUERY:
        raise Refused(400, "malformed_request", "the query is too long")
    try:
        pairs = parse_qsl(
            given.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS
        )
    except ValueError:
        raise Refused(400, "malformed_request", "the query is no list of parameters in UTF-8") from None
    return dict(pairs)


def _refuse_stranger_host(headers: Mapping[bytes, bytes]) -> None:
    """Where no token is needed, refuse what a browser was led here for by another name (DNS rebinding)."""
    host = headers.get(b"host", b"localhost").decode("latin-1").lower()
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name not in _LOOPBACK:
        raise Refused(403, "forbidden", "without tokens this service answers to localhost alone")


async def _watch(receive: Receive, gone: asyncio.Event) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()


def _problem(refused: Refused) -> dict[str, Any]:
    return {"error": {"code": refused.code, "message": refused.message, **refused.more}}


async def _send(send: Send, status: int, value: Any, more: tuple[tuple[str, str], ...], *, is_head: bool) -> None:
    if isinstance(value, system.Text):
        body, kind = value.body, (b"content-type", value.kind)
    else:
        body, kind = json.dumps(value, separators=(",", ":")).encode(), _JSON
    headers = [kind, (b"content-length", b"%d" % len(body)), *_COMMON_HEADERS]
    headers += [(name.lower().encode(), text.encode("latin-1", "replace")) for name, text in more]
    # A client that does not read holds nothing up for longer; the server below then closes its connection.
    async with asyncio.timeout(_SEND_SECONDS):
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if is_head else body})
