"""How a namespace of Service Bus is reached over HTTP: where it is, what signs in, and one request at a time."""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

import aiohttp

from jobq.errors import BackendUnavailable, ConfigurationError, InvalidSpec
from jobq.formats.proxies import proxy_for
from jobq.local_service import LOOPBACK
from jobq_azure.common.connection_strings import fields_of, unquoted
from jobq_azure.common.errors import NEVER_CONNECTED, NoAnswer, NoCredential, why_not_connected
from jobq_azure.common.http_session import new_session
from jobq_azure.common.tokens import Credential, Tokens, given, identified, signing
from jobq_azure.service_bus.responses import Response

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy

_NAMESPACE: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{4,48}[A-Za-z0-9]")
_HOST: Final = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_EMULATOR_PORT: Final = 5300  # of Microsoft's own emulator
_CONNECT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class QueueAddress:
    """Where a queue is, and what signs in; taken from the spec, the settings and a connection string.

    Attributes:
        namespace: as the spec has it.
        queue: its name.
        rest_url: of the namespace; no slash at the end.
        host: of AMQP.
        policy, key: of shared access; None = another way.
        signature: of shared access, made by somebody else.
        connection_string: for the SDK.
        is_emulator: AMQP without TLS, on this machine.
    """

    namespace: str
    queue: str
    rest_url: str
    host: str
    policy: str | None = None
    key: str | None = field(default=None, repr=False)
    signature: str | None = field(default=None, repr=False)
    connection_string: str | None = field(default=None, repr=False)
    is_emulator: bool = False

    def __str__(self) -> str:
        return f"sb://{self.namespace}/{self.queue}"


def place_of(namespace: str, queue: str, connection_string: str | None, storage_suffix: str) -> QueueAddress:
    """Return where a queue is.

    Args:
        namespace: its name, or its whole host name.
        queue: its name.
        connection_string: None = sign in as this machine or user.
        storage_suffix: JOBQ_ENDPOINT_SUFFIX, such as core.windows.net: the same cloud's for Service Bus follows.

    Raises:
        InvalidSpec: the service takes no such name.
        ConfigurationError: the connection string is none of Service Bus, or of another namespace.
    """
    if "/" in namespace:
        raise InvalidSpec(
            f"sb://{namespace}/{queue} names more than a namespace and a queue: write sb://NAMESPACE/QUEUE"
        )
    if not (_HOST if "." in namespace else _NAMESPACE).fullmatch(namespace):
        raise InvalidSpec(
            f"{namespace!r} is not the name of a Service Bus namespace: 6 to 50 letters, digits and dashes, beginning"
            " with a letter"
        )
    host = namespace if "." in namespace else f"{namespace}.{storage_suffix.replace('core.', 'servicebus.', 1)}"
    if connection_string is None:
        return QueueAddress(namespace=namespace, queue=queue, rest_url=f"https://{host}", host=host)
    return _place_in(namespace, queue, connection_string)


def _place_in(namespace: str, queue: str, text: str) -> QueueAddress:
    parts = fields_of(text)
    endpoint = urlsplit(parts.get("endpoint", ""))
    policy, key, signature = (
        parts.get(name) for name in ("sharedaccesskeyname", "sharedaccesskey", "sharedaccesssignature")
    )
    if endpoint.scheme != "sb" or not endpoint.hostname or not (signature or (policy and key)):
        raise ConfigurationError(
            "JOBQ_CONNECTION_STRING is none of Service Bus (it is not shown here: it is a secret); copy it whole from"
            " the namespace's page 'Shared access policies': Endpoint=sb://...;SharedAccessKeyName=...;SharedAccessKey=..."
        )
    if (entity := parts.get("entitypath", queue)).lower() != queue.lower():
        raise ConfigurationError(f"JOBQ_CONNECTION_STRING is of the queue {entity!r}, and the spec's is {queue!r}")
    host = endpoint.hostname
    is_emulator = parts.get("usedevelopmentemulator", "").lower() == "true"
    if is_emulator:
        rest_url = parts.get("restendpoint", f"http://{host}:{_EMULATOR_PORT}").rstrip("/")
        if host not in LOOPBACK or urlsplit(rest_url).hostname not in LOOPBACK:
            raise ConfigurationError("the emulator of Service Bus is on this machine, and its string says another")
    else:
        rest_url = f"https://{host}"
        if namespace.lower() not in (host.lower(), host.lower().split(".")[0]):
            raise ConfigurationError(
                f"JOBQ_CONNECTION_STRING is of the namespace {host!r}, and the spec's is {namespace!r}"
            )
    return QueueAddress(
        namespace=namespace,
        queue=queue,
        rest_url=rest_url,
        host=host,
        policy=policy,
        key=key,
        signature=signature,
        connection_string=unquoted(text),
        is_emulator=is_emulator,
    )


