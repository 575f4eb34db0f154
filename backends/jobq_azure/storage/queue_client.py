"""One Storage Queue, one method a request: no retry here, and none below.

What tasks cost (put, get, update, delete, and the two looks that a worker takes at its start and end, a peek and a
count) are requests of our own; for all else the official SDK speaks, which is imported then. The time to live is always
-1 (the service's default deletes after 7 days), an update always names its visibility, a body is sent only where it is
to change, and nothing is ever sent twice.
https://learn.microsoft.com/rest/api/storageservices/operations-on-messages
"""

import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from urllib.parse import quote

from jobq.errors import BackendUnavailable, QueueNotFound
from jobq_azure.common.errors import AlreadyThere, NoCredential, Unreadable, answered, refusal
from jobq_azure.common.storage_requests import StorageAnswer, StorageRequests
from jobq_azure.storage.queue_messages import MOST_DIGITS, Message, read, written

if TYPE_CHECKING:
    from azure.storage.queue.aio import QueueClient

MOST_AT_ONCE: Final = 32  # messages in one request, by the service
LONGEST: Final = timedelta(days=7)  # that a message may be hidden, by the service
FOR_EVER: Final = -1
EPOCH_SECONDS: Final = 1.0  # the grain of when a message was put into its queue
PAUSE: Final = "x-ms-meta-jobqpause"  # a header, as the service gives and takes what is noted of a queue
_NOTED: Final = "x-ms-meta-"
_METADATA: Final = {"comp": "metadata"}
_XML: Final = "application/xml"
_T = TypeVar("_T")


class QueueFacts(NamedTuple):
    """What the service says of a queue.

    Attributes:
        messages: about how many there are, hidden ones included.
        pause: the mark of a pause; None = there is none.
    """

    messages: int
    pause: str | None


def whole_seconds(length: timedelta) -> int:
    """Return what to ask the service for: at least as long, in whole seconds, within what it takes."""
    return min(max(1, math.ceil(length.total_seconds())), int(LONGEST.total_seconds()))


