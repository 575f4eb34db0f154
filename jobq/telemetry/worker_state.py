"""What a worker does at this moment, from its events: which slots are busy, whether it takes new tasks."""

from typing import Final

from jobq.events import Event

# What ends an attempt that has started (jobq.run.attempt.attempt_events).
ENDS: Final = {
    "task.succeeded": "succeeded",
    "task.failed": "failed",
    "task.timeout": "timed_out",
    "task.lease_lost": "lock_lost",
    "task.cancelled": "canceled",
    "task.preempted": "preempted",
    "task.crashed": "crashed",
}
# A success that the backend did not acknowledge has these events alone (S5).
UNSETTLED: Final = frozenset({"task.settlement_unknown", "task.not_settled"})


class WorkerState:
    """Follows one worker; subscribe `on_event`.

    Attributes:
        word: starting, working, draining or stopped.
        slots: all slots; 0 before the worker has started.
    """

    def __init__(self) -> None:
        self.word = "starting"
        self.slots = 0
        self._busy: set[str] = set()

    @property
    def busy(self) -> int:
        """How many slots have a running task."""
        return len(self._busy)

    @property
    def free(self) -> int:
        """How many slots have none."""
        return max(0, self.slots - self.busy)

    def on_event(self, event: Event) -> None:
        """Take in one event."""
        if event.name == "task.started":
            self._busy.add(str(event.fields["task_id"]))
        elif event.name in ENDS or event.name in UNSETTLED:
            self._busy.discard(str(event.fields["task_id"]))
        elif event.name == "worker.started":
            self.word, self.slots = "working", int(event.fields["slots"])
        elif event.name in ("worker.draining", "worker.stopped"):
            self.word = event.name.removeprefix("worker.")

    def snapshot(self) -> tuple[str, int, int]:
        """Return the word, the busy slots and all slots."""
        return self.word, self.busy, self.slots
