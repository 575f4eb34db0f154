"""Forms as they arrive: so large, so slow and so many at most, since whoever reaches us can send one to sign in."""

import asyncio
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from jobq.dashboard.session import Viewer
from jobq.server.error_responses import RequestRefused

_MOST_BYTES = 256 * 1024  # 500 ids of 100 characters, four times over
_SIGN_IN_BYTES = 4 * 1024  # a token, and where to go then
_SECONDS = 10.0
_MOST_SIGN_INS = 100  # forms that arrive at the same time, of those who are nobody yet
_arriving: dict[asyncio.Timeout, None] = {}  # of these, the oldest first


async def form_of(request: Request, viewer: Viewer | None) -> list[tuple[str, str]]:
    """Return the fields of a form that was sent.

    Args:
        request: a POST.
        viewer: whose form it must be; None = nobody's yet, where he signs in.

    Raises:
        RequestRefused: it is too large, too slow, no form, or was not made for this session.
    """
    try:
        body = await (_sign_in_body(request) if viewer is None else _body_of(request, _MOST_BYTES))
        fields = parse_qsl(body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), encoding="utf-8")
    except TimeoutError:
        raise RequestRefused(408, "too_slow", "the form did not arrive in time; send it again") from None
    except (ClientDisconnect, ValueError):  # in the first case nobody reads this
        raise RequestRefused(400, "malformed_request", "that is no form") from None
    given = dict(fields)
    request.state.back = given.get("back") or given.get("next", "")  # for a page that says what is wrong
    if viewer is not None and not viewer.is_proof(given.get("form", ""), "form"):
        raise RequestRefused(403, "forbidden", "this form is of another session; load the page again")
    return fields


async def _sign_in_body(request: Request) -> bytes:
    """Return the body of a sign-in; where too many arrive at once, the one that has taken longest is given up."""
    timeout = asyncio.timeout(_SECONDS)
    async with timeout:
        _arriving[timeout] = None
        try:
            if len(_arriving) > _MOST_SIGN_INS:
                oldest = next(iter(_arriving))
                oldest.reschedule(asyncio.get_running_loop().time())
                del _arriving[oldest]
            return await _read(request, _SIGN_IN_BYTES)
        finally:
            _arriving.pop(timeout, None)


async def _body_of(request: Request, most_bytes: int) -> bytes:
    async with asyncio.timeout(_SECONDS):
        return await _read(request, most_bytes)


async def _read(request: Request, most_bytes: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            raise RequestRefused(413, "too_large", "that is too much at once; choose fewer")
    return bytes(body)
