"""Clearing a queue of Service Bus: what is scheduled over AMQP, what waits over REST; what is leased stays."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from jobq_azure.service_bus.rest_client import RestClient

if TYPE_CHECKING:
    from jobq_azure.service_bus.amqp_client import Amqp

_CANCELED_AT_ONCE: Final = 1000
_DELETES_AT_ONCE: Final = 16


async def cleared(amqp: "Amqp", wire: RestClient) -> int:
    """Delete what is scheduled and what waits; return how many that were."""
    scheduled = await amqp.scheduled()
    count = 0
    for start in range(0, len(scheduled), _CANCELED_AT_ONCE):
        count += await _canceled(amqp, scheduled[start : start + _CANCELED_AT_ONCE])

    async def delete() -> int:
        deleted = 0
        while await wire.take():
            deleted += 1
        return deleted

    return count + sum(await asyncio.gather(*(delete() for _ in range(_DELETES_AT_ONCE))))


async def _canceled(amqp: "Amqp", numbers: Sequence[int]) -> int:
    """Cancel them; one that has become due since it was seen is deleted with what waits, and stops no other."""
    if await amqp.cancel_scheduled(numbers):
        return len(numbers)
    half = len(numbers) // 2
    return await _canceled(amqp, numbers[:half]) + await _canceled(amqp, numbers[half:]) if half else 0
