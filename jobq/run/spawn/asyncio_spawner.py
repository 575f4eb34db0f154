"""Starts tasks from the worker itself, without a guardian.

Popen starts the program (vfork: under a millisecond, so it runs in the loop's thread), a pidfd wakes the loop when it
has ended. A leader is reaped only after its group was killed: until then its number cannot be reused (P4).
"""

import asyncio
import contextlib
import logging
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from jobq.errors import ConfigurationError
from jobq.run.process.spawner import (
    ExitStatus,
    Launch,
    Process,
    StartFailed,
    StatusLost,
    exec_bytes,
    is_readable,
    start_failed,
)

_log: Final = logging.getLogger(__name__)
_MAXRSS_UNIT_BYTES: Final = 1 if sys.platform == "darwin" else 1024
_TRACED_RETRY_SECONDS: Final = 0.05
_GROUP_PROBE_SECONDS: Final = 0.001  # doubling: a killed group is usually gone at the first or second look
_PROC_SEARCH_SECONDS: Final = 0.004  # most inits have reaped by then; reading all of /proc is dear
_GROUP_GONE_SECONDS: Final = 0.5  # then it sleeps uninterruptibly, or is another user's
_CLOSE_SECONDS: Final = 5.0


class AsyncioSpawner:
    """Spawns with `subprocess.Popen` and watches with a pidfd: for macOS, and for programs without a guardian.

    Weaker than the guardian in this:
        - P2: nothing ends the tasks when this process dies by SIGKILL;
        - P3: what left the group (setsid, setpgid, a daemon) is neither found nor killed;
        - `Launch.on_gone` is called when the group is gone, whatever has left it;
        - P1: `Launch.deadline` and `extend` are not enforced; the caller must kill in time, which a blocked event
          loop or a stopped worker cannot.

    Without pidfds (macOS, Linux before 5.3) each process costs one waiting thread.

    Raises:
        ConfigurationError: on entering, while SIGCHLD is ignored: the kernel would reap the children itself, their
            exit codes would be lost and their numbers reused (P4).
    """

    def __init__(self) -> None:
        self._live: set[_Process] = set()
        self._open = False

    async def __aenter__(self) -> Self:
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            raise ConfigurationError(
                "SIGCHLD is ignored, so exit codes would be lost; call signal.signal(SIGCHLD, SIG_DFL) at the start"
            )
        self._open = True
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._open = False
        for process in self._live:
            process.kill()
        try:
            if self._live:
                await _all_ended([process.ended for process in self._live])
        finally:
            for process in list(self._live):
                _log.error("process %d still lives after SIGKILL; it is left behind", process.pid)
                process.abandon()
            self._live.clear()

    async def spawn(self, launch: Launch) -> Process:
        """Start a process in a session of its own; see `Spawner.spawn`."""
        if not self._open:
            raise RuntimeError("the spawner is not open: use it as `async with`")
        loop = asyncio.get_running_loop()
        try:
            popen = subprocess.Popen(  # noqa: ASYNC220 - vfork and exec block for less than handing them to a thread
                [*map(exec_bytes, launch.argv)],
                env={exec_bytes(name): exec_bytes(value) for name, value in launch.env.items()},
                cwd=None if launch.cwd is None else exec_bytes(launch.cwd),
                stdin=subprocess.DEVNULL,
                stdout=launch.stdout,
                stderr=launch.stderr,
                start_new_session=True,
                close_fds=True,
            )
        except (OSError, ValueError) as error:
            launch.on_gone()
            raise start_failed(launch, error) from error
        try:
            process = _Process(popen, loop, self._live.discard, launch.on_gone)
        except BaseException as error:
            os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()
            launch.on_gone()
            if isinstance(error, RuntimeError | OSError):
                raise StartFailed(f"cannot watch a process: {error}", transient=True) from error
            raise
        self._live.add(process)
        return process


