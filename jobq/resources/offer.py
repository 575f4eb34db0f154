"""What one worker offers of its machine. It offers what it was told to, and nothing else: told nothing, slots alone."""

from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal

from jobq.formats import sizes
from jobq.resources.request import UNIT, Resources, described, shown

_MOST_TOLD: Final = 5
NOTHING: Final = Resources(cpus=1).copied({"cpus": None})  # what a task without a request asks for


@dataclass(frozen=True)
class Gpu:
    """One device.

    Attributes:
        name: as the variables of its maker have it: an index, or the id of a part (MIG).
        maker: decides these variables.
        is_part: a part of a card that its maker has cut it into; a task gets one of these at most.
    """

    name: str
    maker: Literal["nvidia", "amd"] = "nvidia"
    is_part: bool = False


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What there is for the tasks of one worker.

    Attributes:
        cpus: processors, in thousandths; None = none are offered, and who asks for some fits nowhere here.
        gpus: the devices; None as above.
        mem: bytes; None as above.
        tags: what a task may need.
        counts_slots: whether a task that asks for no processor counts as one of them (`-n auto`).
    """

    cpus: int | None = None
    gpus: tuple[Gpu, ...] | None = None
    mem: int | None = None
    tags: frozenset[str] = frozenset()
    counts_slots: bool = False

    def __str__(self) -> str:
        gpus = "" if self.gpus is None else f"gpus={','.join(gpu.name for gpu in self.gpus) or 'none'}"
        given = (("cpus", self.cpus and shown(self.cpus)), ("memory", self.mem and sizes.show(self.mem)))
        texts = [f"{name}={text}" for name, text in given if text]
        return " ".join([*texts, *filter(None, (gpus,)), *(f"tag={tag}" for tag in sorted(self.tags))])

    def asked(self, resources: Resources | None) -> Resources:
        """Return what a task takes here."""
        found = resources or NOTHING
        return found.copied({"cpus": UNIT}) if self.counts_slots and found.cpus is None else found

    def misfit(self, resources: Resources | None, tags: tuple[str, ...] | None) -> str:
        """Return what of a request this worker cannot give even when it is idle, in words; empty = it can."""
        takes = self.asked(resources)
        most = {"cpus": self.cpus, "gpus": self._most_gpus(takes.gpus), "mem": self.mem}
        asked = {name: getattr(takes, name) for name in most}
        lacks = {name: value for name, value in asked.items() if value and value > (most[name] or 0)}
        missing = [tag for tag in tags or () if tag not in self.tags]
        return described(NOTHING.copied(lacks) if lacks else None, missing)

    def _most_gpus(self, asked: int | None) -> int:
        devices = self.gpus or ()
        if asked and asked > UNIT:  # several: CUDA uses one part of a card
            devices = tuple(each for each in devices if not each.is_part)
        return UNIT * len(devices)


def told_misfits(found: Counter[str]) -> str:
    """Return which tasks wait that a worker cannot run, in words; empty = none.

    Args:
        found: how many tasks, by what a worker lacks for them (`Offer.misfit`); by "" those that it lacks nothing for.
    """
    lacking = Counter({lacks: count for lacks, count in found.items() if lacks})
    if not lacking:
        return ""
    shapes = [f"{lacks} ({count})" for lacks, count in lacking.most_common(_MOST_TOLD)]
    count = lacking.total()
    wait = "1 task waits" if count == 1 else f"{count} tasks wait"
    more = ", and others" if len(lacking) > _MOST_TOLD else ""
    return f"{wait} that this worker cannot run: {', '.join(shapes)}{more}"
