"""What a task may hold, so that what is pushed can be received, requeued and started: checked at the task itself.

Every later door takes more than this: `Task.decode`, a request over HTTP (`jobq.server.schemas`), the kernel.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from jobq.errors import MalformedTask
from jobq.formats import strict_json

SMALL_BYTES: Final = 16 * 1024  # of its JSON: what has no more comes near none of these
MAX_VALUES: Final = 500_000  # an object or an array counts as five; half of what a request over HTTP may hold
# execve(2), MAX_ARG_STRLEN: what Linux takes as one argument or one NAME=VALUE, with its NUL.
MAX_ARGUMENT_BYTES: Final = 128 * 1024
# Likewise of all together: a quarter of the stack's limit, which is 2 MiB by default. The other half is for what a
# worker adds: its own environment, a checkpoint.
MAX_ARGUMENTS_BYTES: Final = 1024 * 1024
_POINTER: Final = 8  # bytes, which count for each string too


def check_values(body: bytes) -> None:
    """Raise MalformedTask where JSON holds more values than a task may, whatever their bytes."""
    if strict_json.count_values(body, few=MAX_VALUES, most=MAX_VALUES) > MAX_VALUES:
        raise MalformedTask(
            f"holds more than {MAX_VALUES:,} values, where an object or an array counts as five; put them into a file"
        )


def check_names(where: str, named: Mapping[str, str]) -> None:
    """Raise MalformedTask where there are more names than an object of JSON may have."""
    if len(named) > strict_json.MAX_KEYS:
        raise MalformedTask(f"has {len(named)} names, at most {strict_json.MAX_KEYS} are read", where)


def check_arguments(command: str | None, argv: Sequence[str] | None, env: Mapping[str, str]) -> None:
    """Raise MalformedTask where a command, its words and variables are longer than a program can be given."""
    texts = [("command", command)] if command is not None else []
    texts += [(f"argv.{number}", word) for number, word in enumerate(argv or ())]
    texts += [(f"env.{name}", f"{name}={value}") for name, value in env.items()]
    together = 0
    for where, text in texts:
        if (size := len(text.encode()) + 1) > MAX_ARGUMENT_BYTES:
            raise MalformedTask(
                f"has {size} bytes, and a program can be given {MAX_ARGUMENT_BYTES} in one piece; put it into a file",
                where,
            )
        together += size + _POINTER
    if together > MAX_ARGUMENTS_BYTES:
        raise MalformedTask(
            f"its {len(texts)} words and variables take {together} bytes, {_POINTER + 1} of them for each, and a task's"
            f" program can be given {MAX_ARGUMENTS_BYTES}; put them into a file"
        )
