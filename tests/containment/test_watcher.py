"""The watcher, outermost of a worker's three processes: whoever is killed or stopped, nothing lives on (P1 to P5)."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.guardian.stage import (
    PYTHON,
    ROOT,
    SECONDS,
    Program,
    children,
    gone,
    guardian_below,
    hostile,
    living,
    marker,
    rss_anon_bytes,
    state,
    until,
    worker_program,
)
from tests.guardian.test_process import LISTENER, has_namespaces

pytestmark = pytest.mark.check

WATCHER = (sys.executable, "-P", "-m", "jobq.run.watcher")
LAUNCH = (sys.executable, "-P", "-m", "tests.guardian.launch")
KINDS = ("double_fork", "env_i_setsid", "reparenting")  # found by nobody who looks into environments: the second


def watched(*command: str, tick: float = 2.0, **options: object) -> Program:
    """Start a watcher of a guardian of a command."""
    return Program(*LAUNCH, "--tick", str(tick), "--", *command, **options)  # type: ignore[arg-type] # passed through


class Three:
    """A watcher with guardian, worker, and one tree of each kind."""

    def __init__(self) -> None:
        self.marks = [marker() for _ in KINDS]
        pairs = [word for pair in zip(KINDS, self.marks, strict=True) for word in pair]
        self.program = watched(*worker_program(*pairs), stderr=subprocess.DEVNULL)
        words = self.program.line().split()
        self.watcher, self.guardian = self.program.pid, int(words[1])
        self.leaders = [int(word) for word in words[2:]]
        (self.worker,) = set(children(self.guardian)) - set(self.leaders)
        until(lambda: all(len(living(mark)) >= 1 for mark in self.marks))
        until(lambda: len(living(self.marks[1])) == 2)

    def send(self, number: signal.Signals, *whom: str) -> None:
        for name in whom:
            with suppress(ProcessLookupError):  # it went with the one before
                os.kill(getattr(self, name), number)


@pytest.fixture
def three() -> Iterator[Three]:
    three = Three()
    with three.program:
        yield three
        kill_all(*three.marks)


def kill_all(*marks: str) -> None:
    """End what a test that failed left alive."""
    for pid in [pid for mark in marks for pid in living(mark)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()


def test_p2_p3_a_pattern_that_names_worker_and_guardian_leaves_nothing_alive(three: Three) -> None:
    """`pkill -9 -f PATTERN`, for the processes of this test alone: what it would find here is killed."""
    own = {three.watcher, three.guardian, three.worker, *three.leaders}
    for name in ("jobq", "python", "guardian", sys.executable):
        found = subprocess.run(["pgrep", "-f", name], capture_output=True, text=True, check=True).stdout.split()
        assert three.watcher not in map(int, found)
    found = subprocess.run(["pgrep", "-f", "guardian"], capture_output=True, text=True, check=True).stdout.split()
    assert {three.guardian, three.worker} <= set(map(int, found))
    for pid in own & set(map(int, found)):
        with suppress(ProcessLookupError):  # as pkill does: some die of the death of others
            os.kill(pid, signal.SIGKILL)
    assert three.program.wait() == 128 + signal.SIGKILL
    assert gone(three.marks, 0) == {}


def test_the_watcher_shares_no_word_with_the_others(three: Three) -> None:
    comm = Path(f"/proc/{three.watcher}/comm").read_text().strip()
    shown = f"{command_line(three.watcher)} {comm}"
    assert shown == "watcher watcher"
    for pid in (three.guardian, three.worker):
        words = re.findall(r"\w{3,}", f"{command_line(pid)} {Path(f'/proc/{pid}/comm').read_text()}")
        assert words
        assert [word for word in words if word in shown] == []


@pytest.mark.parametrize(
    "whom",
    [("guardian",), ("guardian", "worker"), ("worker", "guardian"), ("watcher",), ("watcher", "worker")],
    ids="+".join,
)
def test_p2_p3_nothing_survives_a_sigkill(three: Three, whom: tuple[str, ...]) -> None:
    three.send(signal.SIGKILL, *whom)
    assert three.program.wait() == (-signal.SIGKILL if "watcher" in whom else 128 + signal.SIGKILL)
    until(lambda: state(three.worker) in "ZX", 1)
    assert gone(three.marks, 1 if "watcher" in whom else 0) == {}


def test_a_kill_of_the_watcher_is_told_once() -> None:
    script = "import os, time; os.write(1, b'%d\\n' % os.getppid()); time.sleep(1000)"
    with watched(*PYTHON, "-c", script, stderr=subprocess.STDOUT) as program:
        program.line()
        program.signal(signal.SIGKILL)
        program.wait()
        told = program.rest()  # when guardian and worker have ended
    assert (told.count("\n"), "the watcher was killed" in told) == (1, True)


@pytest.mark.parametrize(
    ("stopped", "killed"),
    [("worker", "guardian"), ("guardian", "worker"), ("guardian", "watcher"), ("worker", "watcher")],
)
def test_p2_p3_nothing_survives_when_one_is_stopped_and_another_killed(three: Three, stopped: str, killed: str) -> None:
    """Each of these left trees alive for as long as the stopped one was."""
    three.send(signal.SIGSTOP, stopped)
    three.send(signal.SIGKILL, killed)
    three.program.wait()
    until(lambda: state(three.worker) in "ZX", 1)
    assert gone(three.marks, 1 if killed == "watcher" else 0) == {}


def test_p1_a_stopped_guardian_goes_on_at_once(three: Three) -> None:
    """Any task can stop it: `kill -STOP $PPID`."""
    for _ in range(20):
        three.send(signal.SIGSTOP, "guardian")
    until(lambda: state(three.guardian) in "SR", 1)
    assert all(living(mark) for mark in three.marks)


SILENT = """
import os, signal, time
os.write(int(os.environ["JOBQ_WATCHER_FD"]), b"." * SPOKEN)
for number in (2, 15): signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
if os.fork() == 0:
    os.setsid()
    time.sleep(1000)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("spoken", [True, False], ids=["fell silent", "was asked to end"])
