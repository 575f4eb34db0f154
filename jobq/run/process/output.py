"""Reads what a task prints: drains its pipes, whatever comes, and thins out progress (architecture 6, Output)."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol, Self

from jobq.run.process.line_splitter import LineSplitter, OutputLine, Tail, WholeLines

StreamName = Literal["stdout", "stderr"]
TAIL_BYTES: Final = 64 * 1024
PROGRESS_SECONDS: Final = 1.0
_SETTLE_SECONDS: Final = 0.1  # how long a CR waits for its LF
_MAX_CHUNK_BYTES: Final = 64 * 1024  # what a pipe holds
_MIN_CHUNK_BYTES: Final = 4 * 1024
_LONG_WAKEUP_SECONDS: Final = 0.005
_READS_OF_REST: Final = 4  # per stream at once in `drain`: what prints without end cannot hold the loop

_log: Final = logging.getLogger(__name__)


class OutputReader:
    """The two pipes of one task and what becomes of the bytes; a context manager that closes them.

    Nothing is read before `begin`, so that a line can follow the word of the start. From then on it never stops:
    what `on_line` raises is logged once and dropped. A slow `on_line` makes it read smaller chunks, so that a task that
    floods does not hold the event loop.

    Args:
        on_line: called in the loop's thread with the stream and each line; of progress, at most one line a second.
        on_bytes: for a stream that is named here, called in place of `on_line` with whole lines as they came.
        tail_bytes: how much of both streams, as they came, is kept in `tail`.
        sink: given all bytes of both, as they came, and of which they are; must not raise.

    Raises:
        OSError: no descriptors left.
    """

    def __init__(
        self,
        on_line: Callable[[StreamName, str], None],
        *,
        on_bytes: Mapping[str, Callable[[bytes], None]] | None = None,
        tail_bytes: int = TAIL_BYTES,
        sink: Callable[[StreamName, bytes], None] = lambda _stream, _chunk: None,
    ) -> None:
        self.tail: Final = Tail(tail_bytes)
        self._on_line = on_line
        self._on_bytes = on_bytes or {}
        self._complained = False
        self._stdout = self._stream("stdout", sink)
        try:
            self._stderr = self._stream("stderr", sink)
        except OSError:
            self._stdout.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def stdout(self) -> int:
        """The descriptor for the child, until `child_started`."""
        return self._stdout.child_end

    @property
    def stderr(self) -> int:
        """The descriptor for the child, until `child_started`."""
        return self._stderr.child_end

    def child_started(self) -> None:
        """Close our copies of the child's ends, without which the end of the output would never be seen."""
        self._stdout.close_child_end()
        self._stderr.close_child_end()

    def begin(self) -> None:
        """Read from now on; any number of times."""
        self._stdout.begin()
        self._stderr.begin()

    async def drain(self, timeout_seconds: float) -> bool:
        """Read on to the end of both streams, pass on unfinished lines, and close; call it after the leader's exit.

        Args:
            timeout_seconds: when to give up, because a process that escaped still holds a pipe.

        Returns:
            Whether the end was reached.
        """
        self.child_started()
        self.begin()
        streams = (self._stdout, self._stderr)
        for stream in streams:
            stream.read_rest()
        if unread := [stream.ended for stream in streams if stream.is_open]:
            await asyncio.wait(unread, timeout=timeout_seconds)
        for stream in streams:
            stream.end()
        return all(stream.ended.done() for stream in streams)

    def close(self) -> None:
        """Close every descriptor that is still open (P5), at any time and any number of times."""
        self._stdout.close()
        self._stderr.close()

    def _stream(self, name: StreamName, sink: Callable[[StreamName, bytes], None]) -> "_Stream":
        if (on_bytes := self._on_bytes.get(name)) is not None:
            return _Stream(name, _WholeLines(lambda piece: self._pass_on(lambda: on_bytes(piece))), self.tail, sink)
        shown = _TextLines(lambda text: self._pass_on(lambda: self._on_line(name, text)))
        return _Stream(name, shown, self.tail, sink)

    def _pass_on(self, show: Callable[[], None]) -> None:
        try:
            show()
        except Exception:  # noqa: BLE001 - whatever it is, the task must not block on a full pipe
            if not self._complained:
                self._complained = True
                _log.exception("a line of output could not be passed on; further errors are not logged")


