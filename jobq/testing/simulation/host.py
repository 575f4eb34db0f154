"""A worker's machine without a kernel: what takes the place of sockets, pipes, folders and handles to processes."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Final, cast

from jobq.journal.page import Page
from jobq.run.attempt.checkpoints import Checkpoints
from jobq.run.attempt.task_socket import TaskLine
from jobq.run.guardian.protocol import Message, decode
from jobq.run.process.line_splitter import Tail
from jobq.run.process.oom import OomCounter
from jobq.run.process.output import OutputReader
from jobq.run.process.task_folder import TaskFolder
from jobq.run.process.usage import UsageSampler
from jobq.run.spawn.guardian_handle import GuardianHandle
from jobq.run.worker.host import Host
from jobq.testing.simulation.loop import Loop, Node

_LENGTH_BYTES: Final = 4
_NO_FILE: Final = Path("/nonexistent/jobq-simulation")


class Connection:
    """The worker's end of the socket to its guardian; in the place of a `socket.socket`.

    Args:
        loop: the run's.
        hear: given each message that the worker sends.
        on_close: called when the worker lets go of it.
    """

    def __init__(self, loop: Loop, hear: Callable[[Message], None], on_close: Callable[[], None]) -> None:
        self._loop, self._hear, self._on_close = loop, hear, on_close
        self._inbox = bytearray()
        self._is_over = False

    def arrived(self, data: bytes, seconds: float, node: Node) -> None:
        """Have the worker read this, so many seconds from now."""
        self._inbox += data
        self._loop.true_later(seconds, node, self._wake)

    def hang_up(self) -> None:
        """End the stream, as the kernel does when the guardian dies."""
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        self._loop.fire(self._loop.readers.get(self))

    # What the spawner asks of a socket

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def recvmsg(self, size: int, *_: int) -> tuple[bytes, list[Any], int, None]:
        """Return what has come; nothing = the end."""
        if not self._inbox and not self._is_over:
            raise BlockingIOError
        data = bytes(self._inbox[:size])
        del self._inbox[:size]
        return data, [], 0, None

    def sendmsg(self, buffers: list[memoryview], *_: object) -> int:
        """Send one frame."""
        if self._is_over:
            raise BrokenPipeError
        (frame,) = buffers
        self._hear(decode(bytes(frame[_LENGTH_BYTES:])))
        return len(frame)

    def shutdown(self, how: int) -> None:  # noqa: ARG002 - the socket's signature
        """End it."""
        self._on_close()

    def close(self) -> None:
        """End it."""
        self._on_close()


class Handle(GuardianHandle):
    """Signals for a guardian that is no process.

    Args:
        signal_guardian: gives it one.
        nothing_lives: returns once it has died, and all that it left.
    """

    def __init__(
        self, signal_guardian: Callable[[int], None], nothing_lives: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        super().__init__()
        self._signal_guardian = signal_guardian
        self._nothing_lives = nothing_lives

    async def kill_what_dead_workers_left(self) -> int:
        """Nothing is left: what falls to the watcher is killed by it."""
        return 0

    def name_worker(self, guardian: int) -> None:
        """Nobody looks for it in environments."""
        self.worker_id = str(guardian)

    def aim_at(self, pid: int) -> None:
        """It is known."""

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._signal_guardian(number)

    def watch(self, connection: object, on_lost: Callable[[], None] | None) -> None:
        """What it leaves is killed by the watcher."""

    async def wait_until_nothing_is_left(self) -> None:
        """Wait for that."""
        await self._nothing_lives()


class SimulatedHost(Host):
    """A machine for one worker.

    Args:
        chance: see `Host`.
        lines: takes what saves for each attempt, by what JOBQ_TASK_SOCKET says to its task.
    """

    def __init__(self, chance: Random, lines: dict[str, Checkpoints]) -> None:
        super().__init__(chance)
        self._lines = lines

    def task_folder(self) -> TaskFolder:
        """Return one in which nothing is ever found."""
        return _Folder()

    def task_line(self, folder: TaskFolder) -> TaskLine:
        """Return one that is no socket."""
        return _Line(folder, self._lines)

    def oom_counter(self) -> OomCounter:
        """Return one that counts nothing."""
        return OomCounter()

    def output_reader(self, on_line: object, sink: object) -> OutputReader:  # noqa: ARG002 - as in `Host`
        """Return one that reads nothing: these tasks print nothing."""
        return cast("OutputReader", _Output())


class NoSampler(UsageSampler):
    """Measures nothing: there is no /proc here."""

    async def run(self) -> None:
        """Do nothing, and do not look again."""


class _Folder(TaskFolder):
    def new_file(self) -> Path:
        return _NO_FILE

    def new_folder(self) -> Path:
        return _NO_FILE

    def close(self) -> None:
        """Nothing is there."""


class _Line(TaskLine):
    def __init__(self, folder: TaskFolder, lines: dict[str, Checkpoints]) -> None:
        super().__init__(folder)
        self._lines = lines

    async def admit(self, checkpoints: Checkpoints, page: Page | None) -> str:  # noqa: ARG002 - as in `TaskLine`
        name = f"line {len(self._lines) + 1}"
        self._lines[name] = checkpoints
        return name

    def dismiss(self, admitted: str) -> None:
        """The task may go on to write; nothing that it says counts (its keeper refuses)."""

    def close(self) -> None:
        """No socket."""


class _Output:
    stdout = stderr = 1

    def __init__(self) -> None:
        self.tail = Tail(0)

    def child_started(self) -> None:
        """No descriptors."""

    async def drain(self, timeout_seconds: float) -> bool:  # noqa: ARG002 - as in `OutputReader`
        return True

    def close(self) -> None:
        """No descriptors."""
