"""Bodies too large for a message: they lie in blobs of the container `jobq-payloads`, and the message names its own.

Each message owns one blob: it is written before the message, and deleted after the message's own deletion was
confirmed. So no crash between two requests can take a task's payload away (S1); what it can leave behind is a blob that
nobody names, and `clear` sweeps those away. A copy of a message (a dead letter, a redrive) gets a copy of the blob.

The name is QUEUE/SHA256-RANDOM. The hash shows that what is read is what was pushed; the random half keeps strangers
who may send messages from naming the payload of another task. Who may read messages, too, can name it: so the blob says
which message owns it, by the id that the service gave that, and no other message's end deletes it.
"""

import asyncio
import datetime as dt
import hashlib
import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jobq.errors import BackendUnavailable, ConfigurationError, JobqError, MalformedTask, QueueNotFound
from jobq.task import MAX_BODY_BYTES
from jobq_azure.common.errors import AlreadyThere, NoAnswer, NoBlob, answered, from_the_service
from jobq_azure.storage.envelope import Envelope
from jobq_azure.storage.message_format import MessageContent

if TYPE_CHECKING:
    from azure.storage.blob.aio import ContainerClient

CONTAINER: Final = "jobq-payloads"
_OWNER: Final = "message"  # the name in a blob's metadata
SUFFIX: Final = "-failed"  # of the queue of dead letters
_NAME: Final = re.compile(r"[a-z0-9-]{3,70}/([0-9a-f]{64})-[0-9a-f]{32}")
# A push writes the blob and then the message, within minutes: what is older and has no message gets none any more. By
# the service's clock, which says when a blob was written: this machine's may be days ahead of it (rules.md 1.3 rule 6).
_SWEEP_AGE: Final = dt.timedelta(days=1)
_SWEEP_SECONDS: Final = 10.0
_log: Final = logging.getLogger(__name__)
_T = TypeVar("_T")


