"""Requests to a service of a storage account: signed, sent once, and believed only as the service's own answer.

Not by the SDK, which takes a millisecond of CPU for what takes a third of that here. What an answer means is its
caller's to say; that there was none, or none of the service's, is said here.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import aiohttp
from yarl import URL

from jobq import __version__
from jobq.errors import BackendUnavailable
from jobq.formats.proxies import proxy_for
from jobq_azure.common.errors import NEVER_CONNECTED, NoAnswer, Unreadable, foreign_answer, why_not_connected
from jobq_azure.common.storage_signing import Signing

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy

_CLOSED: Final = (aiohttp.ServerDisconnectedError, ConnectionResetError)
_CODE: Final = re.compile(rb'"code": *"(\w+)"|<(?:m:)?code>(\w+)</', re.IGNORECASE)
_MOST_BYTES: Final = 64 * 1024 * 1024  # of an answer, several times of what any may have: memory is not the sender's


@dataclass(frozen=True, slots=True)
class StorageAnswer:
    """What the service has answered.

    Attributes:
        status: of HTTP.
        headers: whose names are found in any case.
        body: as it came.
    """

    status: int
    headers: "CIMultiDictProxy[str]" = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def code(self) -> str:
        """The service's word for a refusal; empty = it has none."""
        if code := self.headers.get("x-ms-error-code"):
            return code
        found = _CODE.search(self.body)
        return (found[1] or found[2]).decode() if found else ""


class _TooLarge(Exception):
    pass


class StorageRequests:
    """Requests of one queue or table.

    Args:
        session: sends them, each once (`http_session.new_session`).
        signing: signs them.
        place: for messages.
        timeout: of one request.
        repeats_closed: whether one is sent again whose kept connection was found closed: only where each of them may
            be repeated.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        signing: Signing,
        *,
        place: str,
        timeout: aiohttp.ClientTimeout,
        repeats_closed: bool = False,
    ) -> None:
        self._session = session
        self._signing = signing
        self._place = place
        self._timeout = timeout
        self._again_after = _CLOSED if repeats_closed else ()
        self._agent = _agent()
        self._proxy = proxy_for(signing.url)

    async def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes = b"",
    ) -> StorageAnswer:
        """Return the service's answer.

        One that is refused for its token (401) is sent once more where the service says whose token it takes: a request
        that is refused has done nothing.

        Args:
            method: of HTTP.
            path: below the service's address, quoted.
            query: not quoted.
            headers: beside those that sign it.
            body: empty = none.

        Raises:
            NoAnswer: nobody knows whether it took effect.
            BackendUnavailable, AccessDenied: it was never sent.
        """
        own = {"User-Agent": self._agent, "Accept-Encoding": "identity", **headers}
        url, signed = await self._signing.signed(method, path, query, own, len(body))
        answer = await self._answer(method, url, signed, body)
        if answer.status == HTTPStatus.UNAUTHORIZED and self._signing.has_another(signed, answer.headers):
            url, signed = await self._signing.signed(method, path, query, own, len(body))
            answer = await self._answer(method, url, signed, body)
        return answer

    async def _answer(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> StorageAnswer:
        try:
            try:
                answer = await self._sent(method, url, headers, body)
            except self._again_after:
                answer = await self._sent(method, url, headers, body)
        except NEVER_CONNECTED as error:
            raise BackendUnavailable(f"{self._place}: {why_not_connected(error)}") from None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            # Without the cause: its text may hold a signature (A5).
            raise NoAnswer(f"{self._place}: the answer was lost ({type(error).__name__})") from None
        except _TooLarge:
            raise Unreadable(f"{self._place}: the answer has more than {_MOST_BYTES} bytes") from None
        except Exception as error:  # noqa: BLE001 - what aiohttp trips over in an answer that is none of the service's
            raise Unreadable(f"{self._place}: the answer cannot be read ({type(error).__name__})") from None
        if (foreign := foreign_answer(answer.status, answer.headers)) is not None:
            raise NoAnswer(f"{self._place}: {foreign}")
        return answer

    async def _sent(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> StorageAnswer:
        async with self._session.request(
            method,
            URL(url, encoded=True),  # as it was signed
            data=body or None,
            headers=headers,
            skip_auto_headers=("Content-Type",),  # one that was not signed
            timeout=self._timeout,
            proxy=self._proxy,
            allow_redirects=False,  # a redirect sends a request once more, to wherever an answer says
        ) as found:
            parts, size = [], 0
            async for part in found.content.iter_any():
                parts.append(part)
                if (size := size + len(part)) > _MOST_BYTES:
                    found.close()
                    raise _TooLarge
            return StorageAnswer(found.status, found.headers, b"".join(parts))


def _agent() -> str:
    """Return what requests say of their sender: as with the SDKs of Azure, what stands in a variable is added."""
    added = os.environ.get("AZURE_HTTP_USER_AGENT", "")
    return f"jobq/{__version__} {added if added.isascii() and added.isprintable() else ''}".rstrip()  # ends no header
