"""Whole outputs in a container of blobs: QUEUE/ID.ATTEMPT.log, both streams as they came (`jobq worker --log-dir`).

A task's output never waits for the store (S11). What is not sent yet lies in small files that have no name, below
TMPDIR; beyond a cap it is dropped, and the log says how much and where. Each block says at which length it belongs, so
a repetition after a lost answer adds nothing twice.
"""

import asyncio
import logging
import os
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import IO, Final

from jobq import sizes
from jobq.errors import JobqError
from jobq.files.place import Place, is_container, place_at
from jobq.run.log_files import Sink, file_sink, log_name, nowhere
from jobq.settings import Settings

_log: Final = logging.getLogger(__name__)
BLOCK_BYTES: Final = 4 * 1024 * 1024
MOST_WAITING_BYTES: Final = 256 * 1024 * 1024  # of one attempt, on disk
_QUICK_SECONDS: Final = 1.0  # between two blocks of a task that has just begun
_SLOW_SECONDS: Final = 60.0  # a blob takes 50 000 blocks: after some hours they come less often
_SLOWER_AFTER: Final = 300.0  # a 300th of the time that has passed
LOG_SECONDS: Final = 60.0  # for what is left when a worker ends
LOG_STOPPING_SECONDS: Final = 3.0  # and when it has to
_PAUSE_SECONDS: Final = 5.0  # after a fault of the store

Sinks = Callable[[str, int], Sink]  # of a task's id and the number of an attempt


@asynccontextmanager
async def sinks_of(queue: str, settings: Settings, patience: Callable[[], float]) -> AsyncIterator[Sinks]:
    """Enter the place that the settings name for outputs, if they do; at the end what is left is sent.

    Args:
        queue: part of the names.
        settings: name the place.
        patience: how many seconds the end may take; asked when it has come.
    """
    if settings.log_dir is None:
        yield lambda _id, _attempt: nowhere()
    elif not is_container(settings.log_dir):
        folder = settings.log_dir
        yield lambda id_, attempt: file_sink(folder, queue, id_, attempt)
    else:
        async with place_at(settings.log_dir, settings) as place:
            uploads: set[asyncio.Task[None]] = set()

            def sink(task_id: str, attempt: int) -> Sink:
                upload = LogUpload(place, log_name(queue, task_id, attempt))
                sending = asyncio.create_task(upload.run(), name=f"log of {task_id}")
                uploads.add(sending)
                sending.add_done_callback(uploads.discard)
                return Sink(upload.write, upload.close)

            try:
                yield sink
            finally:
                await _end(uploads, patience())


async def _end(uploads: "set[asyncio.Task[None]]", seconds: float) -> None:
    if not uploads:
        return
    _, left = await asyncio.wait(uploads, timeout=seconds)
    for sending in left:
        sending.cancel()
    if left:
        await asyncio.wait(left)
        _log.warning("the logs of %d tasks are not whole: the store was too slow for the worker's end", len(left))


class LogUpload:
    """The output of one attempt on its way.

    Args:
        place: takes it.
        name: of its log.
        most_bytes: that may wait for the store.
    """

    def __init__(self, place: Place, name: str, *, most_bytes: int = MOST_WAITING_BYTES) -> None:
        self._place = place
        self._name = name
        self._most = most_bytes
        self._files: deque[IO[bytes]] = deque()  # each holds one block, the last one is written to
        self._lengths: deque[int] = deque()
        self._waiting = 0
        self._dropped = 0
        self._sent = 0
        self._closed = False
        self._changed = asyncio.Event()
        self._began = time.monotonic()

    def write(self, chunk: bytes) -> None:
        """Take a chunk; never waits for the store."""
        if self._waiting + len(chunk) > self._most:
            self._dropped += len(chunk)
            return
        if self._dropped:
            lost, self._dropped = self._dropped, 0
            self._keep(f"\n[jobq: {lost} bytes are missing here: the store of logs was too slow]\n".encode())
        self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        try:
            while chunk:
                if not self._files or self._lengths[-1] >= BLOCK_BYTES:
                    self._files.append(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115 - closed when it is sent
                    self._lengths.append(0)
                took = self._files[-1].write(chunk[: BLOCK_BYTES - self._lengths[-1]])
                self._lengths[-1] += took
                self._waiting += took
                chunk = chunk[took:]
        except OSError as error:  # a disk that is full fails no task
            if not self._dropped:
                _log.warning("the output of %s waits on a disk that takes no more: %s", self._name, error.strerror)
            self._dropped += len(chunk)
        self._changed.set()

    def close(self) -> None:
        """Take no more; what is left is sent."""
        if self._dropped:
            self._most += 1024  # room for the line that tells
            lost, self._dropped = self._dropped, 0
            self._keep(f"\n[jobq: {lost} bytes are missing here: the store of logs was too slow]\n".encode())
        self._closed = True
        self._changed.set()

    async def run(self) -> None:
        """Send until it is closed and all of it is sent."""
        try:
            while True:
                await self._until_due()
                if not self._files:
                    return
                try:
                    await self._send()
                except JobqError as error:
                    _log.warning("the log %s waits, with %s: %s", self._name, sizes.show(self._waiting), error)
                    await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            for file in self._files:
                file.close()
            self._files.clear()

    async def _until_due(self) -> None:
        """Wait for a whole block, for the time of a part of one, or for the end."""
        pause = min(_SLOW_SECONDS, max(_QUICK_SECONDS, (time.monotonic() - self._began) / _SLOWER_AFTER))
        due = time.monotonic() + pause
        while not self._closed and len(self._files) < 2:  # noqa: PLR2004 - the first is whole once there is a second
            if self._files and (left := due - time.monotonic()) <= 0:
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(left if self._files else None):
                    await self._changed.wait()
            except TimeoutError:
                return

    async def _send(self) -> None:
        length = self._lengths[0]
        chunk = os.pread(self._files[0].fileno(), length, 0)
        if len(self._files) == 1 and not self._closed:  # what comes meanwhile belongs into a block of its own
            self._files.append(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115 - closed when it is sent
            self._lengths.append(0)
        await self._place.append(self._name, self._sent, chunk)
        self._sent += len(chunk)
        self._waiting -= length
        self._files.popleft().close()
        self._lengths.popleft()
        if len(self._lengths) == 1 and not self._lengths[0]:
            self._files.pop().close()
            self._lengths.pop()
