"""Stops a child at each system call by which it changes files of a folder: to write it down, cut it short, or kill.

By ptrace(2) and a seccomp(2) filter through ctypes: no preloaded library, no strace, no rights, and the child runs at
full speed between these calls. Linux on x86-64; `missing()` says why not elsewhere.
"""

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

# <sys/ptrace.h>, <linux/seccomp.h>, <linux/prctl.h>
_TRACEME, _CONT, _GETREGS, _SETREGS, _SYSCALL, _SETOPTIONS = 0, 7, 12, 13, 24, 0x4200
_OPTIONS: Final = 0x1 | 0x2 | 0x4 | 0x8 | 0x80 | 0x100000  # SYSGOOD, FORK, VFORK, CLONE, SECCOMP, EXITKILL
_EVENT_SECCOMP: Final = 7
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_ALLOW, _TRACE = 0x7FFF0000, 0x7FF00000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF
_WALL: Final = 0x40000000
_REFUSED: Final = 97  # exit code of a child that may not be traced

_BY_FILE: Final = {1: "write", 18: "pwrite64", 74: "fsync", 75: "fdatasync", 77: "ftruncate"}
_BY_PATH: Final = {76: "truncate", 82: "rename", 87: "unlink"}
_BY_FOLDER: Final = {263: "unlinkat"}
# SQLite uses none of these on Linux; one that came unseen would make the search less than it says.
_UNEXPECTED: Final = {20: "writev", 285: "fallocate", 295: "preadv", 296: "pwritev", 264: "renameat", 316: "renameat2"}
_WATCHED: Final = {**_BY_FILE, **_BY_PATH, **_BY_FOLDER, **_UNEXPECTED}
WRITES: Final = frozenset({"write", "pwrite64"})
SYNCS: Final = frozenset({"fsync", "fdatasync"})

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class _Registers(ctypes.Structure):
    """`struct user_regs_struct` of x86-64."""

    _names = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss"
    _segments = "fs_base gs_base ds es fs gs"
    _fields_ = tuple((name, ctypes.c_ulonglong) for name in f"{_names} {_segments}".split())


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


class Call(NamedTuple):
    """A system call that is about to be made.

    Attributes:
        name: of the call; "told" for a line that the child tells the test.
        path: of the file; of a rename the new name follows after a NUL.
        offset: where it writes, or the length that it truncates to.
        data: what it writes; the line that is told.
    """

    name: str
    path: str
    offset: int = 0
    data: bytes = b""


class Act(Enum):
    """What to do with a call."""

    GO = "let it go"
    KILL = "kill before it is done"
    HALVE = "kill when half of its bytes are written"


class _Child(NamedTuple):
    pid: int
    telling: int
    folder: str


