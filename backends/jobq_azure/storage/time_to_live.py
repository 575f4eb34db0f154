"""Messages that another program has sent with a time to live: they would vanish under a task that runs.

The service deletes such a message when its time has come, leased or not, and lets nobody change that time. So what is
received is first sent again with none, under a lease of its own, and then deleted. Nothing expires by itself (S1).
"""

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import Final

from jobq.errors import JobqError, LockLost, MalformedTask
from jobq_azure.common.errors import NoAnswer
from jobq_azure.storage.message_format import MAX_COUNT, MAX_TEXT_BYTES, MessageContent, size_of
from jobq_azure.storage.queue_client import EPOCH_SECONDS, StorageQueueClient
from jobq_azure.storage.queue_messages import Message

_log: Final = logging.getLogger(__name__)


class TimeToLiveRemoval:
    """Gives messages of one queue a life without end.

    Args:
        wire: requests to the queue.
    """

    def __init__(self, wire: StorageQueueClient) -> None:
        self._wire = wire
        self._is_logged = False

    async def of(self, message: Message, lease_seconds: int, limit: float) -> Message | None:
        """Return what is to be run: a copy that lasts, or the message itself where none is to be had; None = another's.

        A crash between copy and deletion, or an answer that is lost there, repeats the task, and loses nothing (S6).

        Args:
            message: as it was received.
            lease_seconds: for how long the copy is hidden.
            limit: seconds that each of the two steps may take.
        """
        if not message.expires:
            return message
        self._log_once()
        try:
            async with asyncio.timeout(limit):
                copy = await self._wire.put_leased(_lasting(message), lease_seconds)
        except (JobqError, NoAnswer, TimeoutError) as error:
            self._warn(message, "runs as it is, and may vanish meanwhile, or run once more", error)
            return message
        try:
            async with asyncio.timeout(limit):
                await self._delete(message)
        except LockLost:
            if message.expires <= copy.inserted + limit + EPOCH_SECONDS:
                return copy  # its time has come meanwhile: nobody else may have it, and nothing else is left of it (S1)
            with contextlib.suppress(JobqError, NoAnswer):  # else it runs once more
                await self._wire.delete(copy.id, copy.receipt)
            return None
        except (JobqError, NoAnswer, TimeoutError) as error:
            self._warn(message, "may run once more", error)
        return copy

    async def _delete(self, message: Message) -> None:
        """Delete a message; asked twice where an answer is lost, for what is gone is not there."""
        try:
            await self._wire.delete(message.id, message.receipt)
        except NoAnswer:
            with contextlib.suppress(LockLost):
                await self._wire.delete(message.id, message.receipt)

    def _log_once(self) -> None:
        if not self._is_logged:
            self._is_logged = True
            _log.warning(
                "%s: another program sends messages with a time to live; each is sent again with none before it runs,"
                " and one that waits longer is lost to jobq: let it send them with -1",
                self._wire.place,
            )

    def _warn(self, message: Message, what: str, error: Exception) -> None:
        why = str(error) or "no answer in time"
        _log.warning("%s: message %s has a time to live, and %s: %s", self._wire.place, message.id, what, why)


def _lasting(message: Message) -> str:
    """Return the text of the copy, which knows what it is one of; raises MalformedTask where that has no room."""
    content = MessageContent.read(message.text)
    former = content.beside
    before = min(former.before + message.deliveries, MAX_COUNT)
    beside = replace(former, before=before, id=former.id or message.id, origin=former.origin or message.id)
    if size_of(text := replace(content, beside=beside).text()) > MAX_TEXT_BYTES:
        raise MalformedTask("has no room for how often it was delivered")
    return text
