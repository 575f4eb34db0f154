"""What the two protocols of the emulator share."""

import asyncio
from dataclasses import dataclass

from jobq.clock import Clock
from tests.emulators.service_bus.access import Access
from tests.emulators.service_bus.broker import Broker
from tests.emulators.service_bus.faults import Gate


@dataclass
class Service:
    """The state behind both.

    Attributes:
        broker: the queues.
        gate: what every request passes.
        access: who may do what.
        idle_detach: seconds after which an unused AMQP link is detached; None = never, nor is its connection closed.
    """

    broker: Broker
    gate: Gate
    access: Access
    idle_detach: float | None

    @property
    def clock(self) -> Clock:
        """The service's clock."""
        return self.broker.clock


async def until(event: asyncio.Event, clock: Clock, deadline: float) -> None:
    """Return once an event is set, or a clock's boottime has reached the deadline, whichever is first."""
    ways = [asyncio.create_task(event.wait()), asyncio.create_task(clock.sleep_until(deadline))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
