"""The kernel as the guardian meets it: one object with all that it asks of it. A simulation hands in one of its own."""

import contextlib
import errno
import os
import select
import time

from jobq.run.guardian import held_up
from jobq.run.guardian.protocol import Message
from jobq.run.guardian.start_process import fork_task, launch_task
from jobq.run.process import kernel

TYPE_CHECKING = False  # as in `typing`
if TYPE_CHECKING:
    import resource
    import socket


_SHORT_OF = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)  # so is who forks


class System:
    """Linux.

    Args:
        launcher: the path of a program that becomes the leaders; empty = they are forked.

    Attributes:
        tick_seconds: between two turns of the loop, at most: poll sleeps on CLOCK_MONOTONIC, which stops in suspend, so
            it is also the longest that a deadline may slip.
        has_stores_clock: the worker's leases are in a file of this machine, which leaves out suspends (rule 12).
    """

    tick_seconds = 0.5
    has_stores_clock = False

    def __init__(self, launcher: str = "") -> None:
        self._launcher = launcher

    def boottime(self) -> float:
        """Return CLOCK_BOOTTIME in seconds, or, where that is so, the store's clock: deadlines are kept by it."""
        return time.monotonic() if self.has_stores_clock else kernel.boottime()

    def monotonic(self) -> float:
        """Return CLOCK_MONOTONIC in seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def work_time(self) -> float:
        """Return the seconds of CPU time that this thread has used."""
        return time.thread_time()

    def poll(self) -> "select.poll":
        """Return an object to wait with."""
        return select.poll()

    def getpid(self) -> int:
        """Return the number of this process."""
        return os.getpid()

    def getsid(self, pid: int) -> int:
        """Return the session of a process; of this one for 0."""
        return os.getsid(pid)

    def getpgid(self, pid: int) -> int:
        """Return the process group of a process; 0 = one of another PID namespace."""
        return os.getpgid(pid)

    def fork_task(self, message: Message, stdout: int, stderr: int) -> tuple[int, int]:
        """Start a leader that is armed before it executes anything (P2).

        Args:
            message: what it executes.
            stdout: to be its standard output.
            stderr: to be its standard error.

        Returns:
            Its number, and a pipe that says why it does not execute, and whose end says that it does.

        Raises:
            OSError: no process or descriptor could be had.
        """
        status, report = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            pid = self._launched(message, stdout, stderr, report) or fork_task(message, stdout, stderr, report)
        except OSError:
            os.close(status)
            raise
        finally:
            os.close(report)
        return pid, status

    def _launched(self, message: Message, stdout: int, stderr: int, report: int) -> int:
        """Return the number of a leader that the launcher becomes; 0 = it is to be forked."""
        if not self._launcher:
            return 0
        try:
            return launch_task(self._launcher, message, stdout, stderr, report)
        except OSError as error:
            if error.errno in _SHORT_OF:
                raise
            if error.errno != errno.E2BIG:  # with its own words too large; who forks may have room, or says so
                self._launcher = ""  # it is gone, or lies where nothing may be executed
        except (ValueError, NotImplementedError):  # who forks says why nothing was executed
            pass
        return 0

    def read(self, descriptor: int) -> bytes:
        """Read what a pipe holds. Raises OSError."""
        return os.read(descriptor, 64)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def open_process(self, pid: int) -> int:
        """Return a handle to a process that is not reaped. Raises OSError."""
        return os.pidfd_open(pid)

    def open_peer(self, connection: "socket.socket") -> tuple[int, bool]:
        """See `kernel.open_peer`."""
        return kernel.open_peer(connection)

    def children(self) -> list[int]:
        """See `kernel.children`."""
        return kernel.children()

    def kill(self, pid: int, number: int) -> None:
        """Send a signal to a process. Raises ProcessLookupError, PermissionError."""
        os.kill(pid, number)

    def killpg(self, group: int, number: int) -> None:
        """Send a signal to a process group. Raises ProcessLookupError, PermissionError."""
        os.killpg(group, number)

    def ended_child(self) -> int | None:
        """Return the number of a child that has ended and is not reaped; None = there is none."""
        with contextlib.suppress(ChildProcessError):
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return None if found is None else found.si_pid
        return None

    def is_dead(self, pid: int) -> bool:
        """See `kernel.is_dead`."""
        return kernel.is_dead(pid)

    def is_held_up(self, pid: int) -> bool:
        """Return whether a process is stopped and holds a database's lock."""
        return held_up.is_stopped(pid) and held_up.holds_lock(pid)

    def reap(self, pid: int) -> "tuple[int, resource.struct_rusage]":
        """Reap a child that has ended; return its wait status and what it used."""
        _, status, usage = os.wait4(pid, 0)
        return status, usage

    def peak_rss_kib(self) -> int:
        """See `kernel.peak_rss_kib`."""
        return kernel.peak_rss_kib()

    def remove_folders_of_the_dead(self) -> None:
        """Remove what workers that were killed could not (P5)."""
        with contextlib.suppress(ImportError):  # jobq or Python was replaced meanwhile: the next worker's start sweeps
            from jobq.run.process import task_folder  # noqa: PLC0415 - half of what a guardian would import

            task_folder.sweep()

    def say(self, text: str) -> None:
        """See `kernel.say`."""
        kernel.say(text)
