"""A PID namespace for each task: its tree dies with the init in there, and that with the guardian (pid_namespaces(7)).

The guardian forks that init and then the leader, into one new namespace, and stays outside of it. What the tree orphans
falls to the init, wherever it went; when the init is killed the kernel kills the whole namespace, and lets the init be
reaped only once all of it is gone. The task also has a /proc of its own, which shows its namespace.
"""

import ctypes
import errno
import os
import signal
from typing import NoReturn

from jobq.run.guardian.init_name import init_name
from jobq.run.process import kernel

_CLONE_NEWNS = 0x00020000
_CLONE_NEWPID = 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 2, 4, 8, 1 << 14, 1 << 19
_libc = ctypes.PyDLL(None, use_errno=True)


class PidNamespaces:
    """Makes namespaces, one after the other."""

    def __init__(self) -> None:
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        # Its end shows an init our death that was not armed in time; no other process has it.
        self._death, self._life = os.pipe2(os.O_CLOEXEC)

    def enter(self) -> int:
        """Have what is forked from now on be in a new namespace; return the number of its init. Raises OSError."""
        _call(_libc.unshare(_CLONE_NEWPID))
        name = init_name(os.getpid())
        pid = kernel.fork()
        if pid == 0:
            self._be_init(name)
        return pid

    def leave(self) -> None:
        """Have what is forked from now on be in ours again."""
        _call(_libc.setns(self._own, _CLONE_NEWPID))

    def _be_init(self, name: str) -> NoReturn:
        try:
            kernel.set_name(name)  # before anything else is in there
            os.setsid()
            kernel.die_with_parent()
            kernel.default_signals()
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans need nobody to reap them then
            kernel.close_from(0, self._death)
            os.read(self._death, 1)
        finally:
            os._exit(0)


def show_own_processes() -> None:
    """In a task: have a /proc of its namespace, in a mount namespace of its own. Raises OSError."""
    _call(_libc.unshare(_CLONE_NEWNS))
    _call(_libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None))
    _call(_libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC), None))


def why_not() -> str:
    """Return why this process can make none, by trying it in another; nothing when it can."""
    if (trial := os.fork()) == 0:
        os._exit(_try())
    number = os.waitstatus_to_exitcode(os.waitpid(trial, 0)[1])
    if number == 0:
        return ""
    why = os.strerror(number) if number > 0 else f"signal {-number}"
    return f"no PID namespace with a /proc of its own can be made: {why}"


def _try() -> int:
    try:
        namespaces = PidNamespaces()
        init = namespaces.enter()
        if (pid := os.fork()) == 0:
            try:
                show_own_processes()
                os._exit(0)
            except OSError:
                os._exit(ctypes.get_errno() or 1)
        result = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.kill(init, signal.SIGKILL)
        os.waitpid(init, 0)
        return result
    except OSError as error:
        return ctypes.get_errno() or error.errno or 1


def _call(result: int) -> None:
    if result != 0:  # what was tried before fails for want of room alone (user.max_pid_namespaces): it may be repeated
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
