"""What a task's whole tree uses, its memory limit, and kills by the kernel: real workers, real process trees."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobq.run.process.oom import OomCounter
from jobq.run.process.usage import UsageSampler
from jobq.run.stopping import Stopping
from jobq.run.worker.host import WorkerHost
from jobq.run.worker.worker import Worker
from jobq.task import Task
from tests.process.stage import Stage, alive, stage_in, until_measured, until_true

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="escapees belong to a task on Linux only")
MIB = 1024**2
# A program ends when the file "enough" is there: the test says when, so nothing depends on how long things take.
PRELUDE = f"""
import os, sys, time
folder = os.environ["FOLDER"]
def burn(seconds):
    while time.process_time() < seconds: pass
def hold(size):
    return b"x" * (size * {MIB})
def note(name):
    with open(f"{{folder}}/pids", "a") as file: file.write(f"{{os.getpid()}}\\n")
def wait():
    while not os.path.exists(f"{{folder}}/enough"): time.sleep(0.01)
def escape():
    "Continue as a process that left group and session, and whose parent is gone; the caller becomes the leader again."
    if os.fork():
        os.wait()
        return False
    os.setsid()
    if os.fork(): os._exit(0)
    return True
"""


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage_in(tmp_path) as stage:
        yield stage


async def push(stage: Stage, program: str, **fields: Any) -> str:
    argv = [sys.executable, "-S", "-c", PRELUDE + program]
    task = Task.new(argv=argv, env={"FOLDER": str(stage.folder)}, **fields)
    (task_id,) = await stage.backend.push([task])
    return task_id


@contextlib.asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[UsageSampler]:
    """Run a worker beside the test, and see it to its end."""
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        yield worker._sampler


def enough(stage: Stage) -> None:
    (stage.folder / "enough").touch()


def pids(stage: Stage) -> list[int]:
    return [int(line) for line in (stage.folder / "pids").read_text().split()]


async def test_the_whole_tree_is_measured(stage: Stage) -> None:
    """Also a process that left the session and that nobody waits for: the kernel's own sum for the leader lacks it."""
    await push(
        stage,
        """
if escape(): burn(0.4); wait(); os._exit(0)
if not os.fork(): held = hold(80); wait(); os._exit(0)
wait()
os.wait()
""",
    )
    async with working(stage.worker()) as sampler:
        await until_measured(
            sampler,
            lambda watch: (
                watch._usage.cpu_seconds >= 0.4
                and watch._usage.max_rss_bytes >= 80 * MIB
                and watch._usage.processes >= 3
            ),
        )
        enough(stage)
    (told,) = stage.told("task.succeeded")
    assert told.fields["cpu_s"] >= 0.4
    assert 80 * MIB <= told.fields["max_rss_bytes"] < 250 * MIB
    assert told.fields["processes"] >= 3


async def test_a_task_too_short_to_be_sampled_has_what_the_kernel_says(stage: Stage) -> None:
    await push(stage, "burn(0.05)")
    await stage.work()
    (told,) = stage.told("task.succeeded")
    assert told.fields["cpu_s"] >= 0.04
    assert told.fields["processes"] >= 1


async def test_over_its_limit_the_whole_tree_dies_and_a_retry_is_consumed(stage: Stage) -> None:
    """P3, P7, S11: an escapee does the harm; the neighbour notices nothing."""
    neighbour = await push(stage, "wait()")
    await push(
        stage,
        """
if escape(): note("escapee"); held = hold(150); time.sleep(1000)
note("leader")
time.sleep(1000)
""",
        budgets={"retries": 1},
    )
    async with working(stage.worker(num_workers=2, memory_limit=100 * MIB)):
        await stage.until(lambda: stage.told("task.dead_lettered"))
        assert not any(alive(pid) for pid in pids(stage))
        enough(stage)
    assert len(pids(stage)) == 4, "two attempts of two processes"
    (dead,) = await stage.backend.dead_letters(10)
    assert dead.reason == "memory_limit"
    assert dead.description.startswith("failed 2 times; last: killed: 1")
    assert " MiB in use, over its memory limit of 100 MiB" in dead.description
    assert [event.fields["task_id"] for event in stage.told("task.succeeded")] == [neighbour]
    (first, _) = stage.told("task.failed")
    assert first.fields["max_rss_bytes"] > 100 * MIB
    assert stage.told("task.retry_scheduled")


async def test_below_its_limit_a_task_is_left_alone(stage: Stage) -> None:
    await push(stage, "held = hold(40); wait()")
    async with working(stage.worker(memory_limit=100 * MIB)) as sampler:
        watch = await until_measured(sampler, lambda watch: watch._usage.max_rss_bytes >= 40 * MIB)
        seen = watch.samples
        await until_measured(sampler, lambda watch: watch.samples >= seen + 2)
        enough(stage)
    assert stage.told("task.succeeded")
    assert not stage.told("task.failed")


async def test_memory_that_is_shared_counts_once(stage: Stage) -> None:
    """Four processes share a buffer of 100 MiB: 400 MiB resident in sum, of which a quarter is really used."""
    await push(
        stage,
        """
held = hold(100)
for _ in range(3):
    if not os.fork(): sum(held[::4096]); wait(); os._exit(0)
wait()
""",
    )
    async with working(stage.worker(memory_limit=250 * MIB)) as sampler:
        await until_measured(
            sampler, lambda watch: watch._usage.max_rss_bytes > 400 * MIB and watch._confirm_above_bytes > 0
        )
        enough(stage)
    (told,) = stage.told("task.succeeded")
    assert told.fields["max_rss_bytes"] > 400 * MIB


