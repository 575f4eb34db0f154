"""Whole outputs in files: LOG_DIR/QUEUE/ID.ATTEMPT.log, both streams as they came (`jobq worker --log-dir`)."""

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sink:
    """What takes the output of an attempt.

    Attributes:
        write: takes a chunk; never blocks for long, and never raises.
        close: ends it.
    """

    write: Callable[[bytes], None]
    close: Callable[[], None]


def log_name(queue: str, task_id: str, attempt: int) -> str:
    """Return how the output of an attempt is called; ids and queue names hold no slash and begin with no dot."""
    return f"{queue}/{task_id}.{attempt}.log"


def latest_log(names: Iterable[str], queue: str, task_id: str) -> tuple[int, str] | None:
    """Return the number of the last attempt that has a log among these, and its name."""
    found = []
    for name in names:
        number = name.removeprefix(f"{queue}/{task_id}.").removesuffix(".log")
        if number.isdecimal() and name == log_name(queue, task_id, int(number)):
            found.append((int(number), name))
    return max(found, default=None)


class LogFile:
    """The file of one attempt; a disk that is full fails no task (S11).

    Args:
        path: made with its folders, for this user alone: outputs may hold secrets.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError as error:
            self._give_up(error)

    def write(self, chunk: bytes) -> None:
        """Append; after a fault the rest is left out."""
        try:
            while chunk and self._descriptor >= 0:
                chunk = chunk[os.write(self._descriptor, chunk) :]
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Close it, at any time and any number of times."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _give_up(self, error: OSError) -> None:
        _log.warning("the output is not written to %s: %s", self._path, error.strerror)
        self.close()


def file_sink(folder: str, queue: str, task_id: str, attempt: int) -> Sink:
    """Return a file as a sink."""
    file = LogFile(Path(folder).expanduser() / log_name(queue, task_id, attempt))
    return Sink(file.write, file.close)


def nowhere() -> Sink:
    """Return a sink that takes nothing."""
    return Sink(lambda _chunk: None, lambda: None)
