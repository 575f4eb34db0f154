"""The blobs of named leases, one method a request: no retry here, none in the SDK and none below it.

What the service refuses because of its own lease on a blob is recognised by its error codes
(https://learn.microsoft.com/rest/api/storageservices/lease-blob and .../blob-service-error-codes).
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jobq.errors import AccessDenied, LockLost
from jobq_azure.common.errors import NoBlob, Unreadable, code_of, meaning

if TYPE_CHECKING:  # the SDK of blobs is imported where `Account.blobs` is asked for
    from azure.core.exceptions import HttpResponseError
    from azure.storage.blob.aio import BlobClient, BlobLeaseClient, ContainerClient

CONTAINER: Final = "jobq-leases"
_T = TypeVar("_T")
_NO_PLACE: Final = frozenset({"BlobNotFound", "ContainerNotFound"})
_TAKEN: Final = frozenset({"LeaseAlreadyPresent", "LeaseIsBreakingAndCannotBeAcquired"})
_LOST: Final = frozenset(
    {
        "LeaseLost",
        "LeaseIdMissing",
        "LeaseIdMismatchWithBlobOperation",
        "LeaseIdMismatchWithLeaseOperation",
        "LeaseNotPresentWithBlobOperation",
        "LeaseNotPresentWithLeaseOperation",
        "LeaseIsBrokenAndCannotBeRenewed",
        "LeaseIsBreakingAndCannotBeChanged",
        "LeaseAlreadyBroken",
    }
)
_CHANGED: Final = frozenset({"ConditionNotMet", "TargetConditionNotMet"})
_THERE: Final = frozenset({"BlobAlreadyExists", "ContainerAlreadyExists"})


class Taken(Exception):
    """The service's lease on the blob is another's."""


class Changed(Exception):
    """The blob is not as it was read any more."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A blob as it was read.

    Attributes:
        content: all of it.
        etag: changes with every write.
        lease_state: available, leased, expired, breaking or broken: the service's word.
    """

    content: bytes
    etag: str
    lease_state: str


class BlobWire:
    """Requests to the blobs of one queue's leases.

    Args:
        client: the SDK's, made by `Account.blobs`.
        queue: the first part of each blob's name.
        place: ACCOUNT/QUEUE, for messages.
    """

    def __init__(self, client: "ContainerClient", queue: str, place: str) -> None:
        self._client = client
        self._queue = queue
        self._place = place

    async def make(self, name: str, content: bytes) -> None:
        """Write a blob that is not there, and the container; one that is there is left as it is."""
        try:
            await self._make(name, content)
        except NoBlob:
            with contextlib.suppress(Changed):
                await self._ask(self._client.create_container())
            await self._make(name, content)

    async def _make(self, name: str, content: bytes) -> None:
        with contextlib.suppress(Changed, LockLost):  # a lease on it says too that it is there
            await self._ask(self._blob(name).upload_blob(content, overwrite=False))

    async def read(self, name: str, key: str | None = None) -> Found:
        """Return a blob; raises NoBlob, or LockLost when it is not leased under the key."""

        async def download() -> Found:
            more: dict[str, Any] = {} if key is None else {"lease": key}
            stream = await self._blob(name).download_blob(**more)
            return Found(
                content=await stream.readall(),
                etag=str(stream.properties.etag),
                lease_state=str(stream.properties.lease.state or "available"),
            )

        return await self._ask(download())

    async def write(self, name: str, content: bytes, etag: str, key: str | None = None) -> str:
        """Replace a blob as it was read, under its lease if a key is given; return its etag.

        Raises:
            LockLost: it is not leased under this key, or leased though no key is given.
            Changed: it was written meanwhile.
        """
        from azure.core import MatchConditions  # noqa: PLC0415 - as above

        more: dict[str, Any] = {} if key is None else {"lease": key}
        written = await self._ask(
            self._blob(name).upload_blob(
                content, overwrite=True, etag=etag, match_condition=MatchConditions.IfNotModified, **more
            )
        )
        return str(written["etag"])

    async def lease(self, name: str, key: str, seconds: int) -> None:
        """Lease a blob under this key; again = it is renewed. Raises Taken, NoBlob."""
        await self._ask(self._lease(name, key).acquire(lease_duration=seconds))

    async def renew(self, name: str, key: str) -> None:
        """Renew it, for as long as it was leased for."""
        await self._ask(self._lease(name, key).renew())

    async def unlease(self, name: str, key: str) -> None:
        """Give it back."""
        await self._ask(self._lease(name, key).release())

    async def break_lease(self, name: str) -> None:
        """Let it end with its time, no matter who holds it; raises LockLost when nobody does."""
        await self._ask(self._lease(name, None).break_lease())

    async def names(self) -> AsyncIterator[str]:
        """Yield the names of all leases."""
        prefix = f"{self._queue}/"
        pages = self._client.list_blob_names(name_starts_with=prefix).by_page()
        while True:
            try:
                page = await self._ask(_page(pages))
            except NoBlob:
                return
            if page is None:
                return
            for name in page:
                yield name.removeprefix(prefix)

    def _blob(self, name: str) -> "BlobClient":
        return self._client.get_blob_client(f"{self._queue}/{name}")

    def _lease(self, name: str, key: str | None) -> "BlobLeaseClient":
        from azure.storage.blob.aio import BlobLeaseClient  # noqa: PLC0415 - as above

        return BlobLeaseClient(self._blob(name), lease_id=key)

    async def _ask(self, call: Awaitable[_T]) -> _T:
        return await _asked(call, self._place)


async def _asked(call: Awaitable[_T], place: str) -> _T:
    from azure.core.exceptions import AzureError, HttpResponseError  # noqa: PLC0415 - as above

    try:
        return await call
    except HttpResponseError as error:
        raise _meaning(error, place) from None
    except AzureError as error:
        raise meaning(error, place) from None
    except (ValueError, TypeError, KeyError) as error:  # what the SDK trips over in an answer
        raise Unreadable(f"{place}: the answer cannot be read ({type(error).__name__})") from None


def _meaning(error: "HttpResponseError", place: str) -> Exception:
    code = code_of(error)
    if code in _NO_PLACE:
        return NoBlob(f"{place}: there is no such blob")
    if code in _TAKEN:
        return Taken()
    if code in _CHANGED or code in _THERE:
        return Changed()
    if code in _LOST:
        return LockLost(f"{place}: the service says {code}: the lease ran out, or was given back or taken")
    meant = meaning(error, place)
    if isinstance(meant, AccessDenied):
        meant.add_note("named leases are blobs: they need the role 'Storage Blob Data Contributor'")
    return meant


async def listed(
    client: "ContainerClient", prefix: str, marker: str | None, limit: int, place: str
) -> tuple[list[dict[str, str]], str | None]:
    """Return a page of a container's blobs by name, each with its size, and the marker of the next page.

    Raises:
        NoBlob: there is no such container.
        NoAnswer, and what else `meaning` returns.
    """
    pages = client.list_blobs(name_starts_with=prefix or None, results_per_page=limit).by_page(marker)

    async def one() -> list[dict[str, str]]:
        try:
            page = await anext(pages)
        except StopAsyncIteration:
            return []
        return [{"name": str(blob.name), "size": str(blob.size or 0)} async for blob in page]

    found = await _asked(one(), place)
    following: str | None = getattr(pages, "continuation_token", None) or None
    return found, following


async def _page(pages: Any) -> list[str] | None:
    try:
        page = await anext(pages)
    except StopAsyncIteration:
        return None
    return [str(name) async for name in page]
