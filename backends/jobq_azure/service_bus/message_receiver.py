"""Long polls for a queue of Service Bus: one message an answer, so one poll waits and the others follow it.

A poll that its caller gives up cannot be called back: closing its connection may leave the message locked for nobody.
So it goes on, and the next receive takes over what it brings. What none takes over soon, since all slots are taken or
the queue is left, is given back: its lock would run out here and cost it a delivery.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final

from jobq.errors import JobqError
from jobq_azure.common.errors import NoAnswer
from jobq_azure.service_bus.rest_client import Locked, RestClient

_FIRST_SECONDS: Final = 1
_LONGEST_SECONDS: Final = 10
_LOOKS_AT_ONCE: Final = 16
_LEAVE_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 1.0
_KEPT_SECONDS: Final = 2.0  # what an abandoned poll has brought, for the next receive: most follow at once


class MessageReceiver:
    """All that wait at one queue.

    Args:
        wire: requests to the queue.
        give_back: gives back a message that nobody waits for any more, so that it costs no budget.
        longest_seconds: of one poll: the longer a queue is idle, the longer its polls, since each is billed.
        now: seconds by a clock that the service's long polls go by, too.
        on_lost: called when a message may be locked for nobody, as nobody hears of it.
    """

    def __init__(
        self,
        wire: RestClient,
        give_back: Callable[[Locked], Awaitable[None]],
        longest_seconds: float,
        now: Callable[[], float],
        on_lost: Callable[[], None],
    ) -> None:
        self._wire = wire
        self._on_lost = on_lost
        self._now = now
        self._give_back = give_back
        self._longest = max(_FIRST_SECONDS, min(int(longest_seconds), _LONGEST_SECONDS))
        self._seconds = _FIRST_SECONDS
        self._abandoned: set[asyncio.Task[Locked | None]] = set()
        self._returning: dict[asyncio.Task[Locked | None], asyncio.Task[None]] = {}

    async def receive(self, most: int, seconds: float) -> list[Locked]:
        """Return up to `most` messages, or none after so long.

        What an abandoned poll has brought was granted before this was called: its lock is renewed first, for its lease
        is counted from the call (rules.md 1.3 rule 5).
        """
        end = self._now() + seconds
        while True:
            began = self._now()
            wait = min(self._seconds, max(0, math.ceil(end - began)))
            first = await self._taken_over(most) or await self._first(wait, most)
            if first:
                self._seconds = _FIRST_SECONDS
                return await self._more(first, most)
            if self._now() >= end or wait == 0:
                return []
            self._seconds = min(self._seconds * 2, self._longest)
            if self._now() - began < wait / 2:
                await asyncio.sleep(_PAUSE_SECONDS)  # a service that answers at once is not asked without end

    async def aclose(self) -> None:
        """Wait for what is on its way, and give it back."""
        for poll, returning in self._returning.items():
            if poll in self._abandoned:  # else it is on its way back already
                returning.cancel()
        if self._returning:
            await asyncio.wait(self._returning.values(), timeout=_LEAVE_SECONDS)
        if self._abandoned:
            await asyncio.wait(self._abandoned, timeout=_LEAVE_SECONDS)
        for poll in list(self._abandoned):
            if not poll.done():
                poll.cancel()
            elif (locked := self._brought(poll)) is not None:
                await self._returned(locked)
        self._abandoned.clear()

    async def _first(self, wait: int, most: int) -> list[Locked]:
        """Wait for a first message, beside the polls that were abandoned."""
        poll = asyncio.ensure_future(self._wire.lock(wait))
        try:
            while True:
                await asyncio.wait({poll, *self._abandoned}, return_when=asyncio.FIRST_COMPLETED)
                if poll.done():
                    break
                if found := await self._taken_over(most):
                    self._abandon(poll)
                    return found
        except asyncio.CancelledError:
            self._abandon(poll)
            raise
        locked = poll.result()
        return [] if locked is None else [locked]

    def _abandon(self, poll: "asyncio.Task[Locked | None]") -> None:
        self._abandoned.add(poll)
        returning = asyncio.create_task(self._kept(poll), name="what an abandoned poll brings")
        self._returning[poll] = returning
        returning.add_done_callback(lambda _: self._returning.pop(poll))

    async def _kept(self, poll: "asyncio.Task[Locked | None]") -> None:
        """Keep what an abandoned poll brings for the next receive, for a while; then give it back."""
        await asyncio.wait({poll})
        await asyncio.sleep(_KEPT_SECONDS)
        if poll in self._abandoned:  # else a receive has taken it over
            self._abandoned.discard(poll)
            if (locked := self._brought(poll)) is not None:
                await self._returned(locked)

    async def _more(self, found: list[Locked], most: int) -> list[Locked]:
        """Look for others, at once; a failure costs no more than these, a cancellation nothing."""
        left = iter(range(most - len(found)))
        is_empty = is_over = False

        async def look() -> None:
            nonlocal is_empty
            for _ in left:
                if is_empty:
                    return
                try:
                    locked = await self._wire.lock(0)
                except JobqError:
                    locked = None
                except NoAnswer:
                    locked = None
                    self._on_lost()
                if locked is None:
                    is_empty = True
                elif is_over:
                    await self._returned(locked)
                else:
                    found.append(locked)

        looks = [asyncio.ensure_future(look()) for _ in range(min(most - len(found), _LOOKS_AT_ONCE))]
        try:
            if looks:
                await asyncio.wait(looks)
        except asyncio.CancelledError:
            is_empty = is_over = True
            await self._all_returned(found)
            await asyncio.wait(looks, timeout=_LEAVE_SECONDS)
            raise
        return found

    async def _taken_over(self, most: int) -> list[Locked]:
        """Return what abandoned polls have brought, renewed."""
        found: list[Locked] = []
        try:
            for poll in [each for each in self._abandoned if each.done()]:
                if len(found) == most:
                    break
                self._abandoned.discard(poll)
                if (locked := self._brought(poll)) is None:
                    continue
                found.append(locked)
                try:
                    await self._wire.renew(locked)
                except (JobqError, NoAnswer):
                    found.remove(locked)  # it comes again
                    self._on_lost()
        except asyncio.CancelledError:
            await self._all_returned(found)
            raise
        return found

    async def _all_returned(self, found: list[Locked]) -> None:
        await asyncio.gather(*(self._returned(locked) for locked in found))

    async def _returned(self, locked: Locked) -> None:
        try:
            await self._give_back(locked)
        except (JobqError, NoAnswer):
            self._on_lost()  # it comes when its lock has run out

    def _brought(self, poll: "asyncio.Task[Locked | None]") -> Locked | None:
        """Return what an abandoned poll that has ended holds; its failure is nobody's but its own."""
        if poll.cancelled():
            return None
        if isinstance(error := poll.exception(), NoAnswer):
            self._on_lost()
        return None if error is not None else poll.result()