def test_a_silent_guardian_is_ended(spoken: bool) -> None:
    command = [*PYTHON, "-c", SILENT.replace("SPOKEN", str(int(spoken)))]
    with Program(*LAUNCH, "--tick", "0.1", "--guardian", "--", *command, stderr=subprocess.STDOUT) as program:
        assert program.line() == "ready"
        (guardian,) = children(program.pid)
        (left,) = children(guardian)
        if not spoken:
            program.signal(signal.SIGTERM)
        assert "no sign of life" in program.line()
        assert program.wait() == 128 + signal.SIGKILL
        assert state(left) == "X"


def test_a_guardian_gives_signs_of_life_whatever_it_does() -> None:
    """While it is idle, and while it waits to start a worker again."""
    with watched("sh", "-c", "sleep 1; kill -9 $$", tick=0.25) as program:
        assert program.wait() == 137
    command = (*LAUNCH, "--tick", "0.25", "--restart", "1", "--first-pause", "2.5")
    with Program(*command, "--", "sh", "-c", "kill -9 $$") as program:
        assert program.wait() == 137


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 75", 75), ("kill -9 $$", 137)])
def test_it_ends_as_the_worker_ends(script: str, code: int) -> None:
    with watched("sh", "-c", script) as program:
        assert program.wait() == code


def test_signals_reach_the_worker_exactly_once_and_ctrl_z_stops_nobody() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["PYTHONPATH"] = str(ROOT)
        os.execv(LAUNCH[0], [*LAUNCH, "--", *PYTHON, "-c", LISTENER])
    output = b""

    def read(what: bytes) -> None:
        nonlocal output
        while what not in output:
            assert select.select([terminal], [], [], SECONDS)[0], output
            output += os.read(terminal, 4096)

    read(b"ready")
    os.write(terminal, b"\x1a")  # Ctrl-Z
    os.write(terminal, b"\x03")  # Ctrl-C
    read(b"SIGINT")
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1"):
        os.kill(pid, signal.Signals[name])
        read(name.encode())
    assert state(pid) in "RS"
    assert state(guardian_below(pid)) in "RS"
    os.kill(pid, signal.SIGUSR2)
    read(b"SIGUSR2")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    os.close(terminal)
    assert [output.count(name) for name in (b"SIGINT", b"SIGTERM", b"SIGHUP", b"SIGUSR1")] == [1, 1, 1, 1]


