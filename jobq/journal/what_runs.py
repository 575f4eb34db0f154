"""What a task runs, in one text as people write it."""

import shlex

from jobq.formats import strict_json
from jobq.task import Task


def what_runs(task: Task) -> str:
    """Return its command, its words as a shell would take them, or its function with its arguments; not escaped."""
    if task.command is not None:
        return task.command
    if task.argv is not None:
        return shlex.join(task.argv)
    arguments = strict_json.dumps(task.kwargs or {}).decode()
    return arguments if task.call is None else f"{task.call} {arguments}"
