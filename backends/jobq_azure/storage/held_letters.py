"""Letters that this process has hidden from other readers: a Storage Queue shows 32 messages, and leases all it has."""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from typing import Final

from jobq.errors import BackendUnavailable, LockLost
from jobq_azure.common.errors import NoAnswer
from jobq_azure.storage.queue_client import MOST_AT_ONCE, StorageQueueClient
from jobq_azure.storage.queue_messages import Message

HOLD_SECONDS: Final = 60  # how long a reader hides what it looks through
_LET_GO_SECONDS: Final = 10.0
_WINDOW: Final = 256  # letters that a walk holds at once: a minute is enough for 3 requests each
_WINDOW_CHARACTERS: Final = 8 * 1024 * 1024


class HeldLetters:
    """Of one dead-letter queue.

    Args:
        wire: requests to it.

    Attributes:
        window: what a walk holds now; None = there is no walk.
    """

    def __init__(self, wire: StorageQueueClient) -> None:
        self._wire = wire
        self.window: dict[str, Message] | None = None

    @contextlib.asynccontextmanager
    async def held(self, enough: float = math.inf) -> AsyncIterator[dict[str, Message]]:
        """Lease all there is, or enough, so that each is seen once; what is left in there is shown again.

        Within a walk: what that holds, and the walk shows it again.
        """
        if self.window is not None:
            yield self.window
            return
        held: dict[str, Message] = {}
        let_go_seconds: float = HOLD_SECONDS  # after which they show by themselves
        try:
            known = -1
            while known < len(held) < enough:  # else there is no more, or the first come round again
                known = len(held)
                await self._hold_more(held)
            yield held
        except asyncio.CancelledError:
            let_go_seconds = _LET_GO_SECONDS  # somebody waits for the end
            raise
        finally:
            await self._let_go(list(held.values()), let_go_seconds)

    async def windows(self) -> AsyncGenerator[dict[str, Message]]:
        """Yield all letters, each once, some hundred at a time; what is left in there is shown again at the end.

        Whatever is done with them, each is leased once, and no more than these are in memory. What is left shows by
        itself after a minute, and comes again: a walk ends when nothing else has come for as long as that takes.
        """
        left: dict[str, Message] = {}
        let_go_seconds: float = HOLD_SECONDS
        try:
            while window := await self._next(left):
                self.window = window
                yield window
                left |= {message.id: replace(message, text="") for message in window.values()}
        except (asyncio.CancelledError, GeneratorExit):
            let_go_seconds = _LET_GO_SECONDS
            raise
        finally:
            left |= self.window or {}
            self.window = None
            await self._let_go(list(left.values()), let_go_seconds)

    async def _next(self, left: dict[str, Message]) -> dict[str, Message]:
        """Lease the next letters, which are not among those that were left; of these note the new receipts."""
        window: dict[str, Message] = {}
        size = in_vain = 0
        while len(window) < _WINDOW and size < _WINDOW_CHARACTERS and in_vain * MOST_AT_ONCE <= len(left):
            found: dict[str, Message] = {}
            try:
                await self._hold_more(found)
            finally:
                new = {id_: message for id_, message in found.items() if id_ not in left and id_ not in window}
                left |= {id_: replace(found[id_], text="") for id_ in left.keys() & found.keys()}
                window |= {id_: message for id_, message in found.items() if id_ not in left}
            size += sum(len(message.text) for message in new.values())
            in_vain = 0 if new else in_vain + 1
            if not found:
                break
        return window

    async def _hold_more(self, held: dict[str, Message]) -> None:
        getting = asyncio.ensure_future(self._wire.get(MOST_AT_ONCE, HOLD_SECONDS))
        try:
            await asyncio.shield(getting)
        except asyncio.CancelledError:  # what it brings must be shown again
            await asyncio.wait({getting}, timeout=_LET_GO_SECONDS)
            raise
        finally:
            if getting.done() and not getting.cancelled() and getting.exception() is None:
                held |= {message.id: message for message in getting.result()}
            getting.cancel()

    async def _let_go(self, messages: Sequence[Message], seconds: float) -> None:
        async def show(message: Message) -> None:
            with contextlib.suppress(LockLost, BackendUnavailable, NoAnswer):  # it shows by itself, a minute later
                await self._wire.update(message.id, message.receipt, 0)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for at in range(0, len(messages), MOST_AT_ONCE):
                    await asyncio.gather(*(show(message) for message in messages[at : at + MOST_AT_ONCE]))
