"""What a worker gave back or lost, and is to see again: an empty queue with one of them is not finished."""

from jobq.clock import Clock


class ComingBack:
    """Tasks, and when they are due.

    Args:
        clock: for the moments.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}  # boottime in seconds

    def __bool__(self) -> bool:
        return bool(self._due)

    def expect(self, task_id: str, seconds: float) -> None:
        """Note that a task comes back after so long."""
        self._due[task_id] = self._clock.boottime() + seconds

    def came(self, task_id: str) -> None:
        """Note that it is here."""
        self._due.pop(task_id, None)

    def forget(self, until: float) -> None:
        """Expect no more what was due by then and has not come: somebody else has it."""
        self._due = {task_id: due for task_id, due in self._due.items() if due > until}

    def last_due(self) -> float:
        """Return the boottime, in seconds, at which the last of them is due; minus infinity = there is none."""
        return max(self._due.values(), default=float("-inf"))
