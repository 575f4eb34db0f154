"""A container of blobs as a place for files (`jobq.files.file_store`): bounded memory, each block repeated a few times.

Every request can be repeated: a block is written under its own number, a file under a name of its own, and an append
says at which length it belongs (https://learn.microsoft.com/rest/api/storageservices/append-block).
"""

import asyncio
import base64
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from azure.core.exceptions import HttpResponseError

from jobq.errors import BackendUnavailable, QueueNotFound
from jobq.settings import Settings
from jobq_azure.common.errors import AlreadyThere, NoAnswer, NoBlob, answered, code_of
from jobq_azure.storage.account import Account, account_in, connection_string_of

if TYPE_CHECKING:
    from azure.storage.blob.aio import ContainerClient

T = TypeVar("T")
_BLOCK_BYTES: Final = 4 * 1024 * 1024
_TRIES: Final = 4
_FIRST_PAUSE_SECONDS: Final = 0.2
_REQUEST_SECONDS: Final = 60.0  # a block on a slow line; the service itself gives up after 30 s


def container(account: str, name: str, prefix: str, suffix: str | None, settings: Settings) -> "BlobPlace":
    """Return a container as a place, not yet entered; the entry point `az` of `jobq.places`.

    Args:
        account: whose container it is; the connection string signs in where it is this account's, else the identity.
        name: of the container, which is made when it is missing.
        prefix: of all names in it; may be empty.
        suffix: of the cloud's host names; None = as the settings say.
        settings: of the sign-in.
    """
    given = connection_string_of(settings.connection_string, settings.azurite, os.environ)
    if given is not None and account_in(given) != account:
        given = None
    return BlobPlace(Account(account, given, suffix or settings.endpoint_suffix), name, prefix)


class BlobPlace:
    """Files in a container.

    Args:
        account: not yet entered.
        name: of the container.
        prefix: of all names in it.
    """

    def __init__(self, account: Account, name: str, prefix: str) -> None:
        self._account = account
        self._name = name
        self._prefix = f"{prefix}/" if prefix else ""
        self._place = f"{account.name}/{name} (container {name})"
        self._opened: ContainerClient | None = None

    async def __aenter__(self) -> Self:
        await self._account.__aenter__()
        self._opened = self._account.container(self._name)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._account.__aexit__(*exc_info)

    @property
    def _client(self) -> "ContainerClient":
        assert self._opened is not None, "enter it first"
        return self._opened

    async def scratch(self) -> Path | None:
        """Return None: it is uploaded from anywhere."""
        return None

    async def put(self, name: str, source: Path) -> None:
        """Write block by block; the file is there once its blocks are committed."""
        blob = self._client.get_blob_client(self._prefix + name)
        blocks: list[str] = []
        with source.open("rb") as stream:
            while chunk := stream.read(_BLOCK_BYTES):
                block = base64.b64encode(f"{len(blocks):08d}".encode()).decode()
                await self._made(_call(blob.stage_block, block, chunk, length=len(chunk)))
                blocks.append(block)
        await self._made(_call(blob.commit_block_list, blocks))

    async def fetch(self, name: str, into: Path) -> Path:
        """Download it."""
        blob = self._client.get_blob_client(self._prefix + name)

        async def download() -> None:
            loader = await blob.download_blob()
            with into.open("wb") as stream:
                async for chunk in loader.chunks():
                    stream.write(chunk)

        try:
            await self._sure(download, seconds=None)
        except (NoBlob, QueueNotFound):
            raise FileNotFoundError(name) from None
        return into

    async def names(self, prefix: str) -> list[str]:
        """List them."""

        async def look() -> list[str]:
            found = self._client.list_blob_names(name_starts_with=self._prefix + prefix)
            return [name.removeprefix(self._prefix) async for name in found]

        try:
            return await self._sure(look)
        except (NoBlob, QueueNotFound):
            return []

    async def remove(self, name: str) -> None:
        """Delete it."""
        with contextlib.suppress(NoBlob, QueueNotFound):
            await self._sure(_call(self._client.delete_blob, self._prefix + name))

    async def read(self, name: str, offset: int, most: int) -> bytes:
        """Download a range."""
        blob = self._client.get_blob_client(self._prefix + name)

        async def look() -> bytes:
            try:
                loader = await blob.download_blob(offset=offset, length=most)
                return bytes(await loader.readall())
            except HttpResponseError as error:
                if error.status_code == 416:  # noqa: PLR2004 - Range Not Satisfiable: nothing stands there yet
                    return b""
                raise

        try:
            return await self._sure(look)
        except (NoBlob, QueueNotFound):
            raise FileNotFoundError(name) from None

    async def append(self, name: str, offset: int, chunk: bytes) -> None:
        """Append a block at this length; one that stands there already was this one, by a lost answer."""
        blob = self._client.get_blob_client(self._prefix + name)
        if offset == 0:
            await self._made(blob.create_append_blob)

        async def write() -> None:
            try:
                await blob.append_block(chunk, length=len(chunk), appendpos_condition=offset)
            except HttpResponseError as error:
                if code_of(error) != "AppendPositionConditionNotMet":
                    raise
                length = (await blob.get_blob_properties()).size
                if length != offset + len(chunk):
                    raise

        await self._sure(write)

    async def _sure(self, call: Callable[[], Awaitable[T]], *, seconds: float | None = _REQUEST_SECONDS) -> T:
        """Return the answer, after a few tries; raises QueueNotFound where there is no container."""
        pause = _FIRST_PAUSE_SECONDS
        tries = 0
        while True:
            tries += 1
            last = tries == _TRIES
            try:
                async with asyncio.timeout(seconds):
                    return await answered(call(), self._place)
            except TimeoutError:
                if last:
                    raise BackendUnavailable(f"{self._place}: no answer within {seconds} s") from None
            except (BackendUnavailable, NoAnswer) as error:
                if last:
                    raise BackendUnavailable(str(error)) from None
            await asyncio.sleep(pause)
            pause *= 2

    async def _made(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Write, and make the container first where that is what is missing."""
        try:
            await self._sure(call)
        except QueueNotFound:
            await self._make()
            await self._sure(call)

    async def _make(self) -> None:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                await answered(self._client.create_container(), self._place)
        except AlreadyThere:
            pass
        except (TimeoutError, NoAnswer) as error:
            raise BackendUnavailable(f"{self._place}: {error}") from None


def _call(function: Any, *arguments: Any, **more: Any) -> Callable[[], Awaitable[Any]]:
    return lambda: function(*arguments, **more)
