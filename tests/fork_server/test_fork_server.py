"""A forked call is what a cold one is, and the server leaves nothing behind."""

import asyncio
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.fork_server import forked, probe

JOBQ: Final = [sys.executable, "-m", "jobq"]
PUSH: Final = [*JOBQ, "demo", "push", "--spec", "probe:tasks"]
ROOT: Final = Path(__file__).parents[2]
_PR_GET_CHILD_SUBREAPER: Final = 37
pytestmark = [
    pytest.mark.check,
    pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has what the fork server needs"),
]


@pytest.fixture(autouse=True)
def _forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the options of this run."""
    monkeypatch.setattr(forked, "is_cold", False)


class Prober:
    """A folder with the probe in it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        shutil.copy(probe.__file__, folder / "probe.py")

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name == "PATH" or name.startswith(("LANG", "LC_"))}
        own = {"HOME": str(self.folder), "JOBQ_HOME": str(self.folder / "home"), "PROBE": str(self.folder / "found")}
        return kept | own | more

    def found(self, *, cold: bool, **asked: Any) -> dict[str, Any]:
        """Return what a call finds that is started so."""
        self._monkeypatch.setattr(forked, "is_cold", cold)
        usual = {"env": self.environment(), "cwd": self.folder, "stdin": subprocess.DEVNULL, "capture_output": True}
        options: dict[str, Any] = usual | asked
        forked.run(PUSH, check=True, **options)
        found: dict[str, Any] = json.loads((self.folder / "found").read_text())
        assert ("server.py" in found["own"]["command line"]) != cold
        return found

    def both(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what is each one's own, of the forked and the cold call; the rest is the same."""
        hot, cold = self.found(cold=False, **options), self.found(cold=True, **options)
        assert hot["same"] == cold["same"]
        return hot["own"], cold["own"]


@pytest.fixture
def prober(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prober:
    return Prober(tmp_path, monkeypatch)


def test_a_forked_call_finds_what_a_cold_one_finds(prober: Prober) -> None:
    hot, cold = prober.both()
    assert hot["parent"] == cold["parent"] == os.getpid()
    assert hot["group"] == cold["group"] == os.getpgid(0)
    assert hot["session"] == cold["session"] == os.getsid(0)
    assert prober.found(cold=False)["own"]["random"] != hot["random"], "calls share a seed"


@pytest.mark.parametrize("locale", ["C", "en_US.ISO-8859-1"])
def test_the_encoding_is_that_of_the_locale(prober: Prober, monkeypatch: pytest.MonkeyPatch, locale: str) -> None:
    monkeypatch.setenv("LANG", locale)
    monkeypatch.delenv("LC_ALL", raising=False)
    environment = prober.environment()
    prober.both(env=environment)
    forked.server_for(environment).close()


_SPY: Final = """
import os, sys
read, usual = set(), type(os.environ).__getitem__
def spied(self, name):
    frame = sys._getframe()
    while frame and frame.f_globals["__name__"] != "wsgiref.handlers":  # which copies all of it, for CGI
        frame = frame.f_back
    if frame is None:
        read.add(os.fsdecode(name))
    return usual(self, name)
type(os.environ).__getitem__ = spied
type(os.environ).__contains__ = lambda self, name: self.get(name) is not None
sys.path.insert(0, {root!r})
from tests.fork_server import server
server.import_all()
print("\\n".join(sorted(read)))
"""


def test_imports_read_no_variable_but_those_that_a_server_starts_with() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SPY.format(root=str(ROOT))], capture_output=True, text=True, check=True
    )
    read = done.stdout.split()
    assert "LANG" in read
    others = {name for name in read if not name.startswith((*forked.START, "_PYTHON")) and "_NO_EXTENSIONS" not in name}
    assert others <= {"HOME", "PATH"}  # of the folder of a user's packages, which goes by the real one


def test_umask_and_signals_are_those_of_the_caller(prober: Prober) -> None:
    umask, usr2 = os.umask(0o77), signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        prober.both()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGUSR2, usr2)
        os.umask(umask)


def test_descriptors_that_are_passed_keep_their_numbers(prober: Prober) -> None:
    read, write = os.pipe()
    high = os.dup2(write, 60)
    try:
        prober.both(pass_fds=[write, high, read])
    finally:
        for number in (read, write, high):
            os.close(number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_death_by_a_signal_is_told(prober: Prober, number: signal.Signals) -> None:
    with forked.Popen[bytes](
        [*JOBQ, "demo", "push", "-"], env=prober.environment(), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(20) == -number
        with pytest.raises(ChildProcessError):
            os.waitpid(process.pid, 0)  # it is reaped


async def test_asyncio_has_it_too(prober: Prober) -> None:
    process = await forked.create_subprocess_exec(
        *JOBQ, "demo", "push", "-", env=prober.environment(), stdin=asyncio.subprocess.PIPE, stdout=-1, stderr=-1
    )
    assert "server.py" in Path(f"/proc/{process.pid}/cmdline").read_text()
    assert await process.communicate(b"true\n") == (b"", b"created queue demo\nqueued 1 task on demo\n")
    assert process.returncode == 0
    assert subprocess.Popen.__module__ == "subprocess"


@pytest.mark.parametrize(
    "options",
    [
        {"args": [sys.executable, "-c", "pass"]},
        {"args": [*JOBQ, "--version"], "env": {"LC_ALL": "another"}},
    ],
    ids=str,
)
def test_what_cannot_be_forked_starts_cold(options: dict[str, Any]) -> None:
    with forked.Popen[bytes](options.pop("args"), stdout=subprocess.PIPE, **options) as process:
        assert "server.py" not in Path(f"/proc/{process.pid}/cmdline").read_text()
        process.communicate()
    assert process.returncode == 0


def test_calls_leave_nothing(prober: Prober) -> None:
    """No zombie, no descriptor, and we adopt the orphans of nobody else."""
    prober.found(cold=False)
    server = forked.server_for(prober.environment())

    def left() -> tuple[list[int], int, int]:
        ours = [child.pid for child in psutil.Process().children()]
        theirs = psutil.Process(server.process.pid)
        assert theirs.children() == []
        return ours, theirs.num_fds(), len([*Path("/proc/self/fd").iterdir()])

    before = left()
    for _ in range(5):
        prober.found(cold=False)
    assert left() == before
    is_subreaper = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(is_subreaper), 0, 0, 0)
    assert is_subreaper.value == 0


def test_a_server_that_is_killed_is_told_and_replaced(prober: Prober) -> None:
    prober.found(cold=False)
    server = forked.server_for(prober.environment())
    server.process.kill()
    with pytest.raises((RuntimeError, OSError)):
        prober.found(cold=False)
    prober.found(cold=False)


def test_a_server_ends_with_the_tests(prober: Prober) -> None:
    """However these end."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.fork_server import forked;"
    program += f"forked.run({[*JOBQ, '--version']!r}, check=True);"
    program += "print([s.process.pid for s in forked._servers.values()][0], flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], env=prober.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as tests:
        assert tests.stdout is not None
        assert tests.stdout.readline() == b"jobq 0.1.0\n"
        server = psutil.Process(int(tests.stdout.readline()))
        assert "server.py" in " ".join(server.cmdline())
        tests.kill()
    _, alive = psutil.wait_procs([server], 20)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
