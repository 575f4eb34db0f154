"""The emulated namespace: its queues by name, and the time at which something next happens by itself."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from jobq.clock import Clock, SystemClock
from tests.emulators.service_bus.description import DEAD_LETTERS, Description
from tests.emulators.service_bus.errors import EntityExists, EntityMissing
from tests.emulators.service_bus.fidelity import Fidelity
from tests.emulators.service_bus.queue import Queue

_DEAD_LETTERS: Final = f"/{DEAD_LETTERS.lower()}"


def _nobody() -> None:
    """Hear of a new timer, and do nothing."""


@dataclass
class Broker:
    """All queues of a namespace; names are the same in upper and lower case.

    Attributes:
        clock: its wall is the service's time.
        fidelity: where the service is contested.
        on_timer: called when there is a new instant at which something will happen by itself.
        queues: by name in lower case.
    """

    clock: Clock = field(default_factory=SystemClock)
    fidelity: Fidelity = field(default_factory=Fidelity)
    on_timer: Callable[[], None] = _nobody
    queues: dict[str, Queue] = field(default_factory=dict)

    def create(self, description: Description) -> Queue:
        """Make a queue; raises EntityExists."""
        key = description.name.lower()
        if key in self.queues:
            raise EntityExists(f"SubCode=40900. Conflict. The entity '{description.name}' exists.")
        self.queues[key] = Queue(description, self.clock, self.fidelity, self.on_timer)
        return self.queues[key]

    def delete(self, name: str) -> None:
        """Remove a queue with all it holds; raises EntityMissing."""
        if self.queues.pop(name.lower(), None) is None:
            raise EntityMissing(name)

    def queue(self, path: str) -> Queue:
        """Return the queue `NAME`, or the sub-queue `NAME/$DeadLetterQueue`; raises EntityMissing."""
        asked = path.strip("/").lower()
        queue = self.queues.get(asked.removesuffix(_DEAD_LETTERS))
        if queue is not None and asked.endswith(_DEAD_LETTERS):
            queue = queue.dead
        if queue is None:
            raise EntityMissing(path)
        return queue

    def sweep(self) -> float | None:
        """Let happen what time has brought, in all queues; return when the next thing may happen."""
        due = [queue.sweep() for queue in self.all()]
        return min((when for when in due if when is not None), default=None)

    def all(self) -> list[Queue]:
        """Return all queues and sub-queues."""
        return [one for queue in self.queues.values() for one in (queue, queue.dead) if one is not None]
