"""What a worker left that was killed with watcher and guardian: the next start ends it, and nothing else (P2)."""

import asyncio
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

import jobq
from jobq.backend import SharesMachine
from jobq.run.spawn import dead_workers
from jobq.run.spawn.containment import try_here
from jobq.run.spawn.dead_workers import holder_of, kill_what_dead_workers_left, new_worker_id, without_survivors
from jobq.run.spawn.guardian_handle import GuardianHandle
from jobq.run.spawn.survivors import kill_all_of
from jobq.settings import Settings
from tests.guardian.stage import (
    PYTHON,
    children,
    guardian_below,
    hostile,
    living,
    marker,
    state,
    until,
    watched,
    worker_below,
)
from tests.guardian.test_command_line import Worker
from tests.process.stage import QUICK

pytestmark = pytest.mark.check


@contextmanager
def a_worker(folder: Path) -> Iterator[Worker]:
    folder.mkdir()
    worker = Worker(folder)
    try:
        until(lambda: len(worker.survivors()) >= 3)
        yield worker
    finally:
        worker.process.kill()
        worker.process.communicate()


def test_p2_the_next_start_ends_what_is_left_when_all_three_were_killed(tmp_path: Path) -> None:
    with a_worker(tmp_path / "killed") as killed, a_worker(tmp_path / "lives") as lives:
        watcher = killed.process.pid
        # Stopped first, so that none of them can do anything about it; the watcher's death continues the guardian.
        for pid in (watcher, worker_below(watcher), guardian_below(watcher)):
            os.kill(pid, signal.SIGSTOP)
        three = [guardian_below(watcher), worker_below(watcher), watcher]
        for pid in three:
            os.kill(pid, signal.SIGKILL)
        until(lambda: all(state(pid) in "ZX" for pid in three))
        left, neighbours = killed.survivors(), lives.survivors()
        assert left, "nothing outlived the blow, so nothing is shown"
        command = [sys.executable, "-m", "jobq", "demo", "worker"]
        environment = {**killed.environment, "JOBQ_HOME": str(tmp_path / "next")}
        for words in ([*command[:-1], "create"], command):  # or another test's start of a worker meanwhile
            subprocess.run(words, env=environment, check=True, capture_output=True)
        assert killed.survivors() == []
        assert lives.survivors() == neighbours


def dead_guardian_id() -> str:
    with subprocess.Popen(["sleep", "1000"]) as guardian:
        worker_id = new_worker_id(guardian.pid)
        guardian.kill()
    return worker_id


@pytest.mark.parametrize("whose", ["dead", "living", "another place's", "of another shape", "adopted by another"])
def test_only_what_is_surely_left_is_killed(whose: str) -> None:
    """Another machine's id comes along where a scheduler hands on a task's environment."""
    worker_id = dead_guardian_id()
    if whose == "living":
        worker_id = new_worker_id(os.getpid())
    elif whose == "another place's":
        random, _, *rest = worker_id.split("-")
        worker_id = "-".join([random, "0" * 12, *rest])
    elif whose == "of another shape":
        worker_id = worker_id.partition("-")[0]
    mark = marker()
    command = [*hostile("idle", mark)]
    if whose == "adopted by another":
        script = "import os, subprocess, sys; subprocess.run(sys.argv[2:], env={'JOBQ_WORKER_ID': sys.argv[1]})"
        popen = subprocess.Popen([*PYTHON, "-c", script, worker_id, *command])
    else:
        popen = subprocess.Popen(command, env={**os.environ, "JOBQ_WORKER_ID": worker_id})
    try:
        until(lambda: any(f"JOBQ_WORKER_ID={worker_id}" in environment_of(pid) for pid in living(mark)))
        if whose == "dead":
            with watched(popen.pid):
                assert kill_what_dead_workers_left() >= 1
            assert popen.wait(10) == -signal.SIGKILL
        else:
            kill_what_dead_workers_left()
            assert living(mark)
    finally:
        for pid in [*living(mark)]:
            os.kill(pid, signal.SIGKILL)
        popen.wait()


def environment_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_text().split("\0")
    except OSError:
        return []


def test_a_zombie_is_dead(tmp_path: Path) -> None:
    """Where PID 1 reaps nobody a dead guardian keeps its number."""
    guardian = subprocess.Popen(["sleep", "1000"])
    worker_id = new_worker_id(guardian.pid)
    left = subprocess.Popen(
        ["sleep", "1000"], env={"PATH": os.environ["PATH"], "JOBQ_WORKER_ID": worker_id}, cwd=tmp_path
    )
    kill_what_dead_workers_left()
    assert left.poll() is None
    guardian.kill()
    until(lambda: state(guardian.pid) == "Z")
    kill_what_dead_workers_left()
    assert left.wait(10) == -signal.SIGKILL
    guardian.wait()


CONTAINED = try_here("cgroup", is_guarded=True)
PROGRAM = """
import os, subprocess
from jobq.run.spawn.dead_workers import new_worker_id
with subprocess.Popen(["sleep", "1000"]) as guardian:
    print(new_worker_id(guardian.pid))
    guardian.kill()
"""


