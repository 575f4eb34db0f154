"""Who holds what of an offer, down to the device.

What is granted never exceeds what is offered; a part of a GPU comes from one device, and a whole one is nobody else's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from jobq.resources.offer import Gpu, Offer
from jobq.resources.request import UNIT, Resources


class FreeResources(NamedTuple):
    """What is free now.

    Attributes:
        cpus: in thousandths.
        mem: bytes.
        gpus: thousandths of each device.
        cpu_ids: the processors that nobody is bound to.
    """

    cpus: int
    mem: int
    gpus: Mapping[Gpu, int]
    cpu_ids: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class ResourceGrant:
    """What one attempt holds.

    Attributes:
        cpus: in thousandths.
        mem: bytes.
        gpus: thousandths of each device.
        cpu_ids: the processors that it is bound to; empty = it is not.
    """

    cpus: int = 0
    mem: int = 0
    gpus: Mapping[Gpu, int] = field(default_factory=dict)
    cpu_ids: tuple[int, ...] = ()


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
        gpus = dict.fromkeys(self._offer.gpus or (), UNIT)
        for grant in self._held:
            for gpu, part in grant.gpus.items():
                gpus[gpu] -= part
        bound = {cpu for grant in self._held for cpu in grant.cpu_ids}
        return FreeResources(
            (self._offer.cpus or 0) - sum(grant.cpus for grant in self._held),
            (self._offer.mem or 0) - sum(grant.mem for grant in self._held),
            gpus,
            tuple(cpu for cpu in self._offer.cpu_ids if cpu not in bound),
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
    gpus = _devices(asked, room.gpus) if asked else {}
    if cpus > room.cpus or mem > room.mem or gpus is None:
        return None
    # Who has a part of a processor shares one, with whom nobody says. The first free ones: neighbours stand together.
    count = 0 if cpus % UNIT else cpus // UNIT
    return ResourceGrant(cpus, mem, gpus, room.cpu_ids[:count] if count <= len(room.cpu_ids) else ())


def _devices(asked: int, free: Mapping[Gpu, int]) -> dict[Gpu, int] | None:
    """Return which devices to take: whole ones in their order, a part from the one that has least to spare."""
    if asked < UNIT:
        able = [gpu for gpu, left in free.items() if left >= asked]
        return {min(able, key=lambda gpu: free[gpu]): asked} if able else None
    count = asked // UNIT
    whole = [gpu for gpu, left in free.items() if left == UNIT and not (gpu.is_part and count > 1)]
    return dict.fromkeys(whole[:count], UNIT) if len(whole) >= count else None
