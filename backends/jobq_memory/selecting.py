"""What a worker has room for, of the tasks of one queue; see `jobq.selecting.Selects`."""

from collections import Counter
from collections.abc import Iterable, Sequence

from jobq.resources.room import ResourceRequest, Room
from jobq.resources.shapes import MOST_SHAPES, chosen, text_of, too_many
from jobq.selecting import WaitingShape
from jobq.task import Task
from jobq_memory.entry import Entry, State


class ShapeSelection:
    """Chooses among what waits, and remembers what is overtaken."""

    def __init__(self) -> None:
        self._overtaken: dict[ResourceRequest, tuple[str, float]] = {}  # the id of the first one, and since when

    def fitting(self, ready: Sequence[Entry], room: Room, limit: int, wall: float) -> list[Entry]:
        """Return what fits, or one that has been overtaken for too long.

        Args:
            ready: what waits, in order.
            room: what there is room for.
            limit: how many at most.
            wall: the time.
        """
        shapes = dict(enumerate({entry.request for entry in ready}))
        numbers = {request: number for number, request in shapes.items()}
        choice = chosen(shapes, room)
        wanted = {*choice.fitting, *choice.blocked}
        first = next((entry for entry in ready if numbers[entry.request] in wanted), None)
        if first is not None and numbers[first.request] in choice.blocked:
            if self._overtaken.get(first.request, ("", 0.0))[0] != first.id:
                self._overtaken[first.request] = first.id, wall
            if self._overtaken[first.request][1] <= wall - choice.overtaken_after:
                return [first]
        found = [entry for entry in ready if numbers[entry.request] in choice.fitting][:limit]
        return found[: choice.together(numbers[entry.request] for entry in found)]


def waiting_shapes(ready: Iterable[Entry]) -> list[WaitingShape]:
    """Count what waits by what it asks for."""
    return [WaitingShape(request=request, count=count) for request, count in Counter(e.request for e in ready).items()]


def check_shapes(entries: Iterable[Entry], new: Iterable[Task]) -> None:
    """Raise ConfigurationError where tasks would ask for too many different things."""
    asked = {ResourceRequest(task.resources, task.needs) for task in new} - {ResourceRequest()}
    if not asked:
        return
    asked |= {entry.request for entry in entries if entry.state is not State.DONE} - {ResourceRequest()}
    if len(asked) > MOST_SHAPES:
        raise too_many([text_of(*each) for each in asked])
