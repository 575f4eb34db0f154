"""A file that is named for something else, and is the queue's own: to write there would destroy the queue."""

from pathlib import Path
from typing import Protocol, runtime_checkable

from jobq.errors import ConfigurationError


@runtime_checkable
class KeepsFiles(Protocol):
    """A backend whose queues are files of this machine."""

    def keeps(self, path: Path) -> bool:
        """Return whether a path leads to a file of the queue, also to one that is not there yet."""
        ...


def refuse_own_file(backend: object, path: Path, what: str) -> None:
    """Raise ConfigurationError for a path that is the queue's own.

    Args:
        backend: of the queue.
        path: of the file that is to be written.
        what: stands before it in the message: an option and a space, or a variable and `=`.
    """
    if isinstance(backend, KeepsFiles) and backend.keeps(path):
        raise ConfigurationError(f"{what}{path} is the queue's own file, which it would destroy; name another")
