"""Whole outputs in a container of blobs: QUEUE/ID.ATTEMPT.log, both streams as they came (`jobq worker --log-dir`).

A task's output never waits for the store (S11). What is not sent yet lies in small files that have no name, below
TMPDIR; beyond a cap it is dropped, and the log says how much and where. A store that is away takes no descriptors from
the tasks either: when too many files wait, the logs of what ended first are given up, with a line. Each block says at
which length it belongs, so a repetition after a lost answer adds nothing twice.
"""

import asyncio
import logging
import os
import resource
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import IO, Final

from jobq.errors import JobqError
from jobq.files.file_store import FileStore, place_at
from jobq.files.location import is_container
from jobq.formats import sizes
from jobq.run.process.log_files import LogFolder, Sink, log_name, nowhere
from jobq.settings import Settings

_log: Final = logging.getLogger(__name__)
BLOCK_BYTES: Final = 4 * 1024 * 1024
MOST_WAITING_BYTES: Final = 256 * 1024 * 1024  # of one attempt, on disk
_MOST_FILES: Final = 256  # that wait, of one worker
_LOG_SECONDS: Final = 60.0  # between two words of a store that is away
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
        patience: how many seconds the end may take; see `Spool.end`.
    """
    if settings.log_dir is None:
        yield lambda _id, _attempt: nowhere()
    elif not is_container(settings.log_dir):
        folder = LogFolder(settings.log_dir, queue)
        try:
            yield folder.sink
        finally:
            await folder.end(patience)
    else:
        async with place_at(settings.log_dir, settings) as place:
            spool = Spool()

            def sink(task_id: str, attempt: int) -> Sink:
                upload = spool.begin(place, log_name(queue, task_id, attempt))
                return Sink(lambda _stream, chunk: upload.write(chunk), upload.close)

            try:
                yield sink
            finally:
                await spool.end(patience)


class Spool:
    """All outputs of one worker that are on their way.

    Args:
        most_files: that may wait for the store; None = as many as leave the tasks what they need.
    """

    def __init__(self, most_files: int | None = None) -> None:
        self._most_files = _fair_share() if most_files is None else most_files
        self._uploads: dict[LogUpload, asyncio.Task[None]] = {}  # in the order of their starts
        self._given_up = 0
        self._logged = -_LOG_SECONDS

    def begin(self, place: FileStore, name: str) -> "LogUpload":
        """Return a log that is on its way from now on."""
        upload = LogUpload(place, name, spool=self)
        sending = asyncio.create_task(upload.run(), name=f"log {name}")
        self._uploads[upload] = sending
        sending.add_done_callback(lambda _: self._uploads.pop(upload, None))
        return upload

    def has_room(self) -> bool:
        """Return whether one more file may wait, if need be in the place of a log whose task has ended."""
        while sum(upload.files for upload in self._uploads) >= self._most_files:
            ended = next((upload for upload in self._uploads if upload.has_ended and upload.files), None)
            if ended is None:
                return False
            sending = self._uploads.pop(ended)
            ended.give_up()
            sending.cancel()
            self._given_up += 1
        return True

    def trouble(self, name: str, waiting: int, error: Exception) -> None:
        """Warn of a store that does not take a log: once in a while, however many wait for it."""
        if time.monotonic() - self._logged < _LOG_SECONDS:
            return
        self._logged = time.monotonic()
        given_up = f"; {self._given_up} logs are given up so far" if self._given_up else ""
        others = f" and {len(self._uploads) - 1} more" if len(self._uploads) > 1 else ""
        _log.warning("the log %s (%s)%s wait for their store%s: %s", name, sizes.show(waiting), others, given_up, error)

    async def end(self, patience: Callable[[], float]) -> None:
        """Wait for what is on its way, then say what is not whole.

        Args:
            patience: how many seconds it may take; asked again and again, since a stop may come meanwhile.
        """
        began = time.monotonic()
        left = set(self._uploads.values())
        while left and (seconds := began + patience() - time.monotonic()) > 0:
            _, left = await asyncio.wait(left, timeout=min(seconds, _QUICK_SECONDS))
        for each in left:
            each.cancel()
        if left:
            await asyncio.wait(left)
        if left or self._given_up:
            lost = len(left) + self._given_up
            _log.warning("the logs of %d tasks are not whole: the store was away, or too slow", lost)


def _fair_share() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if limit == resource.RLIM_INFINITY else max(1, min(_MOST_FILES, limit // 4))


class LogUpload:
    """The output of one attempt on its way.

    Args:
        place: takes it.
        name: of its log.
        most_bytes: that may wait for the store.
        spool: what it shares with others; None = it is alone.
    """

    def __init__(
        self, place: FileStore, name: str, *, most_bytes: int = MOST_WAITING_BYTES, spool: Spool | None = None
    ) -> None:
        self._place = place
        self._spool = spool or Spool()
        self._name = name
        self._most = most_bytes
        self._files: deque[IO[bytes]] = deque()  # each holds one block, the last one is written to
        self._lengths: deque[int] = deque()
        self._waiting = 0
        self._dropped = 0
        self._sent = 0
        self._closed = False
        self._is_on_its_way = False  # the first file: what comes meanwhile belongs into a block of its own
        self._changed = asyncio.Event()
        self._began = time.monotonic()

    @property
    def files(self) -> int:
        """How many files wait."""
        return len(self._files)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes."""
        return self._closed

    def give_up(self) -> None:
        """Close what waits; the caller ends `run`."""
        for file in self._files:
            file.close()
        self._files.clear()
        self._lengths.clear()

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
                is_taken = self._is_on_its_way and len(self._files) == 1
                if not self._files or is_taken or self._lengths[-1] >= BLOCK_BYTES:
                    if not self._spool.has_room():
                        self._dropped += len(chunk)
                        break
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
            self._most += 1024  # room for the line that says so
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
                    self._spool.trouble(self._name, self._waiting, error)
                    await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            self.give_up()

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
        self._is_on_its_way = True  # until it was taken: a repetition must be the same
        await self._place.append(self._name, self._sent, chunk)
        self._sent += len(chunk)
        self._waiting -= length
        self._files.popleft().close()
        self._lengths.popleft()
        self._is_on_its_way = False
