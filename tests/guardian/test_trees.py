"""Hostile trees against every way in which a task ends: zero survivors after 1 s (P1, P2, P3, P5)."""

import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobq.run.process.spawner import Deadline, Launch, Process
from jobq.run.spawn.guardian_handle import GuardianHandle
from jobq.run.spawn.guardian_spawner import GuardianSpawner
from tests.guardian.hostile import TREES
from tests.guardian.spawning import guardian_of
from tests.guardian.stage import (
    ENV,
    Program,
    boottime,
    gone,
    hostile,
    living,
    marker,
    started_worker,
    state,
    trace_bytes,
    until,
    until_async,
)

KINDS = [kind for kind in TREES if kind != "idle"]


def is_grown(kind: str, mark: str) -> bool:
    return len(living(mark)) + (trace_bytes(mark) > 0) >= TREES[kind][1]


@pytest.fixture(autouse=True)
def no_traces() -> Iterator[None]:
    yield
    for trace in Path("/tmp").glob(f"marker-{os.getpid()}-*"):
        trace.unlink()


class Tree:
    """A hostile tree with a marker of its own."""

    def __init__(self, kind: str, process: Process, mark: str) -> None:
        self.kind, self.process, self.mark = kind, process, mark


@pytest.fixture
async def spawner() -> AsyncIterator[GuardianSpawner]:
    async with GuardianSpawner() as spawner:
        yield spawner


async def grow(spawner: GuardianSpawner, kind: str, deadline: float | None = None) -> Tree:
    mark = marker()
    null = os.open("/dev/null", os.O_WRONLY)
    try:
        launch = Launch(
            argv=hostile(kind, mark),
            env=ENV,
            stdout=null,
            stderr=null,
            deadline=None if deadline is None else Deadline(deadline),
        )
        process = await spawner.spawn(launch)
    finally:
        os.close(null)
    await until_async(lambda: is_grown(kind, mark))
    return Tree(kind, process, mark)


@pytest.mark.parametrize("kind", KINDS)
async def test_p3_nothing_survives_kill_as_after_lock_loss(spawner: GuardianSpawner, kind: str) -> None:
    tree = await grow(spawner, kind)
    tree.process.kill()
    status = await tree.process.wait()
    assert gone([tree.mark], 0) == {}  # told only when it is so
    assert status.signal == signal.SIGKILL


@pytest.mark.parametrize("kind", KINDS)
async def test_p5_nothing_survives_a_normal_exit(spawner: GuardianSpawner, kind: str) -> None:
    tree = await grow(spawner, kind)
    # The leader handles it once its tree is grown: it may be an instant later.
    while tree.process.pid in living(tree.mark):
        tree.process.signal(signal.SIGUSR1)
        await until_async(lambda: True)
    status = await tree.process.wait()
    assert gone([tree.mark], 0) == {}
    assert status.exit_code == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_p1_nothing_survives_its_deadline_with_the_loop_blocked(spawner: GuardianSpawner, kind: str) -> None:
    tree = await grow(spawner, kind, boottime() + 1000)
    deadline = boottime() + 0.1
    tree.process.extend(deadline)  # written at once; from here on this test blocks the loop of the worker
    assert gone([tree.mark], 1.1) == {}
    assert boottime() < deadline + 1


async def test_p5_nothing_survives_leaving() -> None:
    async with GuardianSpawner() as inner:
        marks = [(await grow(inner, kind)).mark for kind in KINDS]
    assert gone(marks) == {}


