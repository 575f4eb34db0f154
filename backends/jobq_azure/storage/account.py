"""How an account is reached: by connection string, by Azurite's own, or by whatever identity this machine has."""

import base64
import logging
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import aiohttp

from jobq.errors import ConfigurationError, InvalidSpec
from jobq.task import MAX_BODY_BYTES
from jobq_azure.common.connection_strings import fields_of
from jobq_azure.common.errors import NoAnswer, from_the_service
from jobq_azure.common.http_session import new_session, proxies_for
from jobq_azure.common.storage_requests import StorageRequests
from jobq_azure.common.storage_signing import Signing, StorageService, shared_key
from jobq_azure.storage.blob_client import CONTAINER as LEASES
from jobq_azure.storage.blob_client import BlobWire
from jobq_azure.storage.large_payloads import CONTAINER, Payloads
from jobq_azure.storage.queue_client import StorageQueueClient

if TYPE_CHECKING:
    from azure.core.pipeline.transport import AioHttpTransport
    from azure.storage.blob.aio import ContainerClient
    from azure.storage.queue.aio import QueueClient

    from jobq_azure.common.credentials import Identity

_ACCOUNT: Final = re.compile(r"[a-z0-9]{3,24}")
_QUEUE: Final = re.compile(r"(?=.{3,56}\Z)[a-z0-9]+(-[a-z0-9]+)*")  # the service takes 63: seven are for `-failed`
AZURITE: Final = "devstoreaccount1"
# Azurite's published key: the same on every machine, and no secret.
_AZURITE_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_LOOK: Final = aiohttp.ClientTimeout(total=5)
_CONNECT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 30.0  # without a byte; the service gives up by itself after 30 s
_REQUEST_SECONDS: Final = 60.0  # the whole of one of our own: an answer may not drip for ever
_TOKEN_SECONDS: Final = 60.0
# The first with which a refusal names the tenant whose tokens are taken; all that is asked for is older.
_VERSION: Final = "2019-12-12"


def check_names(account: str, queue: str) -> None:
    """Raise InvalidSpec for names that the service does not take: it would say less of them."""
    if not _ACCOUNT.fullmatch(account):
        raise InvalidSpec(f"{account!r} is not the name of a storage account: 3 to 24 lower-case letters and digits")
    if not _QUEUE.fullmatch(queue):
        raise InvalidSpec(
            f"{queue!r} ({len(queue)} characters) cannot be the name of a Storage Queue: 3 to 56 lower-case letters,"
            " digits and single dashes between them; the service takes 63, and the dead letters' QUEUE-failed needs 7"
        )


