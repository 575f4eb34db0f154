"""Real guardians, real trees, and who is still alive: shared by the tests of this folder."""

import asyncio
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]
PYTHON = (sys.executable, "-S", "-E")
ENV = {"PATH": os.environ["PATH"]}
SECONDS = 20.0  # until a test gives up; nothing waits this long unless it fails


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def marker() -> str:
    return f"marker-{os.getpid()}-{secrets.token_hex(12)}"


def hostile(kind: str, mark: str) -> tuple[str, ...]:
    return (*PYTHON, str(Path(__file__).with_name("hostile.py")), kind, mark)


def states(mark: str) -> dict[int, str]:
    """Return who carries a marker in its arguments, and its state."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - plain names are all that is needed, and quicker
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                if mark.encode() in words and b"tests.guardian.worker_program" not in words:
                    found[int(name)] = state(int(name))
            except OSError:
                continue  # it ended while we looked
    return found


def living(mark: str) -> list[int]:
    return [pid for pid, its in states(mark).items() if its not in "ZX"]


def trace_bytes(mark: str) -> int:
    """Return how much those wrote that move on faster than /proc is read."""
    try:
        return Path(f"/tmp/{mark}").stat().st_size
    except FileNotFoundError:
        return 0


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def children(pid: int) -> list[int]:
    return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def guardian_below(watcher: int) -> int:
    """Return the number of the guardian of a `jobq worker`, whose own is its watcher's."""
    return _below(watcher, b"-m\0jobq.run.guardian\0")


def worker_below(watcher: int) -> int:
    """Return the number of its worker: the one that the guardian was started beside, or a later one."""
    guardian = guardian_below(watcher)
    words = Path(f"/proc/{guardian}/cmdline").read_bytes().split(b"\0")
    if b"--worker" in words:
        first = int(words[words.index(b"--worker") + 1])
        if first in children(guardian) and state(first) not in "ZX":
            return first
    return _below(guardian, b"-m\0jobq\0")


def _below(parent: int, words: bytes) -> int:
    found: list[int] = []

    def is_there() -> bool:
        for child in children(parent):
            with suppress(OSError):  # it ended while we looked
                found.extend([child] if words in Path(f"/proc/{child}/cmdline").read_bytes() else [])
        return bool(found)

    until(is_there)
    return found[0]


def rss_anon_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def until(what: Callable[[], object], seconds: float = SECONDS) -> None:
    """Poll until something is so."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"not so after {seconds} s"
        time.sleep(0.002)


async def until_async(what: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < end
        await asyncio.sleep(0.002)


def gone(marks: list[str], seconds: float = 1.0) -> dict[str, int]:
    """Return how many of each tree still live when all are gone, or after the time that they have."""
    end = time.monotonic() + seconds
    while True:
        start = time.monotonic()
        traces = {mark: trace_bytes(mark) for mark in marks}
        alive = {mark: len(living(mark)) for mark in marks}
        if any(traces.values()) and not any(alive.values()):
            time.sleep(0.02)  # tens of generations of those that move on faster than /proc is read
            alive = {mark: trace_bytes(mark) - traces[mark] for mark in marks}
        if not any(alive.values()) or start > end:
            return {mark: count for mark, count in alive.items() if count}


def is_dead(pidfd: int, seconds: float = 0) -> bool:
    return bool(select.select([pidfd], [], [], seconds)[0])


@contextmanager
def watched(pid: int) -> Iterator[int]:
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


class Program:
    """A process whose lines a test reads, and which is ended with the test."""

    def __init__(self, *argv: str, env: dict[str, str] | None = None, **options: object) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        self.popen: subprocess.Popen[bytes] = subprocess.Popen(
            argv,
            env=environment,
            stdout=subprocess.PIPE,
            bufsize=0,
            **options,  # type: ignore[call-overload] # passed through
        )
        self.pid = self.popen.pid
        self._buffer = b""

    def line(self) -> str:
        assert self.popen.stdout is not None
        end = time.monotonic() + SECONDS
        while b"\n" not in self._buffer:
            assert select.select([self.popen.stdout], [], [], max(0, end - time.monotonic()))[0], "no line"
            chunk = os.read(self.popen.stdout.fileno(), 4096)
            assert chunk, "it has ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def rest(self) -> str:
        assert self.popen.stdout is not None
        rest = self._buffer + self.popen.stdout.read()
        self._buffer = b""
        return rest.decode()

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def wait(self) -> int:
        return self.popen.wait(SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.kill()
        self.popen.wait()
        assert self.popen.stdout is not None
        self.popen.stdout.close()


def guardian(
    *command: str,
    restart: int = 0,
    pause: float = 0.05,
    stop_within: float = 30,
    group: str = "",
    **options: object,
) -> Program:
    """Start a guardian that starts a worker."""
    return Program(
        *(sys.executable, "-P", "-m", "jobq.run.guardian", "--first-pause", str(pause)),
        *("--restart", str(restart), "--stop-within", str(stop_within), "--group", group, "--", *command),
        **options,  # type: ignore[arg-type] # passed through
    )


def worker_program(*pairs: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.guardian.worker_program", *pairs)


def started_worker(*pairs: str, guarded: bool) -> tuple[Program, int, int, list[int]]:
    """Start a worker with trees, and return it, the numbers of guardian and worker, and the leaders'."""
    program = guardian(*worker_program(*pairs)) if guarded else Program(*worker_program(*pairs))
    try:
        words = program.line().split()
        assert words[0] == "ready"
        guardian_pid = int(words[1])
        leaders = [int(word) for word in words[2:]]
        worker = program.pid
        if guarded:
            assert guardian_pid == program.pid
            worker = next(pid for pid in children(program.pid) if pid not in leaders)
    except BaseException:
        program.__exit__()
        raise
    return program, guardian_pid, worker, leaders