async def test_memory_that_ceases_to_be_shared_is_found(stage: Stage) -> None:
    """The sum of resident sets stays as it is when pages are copied, so a look that found little is repeated."""
    await push(
        stage,
        """
held = bytearray(b"x") * (60 << 20)
if not os.fork():
    while not os.path.exists(f"{folder}/write"): time.sleep(0.01)
    held[::4096] = b"y" * len(held[::4096])
wait()
""",
        budgets={"retries": 0},
    )
    async with working(stage.worker(memory_limit=115 * MIB)) as sampler:
        await until_measured(sampler, lambda watch: watch._confirm_above_bytes > 0)
        (stage.folder / "write").touch()
    (dead,) = await stage.backend.dead_letters(10)
    assert dead.reason == "memory_limit"


async def test_shares_that_cannot_be_read_in_time_count_whole(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may hold its memory map locked: neither its own limit nor a neighbour's waits for that (S11)."""
    stuck = threading.Event()
    monkeypatch.setattr("jobq.run.process.process_table.pss_bytes", lambda _rss_of: stuck.wait() and 0)
    monkeypatch.setattr("jobq.run.process.usage.CONFIRM_SECONDS", 0.1)
    await push(stage, "held = hold(150); time.sleep(1000)", budgets={"retries": 0})
    await stage.work(memory_limit=100 * MIB)
    stuck.set()
    (dead,) = await stage.backend.dead_letters(10)
    assert dead.reason == "memory_limit"


async def test_a_grace_ends_when_the_limit_is_passed(stage: Stage) -> None:
    """A preempted task that fills the memory while it says goodbye is killed then, and no retry is charged (P7)."""
    await push(
        stage,
        """
import signal
signal.signal(signal.SIGTERM, lambda *_: globals().update(held=hold(150)))
print("ready", flush=True)
while True: time.sleep(1000)
""",
    )
    stopping = Stopping()
    async with working(stage.worker(stopping, memory_limit=100 * MIB)):
        await stage.until_printed("ready")
        began = time.monotonic()
        stopping.stop("the test")
    assert time.monotonic() - began < 15, "the grace is 20 s"
    (told,) = stage.told("task.preempted")
    assert told.fields["signal"] == 9
    (delivery,) = await stage.backend.receive(1, None, timedelta(0))
    assert delivery.task.counters.failures == 0


@pytest.mark.parametrize(("rises", "others"), [(True, False), (True, True), (False, False)])
async def test_a_kill_by_the_kernel_is_told_apart(stage: Stage, rises: bool, others: bool) -> None:
    """P7: a FAKE counter file and a `kill -9` play the kernel; the kind stays a crash, the detail says why."""
    counter = stage.folder / "fake-memory.events"
    counter.write_text("oom_kill 3\n")

    class FakeHost(WorkerHost):
        def oom_counter(self) -> OomCounter:
            return OomCounter(counter)

    if others:
        await push(stage, "wait()")
    rise = f"echo oom_kill 4 > {counter};" if rises else ""
    await stage.push(f"{rise} kill -KILL $$", budgets={"crashes": 0})
    async with working(stage.worker(host=FakeHost(), num_workers=2)):
        await stage.until(lambda: stage.told("task.crashed"))
        enough(stage)
    (told,) = stage.told("task.crashed")
    assert (
        told.fields["detail"]
        == {
            (True, False): "killed by the kernel: out of memory (ended by signal 9)",
            (True, True): "ended by signal 9; an out-of-memory kill by the kernel happened here meanwhile",
            (False, False): "ended by signal 9",
        }[rises, others]
    )


@pytest.mark.night("a measurement of CPU: 10 s")
@pytest.mark.parametrize("limit", [None, 1024 * MIB])
async def test_sampling_64_tasks_costs_under_a_hundredth_of_a_core(stage: Stage, limit: int | None) -> None:
    """The pause follows the cost, so this holds by construction as long as the longest pause is not reached."""
    await stage.push(*["exec sleep 1000"] * 64)
    stopping = Stopping()
    settings: dict[str, Any] = {"num_workers": 64, "visibility_timeout": timedelta(seconds=60), "memory_limit": limit}
    async with working(stage.worker(stopping, **settings)) as sampler:
        await stage.until(lambda: len(stage.told("task.started")) == 64)

        async def every_one_was_seen() -> bool:
            return len(sampler._watched) == 64 and all(watch.samples for watch in sampler._watched)

        await until_true(every_one_was_seen)
        passes, spent, began = sampler.passes, sampler.cpu_seconds, time.monotonic()
        everything = time.process_time()

        async def several_passes() -> bool:
            return sampler.passes >= passes + 5

        await until_true(several_passes, seconds=60)
        elapsed = time.monotonic() - began
        spent = sampler.cpu_seconds - spent
        everything = time.process_time() - everything
        stopping.now("the test")
    print(
        f"\n64 tasks, limit {limit}: {spent / 5 * 1000:.2f} ms a pass, {spent / elapsed:.2%} of a core;"
        f" the whole worker with this test's polling {everything / elapsed:.2%}"
    )
    assert spent / elapsed < 0.01


def test_psutil_is_not_imported_while_a_worker_starts() -> None:
    program = "import sys, jobq.run.worker.worker; sys.exit('psutil' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
