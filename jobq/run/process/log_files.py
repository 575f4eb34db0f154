"""Whole outputs in files: LOG_DIR/QUEUE/ID.ATTEMPT.log, both streams as they came (`jobq worker --log-dir`)."""

import asyncio
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from jobq.formats.user_paths import user_path

_log: Final = logging.getLogger(__name__)
MOST_WAITING_BYTES: Final = 16 * 1024 * 1024  # of one attempt, in memory
_MOST_ENDED: Final = 32  # attempts whose output waits for the disk yet, of one worker
_LOOK_SECONDS: Final = 0.5


@dataclass(frozen=True)
class Sink:
    """What takes the output of an attempt.

    Attributes:
        write: takes the stream, stdout or stderr, and a chunk; never blocks for long, and never raises.
        close: ends it.
    """

    write: Callable[[Literal["stdout", "stderr"], bytes], None]
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
    """The file of one attempt, written by a thread of its own.

    So a disk that hangs holds up no lease, and one that is full fails no task (S11).

    Args:
        path: made with its folders, for this user alone: outputs may hold secrets.
        most_bytes: that may wait for the disk; what is beyond is left out, and the file says how much.
    """

    def __init__(self, path: Path, most_bytes: int = MOST_WAITING_BYTES) -> None:
        self._path = path
        self._most = most_bytes
        self._lock = threading.Lock()
        self._waiting = 0
        self._dropped = 0
        self._chunks = queue.SimpleQueue[bytes | None]()
        self._thread = threading.Thread(target=self._run, name=f"log {path.name}", daemon=True)
        self._thread.start()

    @property
    def is_written(self) -> bool:
        """Whether nothing waits for the disk any more."""
        return not self._thread.is_alive()

    def join(self, seconds: float) -> None:
        """Wait until nothing waits for the disk any more, for so long at most."""
        self._thread.join(seconds)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes."""
        return self._most < 0

    def write(self, chunk: bytes) -> None:
        """Append, some time; never waits."""
        with self._lock:
            if self._waiting + len(chunk) > self._most:
                self._dropped += len(chunk)
                return
            self._note_dropped()
            self._waiting += len(chunk)
        self._chunks.put(chunk)

    def close(self) -> None:
        """Take no more, at any time and any number of times; what waits is written."""
        with self._lock:
            self._note_dropped()
            self._most = -1
        self._chunks.put(None)

    def _note_dropped(self) -> None:
        if self._dropped:
            lost, self._dropped = self._dropped, 0
            self._chunks.put(f"\n[jobq: {lost} bytes are missing here: the disk was too slow]\n".encode())

    def _run(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._path, flags, 0o600)
            try:
                while (chunk := self._chunks.get()) is not None:
                    rest = chunk
                    while rest:
                        rest = rest[os.write(descriptor, rest) :]
                    with self._lock:
                        self._waiting -= len(chunk)
            finally:
                os.close(descriptor)
        except OSError as error:
            _log.warning("the output is not written to %s: %s", self._path, error.strerror)
            with self._lock:
                self._most, self._dropped = -1, 0


class LogFolder:
    """The files of one worker.

    Args:
        folder: where they are.
        queue: part of their names.
    """

    def __init__(self, folder: str, queue: str) -> None:
        self._folder = user_path(folder, "--log-dir")
        self._queue = queue
        self._files: list[LogFile] = []

    def sink(self, task_id: str, attempt: int) -> Sink:
        """Return the file of an attempt as a sink."""
        self._files = [each for each in self._files if not each.is_written]
        name = self._folder / log_name(self._queue, task_id, attempt)
        if sum(each.has_ended for each in self._files) >= _MOST_ENDED:
            _log.warning("the output is not written to %s: so many logs wait for that disk already", name)
            return nowhere()
        try:
            file = LogFile(name)
        except RuntimeError as error:  # no thread is to be had
            _log.warning("the output is not written to %s: %s", name, error)
            return nowhere()
        self._files.append(file)
        return Sink(lambda _stream, chunk: file.write(chunk), file.close)

    async def end(self, patience: Callable[[], float]) -> None:
        """Wait for what is not written yet, then say what is not whole.

        Args:
            patience: how many seconds it may take; asked again and again, since a stop may come meanwhile.
        """
        began = time.monotonic()
        left = self._files
        while (left := [each for each in left if not each.is_written]) and (
            seconds := began + patience() - time.monotonic()
        ) > 0:
            await asyncio.to_thread(left[0].join, min(seconds, _LOOK_SECONDS))
        if left:
            _log.warning("the logs of %d tasks are not whole: the disk of %s is too slow", len(left), self._folder)


def nowhere() -> Sink:
    """Return a sink that takes nothing."""
    return Sink(lambda _stream, _chunk: None, lambda: None)
