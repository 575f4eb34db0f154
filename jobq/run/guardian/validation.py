"""Whether what a worker asks for makes sense; what does not is an exception, and ends the connection."""

import math

from jobq.run.guardian.protocol import Message, WireError


def check_spawn(message: Message) -> None:
    """Check a spawn message, whose environment is whole by now, and make its deadline a float or None."""
    argv, cwd = message["argv"], message["cwd"]
    if not isinstance(argv, list) or not argv or not argv[0] or not all(isinstance(text, str) for text in argv):
        raise WireError("argv is no list of strings that names a program")
    if not isinstance(cwd, str | None):
        raise WireError("cwd is neither a string nor null")
    message["deadline"] = None if message["deadline"] is None else deadline_of(message["deadline"])


def deadline_of(value: object) -> float:
    """Return a boottime in seconds."""
    if type(value) not in {int, float} or not math.isfinite(deadline := float(value)):  # type: ignore[arg-type] # checked just before
        raise WireError("deadline is no time")
    return deadline
