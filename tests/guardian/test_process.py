"""The guardian as a process: signals, exit codes, restart, PID 1, arming, privacy (P2, P3; A6)."""

import itertools
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.guardian.stage import (
    PYTHON,
    ROOT,
    SECONDS,
    Program,
    children,
    gone,
    guardian,
    hostile,
    living,
    marker,
    state,
    until,
)

# Prints each signal that it gets; ends with code 5 on SIGUSR2.
LISTENER = """
import os, signal, time
def say(text): os.write(1, (text + "\\n").encode())
def heard(number, frame):
    say(signal.Signals(number).name)
    if number == signal.SIGUSR2: os._exit(5)
for number in (1, 2, 10, 12, 15): signal.signal(number, heard)
signal.pthread_sigmask(signal.SIG_UNBLOCK, (1, 2, 10, 15))
say("ready")
while True: time.sleep(1000)
"""


def listener(**options: object) -> Program:
    program = guardian(*PYTHON, "-c", LISTENER, **options)  # type: ignore[arg-type] # passed through
    assert program.line() == "ready"
    return program


def test_signals_reach_the_worker_exactly_once() -> None:
    names = ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"]
    with listener() as program:
        for name in names:
            program.signal(signal.Signals[name])
            assert program.line() == name
        program.signal(signal.SIGUSR2)
        assert program.rest() == "SIGUSR2\n"  # and nothing came twice
        assert program.wait() == 5


def test_one_ctrl_c_in_a_terminal_counts_once_and_ctrl_z_stops_nobody() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["PYTHONPATH"] = str(ROOT)
        command = [sys.executable, "-P", "-m", "jobq.run.guardian", "--restart", "0", "--", *PYTHON, "-c", LISTENER]
        os.execv(command[0], command)
    output = b""

    def read(what: bytes) -> None:
        nonlocal output
        while what not in output:
            assert select.select([terminal], [], [], SECONDS)[0]
            output += os.read(terminal, 4096)

    read(b"ready")
    os.write(terminal, b"\x1a")  # Ctrl-Z
    os.write(terminal, b"\x03")  # Ctrl-C
    read(b"SIGINT")
    assert state(pid) in "RS"
    os.kill(pid, signal.SIGUSR2)
    read(b"SIGUSR2")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    os.close(terminal)
    assert output.count(b"SIGINT") == 1


def test_nohup_is_respected() -> None:
    program = Program(
        *("bash", "-c", 'trap "" HUP; exec "$@"', "bash"),
        *(sys.executable, "-P", "-m", "jobq.run.guardian", "--restart", "0", "--", *PYTHON, "-c", LISTENER),
    )
    with program:
        assert program.line() == "ready"
        program.signal(signal.SIGHUP)
        program.signal(signal.SIGUSR2)
        assert program.rest() == "SIGUSR2\n"


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 75", 75), ("kill -9 $$", 137), ("kill -12 $$", 140)]
)
def test_it_ends_as_its_worker_ends(script: str, code: int) -> None:
    with guardian("sh", "-c", script) as program:
        assert program.wait() == code


def test_a_worker_that_cannot_be_started() -> None:
    with guardian("/no/such/worker", stderr=subprocess.STDOUT) as program:
        assert "cannot start /no/such/worker: No such file" in program.rest()
        assert program.wait() == 127


@pytest.mark.parametrize("arguments", [[], ["--restart"], ["--restart", "1", "--"], ["what"]])
def test_usage(arguments: list[str]) -> None:
    command = [sys.executable, "-P", "-m", "jobq.run.guardian", *arguments]
    with Program(*command, stderr=subprocess.STDOUT) as program:
        assert "usage" in program.rest()
        assert program.wait() == 2


def test_p3_what_the_worker_itself_leaves_dies_with_it() -> None:
    mark = marker()
    with guardian("sh", "-c", f"{' '.join(hostile('double_fork', mark))} & echo begun; read x <&2; wait") as program:
        until(lambda: len(living(mark)) == 2)
        worker = children(program.pid)[0]
        os.kill(worker, signal.SIGKILL)
        assert program.wait() == 137
        assert gone([mark], 0) == {}


