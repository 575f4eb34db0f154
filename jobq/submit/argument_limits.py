"""What the kernel takes of a program's arguments: work beyond it would be pushed, and could never be started."""

from typing import Final

from jobq.errors import MalformedTask
from jobq.task import Task

# execve(2), MAX_ARG_STRLEN: what Linux takes as one argument or one NAME=VALUE, with its NUL.
MOST_BYTES: Final = 128 * 1024
_LONGEST_CHARACTER: Final = 4  # bytes


def check(task: Task) -> None:
    """Raise MalformedTask where a command, a word of one, or a variable is longer than a program can be given."""
    texts = [("command", task.command or "")]
    texts += [(f"argv.{number}", word) for number, word in enumerate(task.argv or ())]
    texts += [(f"env.{name}", f"{name}={value}") for name, value in task.env.items()]
    for where, text in texts:
        if len(text) * _LONGEST_CHARACTER < MOST_BYTES:
            continue
        if (size := len(text.encode()) + 1) > MOST_BYTES:
            raise MalformedTask(
                f"has {size} bytes, and a program can be given {MOST_BYTES} in one piece; put it into a file", where
            )