class _Process:
    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        loop: asyncio.AbstractEventLoop,
        forget: Callable[["_Process"], None],
        on_gone: Callable[[], None],
    ) -> None:
        self.pid: Final = popen.pid
        self.ended: Final[asyncio.Future[ExitStatus]] = loop.create_future()
        self._popen = popen  # held until reaped: the destructor of Popen would hand the child to subprocess._cleanup
        self._loop = loop
        self._forget = forget
        self._on_gone = on_gone
        self._exited = self._reaped = False
        self._pidfd = _pidfd_open(popen.pid)
        if self._pidfd is None:
            threading.Thread(target=self._watch_in_thread, name=f"jobq-wait-{self.pid}", daemon=True).start()
        else:
            loop.add_reader(self._pidfd, self._leader_exited)

    async def wait(self) -> ExitStatus:
        return await asyncio.shield(self.ended)  # shield: many wait, and none of them may cancel it

    def has_exited(self) -> bool:
        return self._exited or self.ended.done() or (self._pidfd is not None and is_readable(self._pidfd))

    def signal(self, number: int) -> None:
        if self._reaped:
            return  # P4: the number may be someone else's by now
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:  # a group whose members all changed their user
            _log.warning("not permitted to send signal %d to process group %d", number, self.pid)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def extend(self, deadline: float) -> None:
        """Do nothing: see the class docstring of AsyncioSpawner."""

    def abandon(self) -> None:
        """Stop watching; Popen's own destructor then warns and leaves the child to `subprocess`."""
        self._unwatch()
        self.ended.cancel()

    def _watch_in_thread(self) -> None:
        _wait_unreaped(self.pid)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._leader_exited)

    def _unwatch(self) -> None:
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(pidfd)
            os.close(pidfd)

    def _leader_exited(self) -> None:
        self._exited = True
        self._unwatch()
        if self.ended.done():
            return  # abandoned
        try:
            if not _is_zombie(self.pid):  # a tracer has seen the end and not passed it on yet
                self._loop.call_later(_TRACED_RETRY_SECONDS, self._leader_exited)
                return
            with contextlib.suppress(PermissionError):  # macOS says so of zombies; _await_group looks what is left
                os.killpg(self.pid, signal.SIGKILL)  # P5: the zombie leader still guards the group's number (P4)
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            self._reaped = True
            self._popen.returncode = -1  # it is not ours any more; keeps the destructor quiet
            self._status_lost()
            return
        self._reaped = True
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        self._await_group(_exit_status(self._popen.returncode, usage), _GROUP_PROBE_SECONDS)

    def _await_group(self, status: ExitStatus, delay: float) -> None:
        """Resolve once nobody is left in the group, or half a second after its SIGKILL."""
        if self.ended.done():
            return  # abandoned
        if _group_exists(self.pid) and (delay < _PROC_SEARCH_SECONDS or _group_lives(self.pid)):
            if delay < _GROUP_GONE_SECONDS:
                self._loop.call_later(delay, self._await_group, status, 2 * delay)
                return
            _log.warning("process group %d outlives its SIGKILL, in uninterruptible sleep or another user's", self.pid)
            self.ended.set_result(status)
        else:
            self.ended.set_result(status)
            self._on_gone()
        self._forget(self)

    def _status_lost(self) -> None:
        self.ended.set_exception(StatusLost(f"process {self.pid} was reaped by other code in this program"))
        self.ended.exception()  # counts as seen: there may be no waiter
        self._forget(self)


def _pidfd_open(pid: int) -> int | None:
    # None in any error: no such call (macOS, old kernels, seccomp) or no descriptor left; a thread needs neither.
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return None


def _wait_unreaped(pid: int) -> None:
    """Block until the child has ended, and leave it a zombie."""
    if sys.platform == "darwin":  # no waitid before Python 3.13
        with contextlib.closing(select.kqueue()) as queue, contextlib.suppress(ProcessLookupError):
            event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
            queue.control([event], 1, None)
    else:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _is_zombie(pid: int) -> bool:
    if sys.platform == "darwin":
        zombie = True  # kqueue has just said so
    else:
        zombie = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    return zombie


def _group_exists(group: int) -> bool:
    # The leader is reaped, so this number is only probed (signal 0), never signalled (P4); as long as the group has a
    # member the kernel does not reuse it.
    try:
        os.killpg(group, 0)
        while os.waitpid(-group, os.WNOHANG)[0]:  # orphans that fell to us: we are PID 1 or a subreaper
            pass
    except ProcessLookupError:
        return False
    except (ChildProcessError, PermissionError):
        pass  # the rest is init's to reap, or another user's
    return True


def _group_lives(group: int) -> bool:
    """Return whether a member is more than a zombie, which holds nothing and which some inits never reap."""
    lives = True
    if sys.platform == "linux":
        lives = any(state not in "ZX" for state in _states(group))
    return lives


def _states(group: int) -> Iterator[str]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has gone meanwhile
            state, _parent, its_group = stat.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(its_group) == group:
                yield state


def _exit_status(returncode: int, usage: resource.struct_rusage) -> ExitStatus:
    # Linux counts what exec replaced, here this process (vfork): a value not above our own peak says nothing.
    own_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return ExitStatus(
        exit_code=returncode if returncode >= 0 else None,
        signal=-returncode if returncode < 0 else None,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        max_rss_bytes=usage.ru_maxrss * _MAXRSS_UNIT_BYTES if usage.ru_maxrss > own_peak else None,
    )


async def _all_ended(ended: list[asyncio.Future[ExitStatus]]) -> None:
    """Wait for killed processes, also when cancelled meanwhile: that takes effect after, a few milliseconds later."""
    waiting = asyncio.ensure_future(asyncio.wait(ended, timeout=_CLOSE_SECONDS))
    try:
        await asyncio.shield(waiting)
    except asyncio.CancelledError:
        await waiting
        raise
