"""Whole outputs in files: LOG_DIR/QUEUE/ID.ATTEMPT.log, both streams as they came (`jobq worker --log-dir`)."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

_log: Final = logging.getLogger(__name__)


def log_file(folder: Path, queue: str, task_id: str, attempt: int) -> Path:
    """Return where the output of an attempt is written; ids and queue names hold no slash and begin with no dot."""
    return folder / queue / f"{task_id}.{attempt}.log"


def latest_log_file(folder: Path, queue: str, task_id: str) -> tuple[int, Path] | None:
    """Return the number of the last attempt that has a file, and the file."""
    found = []
    for path in (folder / queue).glob(f"{_literal(task_id)}.*.log"):
        number = path.name.removeprefix(f"{task_id}.").removesuffix(".log")
        if number.isdecimal():
            found.append((int(number), path))
    return max(found, default=None)


def _literal(text: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in text)


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


def sink_of(
    folder: Path | None, queue: str, task_id: str, attempt: int
) -> tuple[Callable[[bytes], None], "LogFile | None"]:
    """Return what takes the output of an attempt, and the file to close at its end; without a folder, nothing does."""
    if folder is None:
        return _nowhere, None
    file = LogFile(log_file(folder, queue, task_id, attempt))
    return file.write, file


def _nowhere(_chunk: bytes) -> None:
    """Take nothing."""
