"""Commands to copy in messages: `jobq QUEUE dead list` names the queue as its user has, once that is known."""

import re
from typing import Final

_ANY_QUEUE: Final = "jobq QUEUE "
# A spec that can hold no password: it stands in messages before anyone has looked for one in it (A5).
_PLAIN: Final = re.compile(r"(?:[a-z]+://(?:[\w.-]+@)?)?[\w./-]+(?::\d+)?[\w./-]*", re.ASCII)
_shown = _ANY_QUEUE


def set_queue(spec: str | None, *, is_given: bool = True) -> None:
    """Take in the queue of this command line.

    Args:
        spec: its spec; None = it is not known.
        is_given: whether it stood on the command line; else a variable names it.
    """
    global _shown  # noqa: PLW0603 - one command line, one queue
    _shown = _ANY_QUEUE
    if spec is not None and not is_given:
        _shown = "jobq "
    elif spec is not None and _PLAIN.fullmatch(spec):
        _shown = f"jobq {spec} "


def to_copy(text: str) -> str:
    """Return a message whose commands can be copied."""
    return text.replace(_ANY_QUEUE, _shown)
