"""`jobq worker` below its guardian, through the real command line: what is left when something of it is killed."""

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fork_server import forked
from tests.guardian.stage import children, guardian_below, worker_below
from tests.guardian.test_process import has_namespaces

pytestmark = pytest.mark.check

# What a user would write, and what would escape: only the first leads its group.
TREE = "setsid sleep {mark} & (nohup sleep {mark} >/dev/null 2>&1 &); touch {ready}; sleep {mark}; true"


class Worker:
    """A `jobq worker` on a queue of its own, with one task that spreads."""

    def __init__(self, folder: Path) -> None:
        self.mark = f"{1000 + os.getpid() % 1000}.{time.monotonic_ns() % 10**9:09}"
        ready = folder / "ready"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
        self.environment = {**environment, "JOBQ_HOME": str(folder)}
        self.run("push", "-c", TREE.format(mark=self.mark, ready=ready))
        self.process = forked.Popen[bytes](
            [sys.executable, "-m", "jobq", "demo", "worker", "--visibility-timeout", "10s"],
            env=self.environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        until(ready.exists)

    def run(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "jobq", "demo", *arguments]
        told: str = forked.run(command, env=self.environment, check=True, capture_output=True, text=True).stdout
        return told

    def survivors(self) -> list[int]:
        """Return the processes that carry our mark among their arguments, and live."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if self.mark.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found


def until(condition: object, seconds: float = 20.0) -> None:
    """Poll what tells nobody when it changes, up to a deadline."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path)
    until(lambda: len(worker.survivors()) >= 3)
    yield worker
    worker.process.kill()
    worker.process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)])
def test_p8_a_signal_to_the_printed_pid_gives_the_work_back(worker: Worker, number: int, code: int) -> None:
    worker.process.send_signal(number)
    assert worker.process.wait(30) == code
    assert not worker.survivors()
    assert '"visible": 1' in worker.run("size", "--json")


def test_p1_a_stopped_worker_is_told_to_stop_all_the_same(worker: Worker) -> None:
    os.kill(worker_below(worker.process.pid), signal.SIGSTOP)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(30) == 143
    assert not worker.survivors()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["the watcher begins", "the guardian begins", "the worker begins"])
def test_a_signal_while_it_starts_is_obeyed_once_it_is_up(tmp_path: Path, number: int, moment: str) -> None:
    """Nothing was given back, so the exit code is 0 (architecture 12)."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
    environment["JOBQ_HOME"] = str(tmp_path)
    forked.run([sys.executable, "-m", "jobq", "demo", "create"], env=environment, check=True, capture_output=True)
    with subprocess.Popen(
        [sys.executable, "-m", "jobq", "demo", "worker", "--idle-timeout", "1h"],
        env=environment,
        stderr=subprocess.DEVNULL,
    ) as process:
        if moment == "the watcher begins":
            until(lambda: b"jobq.run.watcher" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
        elif moment == "the guardian begins":
            guardian_below(process.pid)
        else:
            until(lambda: children(guardian_below(process.pid)))
        process.send_signal(number)
        assert process.wait(20) == 0


@pytest.mark.parametrize("refused", ["fork", "execve"])
def test_a_machine_that_is_short_of_processes_is_told_of_plainly(tmp_path: Path, refused: str) -> None:
    script = (
        "import errno, os, sys\n"
        "def refuse(*_): raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
        f"os.{refused} = refuse\n"
        "from jobq.__main__ import main\n"
        "main()"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
    ended = subprocess.run(
        [sys.executable, "-c", script, "demo", "worker"],
        env={**environment, "JOBQ_HOME": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert ended.returncode == 3
    assert "jobq: the guardian could not be started: [Errno 11] Resource temporarily unavailable" in ended.stderr
    assert "bug" not in ended.stderr


def test_one_ctrl_c_in_a_terminal_counts_once(tmp_path: Path) -> None:
    """The task gets its grace: were one Ctrl-C heard twice, it would be killed at once and print nothing."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
    environment["JOBQ_HOME"] = str(tmp_path)
    jobq = [sys.executable, "-m", "jobq", "demo"]
    task = "trap 'echo asked; sleep 0.3; echo took its time; exit 3' TERM; echo up; while :; do sleep 0.05; done"
    forked.run([*jobq, "push", "-c", task], env=environment, check=True, capture_output=True)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*jobq, "worker"], environment)
    output = b""

    def read(what: bytes) -> None:
        nonlocal output
        while what not in output:
            assert select.select([terminal], [], [], 20)[0], output
            output += os.read(terminal, 4096)

    read(b"up\r\n")
    os.write(terminal, b"\x03")
    read(b"took its time")
    assert output.count(b"asked\r\n") == 1  # the live view shows the command, which says it too
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130  # its work was given back
    os.close(terminal)


