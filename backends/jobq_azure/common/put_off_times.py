"""What receives have put off or leased for nobody, and when it comes: a worker waits (`jobq.backend.PutsOff`)."""

from jobq.backend import UNKNOWN_ID
from jobq.clock import SystemClock


class PutOffTimes:
    """Of one queue, by the ids of tasks.

    Attributes:
        misplaced: why tasks were put back that nobody can run with these settings; empty = none were.
    """

    def __init__(self) -> None:
        self.misplaced = ""
        self._clock = SystemClock()
        self._until: dict[str, float] = {}  # boottime in seconds

    def add(self, task_id: str, seconds: float) -> None:
        """Note that a task comes again after so long; what has come is forgotten, should nobody ask."""
        now = self._clock.boottime()
        self._until = {known: until for known, until in self._until.items() if until > now}
        former = self._until.get(task_id, 0.0) if task_id == UNKNOWN_ID else 0.0  # which is of any number of tasks
        self._until[task_id] = max(former, now + seconds)

    def take(self) -> dict[str, float]:
        """Return what was noted since the last call: seconds until it comes, by id."""
        now = self._clock.boottime()
        found, self._until = self._until, {}
        return {task_id: until - now for task_id, until in found.items()}