class Payloads:
    """The payload blobs of one queue.

    Args:
        open_: returns the SDK's client of the container; None = no blob endpoint is configured.
        queue: owns these blobs.
        place: ACCOUNT/QUEUE, for messages.
    """

    def __init__(self, open_: "Callable[[], ContainerClient] | None", queue: str, place: str) -> None:
        self._open = open_
        self._queue = queue
        self._place = place
        self._opened: ContainerClient | None = None
        self._is_missing = False

    @property
    def are_possible(self) -> bool:
        """Whether a blob endpoint is configured."""
        return self._open is not None

    async def create(self) -> None:
        """Make the container, if something was to be put there and it was missing: most queues never need it."""
        if not self._is_missing:
            return
        try:
            await self._ask(self._client.create_container())
        except AlreadyThere:
            pass
        except NoAnswer as error:
            raise BackendUnavailable(str(error)) from None
        self._is_missing = False

    async def store(self, body: bytes, owner: str = "") -> str:
        """Write a body, and return the name of its blob.

        Args:
            body: of a task.
            owner: the service's id of the message that owns it; empty = it is not sent yet, and `give` says so then.

        Raises:
            QueueNotFound: there is no container; `create` makes it.
            BackendUnavailable: it is not there, or nobody names it.
        """
        name = f"{self._queue}/{hashlib.sha256(body).hexdigest()}-{secrets.token_hex(16)}"
        try:
            metadata = {_OWNER: owner} if owner else None
            await self._ask(self._client.upload_blob(name, body, length=len(body), overwrite=False, metadata=metadata))
        except QueueNotFound:
            self._is_missing = True
            raise
        except NoAnswer as error:
            await self.remove(name)
            raise BackendUnavailable(str(error)) from None
        return name

    async def give(self, name: str, owner: str) -> None:
        """Note which message owns a blob, now that it is sent; where that fails, the blob is left for `sweep`."""
        try:
            await self._ask(self._client.get_blob_client(name).set_blob_metadata({_OWNER: owner}))
        except (JobqError, NoAnswer) as error:
            _log.info("a payload stays when its message goes, and `clear` sweeps it away: %s: %s", name, error)

    async def fetch(self, name: str) -> tuple[bytes, str]:
        """Return the body in a blob, and the id of the message that owns it.

        Raises:
            MalformedTask: it is gone, or another than was stored; it will not come back.
            ConfigurationError, BackendUnavailable: it cannot be had here, or now.
        """
        digest = digest_in(name)
        if not self.owns(name) and not (digest and name.startswith(f"{self._queue}{SUFFIX}/")):
            raise MalformedTask("names no payload of this queue", "blob")
        try:
            body, owner = await self._ask(self._read(name))
        except (NoBlob, QueueNotFound):
            raise MalformedTask("the payload is gone from the container " + CONTAINER, "blob") from None
        except NoAnswer as error:
            raise BackendUnavailable(str(error)) from None
        if body is None or hashlib.sha256(body).hexdigest() != digest:
            raise MalformedTask("the payload is not what was pushed: its hash differs", "blob")
        return body, owner

    async def opened(self, text: str) -> Envelope:
        """Return what a message holds, with its body; raises what `fetch` raises, but for a fault that stays."""
        content = MessageContent.read(text)
        if not content.beside.blob:
            return Envelope(content, text=text)
        try:
            payload, owner = await self.fetch(content.beside.blob)
            return Envelope(content, payload, text=text, owner=owner)
        except MalformedTask as fault:
            return Envelope(content, fault=fault, text=text)

    def owns(self, name: str) -> bool:
        """Return whether a name is that of a payload of this queue; others are not deleted.

        Nor read, but for those of its dead letters: somebody may put the message of one back by hand.
        """
        return digest_in(name) is not None and name.startswith(f"{self._queue}/")

    async def _read(self, name: str) -> tuple[bytes | None, str]:
        loader = await self._client.download_blob(name)
        owner = (loader.properties.metadata or {}).get(_OWNER, "")
        # Who may write there could have put anything in its place.
        return bytes(await loader.readall()) if loader.size <= MAX_BODY_BYTES else None, owner

    async def remove_of(self, name: str, message_id: str) -> None:
        """Delete a blob with the message that is gone, if that owned it."""
        if not self.owns(name):
            return
        try:
            found = await self._ask(self._client.download_blob(name, offset=0, length=1))
        except (NoBlob, JobqError, NoAnswer) as error:
            _log.info("a payload is left behind, `clear` sweeps it away: %s: %s", name, error)
            return
        if (found.properties.metadata or {}).get(_OWNER) == message_id:
            await self.remove(name)

    async def remove(self, name: str) -> None:
        """Delete a blob that no message needs; where that fails, it is left for `sweep`, and nobody misses it."""
        if not self.owns(name):  # who may send messages may write any name into them
            return
        try:
            await self._ask(self._client.delete_blob(name))
        except (NoBlob, QueueNotFound):
            pass
        except (JobqError, NoAnswer) as error:
            _log.warning("a payload is left behind, `clear` sweeps it away: %s: %s", name, error)

    async def sweep(self) -> None:
        """Delete the blobs of a queue that is empty, but for those whose message may still be on its way.

        Where that cannot be done they stay, which costs their storage and nothing else.
        """
        if not self.are_possible:
            return
        try:
            names = await within(_SWEEP_SECONDS, self._ask(self._old()))
        except (JobqError, NoAnswer) as error:  # most queues have no payloads, and their users no right to look
            _log.info("no look for payloads that were left behind: %s", error)
            return
        for name in names:
            await self.remove(name)

    async def _old(self) -> list[str]:
        said: list[dt.datetime] = []  # the service's time, with each page

        def hear(response: Any) -> None:
            from_the_service(response)  # a hook of one request takes the place of the client's
            if text := response.http_response.headers.get("Date"):
                said.append(parsedate_to_datetime(text).astimezone(dt.UTC))

        found = self._client.list_blobs(name_starts_with=f"{self._queue}/", raw_response_hook=hear)
        return [blob.name async for blob in found if said and blob.last_modified < said[0] - _SWEEP_AGE]

    @property
    def _client(self) -> "ContainerClient":
        if self._opened is None:
            if self._open is None:
                raise ConfigurationError(
                    f"{self._place}: a task's payload lies in a blob, and this connection string has no BlobEndpoint"
                )
            self._opened = self._open()
        return self._opened

    async def _ask(self, call: Awaitable[_T]) -> _T:
        return await answered(call, f"{self._place} (container {CONTAINER})")


def digest_in(name: str) -> str | None:
    """Return the hash in a blob's name; None for a name that is not of ours."""
    found = _NAME.fullmatch(name)
    return found and found[1]


async def within(seconds: float | None, call: Awaitable[_T]) -> _T:
    """Return what a request for a blob returns; raises BackendUnavailable when that takes longer."""
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError:
        raise BackendUnavailable(f"no answer from the blob service within {seconds} s") from None
