"""The requests of one delivery, one after the other, whether or not their callers still wait."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from jobq.errors import SettlementUnknown
from jobq_azure.common.errors import NoAnswer

# How long a request of a delivery may take, of its lease and at most: longer than its caller waits (rules.md 1.3
# rule 4: an eighth, 5 s), since a late answer still counts, and over before the caller's second try is.
_ANSWER_SHARE: Final = 3 / 16
_ANSWER_SECONDS: Final = 7.5


class Chain:
    """A request that its caller gave up on goes on, and the next waits for it: only its answer says what it has done.

    Args:
        place: of the queue, for messages.
        on_their_way: the backend's; holds each request until it is answered, whether or not anybody waits for it.
    """

    def __init__(self, place: str, on_their_way: "set[asyncio.Task[None]]") -> None:
        self._place = place
        self._on_their_way = on_their_way
        self._sent: asyncio.Task[None] | None = None

    async def send(self, request: Callable[[], Awaitable[None]], lease_seconds: float) -> None:
        """Send a request once the one before has been answered.

        Args:
            request: raises NoAnswer when nobody can say what it has done.
            lease_seconds: the length of the lease that it is made under.

        Raises:
            SettlementUnknown: its answer was lost.
        """
        while self._sent is not None and not self._sent.done():
            await asyncio.wait({self._sent})
        self._sent = asyncio.ensure_future(self._limited(request, lease_seconds))
        self._on_their_way.add(self._sent)
        self._sent.add_done_callback(self._answered)
        try:
            await asyncio.shield(self._sent)
        except NoAnswer as error:
            raise SettlementUnknown(str(error)) from None

    async def _limited(self, request: Callable[[], Awaitable[None]], lease_seconds: float) -> None:
        # One that is never answered must not hold up the next for so long that the lease is over.
        seconds = min(lease_seconds * _ANSWER_SHARE, _ANSWER_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                await request()
        except TimeoutError:
            raise NoAnswer(f"{self._place}: no answer within {seconds:.3g} s") from None

    def _answered(self, sent: "asyncio.Task[None]") -> None:
        self._on_their_way.discard(sent)
        if not sent.cancelled():
            sent.exception()  # looked at: perhaps nobody waits for it any more
