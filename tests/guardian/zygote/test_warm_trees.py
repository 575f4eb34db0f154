"""Tasks that the zygote forks live exactly as long as all others, whoever dies, and at whatever moment (P1 to P5)."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from jobq.run.spawn.guardian_spawner import GuardianSpawner
from tests.guardian.hostile import TREES
from tests.guardian.spawning import descriptors, start
from tests.guardian.stage import (
    SECONDS,
    Program,
    boottime,
    children,
    guardian,
    hostile,
    is_dead,
    living,
    marker,
    state,
    trace_bytes,
    until,
    until_async,
    watched,
)
from tests.guardian.zygote.warming import Stage, carriers, impatient_guardian, is_zygote, stage

KINDS = ("double_fork", "setsid", "storm", "closed_stdio", "stopped", "subreaper", "reparenting", "ignores_term")
MOVES = ("reparenting",)  # faster than /proc is read
STOPS = ("announcing", "_exit", "setsid", "getppid", "dup2", "chdir")
ROUNDS = 30


@pytest.fixture(autouse=True)
def no_traces() -> Iterator[None]:
    yield
    for trace in Path("/tmp").glob(f"marker-{os.getpid()}-*"):
        trace.unlink()


@pytest.fixture
async def zygote() -> AsyncIterator[Stage]:
    async with stage() as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["kill", "deadline"])
async def test_p3_nothing_survives_lock_loss(zygote: Stage, kind: str, how: str) -> None:
    name = marker()
    task = await zygote.call("tree", kind=kind, mark=name, launch={"deadline": boottime() + 1000})
    assert await task.line() == "grown"
    await until_async(lambda: len(carriers(zygote.mark)) + (kind in MOVES) >= TREES[kind][1] + 1)
    pid = zygote.zygote
    if how == "kill":
        task.process.kill()
    else:
        task.process.extend(boottime() + 0.1)  # written at once; from here on this test blocks the loop of the worker
        until(lambda: set(carriers(zygote.mark)) <= {pid}, 1.1)
    status, _ = await task.finish()
    assert status.signal == signal.SIGKILL
    assert status.overdue == (how == "deadline")
    assert carriers(zygote.mark) == [pid]
    assert is_still([name])


@pytest.mark.parametrize("kind", KINDS)
async def test_p5_nothing_survives_a_normal_exit(zygote: Stage, kind: str) -> None:
    task = await zygote.call("tree", kind=kind, mark=marker(), quick=True)
    status, _ = await task.finish()
    assert status.exit_code == 0
    assert carriers(zygote.mark) == [zygote.zygote]


@contextmanager
def worker(guarded: bool, *kinds: str, stop_at: str = "") -> Iterator[tuple[Program, int, int, int, str, list[str]]]:
    """A worker with trees: the program, guardian, worker, zygote, its mark, and what moves."""
    mark = marker()
    trees = [f"{kind}:{marker()}" for kind in kinds]
    command = (sys.executable, "-m", "tests.guardian.zygote.warm_program", mark, *trees)
    env = {"STOP_AT": stop_at} if stop_at else {}
    with guardian(*command, env=env) if guarded else Program(*command, env=env) as program:
        guardian_pid = int(program.line().split()[1])
        zygote = next(pid for pid in children(guardian_pid) if is_zygote(pid))
        worker_pid = program.pid
        if guarded:
            worker_pid = next(pid for pid in children(guardian_pid) if b"warm_program" in cmdline(pid))
        handle = os.pidfd_open(worker_pid)
        try:
            yield program, guardian_pid, worker_pid, zygote, mark, [tree.partition(":")[2] for tree in trees]
            if guarded:  # whoever died, it does not outlive its guardian
                program.popen.kill()
                assert is_dead(handle, SECONDS)
        finally:
            os.close(handle)


def go_on(mark: str) -> None:
    for pid in carriers(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def are_gone(mark: str, but: int = 0) -> bool:
    """Return whether nobody lives, in two looks: one may miss who was forked while it lasted, by one who died then."""
    return all(len(carriers(mark)) <= but for _ in range(2))


def is_still(names: list[str]) -> bool:
    """Return whether nobody writes traces any more: those that do move on faster than /proc is read."""
    before = [trace_bytes(name) for name in names]
    time.sleep(0.02)
    return [trace_bytes(name) for name in names] == before


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("guarded", [True, False], ids=["worker", "library"])
@pytest.mark.parametrize("how", ["worker killed", "worker stopped", "guardian killed"])
def test_p1_p2_nothing_survives(guarded: bool, how: str) -> None:
    with worker(guarded, *KINDS) as (program, guardian_pid, worker_pid, _, mark, names):
        program.line()
        until(lambda: len(carriers(mark)) >= 200)
        wait = 1.0
        doomed = os.pidfd_open(guardian_pid if how == "guardian killed" else worker_pid)
        if how == "worker killed":
            os.kill(worker_pid, signal.SIGKILL)
        elif how == "guardian killed":
            os.kill(guardian_pid, signal.SIGKILL)
        else:
            os.kill(worker_pid, signal.SIGUSR1)
            deadline = float(program.line().split()[1])
            os.kill(worker_pid, signal.SIGSTOP)
            wait = deadline - boottime() + 1
        assert how == "worker stopped" or is_dead(doomed, SECONDS)
        os.close(doomed)
        expected = 1 if how == "worker stopped" else 0  # the zygote
        until(lambda: are_gone(mark, expected) and is_still(names), wait + 0.5)


@pytest.mark.parametrize("stop_at", STOPS)
@pytest.mark.parametrize("who", ["guardian", "worker", "guardian and zygote"])
def test_p2_nothing_is_alive_unarmed_whoever_dies_while_a_task_is_made(stop_at: str, who: str) -> None:
    with worker(True, "double_fork", stop_at=stop_at) as (program, guardian_pid, worker_pid, zygote, mark, _):
        until(lambda: any(state(pid) == "T" for pid in carriers(mark)))
        handles: dict[int, int] = {}
        for pid in carriers(mark):
            with suppress(ProcessLookupError):  # it has ended meanwhile
                handles[pid] = os.pidfd_open(pid)
        if "zygote" in who:
            os.kill(zygote, signal.SIGKILL)
        os.kill(worker_pid if who == "worker" else guardian_pid, signal.SIGKILL)
        if who != "worker":
            program.wait()
        for handle in handles.values():  # one that was stopped looks around as soon as it goes on
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGCONT)
            os.close(handle)
        until(lambda: are_gone(mark), 1.5)


@pytest.mark.parametrize("stop_at", STOPS)
async def test_a_zygote_that_dies_while_a_task_is_made_costs_no_task(
    stop_at: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is started cold if it was not forked, else it goes on; it runs once in any case."""
    (tmp_path / "m.py").write_text("import os\ndef f(): os.write(os.open('ran', 577 | 1024, 0o600), b'.')\n")
    async with stage(STOP_AT=stop_at) as made:
        asking = asyncio.create_task(made.call("m:f", launch={"cwd": str(tmp_path)}))
        await until_async(lambda: any(state(pid) == "T" for pid in carriers(made.mark)))
        os.kill(made.zygote, signal.SIGKILL)
        await until_async(lambda: "with the preloaded modules is gone (signal 9 killed it)" in caplog.text)
        go_on(made.mark)
        status, output = await (await asking).finish()
        assert status.exit_code == 0, output
        assert (tmp_path / "ran").read_bytes() == b"."
        await until_async(lambda: carriers(made.mark) == [])
        assert (await (await made.call("end", code=5)).finish())[0].exit_code == 5
        assert caplog.text.count("preloaded") == 1


