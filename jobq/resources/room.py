"""What a worker has room for now, as it tells a store that selects: which of the tasks that wait it can start."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from jobq.formats.checked import Checked, field, kind_of, number
from jobq.resources.request import UNIT, Resources, needs

MOST_AMOUNT: Final = 2**63 - 1
MOST_TAGS: Final = 256
MANY: Final = 2**31  # as many as are wanted


class ResourceRequest(NamedTuple):
    """What a task asks of a worker."""

    resources: Resources | None = None
    needs: tuple[str, ...] | None = None


def _amount(value: Any) -> int:
    """A number of thousandths or bytes, 0 or more."""
    if type(value) is not int or not 0 <= value <= MOST_AMOUNT:
        raise ValueError(f"{value!r:.50} is no amount")
    return value


def _tags(value: Any) -> tuple[str, ...]:
    """Tags, any number up to a bound."""
    if not isinstance(value, list | tuple) or len(value) > MOST_TAGS:
        raise ValueError(f"is no list of at most {MOST_TAGS} tags")
    return tuple(sorted(tag for each in value for tag in needs([each])))


def _space(value: Any) -> "Space":
    if not isinstance(value, Space | Mapping):
        raise ValueError(f"is {kind_of(value)}, not an object")
    return value if isinstance(value, Space) else Space(value)


def _seconds(value: Any) -> float:
    found = number(value)
    if found < 0:
        raise ValueError(f"{found} is no number of seconds")
    return found


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("is neither true nor false")
    return value


class Space(Checked):
    """A part of a machine, or all that is offered of it.

    Attributes:
        cpus: processors, in thousandths.
        mem: bytes.
        gpus: whole cards, in thousandths.
        parts: parts of cards (MIG), in thousandths; a task gets one at most.
    """

    cpus: int = field(_amount, 0)
    mem: int = field(_amount, 0)
    gpus: int = field(_amount, 0)
    parts: int = field(_amount, 0)

    def holds(self, cpus: int, mem: int, gpus: int) -> int:
        """Return how many tasks that take so much fit into it, each for itself; MANY where nothing is taken."""
        counts = [MANY]
        counts += [self.cpus // cpus] if cpus else []
        counts += [self.mem // mem] if mem else []
        counts += [(self.gpus + (self.parts if gpus == UNIT else 0)) // gpus] if gpus else []
        return min(counts)


class Room(Checked):
    """What one worker can start.

    Attributes:
        free: what is free now.
        total: what there is when nothing runs.
        tags: of the worker.
        counts_slots: whether a task that asks for no processor takes one.
        reserves_after: seconds for which tasks must have been overtaken before one that has no room now, but would have
            with all that is offered, is handed out alone, to wait for its room under its lease; None = it is not.
    """

    free: Space = field(_space, make=Space)
    total: Space = field(_space, make=Space)
    tags: tuple[str, ...] = field(_tags, ())
    counts_slots: bool = field(_flag, False)
    reserves_after: float | None = field(_seconds)

    @property
    def takes_plain(self) -> bool:
        """Whether a task fits that asks for nothing."""
        return not self.counts_slots or self.free.cpus >= UNIT

    def holds(self, request: ResourceRequest, *, at_best: bool = False) -> int:
        """Return how many tasks that ask for this fit now, each for itself.

        Args:
            request: what they ask for.
            at_best: count as if nothing ran.
        """
        resources, tags = request
        if not set(tags or ()) <= set(self.tags):
            return 0
        cpus = (resources and resources.cpus) or (UNIT if self.counts_slots else 0)
        mem, gpus = (resources.mem or 0, resources.gpus or 0) if resources else (0, 0)
        return (self.total if at_best else self.free).holds(cpus, mem, gpus)