class StorageQueueClient:
    """Requests to one queue.

    Args:
        requests: to the queues of its account.
        open_sdk: returns the SDK's client of this queue; asked once, when it is needed.
        queue: its name.
        place: ACCOUNT/QUEUE, for messages.
    """

    def __init__(
        self, requests: StorageRequests, open_sdk: "Callable[[], QueueClient]", queue: str, place: str
    ) -> None:
        self._requests = requests
        self._open_sdk = open_sdk
        self._queue = f"/{queue}"
        self._messages = f"/{queue}/messages"
        self._opened: QueueClient | None = None
        self.place = place
        self._was_served = False

    async def create(self) -> None:
        """Make the queue; one that is there is left as it is."""
        with contextlib.suppress(AlreadyThere):
            await self.ask(self._sdk.create_queue())

    async def delete_queue(self) -> None:
        """Delete the queue with all in it; one that is not there is no error."""
        with contextlib.suppress(QueueNotFound):
            await self.ask(self._sdk.delete_queue())

    async def put(self, text: str, hidden_seconds: int = 0) -> tuple[str, str]:
        """Add a message, and return its id and a receipt that deletes it; raises MalformedTask: it cannot be sent."""
        query = {"visibilitytimeout": str(hidden_seconds), "messagettl": str(FOR_EVER)}
        answer = await self._send("POST", self._messages, query, HTTPStatus.CREATED, written(text))
        sent = self._read(answer, are_leased=True)
        if len(sent) != 1:
            raise Unreadable(f"{self.place}: an answer without the message that was put")
        return sent[0].id, sent[0].receipt

    async def get(self, count: int, seconds: int) -> list[Message]:
        """Lease up to `count` messages, 32 at most, for so many seconds."""
        query = {"numofmessages": str(min(count, MOST_AT_ONCE)), "visibilitytimeout": str(seconds)}
        return self._read(await self._send("GET", self._messages, query, HTTPStatus.OK), are_leased=True)

    async def peek(self, count: int) -> list[Message]:
        """Look at the first messages, 32 at most; they have no receipts."""
        query = {"peekonly": "true", "numofmessages": str(min(count, MOST_AT_ONCE))}
        return self._read(await self._send("GET", self._messages, query, HTTPStatus.OK), are_leased=False)

    async def update(self, message_id: str, receipt: str, seconds: int, text: str | None = None) -> str:
        """Hide a message for so many seconds from now, with another text when one is given; return its new receipt."""
        query = {"popreceipt": receipt, "visibilitytimeout": str(seconds)}
        body = b"" if text is None else written(text)
        answer = await self._send("PUT", self._path_of(message_id), query, HTTPStatus.NO_CONTENT, body)
        new = set(answer.headers.getall("x-ms-popreceipt", ()))
        if len(new) != 1 or "" in new:
            raise Unreadable(f"{self.place}: an answer without a receipt")
        return new.pop()

    async def delete(self, message_id: str, receipt: str) -> None:
        """Delete a message."""
        await self._send("DELETE", self._path_of(message_id), {"popreceipt": receipt}, HTTPStatus.NO_CONTENT)

    async def clear(self) -> None:
        """Delete all messages."""
        await self.ask(self._sdk.clear_messages())

    async def count(self) -> int:
        """Return about how many messages there are, hidden ones included."""
        return (await self.look()).messages

    async def look(self) -> QueueFacts:
        """Return what the service says of the queue."""
        answer = await self._send("GET", self._queue, _METADATA, HTTPStatus.OK)
        count = answer.headers.get("x-ms-approximate-messages-count", "")
        if not (count.isascii() and count.isdecimal() and len(count) <= MOST_DIGITS):
            raise Unreadable(f"{self.place}: an answer without the number of messages")
        return QueueFacts(int(count), answer.headers.get(PAUSE))

    async def mark(self, pause: str | None) -> str | None:
        """Set the mark of a pause, ASCII, or take it away; return the former. What others have noted there stays.

        Two who change what is noted at the same moment may undo each other: the service compares nothing here.
        """
        answer = await self._send("GET", self._queue, _METADATA, HTTPStatus.OK)
        noted = {name.lower(): value for name, value in answer.headers.items() if name.lower().startswith(_NOTED)}
        former = noted.pop(PAUSE, None)
        if pause is not None:
            noted[PAUSE] = pause
        await self._send("PUT", self._queue, _METADATA, HTTPStatus.NO_CONTENT, more=noted)
        return former

    def _path_of(self, message_id: str) -> str:
        return f"{self._messages}/{quote(message_id, safe='')}"

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        done: int,
        body: bytes = b"",
        more: Mapping[str, str] | None = None,
    ) -> StorageAnswer:
        """Return the answer if its status says that it is done; raises as `answered` does. `more` are headers."""
        headers = {"Accept": _XML, **({"Content-Type": _XML} if body else {}), **(more or {})}
        answer = await self._requests.send(method, path, query, headers, body)
        self._was_served = True
        if answer.status == done:
            return answer
        if answer.status < HTTPStatus.MULTIPLE_CHOICES:
            raise Unreadable(f"{self.place}: an answer that nobody expects ({answer.status})")
        raise refusal(answer.status, answer.code, self.place)

    def _read(self, answer: StorageAnswer, *, are_leased: bool) -> list[Message]:
        """Return what an answer hands out; raises Unreadable: it was handed out to nobody."""
        try:
            found = read(answer.body)
        except (ValueError, OverflowError):
            raise Unreadable(f"{self.place}: the answer cannot be read") from None
        if are_leased and not all(message.receipt for message in found):
            raise Unreadable(f"{self.place}: an answer without a receipt")
        return found

    @property
    def _sdk(self) -> "QueueClient":
        if self._opened is None:
            self._opened = self._open_sdk()
        return self._opened

    async def ask(self, call: Awaitable[_T]) -> _T:
        """Return what a call of the SDK returns; raises as `answered` does."""
        try:
            result = await answered(call, self.place)
        except NoCredential:
            if self._was_served:  # then it is the identity service that stumbles, and no matter of configuration (L4)
                raise BackendUnavailable(f"{self.place}: no token is to be had at the moment") from None
            raise
        self._was_served = True
        return result