def test_restart_after_a_death_by_signal_with_growing_pauses_at_most_n_times() -> None:
    script = "import os, time; os.write(1, (str(time.monotonic()) + chr(10)).encode()); os.kill(os.getpid(), 9)"
    with guardian(*PYTHON, "-c", script, restart=3, pause=0.1) as program:
        starts = [float(line) for line in program.rest().split()]
        assert program.wait() == 137
    assert len(starts) == 4
    pauses = [later - sooner for sooner, later in itertools.pairwise(starts)]
    for pause, least in zip(pauses, (0.1, 0.2, 0.4), strict=True):
        assert pause >= least
    assert sum(pauses) < 3


def test_no_restart_after_a_code() -> None:
    with guardian("sh", "-c", "echo one; exit 1", restart=3) as program:
        assert program.rest() == "one\n"
        assert program.wait() == 1


def test_no_restart_of_a_worker_that_died_of_the_signal_passed_on() -> None:
    script = (
        "import os, signal, time; signal.pthread_sigmask(signal.SIG_SETMASK, ()); os.write(1, b'ready\\n');"
        " time.sleep(1000)"
    )
    with guardian(*PYTHON, "-c", script, restart=3) as program:
        assert program.line() == "ready"
        program.signal(signal.SIGTERM)
        assert program.wait() == 143


def test_p8_a_worker_that_does_not_end_when_asked_is_killed() -> None:
    """Blocked, it hears nothing: a preempted machine must not be lost waiting for it."""
    mark = marker()
    deaf = f"{' '.join(hostile('setsid', mark))} & echo ready; wait"  # and SIGTERM stays blocked
    with guardian("sh", "-c", deaf, stop_within=0.2, stderr=subprocess.STDOUT) as program:
        assert program.line() == "ready"
        until(lambda: len(living(mark)) == 2)
        program.signal(signal.SIGTERM)
        assert "did not in time" in program.line()
        assert program.wait() == 137
        assert program.rest() == ""  # one notice for one kill
        assert gone([mark], 0) == {}


def test_p8_a_second_sigterm_or_sighup_leaves_the_worker_its_time() -> None:
    slow = (
        "import os, signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, (2, 15)); os.write(1, b'ready\\n');"
        " signal.sigwait((2, 15)); time.sleep(0.3); os._exit(7)"
    )
    for second in (signal.SIGTERM, signal.SIGHUP):
        with guardian(*PYTHON, "-c", slow, stop_within=20) as program:
            assert program.line() == "ready"
            program.signal(signal.SIGTERM)
            program.signal(second)
            assert program.wait() == 7


def test_p8_asking_again_gives_a_deaf_worker_no_more_time() -> None:
    with guardian("sh", "-c", "echo ready; exec sleep 1000", stop_within=0.5, stderr=subprocess.STDOUT) as program:
        assert program.line() == "ready"
        while program.popen.poll() is None:
            program.signal(signal.SIGTERM)
            time.sleep(0.02)  # not as fast as it can: the guardian is to find time for its deadlines
        assert program.wait() in {137, -signal.SIGTERM}  # the last one may come when it has already obeyed


def test_s11_an_orphan_of_the_workers_own_is_killed_without_the_worker() -> None:
    """It shares the worker's group and session, which are no task's."""
    read, write = os.pipe()
    with guardian("sh", "-c", "(sleep 1000 & echo $!); read x; echo $x", stdin=read) as program:
        orphan = int(program.line())
        until(lambda: state(orphan) == "X")
        os.write(write, b"alive\n")
        assert program.line() == "alive"
        assert program.wait() == 0
    os.close(read)
    os.close(write)