async def test_p2_who_leaves_when_the_guardian_was_killed_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker without a guardian ends at once, and with it the thread that looks for what the guardian left."""
    leaves, kill = threading.Event(), GuardianHandle.kill_what_is_left

    def kill_late(handle: GuardianHandle) -> None:
        leaves.wait()
        time.sleep(0.2)  # as long as it may take: who does not wait is gone by then
        kill(handle)

    monkeypatch.setattr(GuardianHandle, "kill_what_is_left", kill_late)
    async with GuardianSpawner(contained="off") as inner:  # else whoever leaves kills the control group, too
        marks = [(await grow(inner, kind)).mark for kind in KINDS if kind != "env_i_setsid"]  # the stated gap
        os.kill(guardian_of(inner), signal.SIGKILL)
        await inner.lost.wait()
        leaves.set()
    assert gone(marks, 0) == {}


async def test_s11_neighbours_are_left_alone(spawner: GuardianSpawner) -> None:
    neighbours = [await grow(spawner, kind) for kind in ("double_fork", "setsid", "subreaper", "holds_pipe")]
    before = [sorted(living(tree.mark)) for tree in neighbours]
    for kind in ("storm", "reparenting_in_new_sessions", "double_fork"):
        tree = await grow(spawner, kind)
        tree.process.kill()
        await tree.process.wait()
    assert [sorted(living(tree.mark)) for tree in neighbours] == before


@contextmanager
def all_trees(kinds: list[str], *, guarded: bool) -> Iterator[tuple[Program, int, int, dict[str, str]]]:
    """A worker that runs one of each; yields it, guardian, worker, and kind by marker."""
    marks = {marker(): kind for kind in kinds}
    pairs = [word for mark, kind in marks.items() for word in (kind, mark)]
    program, guardian, worker, _ = started_worker(*pairs, guarded=guarded)
    with program:
        until(lambda: all(is_grown(kind, mark) for mark, kind in marks.items()))
        yield program, guardian, worker, marks


def survivors(marks: dict[str, str], seconds: float = 1.0) -> dict[str, int]:
    return {marks[mark]: count for mark, count in gone(list(marks), seconds).items()}


@pytest.mark.parametrize("guarded", [True, False], ids=["worker", "library"])
def test_p2_nothing_survives_sigkill_of_the_worker(guarded: bool) -> None:
    with all_trees(KINDS, guarded=guarded) as (_, _, worker, marks):
        os.kill(worker, signal.SIGKILL)
        assert survivors(marks) == {}


@pytest.mark.parametrize("guarded", [True, False], ids=["worker", "library"])
def test_p1_nothing_survives_its_deadline_with_the_worker_stopped(guarded: bool) -> None:
    with all_trees(KINDS, guarded=guarded) as (program, _, worker, marks):
        os.kill(worker, signal.SIGUSR1)
        deadline = float(program.line().split()[1])
        os.kill(worker, signal.SIGSTOP)
        assert survivors(marks, deadline - boottime() + 1) == {}
        os.kill(worker, signal.SIGCONT)


def test_p1_nothing_survives_its_deadline_with_a_blocked_worker() -> None:
    with all_trees(KINDS, guarded=True) as (program, _, worker, marks):
        os.kill(worker, signal.SIGUSR1)
        deadline = float(program.line().split()[1])
        os.kill(worker, signal.SIGUSR2)
        assert program.line() == "blocked"
        assert survivors(marks, deadline - boottime() + 1) == {}


@pytest.mark.parametrize("blocked", [True, False])
def test_p2_sigkill_of_the_guardian_leaves_only_the_stated_gap(blocked: bool) -> None:
    kinds = [kind for kind in KINDS if kind != "env_i_setsid"]  # rules.md 1.2: a scrubbed environment is the gap
    with all_trees(kinds, guarded=False) as (program, guardian, worker, marks):
        if blocked:
            os.kill(worker, signal.SIGUSR2)
            assert program.line() == "blocked"
        os.kill(guardian, signal.SIGKILL)
        assert survivors(marks) == {}
        assert program.line() == "guardian lost"


def test_p2_sigkill_of_the_guardian_takes_worker_and_leaders_along() -> None:
    with all_trees(["idle"] * 3, guarded=True) as (_, guardian, worker, marks):
        os.kill(guardian, signal.SIGKILL)
        assert survivors(marks) == {}
        until(lambda: state(worker) in "ZX", 1)
