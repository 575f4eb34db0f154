"""How a process is started and watched, by any implementation: the values, the protocols, and why a start fails.

Everything that crosses this seam is plain data and descriptors, because one of the two implementations, the guardian,
is another process behind a socket; the other one is `jobq.run.spawn.asyncio_spawner`.
"""

import errno
import os
import select
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, Self

from jobq.errors import JobqError

_SHOWN_CHARACTERS: Final = 200
# The machine's doing, not the task's: the same start may succeed elsewhere, or here in a moment.
_SHORT: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
_AWAY: Final = frozenset({errno.ETXTBSY, errno.EIO, errno.ESTALE})  # of the program or the directory


class Deadline:
    """By when a tree must be dead (rule 7); moves with its lease, from before it is started.

    Args:
        boottime: in seconds.
    """

    def __init__(self, boottime: float) -> None:
        self.boottime = boottime
        self._enforce: Callable[[float], None] | None = None

    def move(self, boottime: float) -> None:
        """Set it, and pass it on to what enforces it."""
        self.boottime = boottime
        if self._enforce is not None:
            self._enforce(boottime)

    def enforced_by(self, enforce: Callable[[float], None]) -> None:
        """Name what enforces it; that knows the present one already."""
        self._enforce = enforce


def nothing() -> None:
    """Do nothing: nobody wants to know."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to start; the caller keeps the descriptors and closes them once `spawn` has returned or raised.

    Attributes:
        argv: the program and its arguments; a program without a slash is looked up on the PATH in `env`.
        env: the complete environment.
        stdout, stderr: descriptors that become the child's 1 and 2; its 0 is /dev/null, and it inherits no other.
        cwd: working directory; None = the spawner's.
        deadline: after which the tree must be dead; None = no deadline.
        on_gone: called once when nothing of the tree lives for certain, or nothing was started; never, where nobody can
            say so. That may be long after its end was reported: what survived SIGKILL may hold a device.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdout: int
    stderr: int
    cwd: str | None = None
    deadline: Deadline | None = None
    on_gone: Callable[[], None] = nothing

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise ValueError("argv names no program")


@dataclass(frozen=True, kw_only=True)
class ExitStatus:
    """How the leader of a process group ended (P7): exactly one of `exit_code` and `signal` is set.

    Attributes:
        exit_code: what it passed to exit.
        signal: the number of the signal that killed it.
        cpu_seconds: user and system time of the leader and of the children that it waited for; None = unknown.
        max_rss_bytes: the largest resident set among those; None = unknown.
        overdue: the spawner killed it at its deadline.
        survivors: how many processes not even SIGKILL could end in time; they may be of a neighbour that ended too.
    """

    exit_code: int | None = None
    signal: int | None = None
    cpu_seconds: float | None = None
    max_rss_bytes: int | None = None
    overdue: bool = False
    survivors: int = 0

    def __post_init__(self) -> None:
        if (self.exit_code is None) == (self.signal is None):
            raise ValueError("exactly one of exit_code and signal says how a process ended")


class StartFailed(JobqError):
    """No process came to be: program or directory missing, not executable, arguments too long (P7).

    Args:
        message: what is wrong and what to do.
        transient: the machine was short of something; the task itself may be fine, and goes back uncharged.
    """

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class Awaited(StartFailed):
    """What this one task needs is away: its files, its batch. It goes back uncharged; others may start."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True)


class OtherKind(StartFailed):
    """This task is for other workers, whatever is on this machine."""


class StatusLost(JobqError):
    """Someone else in this program reaped the process: how it ended is unknown, and nothing may be signalled (P4)."""


class Process(Protocol):
    """The leader of a session and process group of its own."""

    @property
    def pid(self) -> int:
        """The number of the leader and of its group; for people and logs, never to signal by (P4)."""
        ...

    async def wait(self) -> ExitStatus:
        """Return how the leader ended, once what was left of its group is killed (P5).

        Any number of callers may wait, again and again; cancelling one changes nothing.

        Raises:
            StatusLost: someone else reaped it.
        """
        ...

    def has_exited(self) -> bool:
        """Return whether the leader has ended by now, even if nobody has been notified yet."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the whole group; does nothing once the leader was reaped (P4)."""
        ...

    def kill(self) -> None:
        """Send SIGKILL to the whole group; does nothing once the leader was reaped (P4)."""
        ...

    def extend(self, deadline: float) -> None:
        """Move the deadline of the launch, in boottime seconds, where the spawner enforces one (P1)."""
        ...