def test_nohup_is_respected() -> None:
    inner = [*LAUNCH, "--", *PYTHON, "-c", LISTENER]
    with Program("bash", "-c", 'trap "" HUP; exec "$@"', "bash", *inner) as program:
        assert program.line() == "ready"
        program.signal(signal.SIGHUP)
        program.signal(signal.SIGUSR2)
        assert program.rest() == "SIGUSR2\n"


@pytest.mark.parametrize("name", ["QUIT", "CHLD", "USR2"])
def test_a_worker_has_the_signals_that_it_has_no_handlers_for_by_default(name: str) -> None:
    """A script's `&` ignores SIGQUIT: the worker went on taking tasks, and was killed as deaf after half a minute."""
    script = (
        "import signal\n"
        f"signal.signal(signal.SIG{name}, signal.SIG_IGN)\n"
        "from jobq.run.spawn.launch import launch\n"
        "launch(['--', 'true'])\n"
        f"print(signal.getsignal(signal.SIG{name}).name)"
    )
    with Program(*PYTHON, "-c", script) as program:
        assert program.rest() == "SIG_DFL\n"


def test_s11_children_from_before_are_left_alone_also_when_the_guardian_is_killed() -> None:
    """`exec jobq worker` in a shell: its sidecars stay its children, and are no task's; nor are their orphans."""
    mark = marker()
    sidecar = f'{" ".join(hostile("double_fork", mark))} & exec "$@"'
    command = (*LAUNCH, "--tick", "0.4", "--", *PYTHON, "-c", LISTENER)
    with Program("bash", "-c", sidecar, "bash", *command) as program:
        assert program.line() == "ready"
        until(lambda: len(living(mark)) == 2)
        time.sleep(2.0)  # the time itself: only a word of the guardian's after they came tells that they are not its
        os.kill(guardian_below(program.pid), signal.SIGKILL)
        assert program.wait() == 137
        assert len(living(mark)) == 2
        kill_all(mark)


@pytest.mark.skipif(not has_namespaces(), reason="needs unshare and the right to make a PID namespace")
def test_as_pid_1_it_reaps_and_hears_sigterm() -> None:
    script = (
        "import os, signal, time\n"
        "signal.signal(15, lambda *_: os._exit(6))\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, (15,))\n"
        "os.write(1, f'ready {os.getppid()}\\n'.encode())\n"
        "while True: time.sleep(1000)\n"
    )
    inner = [*LAUNCH, "--", *PYTHON, "-c", script]
    with Program("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *inner) as program:
        assert program.line() == "ready 2"
        (pid_1,) = children(program.pid)
        enter = ["nsenter", "--target", str(pid_1), "--pid", "--", "sh", "-c", "(sleep 0.05 &)"]
        subprocess.run(enter, check=True)  # as `docker exec` does: its orphan falls to PID 1
        until(lambda: len(children(pid_1)) == 2)
        until(lambda: len(children(pid_1)) == 1)
        os.kill(pid_1, signal.SIGTERM)
        assert program.wait() == 6


@pytest.mark.parametrize("arguments", [[], ["--tick"], ["--"], ["what"], ["--", "3"], ["--", "3", "four"]])
def test_usage(arguments: list[str]) -> None:
    with Program(*WATCHER, *arguments, stderr=subprocess.STDOUT) as program:
        assert "usage" in program.rest()
        assert program.wait() == 2


def test_nobody_is_left_when_watcher_and_guardian_cannot_be_started() -> None:
    script = (
        "import os, sys; sys.executable = '/no/such'\n"
        "from jobq.run.spawn.launch import launch\n"
        "connection = launch(['--', 'true'])\n"
        "os.write(1, b'%d' % len(connection.recv(1)))"  # as a worker, it finds that it has no guardian
    )
    with Program(*PYTHON, "-c", script, stderr=subprocess.STDOUT) as program:
        told = program.rest()  # to the end of the last that holds its output
        assert "FileNotFoundError" in told
        assert "jobq guardian: cannot start: No such file or directory" in told
        assert re.search(r"^0", told, re.MULTILINE)
        assert program.wait() == 1


def test_it_is_small(three: Three) -> None:
    check: Callable[[int], int] = rss_anon_bytes
    assert check(three.watcher) < 8 * 1024 * 1024