class Namespace:
    """One session and one token; an asynchronous context manager.

    Args:
        place: where the queue is.
        credential: gives tokens where the place has no key; None = `DefaultAzureCredential`.

    Attributes:
        proxy: that the environment names for it; None = none.
    """

    def __init__(self, place: QueueAddress, *, credential: Credential | None = None) -> None:
        self.place = place
        self._given = credential
        self.credential: Credential | None = credential
        self._ahead = 0.0
        self._was_served = False
        self.proxy = proxy_for(place.rest_url)
        self._session: aiohttp.ClientSession
        self._tokens: Tokens

    async def __aenter__(self) -> Self:
        self._session = await new_session(most_connections=0)
        place = self.place
        if place.signature is not None:
            self._tokens = Tokens(given(place.signature))
        elif place.key is not None and place.policy is not None:
            resource = f"{place.rest_url}/{place.queue}"
            self._tokens = Tokens(signing(resource, place.policy, place.key, lambda: self._ahead))
        else:
            if self.credential is None:
                from jobq_azure.common.credentials import identity_on  # noqa: PLC0415 - 0.1 s that a key saves

                self.credential = identity_on(self._session, place.namespace)
            self._tokens = Tokens(identified(self.credential, str(place)))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._tokens.aclose()
        if self.credential is not None and self._given is None:
            await self.credential.close()
        await self._session.close()

    async def signed_in(self) -> None:
        """Return once there is a token; what the SDK raises where there is none does not say why.

        Raises:
            AccessDenied, BackendUnavailable
        """
        await self._signed()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        seconds: float = _ANSWER_SECONDS,
    ) -> Response:
        """Send one request; one that is refused for its token is sent once more with a new one, for it did nothing.

        Args:
            method: of HTTP.
            path: below the namespace, with the query.
            body: as it goes.
            headers: beside `Authorization`.
            seconds: for which an answer is waited for.

        Raises:
            NoAnswer: nobody knows whether it took effect.
            BackendUnavailable, AccessDenied: it was never sent.
        """
        signed = await self._signed()
        answer = await self._send(method, path, body, headers or {}, seconds, signed)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            self._ahead = answer.date - time.time()  # perhaps this machine's clock is wrong, which signatures show
            self._tokens.refused(signed)
            answer = await self._send(method, path, body, headers or {}, seconds, await self._signed())
        self._was_served = self._was_served or answer.status != HTTPStatus.UNAUTHORIZED
        return answer

    async def _signed(self) -> str:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._tokens.header()
        except NoCredential:
            if self._was_served:  # then it is the identity service that stumbles, and no matter of configuration (L4)
                raise BackendUnavailable(f"{self.place}: no token is to be had at the moment") from None
            raise
        except (NoAnswer, TimeoutError):  # of the identity service; nothing was sent to the queue's
            raise BackendUnavailable(f"{self.place}: no token is to be had at the moment") from None

    async def _send(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], seconds: float, signed: str
    ) -> Response:
        sent = {"Authorization": signed, "Accept-Encoding": "identity", **headers}
        limit = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS)
        try:
            async with self._session.request(
                method,
                f"{self.place.rest_url}{path}",
                data=body or None,
                headers=sent,
                timeout=limit,
                proxy=self.proxy,
                allow_redirects=False,  # a redirect sends a request once more, to wherever an answer says
            ) as found:
                return self._dated(found.status, found.headers, await found.read())
        except NEVER_CONNECTED as error:
            raise BackendUnavailable(f"{self.place}: {why_not_connected(error, 'namespace')}") from None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            # Without the cause: its text may hold what was sent (A5).
            raise NoAnswer(f"{self.place}: the answer was lost ({type(error).__name__})") from None

    def _dated(self, status: int, headers: "CIMultiDictProxy[str]", body: bytes) -> Response:
        """Return an answer with its date; one without, as who stands between may give, is none (service_bus_answers).

        A property of a message is a header, too, and may have the name of one of the service's. Of several dates the
        latest counts, which makes a lock shorter (P1); of others the first.
        """
        dates = [seconds for text in headers.getall("Date", ()) if (seconds := _seconds(text)) is not None]
        if not dates:
            raise NoAnswer(f"{self.place}: an answer ({status}) without a date, so not the service's")
        return Response(status, {name.lower(): headers[name] for name in headers}, body, max(dates))


def _seconds(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