def dead_worker_id() -> str:
    """Return the id of a program that has ended, and its guardian with it."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    return run.stdout.strip()


def test_l6_only_a_worker_of_which_surely_nothing_lives_is_taken_for_dead() -> None:
    dead = dead_worker_id()
    random, where, *guards = dead.split("-")
    number, started = str(os.getpid()), new_worker_id(os.getpid()).split("-")[3]
    lives = "-".join([random, where, *guards[:2], number, started])
    others = ["-".join([random, "0" * 12, *guards]), "-".join([random, where, *guards[:2]]), random, "", "a-b-c-d-e-f"]
    holders = [holder_of(each) for each in (lives, dead, dead_guardian_id(), *others)]
    assert without_survivors([*holders, dead, f"{dead}-held-1"]) == [holder_of(dead)]
    dead_holder = holder_of(dead)
    script = "import subprocess, sys; subprocess.run(['sleep', '1000'], env={'JOBQ_WORKER_ID': sys.argv[1]})"
    with subprocess.Popen([*PYTHON, "-c", script, dead]) as another:  # what adopted it is no worker of ours
        until(lambda: [pid for pid in children(another.pid) if f"JOBQ_WORKER_ID={dead}" in environment_of(pid)])
        (adopted,) = children(another.pid)
        found = without_survivors([dead_holder])
        os.kill(adopted, signal.SIGKILL)
    assert (found, without_survivors([dead_holder])) == ([], [dead_holder])


@pytest.mark.parametrize("kind", ["reparenting", "reparenting_in_new_sessions"])
def test_s3_what_forks_and_ends_again_and_again_is_no_dead_worker(kind: str) -> None:
    """One look through /proc seldom saw it: its lease was ended, and the next attempt ran beside it."""
    dead, mark = dead_worker_id(), marker()
    trace = Path(f"/tmp/{mark}")
    with subprocess.Popen(hostile(kind, mark), env={**os.environ, "JOBQ_WORKER_ID": dead}) as leader:
        try:
            until(lambda: trace.exists() and trace.stat().st_size > 5)
            leader.kill()  # as its guardian's death does
            leader.wait()
            until(lambda: without_survivors([holder_of(dead)]) == [holder_of(dead)])
            assert kill_all_of(dead) == 0
        finally:
            kill_all_of(dead)
            trace.unlink()


@pytest.mark.skipif(CONTAINED.kind != "cgroup", reason=CONTAINED.why)
async def test_s3_each_lease_of_a_program_names_those_who_guard_it(tmp_path: Path) -> None:
    """All named the guardian of the program's latest worker: what another one guarded could live when that was dead."""
    settings = Settings(home=tmp_path, containment="cgroup", **QUICK)
    async with jobq.connect("demo", settings=settings) as queue:
        store = queue.backend
        assert isinstance(store, SharesMachine)
        await queue.push([jobq.Task.new(command="sleep 1000") for _ in range(2)])
        workers = [asyncio.create_task(queue.worker(num_workers=1, max_tasks=1)) for _ in range(2)]
        while (await queue.stats()).visible:
            await asyncio.sleep(0.01)
        holders = await store.holders()
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)
        assert len(holders) == 2
        async with queue.get(wait=timedelta(seconds=5)) as pulled:
            assert pulled is not None
            assert await store.holders() == [], "a program's own processes have no guardian"
            await pulled.complete()


LESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
JUDGE = "import sys; from jobq.run.spawn.dead_workers import without_survivors as f; print(len(f(sys.argv[1:])))"


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, and setpriv")
def test_s3_who_has_fewer_rights_cannot_tell_that_nothing_is_left() -> None:
    """As a service with a bounding set beside a root shell: it cannot read the environment of what is left."""
    dead = dead_worker_id()
    with subprocess.Popen(["sleep", "1000"], env={"PATH": os.environ["PATH"], "JOBQ_WORKER_ID": dead}) as left:
        command = [*LESS, sys.executable, "-c", JUDGE, holder_of(dead)]
        judged = subprocess.run(command, check=False, capture_output=True, text=True)
        left.kill()
    assert judged.stdout == "0\n"


def can_have_mounts() -> bool:
    try:
        return subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not can_have_mounts(), reason="needs the right to make a mount namespace, and unshare")
def test_s3_who_sees_other_mounts_cannot_tell_that_nothing_is_left() -> None:
    """The control group of the dead worker may be mounted nowhere in there: what lives in it was taken for nothing."""
    holder = holder_of(dead_worker_id())
    judge = [sys.executable, "-c", JUDGE, holder]
    judged = subprocess.run(["unshare", "--mount", *judge], check=True, capture_output=True, text=True)
    assert (judged.stdout, without_survivors([holder])) == ("0\n", [holder])


def test_s3_who_is_short_of_descriptors_cannot_tell_that_nothing_is_left() -> None:
    """An environment that could not be read was taken for that of nobody's process."""
    holder = holder_of(dead_worker_id())
    free = os.dup(0)
    os.close(free)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            dead_workers._seen(os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert without_survivors([holder]) == [holder]


def test_l4_an_id_that_is_no_text_is_one_like_any_other() -> None:
    """Whoever may start a process here may give it any: it must end no worker's look for what the dead left."""
    mark = "\udcff-nobody-1-1"  # a byte that is no ASCII, as it is read
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "JOBQ_WORKER_ID": mark}) as process:
        try:
            until(lambda: dead_workers._seen_among([process.pid]) == {process.pid: (os.getpid(), mark)})
            assert kill_all_of(mark) >= 1  # each signal counts, and what was sent one may be seen once more
            assert process.wait(10) == -signal.SIGKILL
        finally:
            process.kill()


async def test_l4_a_worker_starts_though_nobody_can_look_for_what_the_dead_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the machine is short of descriptors."""

    def short() -> int:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    monkeypatch.setattr("jobq.run.spawn.guardian_handle.kill_what_dead_workers_left", short)
    assert await GuardianHandle().kill_what_dead_workers_left() == 0
    assert "not looked for" in caplog.text
