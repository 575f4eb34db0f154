"""What guardian and tasks ask of Linux beyond Python's `os`: prctl, signals as a pipe, and who our children are."""

import contextlib
import ctypes
import errno
import os
import select
import signal
import struct
import time

from jobq.run.process import OBEYED

TYPE_CHECKING = False  # as in `typing`
if TYPE_CHECKING:
    import socket
    from typing import Any

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
STOPPING = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT})  # ask the worker to end
_HANDLED = (signal.SIGCHLD, *FORWARDED, signal.SIGTSTP)  # a Ctrl-Z would stop who keeps the deadlines (P1)
_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)  # ignored: `stty tostop` stops nobody for a line, nor has it written twice
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

_CREDENTIALS = struct.Struct("iII")  # struct ucred, unix(7)
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

# These run between fork and exec, where each page that Python touches is copied: so as plainly as ctypes can, with
# the GIL, without errno and without the enumerations that `signal` makes of numbers. Both together cost 0.5 ms a fork.
_libc = ctypes.PyDLL(None)
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_ARG_START, _ARG_END = 45, 46  # among what follows the name in /proc/self/stat (proc(5))
_signal = _libc.signal
_signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
_signal.restype = ctypes.c_void_p
_sigprocmask = _libc.sigprocmask
_statfs = _libc.statfs
_statfs.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
_SIG_BLOCK, _SIG_UNBLOCK, _SIG_SETMASK = int(signal.SIG_BLOCK), int(signal.SIG_UNBLOCK), int(signal.SIG_SETMASK)
_SIG_DFL, _SIG_IGN = 0, 1


def _set_of(numbers: "tuple[int, ...]") -> "ctypes.Array[ctypes.c_char]":
    made = ctypes.create_string_buffer(128)  # a sigset_t
    for number in numbers:
        _libc.sigaddset(made, int(number))
    return made


_HELD = _set_of(_HANDLED)
_BLOCKED_FOR_TASK = _set_of(())
_BLOCKED_FOR_WORKER = _set_of(OBEYED)
_RESET = tuple(int(number) for number in (*_HANDLED, *_TERMINAL, *_IGNORED_BY_PYTHON))
RESET_AT_EXEC = tuple(number for number in _RESET if number != signal.SIGHUP)  # that one stays ignored below nohup


def boottime() -> float:
    """Return CLOCK_BOOTTIME in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def become_subreaper() -> None:
    """Adopt the orphans below this process instead of leaving them to init (prctl(2))."""
    _call(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Get SIGKILL when the parent's thread ends; the caller checks that the parent still is who it was."""
    _call(_PR_SET_PDEATHSIG, signal.SIGKILL)


def continue_with_parent() -> None:
    """Get SIGCONT when the parent's thread ends: who was stopped then must still see to what it guards."""
    _call(_PR_SET_PDEATHSIG, signal.SIGCONT)


def rename(title: str) -> None:
    """Show this instead of the command line, in all of /proc: who looks for words of that finds others alone."""
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - pathlib costs 1 MB
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    shown = title.encode("ascii")
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, shown, min(len(shown), end - start - 2))
    ctypes.memset(end - 1, 1, 1)  # no zero at the end: the kernel then shows what comes before the first
    set_name(title)


def set_name(name: str) -> None:
    """Set what `ps` and `pkill` take for the name of this process: 15 characters of it (prctl(2))."""
    shown = ctypes.create_string_buffer(name.encode("ascii"))
    _call(_PR_SET_NAME, ctypes.addressof(shown))


def hide_from_same_user() -> None:
    """Keep other processes of this user from reading our environment in /proc (rules.md 3, A6)."""
    _call(_PR_SET_DUMPABLE, 0)


def file_system_of(path: str) -> int:
    """Return on what kind of file system a file lies, by its number in linux/magic.h; 0 = nobody knows (statfs(2))."""
    made = (ctypes.c_long * 32)()  # a struct statfs, with room
    return int(made[0]) & 0xFFFFFFFF if _statfs(os.fsencode(path), made) == 0 else 0


def close_from(first: int, but: int) -> None:
    """Close all descriptors from this number on, but for one that is not below it."""
    os.closerange(first, but)
    os.closerange(but + 1, max(but + 2, os.sysconf("SC_OPEN_MAX")))


