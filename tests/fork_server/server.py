"""`python server.py FD`: imports the command line once, and forks a process for each call that is asked for.

`forked` starts it and speaks to it through the socket FD; when that is closed it ends. It has one thread and no event
loop. A call is what `python -m jobq` would be: nothing of this process but its imports is left in it. It becomes a
child of the client, which is a subreaper meanwhile: the process between ends at once.
"""

import atexit
import fcntl
import gc
import importlib
import io
import os
import pickle
import pkgutil
import runpy
import signal
import socket
import struct
import sys
import termios
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn, TextIO

LENGTH: Final = struct.Struct("!Q")
PID: Final = struct.Struct("!i")
_INTERRUPTED: Final = 0x100 + signal.SIGINT  # no exit code: Python ends by the signal
_FLUSH_FAILED: Final = 120
ADOPTED: Final = b"\0"
MOST_DESCRIPTORS: Final = 64
PACKAGES: Final = ("jobq", "jobq_sqlite", "jobq_postgres", "jobq_http", "jobq_azure")
# Processes of their own, which no call becomes without an exec; and what stands in for services.
_NOT_IMPORTED: Final = ("jobq.run.guardian.", "jobq.run.callbacks.child_program", "jobq.testing")


@dataclass(frozen=True)
class Call:
    """What is asked for.

    Attributes:
        arguments: behind `python -m jobq`.
        environment: all of it.
        folder: the working directory.
        descriptors: the numbers that those which came along are to have; no other is open.
        umask: of files.
        blocked, ignored: signals.
        session: whether to lead a session of its own.
        group: the process group to be in, 0 = its own, -1 = the client's.
        terminal: whether standard input becomes the controlling terminal.
    """

    arguments: list[bytes]
    environment: dict[bytes, bytes]
    folder: bytes
    descriptors: list[int]
    umask: int
    blocked: list[int]
    ignored: list[int]
    session: bool
    group: int
    terminal: bool


def import_all() -> None:
    """Import whatever the command line could import of its own, and what that imports."""
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(path, f"{package}."):
            if not module.name.startswith(_NOT_IMPORTED) and not module.name.endswith(".__main__"):
                importlib.import_module(module.name)


def serve(connection: socket.socket) -> tuple[Call, list[int]]:
    """Fork for each call; return in the one that is to become it, with the descriptors that came along."""
    while True:
        call, descriptors = _receive(connection)
        adopted, going = os.pipe()
        between = os.fork()
        if between == 0:
            if pid := os.fork():
                connection.sendall(PID.pack(pid))
                os._exit(0)
            os.close(going)
            os.read(adopted, 1)  # until the client is the parent, as it would be of a process that it starts
            return call, descriptors
        if os.waitpid(between, 0)[1]:
            sys.exit("a process could not be forked")
        for descriptor in (adopted, going, *descriptors):
            os.close(descriptor)
        connection.sendall(ADOPTED)


def become(call: Call, given: list[int]) -> None:
    """Take over all that a process gets from the one that starts it."""
    _take_descriptors(given, call.descriptors)
    if call.session:
        os.setsid()
    if call.group >= 0:
        os.setpgid(0, call.group)
    if call.terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.umask(call.umask)
    os.chdir(call.folder)
    coerced = {name: os.environb[name] for name in (b"LC_CTYPE",) if name in os.environb}  # by Python, from C to UTF-8
    os.environ.clear()
    os.environb.update(coerced | call.environment)
    time.tzset()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.path[0] = os.getcwd()  # noqa: PTH109 - as `-m` does
    arguments = [os.fsdecode(argument) for argument in call.arguments]
    sys.argv = ["-m", *arguments]
    sys.orig_argv = [sys.executable, "-m", "jobq", *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in call.ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, call.blocked)


def _receive(connection: socket.socket) -> tuple[Call, list[int]]:
    head, descriptors, *_ = socket.recv_fds(connection, LENGTH.size, MOST_DESCRIPTORS)
    if not head:
        os._exit(0)  # the client is gone
    length = LENGTH.unpack(head)[0]
    data = bytearray()
    while len(data) < length:
        data += connection.recv(length - len(data))
    return Call(**pickle.loads(data)), descriptors


def _take_descriptors(given: list[int], wanted: list[int]) -> None:
    beyond = max(wanted, default=0) + 1
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD, beyond) for number in given]
    for number, target in zip(moved, wanted, strict=True):
        os.dup2(number, target)
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - plain names are all that is needed
        if number not in wanted:
            with suppress(OSError):  # the one that listed them
                os.close(number)


def _stream(number: int, like: TextIO) -> TextIO | None:
    """Return a standard stream as Python makes it: None where it is closed."""
    try:
        os.fstat(number)
    except OSError:
        return None
    raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
    raw.name = like.name
    is_unbuffered = getattr(like, "write_through", False)
    buffer = io.BufferedReader(raw) if number == 0 else raw if is_unbuffered else io.BufferedWriter(raw)
    by_line = not is_unbuffered and (raw.isatty() or number == 2)
    stream = io.TextIOWrapper(
        buffer, like.encoding, like.errors, newline="\n", line_buffering=by_line, write_through=is_unbuffered
    )
    stream.mode = like.mode  # type: ignore[misc]
    return stream


def main() -> None:
    """Serve; return in each call, once it is one."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    import_all()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests: this ends when they do
    gc.collect()
    gc.freeze()
    call, descriptors = serve(connection)
    connection.detach()  # its number may be another's soon
    become(call, descriptors)


def run() -> int:
    """Run `python -m jobq`; return the exit code to end with, as Python finds it."""
    try:
        runpy.run_module("jobq", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except BaseException as error:  # noqa: BLE001 - Python itself would print it
        sys.excepthook(type(error), error, error.__traceback__)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def leave(code: int) -> NoReturn:
    """End as Python does, but for taking the interpreter apart: to free each object of 600 modules takes most time."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stderr, sys.stdout):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError as error:
            sys.stderr.write(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}\n")
            code = _FLUSH_FAILED
    if code == _INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
    leave(run())
