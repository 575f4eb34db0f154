"""The control group of a worker: what no other layer finds dies too, and nothing is left behind (P2, P3, P5)."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobq.errors import ConfigurationError
from jobq.run.guardian.control_group import ControlGroup
from jobq.run.process.spawner import Launch
from jobq.run.spawn.containment import try_here
from jobq.run.spawn.control_groups import PREFIX, made_by_jobq, members, own_group
from jobq.run.spawn.dead_workers import holder_of, kill_what_dead_workers_left, new_id, without_survivors
from jobq.run.spawn.guardian_spawner import GuardianSpawner
from tests.containment.test_watcher import kill_all
from tests.guardian.stage import (
    ENV,
    Program,
    gone,
    guardian,
    is_dead,
    living,
    marker,
    state,
    until,
    until_async,
)
from tests.guardian.test_process import has_namespaces
from tests.guardian.three import SCRUBBED, THREE, a_worker

IN_USE = try_here("cgroup", is_guarded=True)
pytestmark = [
    pytest.mark.check,
    pytest.mark.skipif(IN_USE.kind != "cgroup", reason=f"no control group can be made here: {IN_USE.why}"),
]


def group_below() -> str:
    """Return a command of a task's, which makes a group below the one that it is in: it is removed with that."""
    name = "$(sed -n 's,^0::.*/jobq,jobq,p' /proc/self/cgroup)"
    return f"test -z {name} || mkdir {own_group()}/{name}/made-by-task"


@pytest.mark.parametrize(
    ("stopped", "killed"),
    [
        ("", "watcher guardian"),
        ("", "guardian watcher"),
        ("watcher", "guardian"),
        ("", "guardian"),
        ("", "watcher"),
        ("", "worker"),
    ],
)
def test_p2_p3_nothing_is_left_whoever_is_killed(tmp_path: Path, stopped: str, killed: str) -> None:
    """Without the group a process that scrubbed its environment outlived the first three."""
    with a_worker(tmp_path, group_below()) as worker:
        worker.send(signal.SIGSTOP, *stopped.split())
        worker.send(signal.SIGKILL, *killed.split())
        assert gone([worker.mark], 5) == {}
        worker.send(signal.SIGCONT, *stopped.split())
        until(lambda: all(state(getattr(worker, name)) in "ZX" for name in THREE))
        if "watcher" in killed and "guardian" in killed:
            kill_what_dead_workers_left()  # the watcher may have killed the worker before it was killed itself
        assert worker.group() is None


def test_p2_p3_the_tasks_are_dead_before_the_worker_when_the_watcher_is_killed(tmp_path: Path) -> None:
    """The guardian killed the worker first: was it killed itself then, nobody was left to see to the tasks."""
    crowd = marker()
    many = f"for i in $(seq 50); do env -i setsid sh -c 'sleep 1000; true' {crowd} & done"
    try:
        with a_worker(tmp_path, many) as worker:
            worker.send(signal.SIGKILL, "watcher")
            assert is_dead(worker.pidfds["worker"], 20)
            worker.send(signal.SIGKILL, "guardian")
            assert gone([worker.mark, crowd], 1) == {}
    finally:
        kill_all(crowd)


def every_jobq() -> list[str]:
    """Return the command lines of what may have swept up behind a worker whose guards are dead."""
    found = subprocess.run(["ps", "-eo", "pid,ppid,etimes,args"], check=True, capture_output=True, text=True).stdout
    return [line for line in found.splitlines() if "jobq" in line]


