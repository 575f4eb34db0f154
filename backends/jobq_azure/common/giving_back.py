"""Giving back what nobody waits for any more."""

import asyncio
from datetime import timedelta
from typing import Final

from jobq.backend import Delivery
from jobq.errors import BackendUnavailable
from jobq.settlement import Release

_SECONDS: Final = 4.0  # below what leaving a queue may take
_PAUSE_SECONDS: Final = 0.5


async def give_back(delivery: Delivery, delay: timedelta = timedelta(0)) -> None:
    """Release a delivery, and again for some seconds where that is refused: done by half it goes on beside its copy.

    Args:
        delivery: was not started.
        delay: until it is visible.

    Raises:
        JobqError: it was not given back, or nobody knows; its lease will run out.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + _SECONDS
    while True:
        try:
            await delivery.settle(Release(delay))
        except BackendUnavailable:
            if loop.time() >= end:
                raise
        else:
            return
        await asyncio.sleep(_PAUSE_SECONDS)
