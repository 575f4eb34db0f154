"""Backends that hand out what a worker has room for, whatever waits before it."""

from datetime import timedelta
from typing import Protocol, runtime_checkable

from jobq.backend import Backend, Delivery
from jobq.errors import ConfigurationError
from jobq.formats.lazy_dataclass import dataclass
from jobq.resources.room import ResourceRequest, Room


@dataclass(frozen=True, kw_only=True)
class WaitingShape:
    """How many tasks wait that ask for the same of a worker.

    Attributes:
        request: what they ask for.
        count: how many of them could be handed out now.
    """

    request: ResourceRequest
    count: int


@runtime_checkable
class Selects(Protocol):
    """A backend that hands out what a worker has room for, at the price of what comes first (`Capabilities.selects`).

    `Backend.receive` of it hands out what comes first, whatever that asks for.
    """

    async def receive_fitting(
        self, room: Room, max_tasks: int, lease: timedelta | None, wait: timedelta, *, worker_id: str = ""
    ) -> list[Delivery]:
        """Lease, of the tasks that fit, those of the highest priority, and of these the oldest.

        Those that are handed out fit together, but for parts of devices. A single one may not fit now, but with all
        that is offered, where `Room.reserves_after` says so.

        Args:
            room: what fits.
            max_tasks: as for `Backend.receive`.
            lease: as there.
            wait: as there.
            worker_id: as for `SharesMachine.receive_as`, where the backend is one; empty = not to be judged.
        """
        ...

    async def waiting_shapes(self) -> list[WaitingShape]:
        """Count what waits by what it asks for; what is scheduled, paused or leased is not counted."""
        ...


def selecting(backend: Backend) -> Selects | None:
    """Return a backend that selects; None = it hands out what comes first."""
    return backend if backend.capabilities.selects and isinstance(backend, Selects) else None


async def waiting_shapes(backend: Backend) -> list[WaitingShape]:
    """Count what waits in a queue by what it asks for.

    Raises:
        ConfigurationError: the backend does not select; says what else there is.
    """
    if (selects := selecting(backend)) is None:
        raise ConfigurationError("this kind of queue does not tell tasks apart; `jobq QUEUE size` counts all of them")
    return await selects.waiting_shapes()