def _call(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        raise OSError(errno.EINVAL, f"prctl({option}, {value}) was refused: is this a Linux kernel of this century?")


class SignalPipe:
    """The signals of this process as bytes in a pipe, for poll; made once, before anything is forked.

    What started this process may have blocked them, so that none was lost until now.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in _HANDLED:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup: the user wants it so
                signal.signal(number, lambda _number, _frame: None)
        ignore_terminal()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)

    def fileno(self) -> int:
        """Return what to poll."""
        return self._read

    def read(self) -> bytes:
        """Return the numbers of the signals that came since, in order."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self._read, 4096)
        return b""


def ignore_terminal() -> None:
    """Ignore that a terminal may want to stop what writes to it from another process group than the first."""
    for number in _TERMINAL:
        signal.signal(number, signal.SIG_IGN)


def fork() -> int:
    """Fork with the signals held; the child calls `default_signals` once it has moved to where they should find it."""
    # A handler that ran in the child would write to the pipe that it shares with us: one signal would count twice.
    _sigprocmask(_SIG_BLOCK, _HELD, None)
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid != 0:
            _sigprocmask(_SIG_UNBLOCK, _HELD, None)
    return pid


def default_signals(*, worker: bool = False) -> None:
    """In a child, before exec: signals act as a program expects them to, and those that came since the fork act now.

    Args:
        worker: leave blocked what a worker obeys: it has no handlers before its imports are done, and unblocks then.
    """
    for number in _RESET:
        if _signal(number, _SIG_DFL) == _SIG_IGN and number == signal.SIGHUP:
            _signal(number, _SIG_IGN)  # nohup: the user wants it so
    _sigprocmask(_SIG_SETMASK, _BLOCKED_FOR_WORKER if worker else _BLOCKED_FOR_TASK, None)


def open_standard_descriptors() -> None:
    """Make sure that 0, 1 and 2 are taken, so that nothing of ours ever gets these numbers."""
    while (descriptor := os.open("/dev/null", os.O_RDWR)) <= 2:  # noqa: PLR2004 - standard error, the last of the three
        os.set_inheritable(descriptor, True)  # a program expects them to be open
    os.close(descriptor)


def open_peer(connection: "socket.socket") -> tuple[int, bool]:
    """Return a pidfd of who made the connection, -1 when it is gone, and whether that is our parent still.

    The connection alone does not show its death: a child that it forked may hold the other end.
    """
    import socket  # noqa: PLC0415 - the watcher, which needs none, would be a tenth larger

    peer, _, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    try:
        pidfd = os.pidfd_open(peer)
    except OSError:
        return -1, False
    return pidfd, os.getppid() == peer


def say(text: str, who: str = "guardian") -> None:
    """Write a line to standard error, the only log of guardian and watcher, unless its reader makes us wait."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    with contextlib.suppress(OSError):
        if any(event & select.POLLOUT for _, event in poll.poll(0)):
            is_screen = os.isatty(2) and os.environ.get("TERM", "dumb") != "dumb"
            # In place of the last line of a table that the worker has left there.
            start = "\r\x1b[K" if is_screen else ""
            os.write(2, f"{start}jobq {who}: {text[:500]}\n".encode(errors="replace"))


def peak_rss_kib() -> int:
    """Return the largest resident set of this program, in KiB; getrusage would count the program it was forked from."""
    with open("/proc/self/status", "rb") as file:  # noqa: PTH123 - pathlib costs 1 MB
        for line in file:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1])
    return 0


def children() -> list[int]:
    """Return the numbers of this process's children, oldest first, zombies included; only those may be signalled (P4).

    The kernel's list is complete here: it may skip entries only while some leave it, and only we reap them.
    """
    me = os.getpid()
    try:
        file = os.open(f"/proc/{me}/task/{me}/children", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return sorted(
            int(name)
            for name in os.listdir("/proc")  # noqa: PTH208 - pathlib costs 1 MB
            if name.isdigit() and _parent(name) == me
        )
    try:
        found = b""
        while chunk := os.read(file, 65536):
            found += chunk
        return [int(number) for number in found.split()]
    finally:
        os.close(file)


def kill_stray(pid: int, groups: set[int], spared: "tuple[int | None, ...]", system: "Any" = os) -> None:
    """Kill a child that no living leader is, and what shares its group, before that can fork on.

    Args:
        pid: an un-reaped child of ours, so its number is its own (P4).
        groups: those that were killed lately: each costs a signal to all its members, dead ones too; added to.
        spared: the sessions of which no group is killed.
        system: `os`, or a `System`.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        system.kill(pid, signal.SIGKILL)
        # It is dead or dying and not reaped: it cannot leave the group any more, and its membership keeps the number.
        session, group = system.getsid(pid), system.getpgid(pid)
        if group and session not in spared and group not in groups:  # 0 = of another PID namespace
            groups.add(group)
            system.killpg(group, signal.SIGKILL)


def is_dead(pid: int) -> bool:
    """Return whether a child of ours, not reaped yet, has ended."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _parent(number: str) -> int:
    try:
        with open(f"/proc/{number}/stat", "rb") as file:  # noqa: PTH123 - pathlib costs 1 MB
            return int(file.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it ended while we looked