def test_a_restarted_worker_waits_for_what_its_predecessor_left_leased(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
    environment |= {"JOBQ_HOME": str(tmp_path), "JOBQ_ALLOW_SHORT_LEASE": "1"}
    jobq = [sys.executable, "-m", "jobq", "demo"]
    ready = tmp_path / "ready"
    task = f"[ $JOBQ_ATTEMPT -gt 1 ] || {{ touch {ready}; sleep 1000; }}"
    forked.run([*jobq, "push", "-c", task], env=environment, check=True, capture_output=True)
    with forked.Popen[bytes](
        [*jobq, "worker", "--restart", "1", "--visibility-timeout", "4s"], env=environment, stderr=subprocess.DEVNULL
    ) as process:
        until(ready.exists)
        os.kill(worker_below(process.pid), signal.SIGKILL)
        assert process.wait(30) == 0
    found = forked.run([*jobq, "size", "--json"], env=environment, check=True, capture_output=True, text=True)
    assert (json.loads(found.stdout)["visible"], json.loads(found.stdout)["leased"]) == (0, 0)


def test_p1_a_watcher_that_is_stopped_changes_nothing(worker: Worker) -> None:
    """For longer than a lease of 10 s may be held: the guardian works on without it."""
    before = worker.survivors()
    worker.process.send_signal(signal.SIGSTOP)
    time.sleep(9.5)  # the time itself is the subject
    worker.process.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    assert worker.survivors() == before


def test_p2_a_task_that_stops_its_guardian_harms_nobody(tmp_path: Path) -> None:
    """`kill -STOP $PPID`: leases were renewed for nobody, for ever."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
    environment["JOBQ_HOME"] = str(tmp_path)
    jobq = [sys.executable, "-m", "jobq", "demo"]
    commands = ["-c", "kill -STOP $PPID; kill -STOP $PPID; echo done", "-c", "echo done", "-c", "echo done"]
    subprocess.run([*jobq, "push", *commands], env=environment, check=True, capture_output=True)
    worker = subprocess.run([*jobq, "worker"], env=environment, check=True, capture_output=True, timeout=30)
    assert worker.stdout.count(b"done") == 3


def test_p8_sigterm_ends_a_worker_whose_guardian_is_stopped(worker: Worker) -> None:
    os.kill(guardian_below(worker.process.pid), signal.SIGSTOP)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(30) == 143
    assert not worker.survivors()
    assert '"visible": 1' in worker.run("size", "--json")


@pytest.mark.skipif(not has_namespaces(), reason="needs unshare and the right to make a PID namespace")
def test_a_worker_that_is_pid_1_works(tmp_path: Path) -> None:
    """As in a container, where it has no parent."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
    environment |= {"JOBQ_HOME": str(tmp_path), "JOBQ_SCHEDULED_EVENTS": "off"}
    jobq = [sys.executable, "-m", "jobq", "demo"]
    subprocess.run([*jobq, "push", "-c", "echo done"], env=environment, check=True, capture_output=True)
    contained = ["unshare", "--pid", "--fork", "--mount-proc", *jobq, "worker"]
    assert b"done" in subprocess.run(contained, env=environment, check=True, capture_output=True).stdout


@pytest.mark.skipif(not has_namespaces(), reason="needs unshare and the right to make a PID namespace")
def test_p4_a_worker_that_sees_the_numbers_of_another_namespace_refuses(tmp_path: Path) -> None:
    """Its watcher took other processes for its children, and ended with an error."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
    environment |= {"JOBQ_HOME": str(tmp_path)}
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", "jobq", "demo", "worker"]
    run = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert run.returncode == 3
    assert "/proc is not that of this PID namespace" in run.stderr


HIDDEN = 'mount -t proc -o hidepid=2,gid=12345 proc /proc && exec setpriv --bounding-set=-all --inh-caps=-all "$@"'


def has_hidepid() -> bool:
    command = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", HIDDEN, "sh", "true"]
    return (
        all(map(shutil.which, ("unshare", "setpriv")))
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


@pytest.mark.skipif(not has_hidepid(), reason="needs unshare, setpriv and the right to mount /proc with hidepid")
def test_a_worker_whose_guardian_is_hidden_from_it_works(tmp_path: Path) -> None:
    """As where /proc shows a user nothing of other processes (hidepid): it ended with an error."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
    environment |= {"JOBQ_HOME": str(tmp_path), "JOBQ_SCHEDULED_EVENTS": "off"}
    jobq = [sys.executable, "-m", "jobq", "demo"]
    subprocess.run([*jobq, "push", "-c", "echo done"], env=environment, check=True, capture_output=True)
    hidden = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", HIDDEN, "sh", *jobq, "worker"]
    assert b"done" in subprocess.run(hidden, env=environment, check=True, capture_output=True).stdout
