"""Signing in as this machine or user: `DefaultAzureCredential`, asked why there is no token when there is none.

Its chain names an identity service that cannot be reached, one that refuses, and the want of any credential by one and
the same exception, and the causes only in prose, which may hold more than a log should (A5). So each link of the chain
is listened to: `CredentialUnavailableError` means that it has nothing to sign in with, anything else that it tried.
"""

import os
import re
from contextvars import ContextVar
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from azure.core.exceptions import AzureError, HttpResponseError
from azure.core.pipeline.transport import AioHttpTransport
from azure.identity import CredentialUnavailableError
from azure.identity.aio import DefaultAzureCredential

from jobq.errors import BackendUnavailable, ConfigurationError
from jobq_azure.common.errors import NotSignedIn
from jobq_azure.common.http_session import proxies_for

if TYPE_CHECKING:
    import aiohttp
    from azure.core.credentials import AccessToken

_AUTHORITY: Final = "login.microsoftonline.com"
_SECRETS: Final = ("AZURE_CLIENT_SECRET", "AZURE_PASSWORD", "AZURE_CLIENT_CERTIFICATE_PASSWORD")
# The identity service's own words, up to what it adds for its support.
_WORDS: Final = re.compile(r"AADSTS\d+: .*?(?=\s*Trace ID:|[\r\n]|$)")
_MOST_WORDS: Final = 300
_CONNECT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 30.0
_GIVEN: Final = "DEFAULT_IDENTITY_CLIENT_ID"  # of the user-assigned identity, as Azure Machine Learning says it
_failure: ContextVar[Exception | None] = ContextVar("jobq_azure_identity_failure", default=None)


class Identity:
    """A credential for the SDK's clients; one for all of an account's.

    Args:
        account: for messages.
        **ways: how its own requests are sent: `transport` and `proxies`.

    Raises:
        ConfigurationError: a variable or file that it signs in with cannot be used.
    """

    def __init__(self, account: str, **ways: Any) -> None:
        self._account = account
        if given := os.environ.get(_GIVEN):
            ways["managed_identity_client_id"] = given
        try:
            self._chain = DefaultAzureCredential(**ways)
        except Exception as error:  # noqa: BLE001 - each kind of credential checks its variables and files in its own way
            raise ConfigurationError(f"{account}: cannot sign in by the AZURE_* variables: {_misread(error)}") from None
        listened: Any = tuple(_Listened(each) for each in self._chain.credentials)
        self._chain.credentials = listened  # `get_token` and `close` are all that the chain asks of a link

    async def get_token(self, *scopes: str, **more: Any) -> "AccessToken":
        """Return a token.

        Raises:
            ClientAuthenticationError: there is nothing to sign in with.
            BackendUnavailable: the service that gives tokens cannot be reached, or has failed.
            NotSignedIn: it has refused.
        """
        _failure.set(None)
        try:
            return await self._chain.get_token(*scopes, **more)
        except AzureError as error:
            # Without the cause, whose text may hold what was sent (A5).
            raise _meaning(_failure.get() or error, self._account) from None

    async def close(self) -> None:
        """Close it."""
        await self._chain.close()


def identity_on(session: "aiohttp.ClientSession", account: str) -> Identity:
    """Return a credential whose own requests go over a session that is another's, and through the environment's proxy.

    Args:
        session: closed by whoever made it.
        account: or namespace, for messages.
    """
    transport = AioHttpTransport(
        session=session, session_owner=False, connection_timeout=_CONNECT_SECONDS, read_timeout=_ANSWER_SECONDS
    )
    return Identity(account, transport=transport, proxies=proxies_for(_authority()))


def _authority() -> str:
    """Return the address of the identity service."""
    named = os.environ.get("AZURE_AUTHORITY_HOST") or _AUTHORITY
    return named if "://" in named else f"https://{named}"


class _Listened:
    """A link of the chain; notes how it failed, if it has tried at all."""

    def __init__(self, link: Any) -> None:
        self._link = link

    async def get_token(self, *scopes: str, **more: Any) -> "AccessToken":
        try:
            token: AccessToken = await self._link.get_token(*scopes, **more)
        except CredentialUnavailableError:
            raise
        except Exception as error:
            _failure.set(error)
            raise
        return token

    async def close(self) -> None:
        await self._link.close()


def _meaning(error: Exception, account: str) -> Exception:
    if isinstance(error, HttpResponseError):
        if error.response is None:
            return error
        status = int(error.response.status_code or 0)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
            return BackendUnavailable(f"{account}: no token is to be had: the identity service has failed ({status})")
        return NotSignedIn(f"{account}: the identity service refuses to sign in: {_words(error, status)}")
    if isinstance(error, AzureError):
        return BackendUnavailable(f"{account}: no token is to be had: the identity service cannot be reached")
    return NotSignedIn(f"{account}: signing in has failed ({type(error).__name__}): check the AZURE_* variables")


def _misread(error: Exception) -> str:
    """Return what is wrong with the variables that azure-identity reads, or the files that they name."""
    spaced = [name for name, value in os.environ.items() if name.startswith("AZURE_") and value != value.strip()]
    if spaced:
        return f"{', '.join(spaced)} begins or ends with white space"
    if isinstance(error, OSError):
        return f"{error.strerror}: {error.filename}"
    return _masked(next(iter(str(error).splitlines()), type(error).__name__))[:_MOST_WORDS]


def _words(error: HttpResponseError, status: int) -> str:
    found = _WORDS.search(error.message)
    words = found[0][:_MOST_WORDS] if found else f"status {status}"
    return _masked(words)


def _masked(words: str) -> str:
    for secret in filter(None, map(os.environ.get, _SECRETS)):
        words = words.replace(secret, "***")
    return words
