"""Tokens that sign requests: a shared access signature of our own making, one that was given, or an identity's.

A token is made anew well before it ends, and in the background while the old one still serves: a renewal of a lock must
not wait for an identity service that is slow. Ends are counted on this machine's clock of elapsed time.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

from jobq.errors import JobqError
from jobq_azure.common.errors import NoAnswer, answered

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken

SCOPE: Final = "https://servicebus.azure.net/.default"
_SIGNED_SECONDS: Final = 3600.0  # how long a signature of our own serves
_AHEAD_SECONDS: Final = 300.0  # before its end a token is made anew, or at half its time, whichever is later
_AGAIN_SECONDS: Final = 10.0  # after a token could not be had
_log: Final = logging.getLogger(__name__)


class Credential(Protocol):
    """What gives Entra's tokens: `jobq_azure.common.credentials.Identity`, or any credential of azure-identity."""

    async def get_token(self, *scopes: str, **more: Any) -> "AccessToken":
        """Return a token; `more` may hold a `tenant_id`."""
        ...

    async def close(self) -> None:
        """Close it."""
        ...


@dataclass(frozen=True)
class Token:
    """The header `Authorization`, and for how many seconds from now it serves."""

    text: str = field(repr=False)
    seconds: float


Obtain = Callable[[], Awaitable[Token]]


class Tokens:
    """The current token.

    Args:
        obtain: makes a new one; raises NoAnswer or a JobqError.
    """

    def __init__(self, obtain: Obtain) -> None:
        self._obtain = obtain
        self._token: Token | None = None
        self._ends = self._due = 0.0  # by the monotonic clock
        self._coming: asyncio.Task[Token] | None = None

    async def header(self) -> str:
        """Return what signs a request now."""
        now = time.monotonic()
        if self._token is None or now >= self._ends:
            return (await asyncio.shield(self._renewal())).text
        if now >= self._due:
            self._renewal()
        return self._token.text

    def refused(self, text: str) -> None:
        """Forget a token that the service has refused, unless it is an older one already."""
        if self._token is not None and self._token.text == text:
            self._token = None

    async def aclose(self) -> None:
        """End what is still on its way."""
        if self._coming is not None:
            self._coming.cancel()
            await asyncio.wait([self._coming])

    def _renewal(self) -> "asyncio.Task[Token]":
        if self._coming is None:
            self._coming = asyncio.create_task(self._renew(), name="a token of Azure")
            self._coming.add_done_callback(self._came)
        return self._coming

    async def _renew(self) -> Token:
        token = await self._obtain()
        now = time.monotonic()
        self._token, self._ends = token, now + token.seconds
        self._due = now + max(token.seconds / 2, token.seconds - _AHEAD_SECONDS)
        return token

    def _came(self, coming: "asyncio.Task[Token]") -> None:
        self._coming = None
        if coming.cancelled() or (error := coming.exception()) is None:
            return
        now = time.monotonic()
        self._due = now + _AGAIN_SECONDS
        # Else somebody waits for it, and is told.
        if self._token is not None and now < self._ends and isinstance(error, JobqError | NoAnswer):
            _log.warning("no new token of Azure yet: %s", error)


def signing(resource: str, policy: str, key: str, server_ahead: Callable[[], float]) -> Obtain:
    """Return what signs with a shared access key.

    Args:
        resource: the URI of the queue.
        policy: the name of the shared access policy.
        key: its key.
        server_ahead: seconds by which the service's clock is ahead of this machine's, as far as is known: a signature
            says by the service's clock until when it serves.
    """

    async def obtain() -> Token:
        expires = int(time.time() + server_ahead() + _SIGNED_SECONDS)
        where = quote(resource, safe="").lower()
        digest = hmac.new(key.encode(), f"{where}\n{expires}".encode(), hashlib.sha256).digest()
        signature = quote(base64.b64encode(digest).decode(), safe="")
        text = f"SharedAccessSignature sr={where}&sig={signature}&se={expires}&skn={quote(policy, safe='')}"
        return Token(text, _SIGNED_SECONDS)

    return obtain


def given(signature: str) -> Obtain:
    """Return what signs with a signature that somebody else has made; how long it serves is seen when it does not."""

    async def obtain() -> Token:
        return Token(signature, _SIGNED_SECONDS)

    return obtain


def identified(credential: Credential, place: str, scope: str = SCOPE, **more: Any) -> Obtain:
    """Return what signs in as this machine or user.

    Args:
        credential: gives tokens.
        place: for messages.
        scope: what the token is to be good for.
        **more: what else the credential is told, such as `tenant_id`.
    """

    async def obtain() -> Token:
        found = await answered(credential.get_token(scope, **more), place)
        return Token(f"Bearer {found.token}", max(0.0, found.expires_on - time.time()))

    return obtain