class Spawner(Protocol):
    """Starts processes. An asynchronous context manager: leaving it kills and reaps what still lives."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    async def spawn(self, launch: Launch) -> Process:
        """Start a process in a session of its own; return once the program runs.

        Raises:
            StartFailed: it did not start; nothing is left of it.
            StatusLost: what starts it died meanwhile, so it may live: only its lease's end makes sure (P1).
        """
        ...


def exec_bytes(text: str) -> bytes:
    """Return what exec is given of a text of a task: UTF-8, whatever the locale says; raises ValueError."""
    return text.encode("utf-8", "surrogateescape")


def is_readable(descriptor: int) -> bool:
    """Return whether a descriptor is readable now: a pidfd is once its process has ended (pidfd_open(2))."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def start_failed(launch: Launch, error: OSError | ValueError) -> StartFailed:
    """Say what kept a launch from starting.

    Args:
        launch: what was to be started.
        error: what fork, chdir or exec raised; its `filename` is the directory when that was at fault.
    """
    program = _shown(launch.argv[0])
    if not isinstance(error, OSError):
        # NUL, a lone surrogate, "=" in a variable's name: exec has no way to pass them on.
        return StartFailed(f"cannot start {program}: its arguments or environment hold text that exec refuses: {error}")
    reason = os.strerror(error.errno or 0)
    if (
        launch.cwd is not None
        and error.filename in (launch.cwd, exec_bytes(launch.cwd))
        and not _enters_program(launch)
    ):
        return _failure(error.errno, _directory_fault(_shown(launch.cwd), error.errno, reason))
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            message = _missing(launch, program)
        case errno.EACCES | errno.EPERM:
            message = f"program {program} is not executable by this user: {reason}; check its mode (chmod +x) and path"
        case errno.ENOEXEC:
            message = f"program {program} has no format that this machine runs; a script needs a #! line"
        case errno.E2BIG:
            message = f"cannot start {program}: {reason}: {_largest(launch)}; pass large values in a file"
        case _:
            message = f"cannot start {program}: {reason}"
    return _failure(error.errno, message)


def _failure(number: int | None, message: str) -> StartFailed:
    return Awaited(message) if number in _AWAY else StartFailed(message, transient=number in _SHORT)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")


def _enters_program(launch: Launch) -> bool:
    # Directory and program are the same text: the error names both, so look which of them works.
    return launch.cwd == launch.argv[0] and Path(launch.cwd).is_dir() and os.access(launch.cwd, os.X_OK)


def _directory_fault(directory: str, number: int | None, reason: str) -> str:
    match number:
        case errno.ENOENT:
            return f"working directory {directory} does not exist on this machine"
        case errno.ENOTDIR:
            return f"working directory {directory} is not a directory"
        case errno.EACCES | errno.EPERM:
            return f"working directory {directory} may not be entered by this user: {reason}"
    return f"working directory {directory} cannot be entered: {reason}"


def _missing(launch: Launch, program: str) -> str:
    name = launch.argv[0]
    if "/" in name:
        if (Path(launch.cwd or "") / name).exists():
            return f"program {program} exists, but the interpreter that its first line names does not"
        return f"program {program} does not exist on this machine"
    if shutil.which(name, path=os.pathsep.join(os.get_exec_path(launch.env))):
        return f"program {program} was found, but the interpreter that its first line names does not exist"
    if len(name.split()) > 1:
        return f"program {program} not found on PATH; it looks like a command for the shell, which is pushed with -c"
    return f"program {program} not found on PATH; give its full path, or set PATH in the task's environment"


def _largest(launch: Launch) -> str:
    # Names only: the values may be secret (rules.md 3, A5).
    sizes = [(len(exec_bytes(value)), f"argument {index}") for index, value in enumerate(launch.argv)]
    sizes += [
        (len(exec_bytes(name)) + len(exec_bytes(value)), f"environment variable {_shown(name)}")
        for name, value in launch.env.items()
    ]
    size, name = max(sizes)
    return f"{sum(size for size, _ in sizes)} bytes in all, {name} alone has {size}"
