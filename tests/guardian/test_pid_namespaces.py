"""A PID namespace for each attempt: its tree dies whoever else is killed, all at once (P2, P3, P4)."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobq.clock import SystemClock
from jobq.run.process.spawner import ExitStatus, Launch, Process
from jobq.run.spawn.containment import try_here
from jobq.run.spawn.guardian_spawner import GuardianSpawner
from tests.guardian.stage import ENV, children, gone, hostile, living, marker, state, until, until_async
from tests.guardian.three import SCRUBBED, THREE, a_worker

IN_USE = try_here("pidns", is_guarded=True)
pytestmark = pytest.mark.skipif(IN_USE.kind != "pidns", reason=IN_USE.why)


@pytest.mark.parametrize(
    ("stopped", "killed"),
    [
        ("", "guardian worker watcher"),
        ("watcher worker", "guardian"),
        ("", "worker"),
        ("", "watcher"),
    ],
)
def test_p2_p3_nothing_is_left_whoever_is_killed(tmp_path: Path, stopped: str, killed: str) -> None:
    """Also when nobody is there to do it: the first two left all but the leader to the next start, or to nobody."""
    with a_worker(tmp_path, JOBQ_CONTAINMENT="pidns") as worker:
        worker.send(signal.SIGSTOP, *stopped.split())
        worker.send(signal.SIGKILL, *killed.split())
        assert gone([worker.mark], 5) == {}
        until(lambda: all(state(getattr(worker, name)) in "ZX" for name in THREE if name not in stopped))


@pytest.fixture
async def spawner() -> AsyncIterator[GuardianSpawner]:
    async with GuardianSpawner(contained="pidns") as spawner:
        assert spawner.contained_by == "pidns"
        yield spawner


async def spawn(spawner: GuardianSpawner, *command: str, stdout: int = -1) -> Process:
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        output = null if stdout < 0 else stdout
        return await spawner.spawn(Launch(argv=command, env=ENV, stdout=output, stderr=null))
    finally:
        os.close(null)


def guardian_of(spawner: GuardianSpawner) -> int:
    assert spawner._child is not None
    return spawner._child.pid


async def ended(process: Process) -> ExitStatus:
    return await process.wait()


async def test_p3_an_attempt_has_ended_when_its_whole_tree_is_dead(spawner: GuardianSpawner) -> None:
    mark = marker()
    process = await spawn(spawner, "sh", "-c", f"{SCRUBBED.format(mark=mark)} & sleep 0.2; exit 7")
    await until_async(lambda: living(mark))
    status = await ended(process)
    assert living(mark) == []
    assert (status.exit_code, status.survivors) == (7, 0)
    assert children(guardian_of(spawner)) == []


async def test_p1_a_tree_dies_at_its_deadline(spawner: GuardianSpawner) -> None:
    mark = marker()
    process = await spawn(spawner, "sh", "-c", f"{SCRUBBED.format(mark=mark)} & sleep 1000")
    await until_async(lambda: living(mark))
    process.extend(SystemClock().boottime())
    assert (await ended(process)).signal == signal.SIGKILL
    assert living(mark) == []


async def test_a_task_sees_its_own_processes_and_nobody_elses(spawner: GuardianSpawner, tmp_path: Path) -> None:
    """Numbers and /proc agree; its neighbour, its guardian and its worker are out of its reach (`kill $PPID`)."""
    neighbour = await spawn(spawner, "sleep", "1000")
    script = (
        "echo $$ $(sh -c 'echo $PPID') $(readlink /proc/self) $(ls -d /proc/[0-9]* | wc -l); mount -t tmpfs x \"$0\""
    )
    with (tmp_path / "told").open("w+") as told:
        process = await spawn(spawner, "sh", "-c", script, str(tmp_path), stdout=told.fileno())
        assert (await ended(process)).exit_code == 0
        told.seek(0)
        own, below, itself, seen = map(int, told.read().split())
    assert (own, below) == (2, 2)
    assert itself > own
    assert seen <= 5  # init, the shell, and what it ran
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text(), "its mounts are its own"
    assert f"/proc/{os.getpid()}" == str(Path(f"/proc/{os.getpid()}").resolve()), "and ours are ours"
    assert not neighbour.has_exited()


async def test_p4_a_killed_init_takes_its_own_tree_along_and_no_other(spawner: GuardianSpawner) -> None:
    mark = marker()
    process, other = [await spawn(spawner, *hostile("idle", each)) for each in (mark, marker())]
    (init,) = set(children(guardian_of(spawner))[:2]) - {process.pid}
    os.kill(init, signal.SIGKILL)
    assert (await ended(process)).signal == signal.SIGKILL
    assert not other.has_exited()
    assert state(init) == "X"


async def test_a_program_that_does_not_exist_is_told_and_leaves_no_init(spawner: GuardianSpawner) -> None:
    with pytest.raises(Exception, match="no/such"):
        await spawn(spawner, "/no/such")
    await until_async(lambda: not children(guardian_of(spawner)))


def jobq(folder: Path, *command: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "JOBQ_HOME": str(folder), "JOBQ_CONTAINMENT": "pidns", **settings}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv, of util-linux")
def test_without_the_right_the_worker_refuses_to_start(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "jobq")
    without = ("setpriv", "--bounding-set=-sys_admin", "--", *command)
    assert jobq(tmp_path, *command, "demo", "push", "-c", "true").returncode == 0
    run = jobq(tmp_path, *without, "demo", "worker")
    assert run.returncode == 3
    assert "JOBQ_CONTAINMENT=pidns cannot be kept: no PID namespace with a /proc of its own can be made" in run.stderr
    assert "in use: off (no PID namespace" in jobq(tmp_path, *without, "config").stdout
    run = jobq(tmp_path, *command, "demo", "worker")
    assert (run.returncode, "containment" in run.stderr) == (0, True)
