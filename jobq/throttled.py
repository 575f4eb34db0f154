"""Requests that a busy service refuses: it did nothing, so they are sent again, with growing pauses, for some time."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from jobq.errors import BackendUnavailable, Throttled

PUSH_SECONDS: Final = 30.0  # for how long a push, or one request of it, is repeated
_FIRST_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 5.0
_T = TypeVar("_T")


async def until_served(
    call: Callable[[], Awaitable[_T]], seconds: float, *, is_given_up: Callable[[], bool] = lambda: False
) -> _T:
    """Return what a call returns, repeating it while the service is busy.

    Args:
        call: raises Throttled when the service refused it.
        seconds: how long it is repeated.
        is_given_up: whether nobody wants it any more.

    Raises:
        BackendUnavailable: the service was busy all the time.
    """
    loop = asyncio.get_running_loop()
    end, longest = loop.time() + seconds, _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await call()
        except Throttled as busy:
            pause = longest * (0.5 + random.random() / 2)  # noqa: S311 - spreads those who were refused together
            if is_given_up() or loop.time() + pause > end:
                raise BackendUnavailable(f"{busy}, again and again for {seconds:g} s") from None
        longest = min(longest * 2, _LONGEST_PAUSE_SECONDS)
        await asyncio.sleep(pause)
