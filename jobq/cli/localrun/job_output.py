"""What jobs of a `jobq run` print, kept together: job by job (`--group`), or in the order of the input (`-k`).

What cannot be printed yet waits in files that have no name, the first mebibyte of each job in memory. While more than
a gibibyte waits, or the disk is full, nothing new starts.
"""

import asyncio
import itertools
import os
import struct
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from io import FileIO
from typing import Final

from jobq.cli.display.passthrough_log import PassthroughLog
from jobq.formats import sizes
from jobq.run.attempt.runner import OnBytes
from jobq.run.process.line_splitter import LineSplitter

MEMORY_BYTES: Final = 1024 * 1024  # of one job
MOST_WAITING_BYTES: Final = 1024 * 1024 * 1024
_PAUSE_SECONDS: Final = 0.02  # for a slow reader of ours
_STREAMS: Final = {1: "stdout", 2: "stderr"}
_MARKS: Final = {name: mark for mark, name in _STREAMS.items()}
_HEAD: Final = struct.Struct("=BI")


class _Waiting:
    """What one job has printed and is not shown yet: of each piece its stream, its length and its bytes."""

    def __init__(self) -> None:
        self.has_ended = False
        self._memory = bytearray()  # all of it, until there is a file
        self._file: FileIO | None = None
        self._read = self._written = 0

    @property
    def size(self) -> int:
        return self._written - self._read

    def add(self, stream: str, piece: bytes) -> int:
        """Append a piece; return its bytes. Raises OSError where it cannot be kept, and then holds what it held."""
        data = _HEAD.pack(_MARKS[stream], len(piece)) + piece
        if self._file is None and self._written + len(data) > MEMORY_BYTES:
            self._move()
        if self._file is None:
            self._memory += data
        else:
            _write(self._file, data, self._written)
        self._written += len(data)
        return len(data)

    def take(self) -> tuple[str, bytes]:
        """Return the next piece with its stream, and forget it."""
        mark, length = _HEAD.unpack(self._next(_HEAD.size))
        self._read += _HEAD.size
        piece = self._next(length)
        self._read += length
        if not self.size:  # what goes on printing for days, and is printed, fills no disk
            self._read = self._written = 0
            self._memory.clear()
            if self._file is not None:
                self._file.truncate(0)
        return _STREAMS[mark], piece

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _next(self, count: int) -> bytes:
        if self._file is None:
            return bytes(self._memory[self._read : self._read + count])
        return os.pread(self._file.fileno(), count, self._read)

    def _move(self) -> None:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `close`
        try:
            _write(file, self._memory, 0)
        except OSError:
            file.close()
            raise
        self._file = file
        self._memory.clear()


def _write(file: FileIO, data: bytes | bytearray, place: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(file.fileno(), left, place)
        left, place = left[written:], place + written
    left.release()


class JobOutput:
    """Takes what jobs print, as it is, and prints each job's together.

    Args:
        screen: where they are printed.
        number_of: returns the number of a task in the input, by its id.
        in_order: print in the order of the input, what runs first as it comes; else each job when it has ended.

    Attributes:
        lost: how many bytes could not be kept, since the disk is full.
    """

    def __init__(self, screen: PassthroughLog, number_of: Callable[[str], int], *, in_order: bool) -> None:
        self.lost = 0
        self._fault = ""  # of the last piece, where it could not be kept
        self._screen = screen
        self._number_of = number_of
        self._in_order = in_order
        self._waiting: dict[int, _Waiting] = {}
        self._order: deque[int] = deque()  # what is to be printed, the next one first
        self._keys: dict[str, int] = {}  # of what runs
        self._next_key = itertools.count(1)
        self._bytes = 0
        self._changed = asyncio.Event()

    def expect(self, numbers: Iterable[int]) -> None:
        """Note which jobs come next; to be called before they are queued."""
        if self._in_order:
            self._order.extend(numbers)

    @property
    def on_bytes(self) -> dict[str, OnBytes]:
        """What takes the bytes of each stream."""
        return {stream: partial(self._add, stream) for stream in _MARKS}

    def _add(self, stream: str, id_: str, piece: bytes) -> None:
        try:
            self._bytes += self._of(id_).add(stream, piece)
        except OSError as error:  # the job goes on, as it does where nobody reads
            if not self.lost:
                self._screen.say(f"output that waits to be printed cannot be kept: {error.strerror}; it is lost")
            self.lost += len(piece)
            self._fault = error.strerror or type(error).__name__
        else:
            self._fault = ""
        self._changed.set()

    def ended(self, id_: str, *, is_last: bool) -> None:
        """Note that an attempt has ended.

        Args:
            id_: of the task.
            is_last: whether it does not run again.
        """
        if self._in_order:
            if is_last:
                self._of(id_).has_ended = True
                self._keys.pop(id_, None)
        elif (key := self._keys.pop(id_, None)) is not None:
            self._waiting[key].has_ended = True
            self._order.append(key)
        self._changed.set()

    def too_full(self, *, is_busy: bool) -> str:
        """Return why nothing may start now, as a `StartGate` asks; empty = it may.

        Args:
            is_busy: whether any job runs. Where none does, the one that is to be printed next has yet to start again.
        """
        if not (is_busy or self._next_waiting()) or (self._bytes <= MOST_WAITING_BYTES and not self._fault):
            return ""
        if self._fault:
            return f"output that waits to be printed cannot be kept: {self._fault}" if self._bytes else ""
        return f"{sizes.show(self._bytes)} of output wait to be printed: for a job before them, or for who reads this"

    async def run(self) -> None:
        """Print for ever, what is to be printed next as soon as it is there."""
        while True:
            self._changed.clear()
            if not await self._print_some():
                await self._changed.wait()

    async def finish(self) -> None:
        """Print all that is left: nothing runs any more."""
        for waiting in self._waiting.values():
            waiting.has_ended = True
        left = self._waiting.keys() - set(self._order)
        self._order = deque(key for key in (*self._order, *sorted(left)) if key in self._waiting)
        while await self._print_some():
            pass

    async def _print_some(self) -> bool:
        """Print what may be printed now; return whether there was something."""
        waiting = self._next_waiting()
        if waiting is None:
            return False
        while waiting.size:
            await self._room()
            before = waiting.size
            self._show(*waiting.take())
            self._bytes -= before - waiting.size
            await asyncio.sleep(0)
        if waiting.has_ended:
            del self._waiting[self._order.popleft()]
            waiting.close()
        return True

    def _show(self, stream: str, piece: bytes) -> None:
        if (on_bytes := self._screen.on_bytes.get(stream)) is not None:
            on_bytes("", piece)
            return
        splitter = LineSplitter()
        for line in (*splitter.feed(piece), *splitter.finish()):
            if not line.progress:
                self._screen.on_line("", stream, line.text)

    def _next_waiting(self) -> _Waiting | None:
        """Return what may be printed now."""
        waiting = self._waiting.get(self._order[0]) if self._order else None
        return waiting if waiting is not None and (waiting.size or waiting.has_ended) else None

    async def _room(self) -> None:
        """Wait until lines can be handed in; their writer is a thread, which sets no event of a loop."""
        while not self._screen.has_room:  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_SECONDS)

    def _of(self, id_: str) -> _Waiting:
        key = self._keys.get(id_)
        if key is None:
            key = self._keys[id_] = self._number_of(id_) if self._in_order else next(self._next_key)
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = _Waiting()
        return waiting
