"""Who is signed in: a cookie that says by which token, and proves that it was given here; no token is in a browser.

The key that proves it stands in a document of the place, so that each of several services takes what another one gave.
A session ends when its token is revoked: the token's record is read for each request, as for the API.
"""

import base64
import hashlib
import hmac
import json
import secrets
import time
from dataclasses import dataclass
from typing import Final

from jobq.errors import BackendUnavailable
from jobq.servable import Servable, change_document
from jobq.server.tokens import ALL_QUEUES, Scope, TokenBook, TokenRecord

SESSION_SECONDS: Final = 12 * 3600.0
LINK_SECONDS: Final = 60.0
_CLOCKS_DIFFER: Final = 60.0  # seconds, of several services of one place
_DOCUMENT: Final = "ui-key"
_MOST_LINKS: Final = 16  # that were made and not used


@dataclass(frozen=True, kw_only=True)
class Viewer:
    """Who looks.

    Attributes:
        token: by which he signed in.
        session: names this session alone.
        key: of this session: what proves that a form, or a confirmation, was made for it.
    """

    token: TokenRecord
    session: str
    key: bytes

    def may(self, scope: Scope, queue: str) -> bool:
        """Return whether he may do this to a queue."""
        return self.token.permits(scope, queue)

    @property
    def may_all(self) -> bool:
        """Whether he may do everything to every queue."""
        return self.may(Scope.ADMIN, ALL_QUEUES)

    @property
    def form_token(self) -> str:
        """What each form of this session carries."""
        return self.proof("form")

    def proof(self, text: str) -> str:
        """Return what proves that this text was written by us, for this session."""
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()

    def is_proof(self, given: str, text: str) -> bool:
        """Return whether it does."""
        return hmac.compare_digest(given.encode(), self.proof(text).encode())


class Sessions:
    """The sessions of a service.

    Args:
        tokens: that are good.
        key: 32 bytes that prove sessions.
    """

    def __init__(self, tokens: TokenBook, key: bytes) -> None:
        self._tokens = tokens
        self._key = key
        self._links: dict[str, tuple[TokenRecord, float]] = {}

    def begin(self, record: TokenRecord) -> str:
        """Return the cookie of a new session."""
        held = json.dumps([record.id, record.hash[:16], secrets.token_hex(16), round(time.time())])
        written = base64.urlsafe_b64encode(held.encode()).decode().rstrip("=")
        return f"{written}.{self._mac(written)}"

    async def viewer(self, cookie: str) -> Viewer | None:
        """Return who has this cookie; None = it is none of ours, too old, or its token is not good any more.

        Raises:
            BackendUnavailable: no one can say which tokens are good.
        """
        written, _, mac = cookie.partition(".")
        if not hmac.compare_digest(mac.encode("utf-8", "replace"), self._mac(written).encode()):
            return None
        token_id, token_hash, session, began = json.loads(base64.urlsafe_b64decode(written + "=" * (-len(written) % 4)))
        if not -_CLOCKS_DIFFER < time.time() - began < SESSION_SECONDS:
            return None
        record = await self._tokens.record(token_id)
        if record is None or not record.hash.startswith(token_hash):  # another one under the same id
            return None
        return Viewer(token=record, session=session, key=hashlib.sha256(self._key + session.encode()).digest())

    def link(self, record: TokenRecord) -> str:
        """Return a secret that begins one session by this token, once and within LINK_SECONDS."""
        while len(self._links) >= _MOST_LINKS:
            del self._links[next(iter(self._links))]
        secret = secrets.token_urlsafe(32)
        self._links[secret] = record, time.monotonic() + LINK_SECONDS
        return secret

    def use_link(self, secret: str) -> TokenRecord | None:
        """Return whose link this is, and let it be good no more; None = it is none, was used, or came too late."""
        record, until = self._links.pop(secret, (None, 0.0))
        return record if time.monotonic() < until else None

    def _mac(self, written: str) -> str:
        return hmac.new(self._key, b"session " + written.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


async def shared_key(store: Servable) -> bytes:
    """Return the key of a place's sessions, made where there is none.

    Raises:
        BackendUnavailable: others make one again and again.
    """
    await change_document(store, _DOCUMENT, lambda known: secrets.token_bytes(32) if known is None else None)
    document = await store.document(_DOCUMENT)
    if document is None:
        raise BackendUnavailable("the key of the dashboard's sessions cannot be kept")
    return document.value
