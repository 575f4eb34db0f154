"""`python -m jobq` for tests without the price of its start: forked off a process that has imported it all.

`Popen`, `run` and `create_subprocess_exec` are what `subprocess` and `asyncio` have under these names, and do the same
for anything else: only this Python's `-m jobq` is forked, and only where a test asks for nothing that Python looks at
before it runs a program, such as another locale or a PYTHONPATH. `pytest --cold-starts` forks nothing.
"""

import asyncio
import atexit
import ctypes
import inspect
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, AnyStr, Final

from tests.fork_server import server

# What is looked at when a process starts: by the C library and Python, and by modules when they are imported.
START: Final = (
    *("GLIBC_", "LANG", "LC_", "LD_", "MALLOC_", "OPENSSL_", "PYTHON", "SSL"),
    *("AIOHTTP_", "OTEL_PYTHON_", "PROMETHEUS_", "PYDANTIC_", "prometheus_"),
)
_PR_SET_CHILD_SUBREAPER: Final = 36
_PYTHONS_OWN: Final = {signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)}  # which every Python ignores
_EXECUTE: Final = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
# What a server does not know of: where it is asked for, the process starts cold.
_NOT_ASKED: Final = {"preexec_fn": None, "close_fds": True, "shell": False, "gid": None, "gids": None, "uid": None}
# In the process, before the program: a terminal of its own, so that Ctrl-C and a hangup reach it.
_INTO_TERMINAL: Final = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)
_servers: Final[dict[frozenset[tuple[str, str]], "ForkServer"]] = {}
_starting: Final = threading.Lock()
is_cold = sys.platform != "linux"


class ForkServer:
    """A server in a process of its own, which ends when it is closed, and with this process.

    Args:
        start: the variables that are looked at when a process starts, which all its calls have.
    """

    def __init__(self, start: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._connection, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, server.__file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", os.defpath), **start},
                pass_fds=[theirs.fileno()],
            )

    def start(self, call: server.Call, descriptors: Sequence[int]) -> int:
        """Start a call with these descriptors as a child of this process; return its number."""
        data = pickle.dumps(vars(call))
        with self._lock:
            _be_subreaper(True)
            try:
                socket.send_fds(self._connection, [server.LENGTH.pack(len(data))], descriptors)
                self._connection.sendall(data)
                answer = self._connection.recv(server.PID.size + len(server.ADOPTED), socket.MSG_WAITALL)
                if not answer.endswith(server.ADOPTED):
                    raise RuntimeError("the fork server has ended")
            except BaseException:
                self.close()  # an answer that comes now would be taken for that to the next call
                raise
            finally:
                _be_subreaper(False)
        pid: int = server.PID.unpack(answer[: server.PID.size])[0]
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises unless it is our child
        return pid

    def is_closed(self) -> bool:
        return self._connection.fileno() == -1

    def close(self) -> None:
        self._connection.close()
        self.process.wait(10)


class Popen(subprocess.Popen[AnyStr]):
    """A `subprocess.Popen` that forks what it can."""

    _takes_terminal = False

    def _execute_child(self, *given: Any) -> None:
        asked: dict[str, Any] = _EXECUTE.bind(self, *given).arguments
        if _is_cold(asked):
            if self._takes_terminal:
                given = ([sys.executable, "-S", "-c", _INTO_TERMINAL, *asked["args"]], *given[1:])
            super()._execute_child(*given)  # type: ignore[misc]
            return
        streams = {0: asked["p2cread"], 1: asked["c2pwrite"], 2: asked["errwrite"]}
        wanted = {number: number if found == -1 else found for number, found in streams.items()}
        wanted |= {number: number for number in asked["pass_fds"]}
        wanted = {number: found for number, found in wanted.items() if _is_open(found)}
        environment = _environment(asked)
        call = server.Call(
            arguments=[os.fsencode(argument) for argument in asked["args"][3:]],
            environment={os.fsencode(name): os.fsencode(value) for name, value in environment.items()},
            folder=os.fsencode(Path(asked["cwd"] or ".").absolute()),
            descriptors=list(wanted),
            umask=_umask() if asked["umask"] == -1 else asked["umask"],
            blocked=[int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
            ignored=[
                int(number)
                for number in signal.valid_signals() - _PYTHONS_OWN
                if signal.getsignal(number) is signal.SIG_IGN
            ],
            session=asked["start_new_session"],
            group=asked["process_group"],
            terminal=self._takes_terminal,
        )
        self.pid = server_for(environment).start(call, list(wanted.values()))
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            *(asked[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )


class PopenInTerminal(Popen[AnyStr]):
    """A `Popen` whose standard input becomes its controlling terminal; takes `start_new_session`."""

    _takes_terminal = True


def run(
    argv: Sequence[str | bytes | Path],
    *,
    input: Any = None,  # noqa: A002 - as in subprocess.run
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **more: Any,
) -> subprocess.CompletedProcess[Any]:
    """Do as `subprocess.run`."""
    if input is not None:
        more["stdin"] = subprocess.PIPE
    if capture_output:
        more["stdout"] = more["stderr"] = subprocess.PIPE
    with Popen[Any](argv, **more) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(argv, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


async def create_subprocess_exec(*argv: str | bytes | Path, **more: Any) -> asyncio.subprocess.Process:
    """Do as `asyncio.create_subprocess_exec`, which makes its `Popen` before it waits for anything."""
    usual = subprocess.Popen

    def once(*args: Any, **named: Any) -> Popen[bytes]:
        subprocess.Popen = usual  # type: ignore[misc]
        return Popen(*args, **named)

    subprocess.Popen = once  # type: ignore[misc, assignment]
    try:
        return await asyncio.create_subprocess_exec(*argv, **more)
    finally:
        subprocess.Popen = usual  # type: ignore[misc]


def close_all() -> None:
    """End all servers of this process."""
    while _servers:
        _servers.popitem()[1].close()


atexit.register(close_all)


def server_for(environment: Mapping[str, str]) -> ForkServer:
    """Return the server of calls that have this environment."""
    start = _start(environment)
    with _starting:
        found = _servers.get(start)
        if found is None or found.is_closed():
            found = _servers[start] = ForkServer(dict(start))
        return found


def _is_cold(asked: Mapping[str, Any]) -> bool:
    """Return whether something is asked for that only a cold start gives; subprocess complains of a folder."""
    args = asked["args"]
    if is_cold or not isinstance(args, list | tuple) or list(args[:3]) != [sys.executable, "-m", "jobq"]:
        return True
    environment = _environment(asked)
    return (
        asked["executable"] not in (None, sys.executable)
        or any(asked[name] != usual for name, usual in _NOT_ASKED.items())
        or not _start(environment) <= os.environ.items()  # a test has set it
        or not Path(asked["cwd"] or ".").is_dir()
    )


def _environment(asked: Mapping[str, Any]) -> Mapping[str, str]:
    environment: Mapping[str, str] = os.environ if asked["env"] is None else asked["env"]
    return environment


def _start(environment: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in environment.items() if name.startswith(START))


def _umask() -> int:
    status = Path("/proc/self/status").read_text()  # os.umask would have to change it, for all threads
    return int(status.split("Umask:")[1].split()[0], 8)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _be_subreaper(value: bool) -> None:
    """Let children of children that end become ours: only for a moment, or what tests leave behind would, too."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(value), 0, 0, 0)
