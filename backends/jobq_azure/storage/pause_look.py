"""Whether a Storage Queue is paused: a mark in its metadata, which each worker looks for now and then."""

import asyncio
import logging
import time
from typing import Final
from urllib.parse import quote, unquote

from jobq.errors import AccessDenied, JobqError
from jobq.pausing import Pause
from jobq_azure.common.errors import certain
from jobq_azure.storage.queue_client import QueueFacts, StorageQueueClient

LOOK_SECONDS: Final = 60.0  # between two looks, each of which is billed as an operation
PAUSED_SECONDS: Final = 10.0  # likewise, while nothing is received
DENIED_SECONDS: Final = 300.0  # of refusals without a break, after which the right to look is believed to be gone (L4)
_ANSWER_SECONDS: Final = 3.0  # of a look, for which a receive waits
_log: Final = logging.getLogger(__name__)


class PauseLook:
    """What is known of the mark.

    Args:
        wire: to the queue.

    Attributes:
        mark: what is known; None = it is not paused.
        due: when it is looked for next, by the monotonic clock.
    """

    def __init__(self, wire: StorageQueueClient) -> None:
        self._wire = wire
        self.mark: Pause | None = None
        self._is_told = False
        self._denied_since: float | None = None  # by the monotonic clock
        self.due = 0.0

    async def holds_until(self, end: float) -> bool:
        """Wait while nothing is to be handed out, until then at most, by the monotonic clock; return whether it is so.

        A look that fails leaves what was known (L4), unless the right to look stays away.
        """
        while await self._holds():
            if (left := end - time.monotonic()) <= 0:
                return True
            await asyncio.sleep(min(left, max(0.0, self.due - time.monotonic())))
        return False

    async def _holds(self) -> bool:
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + PAUSED_SECONDS
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    self.take_in(await certain(self._wire.look()))
            except AccessDenied:
                self._refused(time.monotonic())
            except (JobqError, TimeoutError) as error:
                self._denied_since = None
                _log.debug("%s: whether the queue is paused is not known: %r", self._wire.place, error)
        return self.mark is not None

    def _refused(self, now: float) -> None:
        """Go on as without a pause; one that is known ends so only after refusals for long enough (L4)."""
        self._denied_since = self._denied_since or now
        if self.mark is not None and now - self._denied_since < DENIED_SECONDS:
            return
        was_paused, self.mark, self.due = self.mark is not None, None, now + LOOK_SECONDS
        if was_paused or not self._is_told:
            self._is_told = True
            _log.log(
                logging.WARNING if was_paused else logging.INFO,  # who never pauses need not hear it at each start
                "%s: this identity may not read the queue's metadata, so %s; a shared access signature needs"
                " the right to read",
                self._wire.place,
                "its pause is over here: its end would not be seen" if was_paused else "a pause is not seen here",
            )

    def take_in(self, facts: QueueFacts) -> Pause | None:
        """Note what the service says, and return the mark."""
        self.mark, self._denied_since = _read(facts.pause), None
        self.due = time.monotonic() + (LOOK_SECONDS if self.mark is None else PAUSED_SECONDS)
        return self.mark

    async def set(self, mark: Pause | None) -> Pause | None:
        """Set the mark, or take it away, and return the former one; this process knows at once."""
        former = await certain(self._wire.mark(None if mark is None else quote(mark.encode())))
        self.mark, self.due, self._denied_since = mark, time.monotonic() + PAUSED_SECONDS, None
        return _read(former)


def _read(text: str | None) -> Pause | None:
    return Pause.decode(None if text is None else unquote(text))