@pytest.mark.parametrize("stopped", ["", "worker"])
def test_p2_the_next_start_ends_what_is_left_when_nobody_is_there_to_do_it(tmp_path: Path, stopped: str) -> None:
    """All killed; or the watcher and the guardian, and the worker stopped."""
    with a_worker(tmp_path / "killed") as worker, a_worker(tmp_path / "lives") as lives:
        held = living(worker.mark)
        worker.send(signal.SIGSTOP, *THREE)
        until(lambda: all(state(getattr(worker, name)) == "T" for name in THREE))
        worker.send(signal.SIGKILL, *(name for name in reversed(THREE) if name != stopped))
        until(lambda: all(state(getattr(worker, name)) in "ZX" for name in THREE if name != stopped))
        if not stopped:  # the kernel continues a stopped worker whose process group is orphaned (setpgid(2))
            assert living(worker.mark), f"nothing of {held} outlived the blow; beside it ran {every_jobq()}"
            assert worker.group() is not None
        neighbours = set(living(lives.mark))
        environment = {**worker.environment, "JOBQ_HOME": str(tmp_path / "next")}
        jobq = [sys.executable, "-m", "jobq", "demo"]
        subprocess.run([*jobq, "create"], env=environment, check=True, capture_output=True)
        subprocess.run([*jobq, "worker"], env=environment, check=True, capture_output=True)
        assert living(worker.mark) == []
        assert worker.group() is None
        assert (
            len(neighbours & set(living(lives.mark))) >= 2
        )  # of three; one may be about to exec when it is looked for


@pytest.mark.parametrize("ending", ["SIGTERM", "SIGINT", "empty"])
def test_p5_a_clean_end_leaves_no_group(tmp_path: Path, ending: str) -> None:
    if ending == "empty":
        environment = {**os.environ, "JOBQ_HOME": str(tmp_path)}
        for arguments in (("push", "-c", "true"), ("worker",)):
            subprocess.run(
                [sys.executable, "-m", "jobq", "demo", *arguments], env=environment, check=True, capture_output=True
            )
        return  # the fixture below looks
    with a_worker(tmp_path, group_below(), JOBQ_STOP_GRACE="0.1s") as worker:
        assert worker.group() is not None
        worker.process.send_signal(signal.Signals[ending])
        worker.process.wait(20)
        assert worker.group() is None
        assert living(worker.mark) == []


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Groups that these tests' own processes have made, by the numbers of their makers."""
    before = set(made_by_jobq())
    yield
    left = [group for group in set(made_by_jobq()) - before if not members(group)]
    until(lambda: not any(group.exists() for group in left))


async def spawned(spawner: GuardianSpawner, mark: str) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    command = ("sh", "-c", f"{SCRUBBED.format(mark=mark)} & sleep 1000")
    await spawner.spawn(Launch(argv=command, env=ENV, stdout=null, stderr=null))
    os.close(null)
    await until_async(lambda: len(living(mark)) >= 2)


async def test_p2_p3_a_program_that_embeds_jobq_ends_all_when_its_guardian_is_killed() -> None:
    """Without the group what scrubbed its environment lived on: there is no watcher."""
    mark = marker()
    try:
        async with GuardianSpawner() as spawner:
            assert spawner.contained_by == "cgroup"
            await spawned(spawner, mark)
            assert spawner._child is not None
            spawner._child.send_signal(signal.SIGKILL)
            await spawner.lost.wait()
            await until_async(lambda: not living(mark))
        assert not Path(spawner._handle.group.path).exists()
    finally:
        for pid in living(mark):
            os.kill(pid, signal.SIGKILL)


async def test_p5_two_of_a_program_have_groups_of_their_own_and_leave_none() -> None:
    marks = [marker(), marker()]
    async with GuardianSpawner() as first, GuardianSpawner() as second:
        await asyncio.gather(spawned(first, marks[0]), spawned(second, marks[1]))
        groups = [Path(spawner._handle.group.path) for spawner in (first, second)]
        assert groups[0] != groups[1]
        ControlGroup(str(groups[0])).kill()
        await until_async(lambda: not living(marks[0]))
        assert living(marks[1])
    assert not any(group.exists() for group in groups)
    assert living(marks[1]) == []


async def test_off_is_off() -> None:
    async with GuardianSpawner(contained="off") as spawner:
        assert spawner.contained_by == "off"
        assert spawner._child is not None
        assert str(spawner._child.pid) in (own_group() / "cgroup.procs").read_text().split()