class _Shown(Protocol):
    """What becomes of one stream where it is shown."""

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        ...

    def finish(self) -> None:
        """Pass on what is unfinished, at the end of the stream."""
        ...

    def close(self) -> None:
        """Pass nothing on any more; any number of times."""
        ...


class _WholeLines:
    """Bytes for a file or a pipe: unchanged."""

    def __init__(self, emit: Callable[[bytes], None]) -> None:
        self._emit = emit
        self._lines = WholeLines()

    def feed(self, chunk: bytes) -> None:
        if whole := self._lines.feed(chunk):
            self._emit(whole)

    def finish(self) -> None:
        if rest := self._lines.finish():
            self._emit(rest)

    def close(self) -> None:
        pass


class _TextLines:
    """Lines for people, of bounded length, with progress thinned out."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._splitter = LineSplitter()
        self._loop = asyncio.get_running_loop()
        self._progress: str | None = None  # the last one that was not passed on
        self._progress_due = 0.0  # loop time; progress is passed on at once when the last was long ago
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, chunk: bytes) -> None:
        self._accept(self._splitter.feed(chunk))
        if self._timer is None and (self._progress is not None or self._splitter.undecided):
            soonest = self._loop.time() + _SETTLE_SECONDS
            self._timer = self._loop.call_at(max(soonest, self._progress_due), self._progress_is_due)

    def finish(self) -> None:
        self._accept(self._splitter.finish())
        self._flush_progress()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _accept(self, lines: list[OutputLine]) -> None:
        for line in lines:
            if line.progress:
                self._progress = line.text or self._progress
            else:
                self._flush_progress()
                self._emit(line.text)

    def _progress_is_due(self) -> None:
        self._timer = None
        self._accept(self._splitter.settle())
        self._flush_progress()

    def _flush_progress(self) -> None:
        if self._progress is not None:
            text, self._progress = self._progress, None
            self._progress_due = self._loop.time() + PROGRESS_SECONDS
            self._emit(text)


class _Stream:
    """One pipe: reads chunks, keeps their end, hands them to what is shown.

    Args:
        name: stdout or stderr.
        shown: takes the bytes.
        tail, sink: see `OutputReader`.
    """

    def __init__(
        self,
        name: StreamName,
        shown: _Shown,
        tail: Tail,
        sink: Callable[[StreamName, bytes], None],
    ) -> None:
        self._name: Final = name
        self._shown = shown
        self._tail = tail
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._chunk_bytes = _MIN_CHUNK_BYTES
        self.ended: Final[asyncio.Future[None]] = self._loop.create_future()
        self._fd, self.child_end = os.pipe()  # both close on exec; spawn passes a duplicate on
        os.set_blocking(self._fd, False)  # ours only: programs expect to block
        self._has_begun = False

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def begin(self) -> None:
        if self.is_open and not self._has_begun:
            self._has_begun = True
            self._loop.add_reader(self._fd, self._read)

    def read_rest(self) -> None:
        """Read what is there now, within a bound."""
        reads = 0
        while self.is_open and reads < _READS_OF_REST and self._read():
            reads += 1

    def end(self) -> None:
        """Pass on what is unfinished, and close."""
        if self.is_open:
            self._shown.finish()
        self.close()

    def close(self) -> None:
        self.close_child_end()
        self._shown.close()
        if self.is_open:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def close_child_end(self) -> None:
        if self.child_end >= 0:
            os.close(self.child_end)
            self.child_end = -1

    def _read(self) -> bool:
        """Handle one chunk; return whether there was one."""
        try:
            chunk = os.read(self._fd, self._chunk_bytes)
        except BlockingIOError:
            return False
        if not chunk:
            self.end()
            self.ended.set_result(None)
            return False
        started = self._loop.time()
        self._tail.add(chunk)
        self._sink(self._name, chunk)
        self._shown.feed(chunk)
        if self._loop.time() - started > _LONG_WAKEUP_SECONDS:
            self._chunk_bytes = max(_MIN_CHUNK_BYTES, self._chunk_bytes // 2)
        else:
            self._chunk_bytes = min(_MAX_CHUNK_BYTES, self._chunk_bytes * 2)
        return True
