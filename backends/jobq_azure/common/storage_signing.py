"""What signs requests to a service of a storage account: an account key, a shared access signature, or an identity.

https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key
"""

import asyncio
import base64
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from jobq.errors import BackendUnavailable, ConfigurationError
from jobq_azure.common.errors import NoAnswer, NoCredential
from jobq_azure.common.tokens import Credential, Token, Tokens, identified

_SCOPE: Final = "https://storage.azure.com/.default"
_CHALLENGE: Final = re.compile(r"Bearer\s.*?authorization_uri=\"?https://[^/\s\",]+/([A-Za-z0-9.-]+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class StorageService:
    """Where a service of a storage account is, and what signs in there.

    Attributes:
        account: its name.
        url: of the service; no slash at the end.
        key: of the account, in base64; None = another way.
        signature: of shared access, as a query; None = another way. Without either it is an identity.
    """

    account: str
    url: str
    key: str | None = field(default=None, repr=False)
    signature: str | None = field(default=None, repr=False)


class Unsigned(NamedTuple):
    """What an account key signs: a request whose `x-ms-` headers stand in the order of their names, the last ones.

    Attributes:
        method: of HTTP.
        path: as it stands in the address, quoted.
        query: not quoted.
        headers: with `x-ms-date`; names as they are sent.
        length: of the body, in bytes.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    length: int


KeyScheme = Callable[[str, Unsigned], tuple[str, str]]


def shared_key(account: str, request: Unsigned) -> tuple[str, str]:
    """Return the name of the scheme that queues have, and what it signs: all but the body."""
    headers = request.headers
    named = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers) if name.startswith("x-ms-"))
    query = "".join(f"\n{name}:{request.query[name]}" for name in sorted(request.query))
    # In this order: encoding, language, length, MD5, type; date (x-ms-date stands for it), four conditions, range.
    standard = f"\n\n{request.length or ''}\n\n{headers.get('Content-Type', '')}\n\n\n\n\n\n\n"
    return "SharedKey", f"{request.method}\n{standard}{named}/{account}{request.path}{query}"


def shared_key_lite(account: str, request: Unsigned) -> tuple[str, str]:
    """Return the name of the scheme that tables have, and what it signs: the date and the path."""
    return "SharedKeyLite", f"{request.headers['x-ms-date']}\n/{account}{request.path}"


class Signing:
    """Of one service; many queues or tables may share it.

    Args:
        service: where it is.
        key_scheme: how an account key signs there.
        version: of the service's interface (`x-ms-version`).
        identity: makes what gives tokens, where neither key nor signature is there; whoever made it closes it.
        place: for messages.
        seconds: for which a token is waited for.

    Raises:
        ConfigurationError: a token would go over an open line.
    """

    def __init__(
        self,
        service: StorageService,
        *,
        key_scheme: KeyScheme,
        version: str,
        identity: Callable[[], Credential],
        place: str,
        seconds: float,
    ) -> None:
        self._service = service
        self._key_scheme = key_scheme
        self._version = version
        self._place = place
        self._seconds = seconds
        parts = urlsplit(service.url)
        self._root = parts.path
        self._key = None if service.key is None else base64.b64decode(service.key)
        self._make_identity = identity
        self._identity: Credential | None = None
        self._tenant: dict[str, str] = {}
        self._tokens: Tokens | None = None
        self._was_served = False
        if self._key is None and service.signature is None:
            if parts.scheme != "https":
                raise ConfigurationError(f"{place}: a token goes over https alone")
            self._tokens = Tokens(self._obtain)

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._service.url

    async def aclose(self) -> None:
        """End what is on its way."""
        if self._tokens is not None:
            await self._tokens.aclose()

    async def signed(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], length: int
    ) -> tuple[str, dict[str, str]]:
        """Return the address of a request, and all its headers, with those that sign it.

        Args:
            method: of HTTP.
            path: below the service's address, quoted.
            query: not quoted.
            headers: its own.
            length: of its body, in bytes.

        Raises:
            BackendUnavailable, AccessDenied: there is no token.
        """
        sent = {**headers, "x-ms-date": formatdate(usegmt=True), "x-ms-version": self._version}
        text = urlencode(query, quote_via=quote)
        if self._service.signature is not None:
            text = f"{text}&{self._service.signature}" if text else self._service.signature
        elif self._key is not None:
            unsigned = Unsigned(method, f"{self._root}{path}", query, sent, length)
            name, string = self._key_scheme(self._service.account, unsigned)
            digest = base64.b64encode(hmac.digest(self._key, string.encode(), "sha256")).decode()
            sent["Authorization"] = f"{name} {self._service.account}:{digest}"
        else:
            sent["Authorization"] = await self._token(self._tokens)
        return f"{self._service.url}{path}?{text}" if text else f"{self._service.url}{path}", sent

    def has_another(self, sent: Mapping[str, str], answer: Mapping[str, str]) -> bool:
        """Forget a token that the service has refused, and return whether it says by whom one would be taken.

        It names the tenant that its account belongs to, which is followed. It may name a resource too, which is not:
        no endpoint is sent a token that is good for something else than storage.

        Args:
            sent: the headers of the request that was refused (401).
            answer: those of the answer.
        """
        if self._tokens is None:
            return False
        self._tokens.refused(sent["Authorization"])
        if (found := _CHALLENGE.match(answer.get("WWW-Authenticate", ""))) is None:
            return False
        self._tenant = {"tenant_id": found[1]}
        return True

    async def _obtain(self) -> Token:
        if self._identity is None:
            self._identity = self._make_identity()
        return await identified(self._identity, self._place, _SCOPE, **self._tenant)()

    async def _token(self, tokens: Tokens | None) -> str:
        assert tokens is not None, "a key or a signature signs"
        try:
            async with asyncio.timeout(self._seconds):
                token = await tokens.header()
        except NoCredential:
            if self._was_served:  # then it is the identity service that stumbles, and no matter of configuration (L4)
                raise BackendUnavailable(f"{self._place}: no token is to be had at the moment") from None
            raise
        except (NoAnswer, TimeoutError):
            raise BackendUnavailable(f"{self._place}: no token is to be had at the moment") from None
        self._was_served = True
        return token