def missing() -> str:
    """Return why no child can be traced here; "" = it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"system calls are traced on Linux on x86-64 only, this is {sys.platform} on {platform.machine()}"
    try:
        trace(lambda _: None, Path("/nowhere"), lambda _: Act.GO)
    except PermissionError as error:
        return str(error)
    return ""


def trace(work: Callable[[int], None], folder: Path, at: Callable[[Call], Act]) -> list[str]:
    """Run `work` in a fork of this process, which must have no other children and no threads.

    Args:
        work: gets the descriptor to tell lines to, one write each.
        folder: whose files are watched.
        at: decides about each call; it is made by the child's threads one after the other.

    Returns:
        The lines that were told.

    Raises:
        PermissionError: this process may not trace.
    """
    reading, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_traced(work, telling)
    os.close(telling)
    child = _Child(pid, telling, str(folder))
    try:
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _REFUSED:
            raise PermissionError("this process may not trace its children (ptrace is refused: a sandbox, or yama)")
        _ptrace(_SETOPTIONS, pid, _OPTIONS)
        _ptrace(_CONT, pid, 0)
        _follow(child, at)
        with os.fdopen(reading, closefd=False) as told:
            return told.read().splitlines()
    finally:
        os.close(reading)


def _be_traced(work: Callable[[int], None], telling: int) -> None:
    code = 1
    try:
        if _libc.ptrace(_TRACEME, 0, None, None) or _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
            os._exit(_REFUSED)
        os.kill(os.getpid(), signal.SIGSTOP)
        if _libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(_stops_at_watched_calls()), 0, 0):
            os._exit(_REFUSED)
        work(telling)
        code = 0
    finally:
        os._exit(code)


def _stops_at_watched_calls() -> _Program:
    calls = sorted(_WATCHED)
    code = [(_LOAD, 0, 0, 0)]  # the call's number
    code += [(_EQUAL, len(calls) - place, 0, call) for place, call in enumerate(calls)]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _TRACE)]
    return _Program(len(code), (_Instruction * len(code))(*(_Instruction(*each) for each in code)))


def _ptrace(request: int, thread: int, data: object) -> None:
    if _libc.ptrace(request, thread, None, data) and ctypes.get_errno() != 3:  # ESRCH: it was killed meanwhile
        raise OSError(ctypes.get_errno(), f"ptrace request {request}")


def _follow(child: _Child, at: Callable[[Call], Act]) -> None:
    registers = _Registers()
    halving = 0
    while True:
        try:
            thread, status = os.waitpid(-1, _WALL)
        except ChildProcessError:
            return
        if not os.WIFSTOPPED(status):
            continue
        stop = os.WSTOPSIG(status)
        if thread == halving and stop == signal.SIGTRAP | 0x80:  # the call that was cut short has ended
            os.kill(child.pid, signal.SIGKILL)
            continue
        if status >> 16 == _EVENT_SECCOMP:
            _ptrace(_GETREGS, thread, ctypes.byref(registers))
            act = Act.GO if (call := _call(child, thread, registers)) is None else at(call)
            if act is Act.HALVE:
                registers.rdx //= 2
                _ptrace(_SETREGS, thread, ctypes.byref(registers))
                halving = thread
                _ptrace(_SYSCALL, thread, 0)
                continue
            if act is Act.KILL:
                os.kill(child.pid, signal.SIGKILL)
                continue
        _ptrace(_CONT, thread, 0 if stop in {signal.SIGTRAP, signal.SIGSTOP} else stop)


def _call(child: _Child, thread: int, registers: _Registers) -> Call | None:  # noqa: PLR0911 - a table, one row a kind
    """Return a call that is of interest."""
    number, first, second = registers.orig_rax, registers.rdi, registers.rsi
    name = _WATCHED[number]
    if number in _BY_PATH:
        path = _text(thread, first)
        if number == 82:
            path = f"{path}\0{_text(thread, second)}"
        return Call(name, path, second if name == "truncate" else 0) if path.startswith(child.folder) else None
    if number in _BY_FOLDER:
        path = _text(thread, second)
        return Call(name, path) if path.startswith(child.folder) else None
    if first == child.telling and name == "write":
        return Call("told", "", 0, _memory(thread, second, registers.rdx))
    try:
        path = str(Path(f"/proc/{thread}/fd/{first}").readlink())
    except OSError:
        return None
    if not path.startswith(child.folder):
        return None
    if number in _UNEXPECTED:
        raise AssertionError(f"{path} is changed by {name}, which this does not know")
    if name == "ftruncate":
        return Call(name, path, second)
    if name in SYNCS:
        return Call(name, path)
    offset = registers.r10 if name == "pwrite64" else _position(thread, first)
    return Call(name, path, offset, _memory(thread, second, registers.rdx))


def _memory(thread: int, address: int, length: int) -> bytes:
    with Path(f"/proc/{thread}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(length)


def _text(thread: int, address: int) -> str:
    page = 4096 - address % 4096  # no further than the page that surely is there; a longer path goes on in the next
    found = _memory(thread, address, page)
    if b"\0" not in found:
        found += _memory(thread, address + page, 4096)
    return found.partition(b"\0")[0].decode()


def _position(thread: int, descriptor: int) -> int:
    fields = Path(f"/proc/{thread}/fdinfo/{descriptor}").read_text().split()
    return int(fields[fields.index("pos:") + 1])