def test_s11_children_from_before_are_left_alone() -> None:
    """`exec jobq worker` in a shell: its sidecars stay its children, and are no task's."""
    mark = marker()
    command = f'{" ".join(hostile("idle", mark))} & exec "$@"'
    inner = [sys.executable, "-P", "-m", "jobq.run.guardian", "--restart", "0", "--", "sh", "-c", "echo ready; read x"]
    read, write = os.pipe()
    with Program("bash", "-c", command, "bash", *inner, stdin=read) as program:
        assert program.line() == "ready"
        (sidecar,) = living(mark)
        os.write(write, b"\n")
        os.close(write)
        assert program.wait() == 0
        assert living(mark) == [sidecar]
        os.kill(sidecar, signal.SIGKILL)
    os.close(read)


@pytest.mark.parametrize("pause", [0.0, 0.02, 0.05])
def test_a_sigterm_while_a_dead_workers_trees_are_swept_is_not_lost(pause: float) -> None:
    mark = marker()
    script = f"{' '.join(hostile('storm', mark))} & echo ready; wait"
    # A signal that comes after the sweep goes to the next worker. That shell keeps it blocked: it is killed as deaf.
    with guardian("sh", "-c", script, restart=3, pause=0.01, stop_within=1, stderr=subprocess.STDOUT) as program:
        assert program.line() == "ready"
        until(lambda: len(living(mark)) == 201)
        os.kill(min(children(program.pid)), signal.SIGKILL)
        time.sleep(pause)  # to hit the sweep at several moments
        program.signal(signal.SIGTERM)
        assert program.wait() in {137, 143}
        assert gone([mark], 0) == {}


def test_a_worker_that_was_to_drain_is_not_started_again() -> None:
    with guardian("sh", "-c", "echo ready; exec sleep 1000", restart=3, pause=0.01) as program:
        assert program.line() == "ready"
        program.signal(signal.SIGUSR1)
        os.kill(min(children(program.pid)), signal.SIGKILL)
        assert program.wait() == 137


def test_a_worker_that_is_still_importing_hears_later() -> None:
    script = LISTENER.replace("signal.pthread_sigmask", "say('up'); time.sleep(0.2); signal.pthread_sigmask")
    with guardian(*PYTHON, "-c", script) as program:
        assert program.line() == "up"
        program.signal(signal.SIGTERM)
        program.signal(signal.SIGUSR1)
        assert sorted(program.line() for _ in range(3)) == ["SIGTERM", "SIGUSR1", "ready"]
        program.signal(signal.SIGUSR2)
        assert program.wait() == 5


def test_sigterm_ends_the_pause() -> None:
    with guardian("sh", "-c", "echo ready; kill -9 $$", restart=3, pause=1000, stderr=subprocess.STDOUT) as program:
        assert program.line() == "ready"
        assert "next start in 1000 s" in program.line()
        program.signal(signal.SIGTERM)
        assert program.wait() == 137


def test_p1_a_full_standard_error_does_not_hold_it_up() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
    with guardian("sh", "-c", "kill -9 $$", restart=2, pause=0.01, stderr=write) as program:
        assert program.wait() == 137
    os.close(read)
    os.close(write)


def has_namespaces() -> bool:
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


@pytest.mark.skipif(not has_namespaces(), reason="needs unshare and the right to make a PID namespace")
def test_as_pid_1_it_reaps_orphans_and_hears_sigterm() -> None:
    orphans = 20
    script = (
        "import os, signal, subprocess, time\n"
        "def orphan():\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0:\n"
        "            os.setsid(); os._exit(0)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        f"for _ in range({orphans}): orphan()\n"
        "signal.signal(15, lambda *_: os._exit(6))\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, (15,))\n"
        "while sum(name.isdigit() for name in os.listdir('/proc')) > 2: time.sleep(0.005)\n"
        "os.write(1, f'ready {os.getppid()}\\n'.encode())\n"
        "while True: time.sleep(1000)\n"
    )
    inner = [sys.executable, "-P", "-m", "jobq.run.guardian", "--restart", "0", "--", *PYTHON, "-c", script]
    with Program("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *inner) as program:
        assert program.line() == "ready 1"
        (pid_1,) = children(program.pid)
        os.kill(pid_1, signal.SIGTERM)
        assert program.wait() == 6
