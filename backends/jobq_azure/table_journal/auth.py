"""What signs requests to an Azure Table: an account key, a shared access signature, or an identity."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Mapping
from email.utils import formatdate
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode, urlsplit

from jobq.errors import BackendUnavailable, ConfigurationError
from jobq_azure.common.errors import NoAnswer, NoCredential
from jobq_azure.common.http_session import proxies_for
from jobq_azure.common.tokens import Tokens, identified
from jobq_azure.table_journal.location import TablePlace

if TYPE_CHECKING:
    import aiohttp

    from jobq_azure.common.credentials import Identity

_SCOPE: Final = "https://storage.azure.com/.default"
_VERSION: Final = "2019-02-02"


class Signing:
    """Of one table.

    Args:
        place: of the table.
        seconds: for which a token is waited for.
    """

    def __init__(self, place: TablePlace, seconds: float) -> None:
        self._place = place
        self._seconds = seconds
        self._key = None if place.key is None else base64.b64decode(place.key)
        self._identity: Identity | None = None
        self._tokens: Tokens | None = None
        self._was_served = False

    def begin(self, session: "aiohttp.ClientSession") -> None:
        """Get ready to sign; raises ConfigurationError where a token would go over an open line."""
        if self._key is not None or self._place.signature is not None:
            return
        from azure.core.pipeline.transport import AioHttpTransport  # noqa: PLC0415 - as the next

        from jobq_azure.common.credentials import Identity, authority  # noqa: PLC0415 - 0.1 s that a key saves

        if urlsplit(self._place.url).scheme != "https":
            raise ConfigurationError(f"{self._place}: a token goes over https alone")
        transport = AioHttpTransport(session=session, session_owner=False)
        self._identity = Identity(self._place.account, transport=transport, proxies=proxies_for(authority()))
        self._tokens = Tokens(identified(self._identity, str(self._place), _SCOPE))

    async def aclose(self) -> None:
        """End what is on its way."""
        if self._tokens is not None:
            await self._tokens.aclose()
        if self._identity is not None:
            await self._identity.close()

    async def signed(self, path: str, query: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """Return the address of a request, and the headers that sign it.

        Args:
            path: below the service's address.
            query: not yet quoted.

        Raises:
            BackendUnavailable, AccessDenied: there is no token.
        """
        date = formatdate(usegmt=True)
        headers = {"x-ms-date": date, "x-ms-version": _VERSION}
        text = urlencode(query, quote_via=quote)
        if self._place.signature is not None:
            text = f"{text}&{self._place.signature}" if text else self._place.signature
        elif self._key is not None:
            # "Shared Key Lite": the date, and the path as it stands in the address.
            signed = f"{date}\n/{self._place.account}{urlsplit(self._place.url).path}{path}"
            digest = base64.b64encode(hmac.new(self._key, signed.encode(), hashlib.sha256).digest()).decode()
            headers["Authorization"] = f"SharedKeyLite {self._place.account}:{digest}"
        else:
            headers["Authorization"] = await self._token()
        return f"{self._place.url}{path}?{text}" if text else f"{self._place.url}{path}", headers

    async def _token(self) -> str:
        assert self._tokens is not None
        try:
            async with asyncio.timeout(self._seconds):
                token = await self._tokens.header()
        except NoCredential:
            if self._was_served:  # then it is the identity service that stumbles, and no matter of configuration (L4)
                raise BackendUnavailable(f"{self._place}: no token is to be had at the moment") from None
            raise
        except (NoAnswer, TimeoutError):
            raise BackendUnavailable(f"{self._place}: no token is to be had at the moment") from None
        self._was_served = True
        return token
