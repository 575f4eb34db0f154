"""The shapes of a queue: what its tasks ask for, each distinct request once, by number. For stores that select.

A store keeps tasks in the order of their rank, which holds the shape and the priority: so what is next of one shape is
found at once, whatever else waits, and a queue whose tasks ask for nothing has the ranks that it would have without.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from jobq.errors import ConfigurationError
from jobq.resources.request import Resources, described
from jobq.resources.room import MANY, ResourceRequest, Room

NO_SHAPE: Final = 0  # of tasks that ask for nothing
MOST_SHAPES: Final = 256  # of what waits, runs or is a dead letter in one queue: a redriven one keeps its number
PRIORITIES: Final = 2**31  # from -PRIORITIES to PRIORITIES
RANKS_BITS: Final = 40  # of the ranks of one shape


def rank(shape: int, priority: int) -> int:
    """Return by what a task is found: lower ones come first within a shape."""
    return (shape << RANKS_BITS) - priority


def priority_of(rank: int) -> int:
    """Return the priority that a rank holds."""
    return (shape_of(rank) << RANKS_BITS) - rank


def shape_of(rank: int) -> int:
    """Return the shape that a rank holds."""
    return (rank + (1 << (RANKS_BITS - 1))) >> RANKS_BITS


def text_of(resources: Resources | None, needs: tuple[str, ...] | None) -> str:
    """Return what a task asks for, the same text for the same; empty = nothing."""
    if resources is None and needs is None:
        return ""
    asked = {} if resources is None else resources.as_dict()
    return json.dumps(asked | ({"needs": needs} if needs else {}), sort_keys=True, separators=(",", ":"))


def request_of(text: str) -> ResourceRequest:
    """Return what such a text says."""
    asked = json.loads(text) if text else {}
    needs = asked.pop("needs", None)
    return ResourceRequest(Resources(asked) if asked else None, tuple(needs) if needs else None)


class Choice(NamedTuple):
    """Which shapes a claim may take.

    Attributes:
        fitting: how many tasks of each fit, each shape for itself, by its number.
        blocked: the numbers of those that only have no room now, and may be reserved for; but for NO_SHAPE, which takes
            a processor at most, and is overtaken by nobody for it.
        overtaken_after: seconds; see `Room.reserves_after`.
    """

    fitting: Mapping[int, int]
    blocked: tuple[int, ...] = ()
    overtaken_after: float = 0.0

    def together(self, shapes: Iterable[int]) -> int:
        """Return how many of these tasks, from the first on, surely fit together.

        Args:
            shapes: of each task.
        """
        count, most = 0, MANY
        for shape in shapes:
            # Tasks that fit so many times, each for itself, fit as many in any mixture.
            most = min(most, self.fitting[shape])
            if count >= most:
                break
            count += 1
        return count


def chosen(shapes: Mapping[int, ResourceRequest], room: Room | None) -> Choice:
    """Return which shapes fit a room.

    Args:
        shapes: of the queue, by number, NO_SHAPE among them.
        room: None = whoever asks looks to it himself.
    """
    if room is None:
        return Choice(dict.fromkeys(shapes, MANY))
    fitting = {shape: count for shape, request in shapes.items() if (count := room.holds(request))}
    if room.reserves_after is None:
        return Choice(fitting)
    others = sorted(shapes.keys() - fitting.keys())
    return Choice(
        fitting, tuple(each for each in others if room.holds(shapes[each], at_best=True)), room.reserves_after
    )


def too_many(texts: Collection[str]) -> ConfigurationError:
    """Return the error of a push that would make one more shape than a queue may have."""
    shown: Iterable[str] = sorted(described(*request_of(text)) for text in texts)
    return ConfigurationError(
        f"what has not succeeded in this queue, dead letters among it, asks for {len(texts)} different things, and more"
        f" than {MOST_SHAPES} are not told apart; ask for rounder numbers, push to another queue, or `dead purge` what"
        f" is not to run again. They are: {'; '.join(shown)}"
    )