async def test_s7_who_asked_for_a_group_gets_none_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guardian cannot make it where we said: the path is gone by then."""
    monkeypatch.setattr("jobq.run.spawn.containment.own_group", lambda: Path("/sys/fs/cgroup/no/such"))
    async with GuardianSpawner() as spawner:
        assert spawner.contained_by == "off"
    with pytest.raises(ConfigurationError, match=r"JOBQ_CONTAINMENT=cgroup cannot be kept: .*No such file"):
        await GuardianSpawner(contained="cgroup").__aenter__()


def test_a_worker_that_is_started_again_is_outside() -> None:
    """Else it would kill itself with what a dead guardian left, before that was seen to."""
    group = str(own_group() / f"{PREFIX}{new_id(os.getpid())}")
    script = f"sed -n s/^0:://p /proc/self/cgroup; sed -n s/^0:://p /proc/$PPID/cgroup; test -d {group}; kill -9 $$"
    with guardian("sh", "-c", script, restart=1, group=group) as program:
        told = program.rest().split()
        assert program.wait() == 137
    assert [Path(path).name == Path(group).name for path in told] == [False, True, False, True]
    assert not Path(group).exists()


@pytest.mark.parametrize("whose", ["dead", "living", "another place's", "not jobq's", "our own"])
def test_only_groups_of_dead_workers_are_ended(whose: str) -> None:
    with subprocess.Popen(["sleep", "1000"]) as maker:
        name = f"{PREFIX}{new_id(maker.pid if whose != 'living' else os.getpid())}"
        maker.kill()
    if whose == "another place's":
        random, where, *rest = name.removeprefix(PREFIX).split("-")
        name = "-".join(["jobq", random, where[::-1], *rest])
    elif whose == "not jobq's":
        name = f"x{name}"
    group = ControlGroup(str(own_group() / name))

    member = os.fork()
    if member == 0:
        group.enter()
        if whose == "our own":  # as a worker does that a task has started
            kill_what_dead_workers_left()
        signal.pause()
    try:
        until(lambda: str(member) in members(Path(group.path)))
        if whose != "our own":
            kill_what_dead_workers_left()
        assert (state(member) in "ZX") is (whose == "dead")
        assert Path(group.path).exists() is (whose != "dead")
    finally:
        os.kill(member, signal.SIGKILL)
        os.waitpid(member, 0)
        assert group.end(5)


def in_place(group: Path, setting: Callable[[Path], None], *command: str, **environment: str) -> tuple[int, str]:
    """Run jobq in a group of its own."""
    group.mkdir()
    try:
        setting(group)
        argv = ["sh", "-c", f'echo 0 > {group}/cgroup.procs; exec "$@"', "sh", sys.executable, "-m", "jobq", *command]
        with Program(*argv, env=environment, stderr=subprocess.STDOUT) as program:
            return program.wait(), program.rest()
    finally:
        ControlGroup(str(group)).end(5)


def full(group: Path) -> None:
    (group / "cgroup.max.descendants").write_text("0")


def threaded(group: Path) -> None:
    (group / "cgroup.type").write_text("threaded")


def nothing(_group: Path) -> None:
    """As it is."""


@pytest.mark.parametrize(
    ("setting", "why"), [(full, "Resource temporarily unavailable"), (threaded, "is threaded"), (nothing, "")]
)
def test_where_there_can_be_no_group_auto_goes_without_and_cgroup_refuses(
    tmp_path: Path, setting: Callable[[Path], None], why: str
) -> None:
    home = {"JOBQ_HOME": str(tmp_path), "JOBQ_LOG_FORMAT": "json"}
    group = own_group() / f"test-{marker()}"
    if setting is threaded and (own_group() / "cgroup.type").exists():
        pytest.skip("the group above, that of the tests themselves, would be threaded too; only the root would not")
    code, told = in_place(group, setting, "config")
    assert code == 0
    shown = told[told.index("JOBQ_CONTAINMENT") :]  # another setting before it says what is in use, too
    line = next(line for line in shown.splitlines() if "in use:" in line)
    assert ("in use: off" in line and why in line) if why else "in use: cgroup" in line
    code, told = in_place(group, setting, "demo", "create", **home)
    code, told = in_place(group, setting, "demo", "worker", **home)
    assert (code, f'"containment": "{"off" if why else "cgroup"}"' in told) == (0, True)
    code, told = in_place(group, setting, "demo", "worker", **home, JOBQ_CONTAINMENT="cgroup")
    assert code == (3 if why else 0)
    assert not why or ("JOBQ_CONTAINMENT=cgroup cannot be kept" in told and why in told)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_may_make_none() -> None:
    seen, told = os.pipe()
    if (other := os.fork()) == 0:
        os.setuid(65534)
        os.write(told, try_here("auto", is_guarded=True).why.encode())
        os._exit(0)
    os.close(told)
    with os.fdopen(seen) as answer:
        assert answer.read() == f"no right to make a control group in {own_group()}"
    os.waitpid(other, 0)


@pytest.mark.skipif(not has_namespaces(), reason="needs unshare and the right to make namespaces")
@pytest.mark.parametrize(
    ("of", "mount", "in_use"),
    [
        ("--mount", "mount -o remount,bind,ro {top} {top}", "off (no right to make a control group in {own})"),
        ("--mount --cgroup", "umount {top} && mount -t cgroup2 none {top}", "cgroup (below {top})"),
        ("--pid --fork --kill-child --mount-proc", "true", "cgroup (below {own})"),  # as PID 1, which has no parent
        ("--mount --cgroup", "true", "off (the control group of this process (/) is not mounted here"),
    ],
)
def test_in_a_container(of: str, mount: str, in_use: str) -> None:
    """As Docker has it: read-only. With a view of its own, in which its own group is the root. Without its mount."""
    group = own_group() / f"test-{marker()}"
    top = next(path for path in [*reversed(own_group().parents), own_group()] if (path / "cgroup.procs").exists())
    script = f"echo 0 > {group}/cgroup.procs; exec unshare {of} sh -c '{mount.format(top=top)} && exec \"$@\"'"
    group.mkdir()
    try:
        with Program("sh", "-c", f'{script} sh "$@"', "sh", sys.executable, "-m", "jobq", "config") as program:
            told = program.rest()
            assert program.wait() == 0
        assert f"in use: {in_use.format(top=top, own=group)}" in told
        assert not [path for path in group.iterdir() if path.is_dir()]
    finally:
        ControlGroup(str(group)).end(5)


FREEZER = Path("/sys/fs/cgroup/freezer")  # version 1, which keeps what is frozen from being killed
LEAVES_ONE = """
import os, subprocess, sys
from pathlib import Path
from jobq.run.spawn.control_groups import PREFIX, own_group
from jobq.run.spawn.dead_workers import new_id, new_worker_id
group = own_group() / f"{PREFIX}{new_id(os.getpid())}"
group.mkdir()
null = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
with subprocess.Popen(["sleep", "1000"], **null) as guardian:
    left = subprocess.Popen(["env", "-i", "sleep", "1000"], **null)
    for folder in (group, Path(sys.argv[1])):
        (folder / "cgroup.procs").write_text(str(left.pid))
    (Path(sys.argv[1]) / "freezer.state").write_text("FROZEN")
    while "FROZEN" not in (Path(sys.argv[1]) / "freezer.state").read_text():
        pass
    print(new_worker_id(guardian.pid), left.pid)
    guardian.kill()
"""


@pytest.mark.skipif(not os.access(FREEZER / "cgroup.procs", os.W_OK), reason="nothing here keeps a process from dying")
def test_s3_a_worker_that_left_what_cannot_be_killed_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """It scrubbed its environment, so the group alone tells of it; its lease was ended, and the next attempt began."""
    monkeypatch.setattr("jobq.run.spawn.dead_workers._GROUP_SECONDS", 0.1)
    frozen = FREEZER / marker()
    frozen.mkdir()
    try:
        command = [sys.executable, "-c", LEAVES_ONE, str(frozen)]
        worker_id, pid = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        pidfd, holder = os.pidfd_open(int(pid)), holder_of(worker_id)
        assert (without_survivors([holder]), is_dead(pidfd, 0)) == ([], False)
        (frozen / "freezer.state").write_text("THAWED")
        assert is_dead(pidfd, 5)
        until(lambda: without_survivors([holder]) == [holder])
    finally:
        (frozen / "freezer.state").write_text("THAWED")
        for left in (frozen / "cgroup.procs").read_text().split():
            os.kill(int(left), signal.SIGKILL)
        until(lambda: not (frozen / "cgroup.procs").read_text())
        frozen.rmdir()
