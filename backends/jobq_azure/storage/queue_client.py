"""One Storage Queue, one method a request: no retry here, none in the SDK and none below it.

The official SDK speaks; this module sets what it would otherwise decide for us: the time to live
is always -1 (the service's default deletes after 7 days), an update always names its visibility, a body is sent
only where it is to change, and nothing is ever sent twice.
"""

import contextlib
import math
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeVar

from azure.storage.queue.aio import QueueClient

from jobq.errors import BackendUnavailable, QueueNotFound
from jobq_azure.common.errors import AlreadyThere, NoCredential, Unreadable, answered

MOST_AT_ONCE: Final = 32  # messages in one request, by the service
LONGEST: Final = timedelta(days=7)  # that a message may be hidden, by the service
FOR_EVER: Final = -1
_NEVER: Final = 9999  # the year in which the service says that such messages expire
EPOCH_SECONDS: Final = 1.0  # the grain of when a message was put into its queue
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message as it was handed out.

    Attributes:
        id: the service's.
        text: as stored.
        receipt: fences what is done with it; empty when it was only peeked at.
        deliveries: how often it was handed out, this time included.
        inserted: when it was put into the queue, in seconds since 1970 by the service's clock; 0 = it did not say.
        expires: when the service deletes it, leased or not, in seconds since 1970 by its clock; 0 = never.
    """

    id: str
    text: str = field(repr=False)
    receipt: str = field(repr=False)  # a secret of the worker's (A6)
    deliveries: int
    inserted: int = 0
    expires: int = 0


def whole_seconds(length: timedelta) -> int:
    """Return what to ask the service for: at least as long, in whole seconds, within what it takes."""
    return min(max(1, math.ceil(length.total_seconds())), int(LONGEST.total_seconds()))


class StorageQueueClient:
    """Requests to one queue.

    Args:
        client: the SDK's, made by `Account.client`.
        place: ACCOUNT/QUEUE, for messages.
    """

    def __init__(self, client: QueueClient, place: str) -> None:
        self._client = client
        self.place = place
        self._was_served = False

    async def create(self) -> None:
        """Make the queue; one that is there is left as it is."""
        with contextlib.suppress(AlreadyThere):
            await self.ask(self._client.create_queue())

    async def delete_queue(self) -> None:
        """Delete the queue with all in it; one that is not there is no error."""
        with contextlib.suppress(QueueNotFound):
            await self.ask(self._client.delete_queue())

    async def put(self, text: str, hidden_seconds: int = 0) -> tuple[str, str]:
        """Add a message, and return its id and a receipt that deletes it."""
        sent = await self.put_leased(text, hidden_seconds)
        return sent.id, sent.receipt

    async def put_leased(self, text: str, seconds: int) -> Message:
        """Add a message that is hidden for so many seconds, and return it as if it had been received."""
        sent = await self.ask(self._client.send_message(text, visibility_timeout=seconds, time_to_live=FOR_EVER))
        self._given(sent.id and sent.pop_receipt)
        return _message(sent)

    async def get(self, count: int, seconds: int) -> list[Message]:
        """Lease up to `count` messages, 32 at most, for so many seconds."""
        pages = self._client.receive_messages(
            messages_per_page=min(count, MOST_AT_ONCE), visibility_timeout=seconds
        ).by_page()
        return await self.ask(self._first_of(pages))

    async def peek(self, count: int) -> list[Message]:
        """Look at the first messages, 32 at most."""
        found = await self.ask(self._client.peek_messages(min(count, MOST_AT_ONCE)))
        return [_message(each) for each in found]  # without receipts

    async def update(self, message_id: str, receipt: str, seconds: int, text: str | None = None) -> str:
        """Hide a message for so many seconds from now, with another text when one is given; return its new receipt."""
        # By id: given its own message object, the SDK would send the text that it had at the receive once more.
        updated = await self.ask(
            self._client.update_message(message_id, receipt, content=text, visibility_timeout=seconds)
        )
        return self._given(updated.pop_receipt)

    async def delete(self, message_id: str, receipt: str) -> None:
        """Delete a message."""
        await self.ask(self._client.delete_message(message_id, receipt))

    async def clear(self) -> None:
        """Delete all messages."""
        await self.ask(self._client.clear_messages())

    async def count(self) -> int:
        """Return about how many messages there are, hidden ones included."""
        return int((await self.ask(self._client.get_queue_properties())).approximate_message_count or 0)

    async def _first_of(self, pages: "object") -> list[Message]:
        async for page in pages:  # type: ignore[attr-defined] # the SDK's pager
            found = [_message(each) async for each in page]
            for message in found:
                self._given(message.id and message.receipt)
            return found
        return []

    def _given(self, value: str | None) -> str:
        """Return an id or receipt of an answer; one without it is none of the service's, whatever its status says."""
        if not value:
            raise Unreadable(f"{self.place}: an answer without a receipt")
        return str(value)

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


def _message(found: "object") -> Message:
    inserted: datetime | None = found.inserted_on  # type: ignore[attr-defined] # as below
    expires: datetime | None = found.expires_on  # type: ignore[attr-defined]
    return Message(
        id=str(found.id),  # type: ignore[attr-defined] # the SDK's message, as in the next
        text=str(found.content or ""),  # type: ignore[attr-defined]
        receipt=str(found.pop_receipt or ""),  # type: ignore[attr-defined]
        deliveries=int(found.dequeue_count or 0),  # type: ignore[attr-defined]
        inserted=0 if inserted is None else max(0, int(inserted.timestamp())),
        expires=0 if expires is None or expires.year >= _NEVER else max(1, int(expires.timestamp())),
    )
