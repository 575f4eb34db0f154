"""What a worker offers of its machine, by its settings."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from jobq.resources.offer import Gpu, Offer
from jobq.resources.request import UNIT
from jobq.settings import AUTO_SLOTS, Settings

_MOST_SLOTS: Final = 4096


async def offered(settings: Settings, environment: Mapping[str, str]) -> tuple[Settings, Offer]:
    """Return the settings with a number of slots, and what is offered beside them.

    Looks at the machine, for some seconds at most, where something is `auto`; imports nothing for it where nothing is.

    Args:
        settings: the worker's.
        environment: its own.
    """
    counts_slots = settings.num_workers == AUTO_SLOTS
    cpus, mem, gpus = settings.offer_cpus, settings.offer_memory, settings.offer_gpus
    if counts_slots and cpus is None:
        cpus = "auto"
    if cpus is None and mem is None and gpus is None:
        return settings, Offer(tags=frozenset(settings.tags))
    offer = await asyncio.to_thread(_looked_for, cpus, mem, gpus, environment)
    if counts_slots:
        settings = settings.changed(num_workers=min(max(1, (offer.cpus or 0) // UNIT), _MOST_SLOTS))
    return settings, replace(offer, tags=frozenset(settings.tags), counts_slots=counts_slots)


def _looked_for(
    cpus: int | str | None, mem: int | str | None, gpus: tuple[str, ...] | None, environment: Mapping[str, str]
) -> Offer:
    from jobq.resources import discovery  # noqa: PLC0415 - most workers offer nothing
    from jobq.resources.gpus import found_gpus, named_gpus  # noqa: PLC0415 - as above

    devices: tuple[Gpu, ...] | None = None
    if gpus is not None:
        found = found_gpus(environment, discovery.ROOT)[0]
        is_amd = any(gpu.maker == "amd" for gpu in found)
        devices = found if gpus == ("auto",) else named_gpus(gpus, "amd" if is_amd else "nvidia")
    return Offer(
        cpus=discovery.found_cpus()[0] if isinstance(cpus, str) else cpus,
        mem=discovery.found_memory()[0] if isinstance(mem, str) else mem,
        gpus=devices,
    )
