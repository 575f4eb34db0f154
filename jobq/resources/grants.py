"""Who holds what of an offer, down to the device.

What is granted never exceeds what is offered; a GPU is nobody else's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jobq.resources.offer import Gpu, Offer
from jobq.resources.request import UNIT, Resources


class FreeResources(NamedTuple):
    """What is free now.

    Attributes:
        cpus: in thousandths.
        mem: bytes.
        gpus: the devices.
    """

    cpus: int
    mem: int
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, eq=False)
class ResourceGrant:
    """What one attempt holds.

    Attributes:
        cpus: in thousandths.
        mem: bytes.
        gpus: the devices.
    """

    cpus: int = 0
    mem: int = 0
    gpus: tuple[Gpu, ...] = ()


class Grants:
    """All that is held of one offer.

    Args:
        offer: what there is.
    """

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._held: set[ResourceGrant] = set()

    @property
    def room(self) -> FreeResources:
        """What is free."""
        taken = {gpu for grant in self._held for gpu in grant.gpus}
        return FreeResources(
            (self._offer.cpus or 0) - sum(grant.cpus for grant in self._held),
            (self._offer.mem or 0) - sum(grant.mem for grant in self._held),
            tuple(gpu for gpu in self._offer.gpus or () if gpu not in taken),
        )

    def take(self, resources: Resources) -> ResourceGrant | None:
        """Grant what is asked for; None = there is no room now."""
        grant = fits(resources, self.room)
        if grant is not None:
            self._held.add(grant)
        return grant

    def give_back(self, grant: ResourceGrant) -> None:
        """Free what was granted; repeatable."""
        self._held.discard(grant)


def fits(resources: Resources, room: FreeResources) -> ResourceGrant | None:
    """Return what of a room would be granted for this request; None = it does not fit."""
    cpus, mem, asked = resources.cpus or 0, resources.mem or 0, resources.gpus or 0
    gpus = _devices(asked // UNIT, room.gpus)
    if cpus > room.cpus or mem > room.mem or gpus is None:
        return None
    return ResourceGrant(cpus, mem, gpus)


def _devices(count: int, free: Sequence[Gpu]) -> tuple[Gpu, ...] | None:
    """Return which devices to take, in their order; several are whole cards."""
    able = [gpu for gpu in free if not (gpu.is_part and count > 1)]
    return tuple(able[:count]) if len(able) >= count else None
