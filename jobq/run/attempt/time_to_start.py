"""How long a task waited before it began: from its push, or from when it was due."""

from jobq.task import Task


def waited_seconds(task: Task, deliveries: int, started: float) -> float | None:
    """Return for how long a task could have run before it did; None = nobody knows.

    Only of its first delivery is it known when it was due. Made on one machine, and started on another: where their
    clocks differ, so does this.

    Args:
        task: as delivered.
        deliveries: how often it was, this time included.
        started: when its process was started, wall time in seconds since the epoch.
    """
    if deliveries != 1 or task.created is None:
        return None
    if task.not_before is not None and task.not_before > started:
        return None  # somebody has hastened it, nobody knows when
    return round(max(0.0, started - max(task.created, task.not_before or 0.0)), 3)