class Account:
    """A storage account; an asynchronous context manager that holds the one session and the one credential.

    Args:
        name: of the account.
        connection_string: None = sign in as this machine or user.
        suffix: of the cloud's host names.
    """

    def __init__(self, name: str, connection_string: str | None, suffix: str) -> None:
        self.name = name
        self._suffix = suffix
        self._connection_string = connection_string
        self._parts = None if connection_string is None else parts_of(connection_string)
        self._credential: Identity | None = None
        self._signing: Signing | None = None
        self._session: aiohttp.ClientSession | None = None
        if self._parts is not None and (owner := self._parts.get("accountname", name)) != name:
            raise ConfigurationError(f"the connection string is of account {owner!r}, and the queue's is {name!r}")

    async def __aenter__(self) -> Self:
        # It logs each request at INFO, and at WARNING, with a traceback, what it raises anyway.
        logging.getLogger("azure").setLevel(logging.ERROR)
        self._session = await new_session()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._signing is not None:
            await self._signing.aclose()
        if self._credential is not None:
            await self._credential.close()
        if self._session is not None:
            await self._session.close()

    def another(self) -> "Account":
        """Return the same account with a session of its own, not yet entered."""
        return Account(self.name, self._connection_string, self._suffix)

    def wire(self, queue: str) -> StorageQueueClient:
        """Return the requests to one queue."""
        assert self._session is not None, "enter it first"
        place = f"{self.name}/{queue}"
        if self._signing is None:
            self._signing = Signing(
                self._service("queue"),
                key_scheme=shared_key,
                version=_VERSION,
                identity=self._identity,
                place=place,
                seconds=_TOKEN_SECONDS,
            )
        timeout = aiohttp.ClientTimeout(
            total=_REQUEST_SECONDS, sock_connect=_CONNECT_SECONDS, sock_read=_ANSWER_SECONDS
        )
        requests = StorageRequests(self._session, self._signing, place=place, timeout=timeout)
        return StorageQueueClient(requests, lambda: self._queue(queue), queue, place)

    def _queue(self, name: str) -> "QueueClient":
        from azure.storage.queue.aio import QueueClient  # noqa: PLC0415 - 0.1 s that few commands need

        url, credential = self._signed("queue")
        return QueueClient(url, name, credential=credential, **self._ways(url))

    async def now(self) -> float:
        """Return the service's clock, in seconds since the epoch, to the second; an answer of any kind has it.

        Raises:
            NoAnswer: there is none.
        """
        assert self._session is not None
        try:
            async with self._session.get(self._service("queue").url, allow_redirects=False, timeout=_LOOK) as answer:
                return parsedate_to_datetime(answer.headers["Date"]).timestamp()
        except (aiohttp.ClientError, TimeoutError, OSError, LookupError, ValueError) as error:
            raise NoAnswer(f"{self.name}: the clock of the account is not known ({type(error).__name__})") from None

    @property
    def has_blobs(self) -> bool:
        """Whether it is known where the account's blobs are."""
        # An address given for queues alone says that this account is reached in a way of its own.
        return self._parts is None or "queueendpoint" not in self._parts or "blobendpoint" in self._parts

    def payloads(self, queue: str) -> Payloads:
        """Return the payload blobs of one queue; nothing is opened before it is needed."""
        return Payloads(self._container if self.has_blobs else None, queue, f"{self.name}/{queue}")

    def lease_blobs(self, queue: str) -> BlobWire:
        """Return the requests to the blobs of one queue's named leases; raises ConfigurationError for want of blobs."""
        return BlobWire(self.container(LEASES), queue, f"{self.name}/{queue}")

    def container(self, name: str) -> "ContainerClient":
        """Return the SDK's client of a container of blobs: no retries, as `queue_client`; raises ConfigurationError."""
        if not self.has_blobs:
            raise ConfigurationError(f"{self.name}: this needs blobs; add the BlobEndpoint to the connection string")
        return self._container(name)

    def _container(self, name: str = CONTAINER) -> "ContainerClient":
        from azure.storage.blob.aio import ContainerClient  # noqa: PLC0415 - 0.1 s that few tasks need

        url, credential = self._signed("blob")
        return ContainerClient(
            url,
            name,
            credential=credential,
            max_single_get_size=MAX_BODY_BYTES,
            **self._ways(url),
        )

    def _transport(self) -> "AioHttpTransport":
        from azure.core.pipeline.transport import AioHttpTransport  # noqa: PLC0415 - as the SDK

        # The transport's limits replace the session's, and the client's own are not read beside a transport.
        return AioHttpTransport(
            session=self._session,
            session_owner=False,
            connection_timeout=_CONNECT_SECONDS,
            read_timeout=_ANSWER_SECONDS,
        )

    def _ways(self, url: str) -> dict[str, Any]:
        """Return how a client sends: each request once, to this address, and believing the service alone."""
        return {
            "transport": self._transport(),
            "proxies": proxies_for(url),
            "retry_total": 0,
            "permit_redirects": False,  # a redirect sends a request once more, to wherever an answer says
            "raw_response_hook": from_the_service,
        }

    def _service(self, kind: str) -> StorageService:
        """Return where a service of this account is, `queue` or `blob`, and the secret that signs in there, if any."""
        parts = self._parts or {}
        protocol = parts.get("defaultendpointsprotocol", "https")
        suffix = parts.get("endpointsuffix", self._suffix)
        url = parts.get(f"{kind}endpoint", f"{protocol}://{self.name}.{kind}.{suffix}").rstrip("/")
        key = parts.get("accountkey")
        signature = None if key else parts.get("sharedaccesssignature", "").removeprefix("?") or None
        return StorageService(account=self.name, url=url, key=key, signature=signature)

    def _signed(self, kind: str) -> tuple[str, Any]:
        """Return the address of a service, and what signs in there, as the SDK takes them."""
        service = self._service(kind)
        if service.key is not None:
            return service.url, {"account_name": self.name, "account_key": service.key}
        if service.signature is None:
            return service.url, self._identity()
        from azure.core.credentials import AzureSasCredential  # noqa: PLC0415 - rarely used

        return service.url, AzureSasCredential(service.signature)

    def _identity(self) -> "Identity":
        if self._credential is None:
            assert self._session is not None, "enter it first"
            from jobq_azure.common.credentials import identity_on  # noqa: PLC0415 - 0.1 s that a key saves

            self._credential = identity_on(self._session, self.name)
        return self._credential


def connection_string_of(given: str | None, azurite: bool, environment: Mapping[str, str]) -> str | None:
    """Return the connection string to use; None = sign in by identity.

    Args:
        given: JOBQ_CONNECTION_STRING.
        azurite: whether the local emulator is meant.
        environment: read for what Azure's own tools use.
    """
    if azurite:
        return "UseDevelopmentStorage=true"
    return given or environment.get("AZURE_STORAGE_CONNECTION_STRING") or None


def account_in(connection_string: str) -> str | None:
    """Return whose connection string it is, if it says so; of one for another service nothing is said."""
    try:
        return parts_of(connection_string).get("accountname")
    except ConfigurationError:
        return None


def parts_of(text: str) -> dict[str, str]:
    """Return what a connection string of storage holds, by names in small letters; raises ConfigurationError."""
    parts = fields_of(text)
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        host = parts.get("developmentstorageproxyuri", "http://127.0.0.1").rstrip("/")
        parts = {
            "accountname": AZURITE,
            "accountkey": _AZURITE_KEY,
            "queueendpoint": f"{host}:10001/{AZURITE}",
            "blobendpoint": f"{host}:10000/{AZURITE}",
            "tableendpoint": f"{host}:10002/{AZURITE}",
        }
    if not _is_base64(parts.get("accountkey", "")):
        raise ConfigurationError("the AccountKey in the connection string is broken: it is not base64 (nor shown here)")
    for endpoint in ("QueueEndpoint", "BlobEndpoint", "TableEndpoint"):
        if not _is_address(parts.get(endpoint.lower(), "https://-")):
            raise ConfigurationError(
                f"the {endpoint} in the connection string is no address, as https://HOST or https://HOST:PORT is"
            )
        if _has_query(parts.get(endpoint.lower(), "")):
            raise ConfigurationError(
                f"the {endpoint} in the connection string has a query (not shown: it may be a signature); write the"
                " address alone, and the signature as SharedAccessSignature=..."
            )
    if "accountkey" not in parts and "sharedaccesssignature" not in parts:
        raise ConfigurationError(
            "the connection string has neither AccountKey nor SharedAccessSignature; copy it whole from the storage"
            " account's page 'Access keys' (it is not shown here: it is a secret)"
        )
    return parts


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the port, too
        return False


def _has_query(address: str) -> bool:
    return "?" in address or "#" in address
