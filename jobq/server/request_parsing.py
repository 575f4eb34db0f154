"""What a request says: its headers, its query and its body, read with as little trust as is due."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ValidationError

from jobq.errors import MalformedTask
from jobq.formats import strict_json
from jobq.local_service import LOOPBACK
from jobq.server import schemas
from jobq.server.error_responses import RequestRefused

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Room = Callable[[int], Awaitable[None]]
Result = TypeVar("Result")

_MOST_QUERY: Final = 4096
_MOST_PARAMETERS: Final = 20
_DRAINED: Final = 4  # times the largest body: what is read of a larger one before it is refused
LARGE_BYTES: Final = 64 * 1024
# A proxy may have judged by the first of two where we would go by the last.
_ONLY_ONCE: Final = frozenset({b"authorization", b"host", b"content-type", b"origin"})
_OURS: Final = frozenset({b"", b"none", b"same-origin"})
# One for all, while the loop goes on to answer others; what one caller can have waiting here, his room bounds.
_parser: Final = ThreadPoolExecutor(1, thread_name_prefix="large bodies")


def headers_of(scope: MutableMapping[str, Any]) -> dict[bytes, bytes]:
    """Return the headers by their names; raises RequestRefused where one that decides stands twice."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _ONLY_ONCE and name in found:
            raise RequestRefused(400, "malformed_request", f"the header {name.decode('latin-1')} stands twice")
        found[name] = value
    return found


def query_of(given: bytes) -> dict[str, str]:
    """Return the parameters of a query."""
    if not given:
        return {}
    if len(given) > _MOST_QUERY:
        raise RequestRefused(400, "malformed_request", "the query is too long")
    try:
        pairs = parse_qsl(
            given.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS
        )
    except ValueError:
        raise RequestRefused(400, "malformed_request", "the query is no list of parameters in UTF-8") from None
    found = dict(pairs)
    if len(found) != len(pairs):  # as with headers
        raise RequestRefused(400, "malformed_request", "a parameter of the query stands twice")
    return found


def refuse_other_sites(headers: Mapping[bytes, bytes]) -> None:
    """Where no token is needed, refuse what a browser sends for a page of someone else.

    Such a page may have led it here by another name (DNS rebinding): its Host shows that. Or it sends, unasked and
    without seeing the answer, a POST without a body: Origin and Sec-Fetch-Site show it, which no page can take away.
    """
    host = headers.get(b"host", b"localhost").decode("latin-1").lower()
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name not in LOOPBACK | {"[::1]"}:
        raise RequestRefused(403, "forbidden", "without tokens this service answers to localhost alone")
    origin = headers.get(b"origin")
    is_other = origin is not None and _place_of(origin.decode("latin-1").lower()) != host
    if is_other or headers.get(b"sec-fetch-site", b"").lower() not in _OURS:
        raise RequestRefused(403, "forbidden", "without tokens this service answers no page of another site")


def _place_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


async def aside(size: int, work: Callable[[], Result]) -> Result:
    """Do what takes long for a body of so many bytes where it holds up no other request."""
    if size <= LARGE_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_parser, work)


async def body_of(
    headers: Mapping[bytes, bytes], receive: Receive, *, limit: int, seconds: float, room: Room, turn: Room
) -> tuple[Any, int]:
    """Return the JSON of a body, and its size.

    Args:
        headers: of the request.
        receive: gives its parts.
        limit: bytes that it may have.
        seconds: how long it may take to arrive, beside the wait for room.
        room: waits for so many bytes of room, for what is large.
        turn: waits until it is the caller's turn to have one body of many values read.

    Raises:
        RequestRefused: it is too large, too slow or no JSON.
    """
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        # Any other type a browser would send for a page of someone else, without asking us first.
        raise RequestRefused(415, "not_json", "send Content-Type: application/json")
    length = headers.get(b"content-length", b"0")
    too_large = RequestRefused(
        413, "too_large", f"at most {limit} bytes; send it in parts", headers=(("Connection", "close"),)
    )
    if not length.isdigit() or int(length[:20]) > _DRAINED * limit:
        raise too_large
    try:
        async with asyncio.timeout(seconds) as end:

            async def wait_for_room() -> None:
                end.reschedule(None)
                await room(min(int(length[:20]) or limit, limit))
                end.reschedule(asyncio.get_running_loop().time() + seconds)

            body = await _read(receive, limit, wait_for_room)
    except TimeoutError:
        raise RequestRefused(
            408, "too_slow", "the body did not arrive in time", headers=(("Connection", "close"),)
        ) from None
    if body is None:
        raise too_large
    try:
        if len(body) > LARGE_BYTES and await aside(len(body), lambda: _is_of_many_values(body)):
            await turn(1)
        return await aside(len(body), lambda: strict_json.loads(body, schemas.MAX_DEPTH)), len(body)
    except MalformedTask as error:
        raise RequestRefused(400, "malformed_request", str(error)) from None
    except RecursionError:
        raise RequestRefused(400, "malformed_request", "nested too deep") from None


def _is_of_many_values(body: bytes) -> bool:
    count = strict_json.count_values(body, few=schemas.MANY_VALUES, most=schemas.MAX_VALUES)
    if count > schemas.MAX_VALUES:
        raise RequestRefused(413, "too_large", f"at most {schemas.MAX_VALUES} values; send it in parts")
    return count > schemas.MANY_VALUES


async def _read(receive: Receive, limit: int, wait_for_room: Callable[[], Awaitable[None]]) -> bytes | None:
    """Return the body; None = it is too large, and read to its end: a client that still sends hears no answer."""
    parts: list[bytes] = []
    size, is_last, has_room = 0, False, False
    while not is_last and size <= _DRAINED * limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestRefused(400, "malformed_request", "the request ended in the midst of its body")
        part = message.get("body", b"")
        size += len(part)
        if size > LARGE_BYTES and not has_room:
            await wait_for_room()
            has_room = True
        if size <= limit:
            parts.append(part)
        is_last = not message.get("more_body")
    return b"".join(parts) if size <= limit else None


def validated(model: type[BaseModel], fields: Any) -> BaseModel:
    """Return the request; raises RequestRefused which says what is wrong, and where."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise malformed(error) from None


def malformed(error: ValidationError) -> RequestRefused:
    """Return the answer to what is no such request."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    what = first["msg"].removeprefix("Value error, ")
    return RequestRefused(400, "malformed_request", f"{where}: {what}" if where else what)