@pytest.mark.parametrize("stop_at", STOPS)
async def test_p1_a_deadline_that_passes_while_a_task_is_made_is_kept(stop_at: str, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("import os\ndef f(): os.mkdir('ran')\n")
    async with stage(STOP_AT=stop_at) as made:
        launch = {"cwd": str(tmp_path), "deadline": boottime() + 0.2}
        asking = asyncio.create_task(made.call("m:f", launch=launch))
        await until_async(lambda: any(state(pid) == "T" for pid in carriers(made.mark)))
        await asyncio.sleep(0.3)
        go_on(made.mark)
        task = await asking
        status, _ = await task.finish()
        assert (status.signal, status.overdue) == (signal.SIGKILL, True)
        assert not (tmp_path / "ran").exists()


async def test_a_zygote_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with impatient_guardian(monkeypatch, "ANSWER_SECONDS"):
        async with stage() as made:
            os.kill(made.zygote, signal.SIGSTOP)
            tasks = await asyncio.gather(*(made.call("end", code=6) for _ in range(3)))
            assert [(await task.finish())[0].exit_code for task in tasks] == [6] * 3


async def test_a_lost_zygote_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with impatient_guardian(monkeypatch, "AGAIN_SECONDS"):
        async with stage() as made:
            running = await made.call("sleep")
            await running.line()
            first = made.zygote
            os.kill(first, signal.SIGKILL)
            await until_async(lambda: state(first) == "X")
            await asyncio.sleep(0.2)
            assert '"warm": false' in (await (await made.call("look")).finish())[1]
            while '"warm": true' not in (await (await made.call("look")).finish())[1]:
                pass
            assert not running.process.has_exited()


async def test_s11_neighbours_that_leave_strays_and_cold_starts_cost_no_task(zygote: Stage) -> None:
    """The guardian kills what it does not know; a task that the zygote forks must be known before it can be seen."""
    before = descriptors(zygote.guardian)

    async def warm(count: int) -> None:
        for number in range(count):
            status, output = await (await zygote.call("end", code=number % 256)).finish()
            assert (status.exit_code, status.signal) == (number % 256, None), output

    async def strays(count: int) -> None:
        for _ in range(count):
            status, _ = await (await zygote.call("tree", kind="double_fork", mark=marker(), quick=True)).finish()
            assert status.exit_code == 0

    async def cold(count: int) -> None:
        argv = ("sh", "-c", "setsid sh -c 'sleep 99 & setsid sleep 99 &' & exit 7")
        for _ in range(count):
            status, _ = await (await start(zygote.spawner, *argv)).finish()
            assert status.exit_code == 7

    await asyncio.gather(
        *(warm(ROUNDS) for _ in range(3)), *(strays(ROUNDS) for _ in range(3)), cold(ROUNDS), cold(ROUNDS)
    )
    await until_async(lambda: descriptors(zygote.guardian) == before)
    assert children(zygote.guardian) == [zygote.zygote]


async def test_p2_cancelled_starts_leave_nothing(zygote: Stage) -> None:
    for number in range(ROUNDS):
        asking = [asyncio.create_task(zygote.call("sleep")) for _ in range(6)]
        await asyncio.sleep(0.003 * (number % 6))
        for start_ in asking:
            start_.cancel()
        for started in await asyncio.gather(*asking, return_exceptions=True):
            if not isinstance(started, BaseException):
                started.process.kill()
                await started.finish()
    await until_async(lambda: carriers(zygote.mark) == [zygote.zygote])
    status, _ = await (await zygote.call("end", code=8)).finish()
    assert status.exit_code == 8


async def test_p2_the_zygote_killed_again_and_again_under_load_costs_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    with impatient_guardian(monkeypatch, "AGAIN_SECONDS"):
        async with stage() as made:
            ended = 0

            async def slot() -> None:
                nonlocal ended
                for number in range(40):
                    status, output = await (await made.call("end", code=number)).finish()
                    assert (status.exit_code, status.signal) == (number, None), output
                    ended += 1

            slots = asyncio.gather(*(slot() for _ in range(4)))
            kills = 0
            while not slots.done():
                await asyncio.sleep(0.15)
                for pid in children(made.guardian):
                    if is_zygote(pid):
                        os.kill(pid, signal.SIGKILL)
                        kills += 1
            await slots
            assert (ended, kills >= 3) == (160, True)
            await until_async(lambda: all(is_zygote(pid) for pid in children(made.guardian)))


def test_p2_a_storm_of_forks_when_the_guardian_dies() -> None:
    for round_ in range(3):
        with worker(round_ % 2 == 0, *["setsid"] * 60) as (_, guardian_pid, _, _, mark, _):
            until(lambda: len(carriers(mark)) > 10)
            with watched(guardian_pid) as handle:
                os.kill(guardian_pid, signal.SIGKILL)
                assert is_dead(handle, SECONDS)
            until(lambda: are_gone(mark), 1.5)


async def test_p3_an_exec_of_a_warm_task_is_still_its_tree(zygote: Stage, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("import os\ndef f(argv): os.execv(argv[0], argv)\n")
    mark = marker()
    task = await zygote.call("m:f", argv=list(hostile("double_fork", mark)), launch={"cwd": str(tmp_path)})
    await until_async(lambda: len(living(mark)) == 2)
    task.process.kill()
    await task.finish()
    assert living(mark) == []


async def test_without_preload_a_launch_that_may_be_forked_starts_cold() -> None:
    async with GuardianSpawner() as spawner:
        made = Stage(spawner, marker())
        assert (await (await made.call("end", code=9)).finish())[0].exit_code == 9
