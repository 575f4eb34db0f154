"""A worker's machine without a kernel: what takes the place of pipes, folders and handles to processes."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Final, cast

from jobq.backend import Backend
from jobq.run.attempt.checkpoints import AttemptCheckpoints
from jobq.run.attempt.task_socket import TaskSocket
from jobq.run.process.line_splitter import Tail
from jobq.run.process.oom import OomCounter
from jobq.run.process.output import OutputReader
from jobq.run.process.task_folder import TaskFolder
from jobq.run.process.usage import UsageSampler
from jobq.run.spawn.guardian_handle import GuardianHandle
from jobq.run.spawn.guardian_spawner import GuardianSpawner
from jobq.run.worker.host import WorkerHost
from jobq.run.worker.worker import Worker
from tests.simulation.machine.guardian import GuardianProcess

_NO_FILE: Final = Path("/nonexistent/jobq-simulation")


class SimulatedGuardianHandle(GuardianHandle):
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


class SimulatedHost(WorkerHost):
    """A machine for one worker.

    Args:
        chance: see `WorkerHost`.
        lines: takes what saves for each attempt, by what JOBQ_TASK_SOCKET says to its task.
    """

    def __init__(self, chance: Random, lines: dict[str, AttemptCheckpoints]) -> None:
        super().__init__(chance)
        self._lines = lines

    def task_folder(self) -> TaskFolder:
        """Return one in which nothing is ever found."""
        return _Folder()

    def task_line(self, folder: TaskFolder) -> TaskSocket:
        """Return one that is no socket."""
        return _Line(folder, self._lines)

    def oom_counter(self) -> OomCounter:
        """Return one that counts nothing."""
        return OomCounter()

    def output_reader(self, on_line: object, *, on_bytes: object, sink: object) -> OutputReader:
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


class _Line(TaskSocket):
    def __init__(self, folder: TaskFolder, lines: dict[str, AttemptCheckpoints]) -> None:
        super().__init__(folder)
        self._lines = lines

    async def admit(self, checkpoints: AttemptCheckpoints, folder: TaskFolder | None = None) -> str:
        name = f"line {len(self._lines) + 1}"
        self._lines[name] = checkpoints
        return name

    def listen_to(self, admitted: str, leader: int) -> None:
        """No other process tries to speak for a task."""

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

    def begin(self) -> None:
        """Nothing is read."""

    async def drain(self, timeout_seconds: float) -> bool:
        return True

    def close(self) -> None:
        """No descriptors."""


def worker_on(
    host: SimulatedHost, backend: Backend, guardian: GuardianProcess, ping_seconds: float, **more: Any
) -> Worker:
    """Return a real worker of a simulated machine.

    Args:
        host: the machine.
        backend: as this process sees it.
        guardian: its parent.
        ping_seconds: how often it asks whether that lives.
        more: for `Worker`.
    """
    handle = SimulatedGuardianHandle(guardian.signal, guardian.nothing_lives)
    spawner = GuardianSpawner(cast("Any", guardian.connection), handle=handle, ping_seconds=ping_seconds)
    return Worker(backend, spawner=spawner, environment={}, sampler=NoSampler(), host=host, **more)
