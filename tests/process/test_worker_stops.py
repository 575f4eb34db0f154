"""How a worker stops: what it finishes, what it gives back, and when."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.clock import SystemClock
from jobq.run.stopping import Stopping
from tests.process.stage import Stage, alive, stage_in, until_true


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage_in(tmp_path) as stage:
        yield stage


async def test_stop_gives_the_work_back_at_once_and_charges_no_retry(stage: Stage) -> None:
    """P8: SIGTERM to the group, then back in the queue, visible at once, one preemption recorded."""
    stopping = Stopping()
    await stage.push("trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.02; done")
    worker = asyncio.create_task(stage.worker(stopping).run())
    await stage.until_printed("ready")
    stopping.stop("a test")
    report = await worker
    assert (report.given_back, report.failed, report.lost) == (1, 0, 0)
    assert any(line == "told" for _, _, line in stage.lines)
    (delivery,) = await stage.backend.receive(1, None, timedelta(0))
    counters = delivery.task.counters
    assert (counters.preemptions, counters.failures, counters.ends, delivery.task.generation) == (1, 0, 1, 1)


@pytest.mark.parametrize("trap", ["", "trap 'exit 143' TERM; "])
async def test_a_signal_to_the_whole_tree_gives_the_work_back(stage: Stage, trap: str) -> None:
    """It reaches task and worker in the same second: the task was charged a crash, or a retry (P7, S7)."""
    stopping = Stopping()
    await stage.push(f"{trap}echo $$; while :; do sleep 0.02; done", budgets={"crashes": 0, "retries": 0})
    worker = asyncio.create_task(stage.worker(stopping).run())
    await stage.until(lambda: stage.lines)
    os.kill(int(stage.lines[0][2]), signal.SIGTERM)
    await until_true(lambda: _is_gone(int(stage.lines[0][2])))
    stopping.stop("SIGTERM")
    report = await worker
    assert (report.given_back, report.failed, report.dead_lettered) == (1, 0, 0)
    assert stage.told("task.preempted")[0].fields["detail"] == "stopped: SIGTERM"


async def test_p7_a_signal_to_the_task_alone_is_its_own_end(stage: Stage) -> None:
    await stage.push("kill -TERM $$", budgets={"crashes": 0})
    report = await stage.work()
    assert (report.given_back, report.failed, report.dead_lettered) == (0, 1, 1)


async def _is_gone(pid: int) -> bool:
    return not alive(pid)


async def test_a_task_that_will_not_stop_is_killed_after_its_grace(stage: Stage) -> None:
    stopping = Stopping()
    await stage.push("trap '' TERM; echo ready; while :; do sleep 0.02; done")
    worker = asyncio.create_task(stage.worker(stopping, stop_grace=timedelta(seconds=0.3)).run())
    await stage.until_printed("ready")
    began = time.monotonic()
    stopping.stop("a test")
    assert (await worker).given_back == 1
    assert 0.3 <= time.monotonic() - began < 5


async def test_a_second_interrupt_does_not_wait_for_the_grace(stage: Stage) -> None:
    stopping = Stopping()
    await stage.push("trap '' TERM; echo ready; while :; do sleep 0.02; done")
    worker = asyncio.create_task(stage.worker(stopping, stop_grace=timedelta(seconds=60)).run())
    await stage.until_printed("ready")
    stopping.stop("a test")
    stopping.now("at once")
    async with asyncio.timeout(10):
        assert (await worker).given_back == 1


async def test_drain_finishes_what_runs_and_takes_nothing_new(stage: Stage) -> None:
    stopping = Stopping()
    await stage.push(f"echo ready; while ! test -e {stage.folder}/go; do sleep 0.02; done", "echo never")
    worker = asyncio.create_task(stage.worker(stopping).run())
    await stage.until_printed("ready")
    stopping.drain("a test")
    (stage.folder / "go").touch()
    report = await worker
    assert (report.succeeded, report.given_back, report.exit_code) == (1, 0, 0)
    assert (await stage.backend.stats()).visible == 1


async def test_a_waiting_worker_stops_at_once(stage: Stage) -> None:
    stopping = Stopping()
    worker = asyncio.create_task(stage.worker(stopping, idle_timeout=timedelta(hours=1)).run())
    await stage.faults.begun("receive", 2)
    stopping.stop("a test")
    async with asyncio.timeout(5):
        assert (await worker).exit_code == 0


async def test_a_waiting_worker_starts_what_is_pushed(stage: Stage) -> None:
    stopping = Stopping()
    worker = asyncio.create_task(stage.worker(stopping, idle_timeout=timedelta(hours=1)).run())
    await stage.faults.begun("receive", 2)
    await stage.push("true")
    await stage.until(lambda: stage.told("task.succeeded"))
    stopping.stop("a test")
    assert (await worker).succeeded == 1


async def test_a_task_that_comes_after_a_long_wait_is_started(stage: Stage) -> None:
    """Rule 1.3(5): the receive was sent longer ago than a lease may be held; one renewal, then the start."""
    stopping = Stopping()
    worker = asyncio.create_task(stage.worker(stopping, idle_timeout=timedelta(hours=1)).run())
    await stage.faults.begun("receive", 2)
    clock = SystemClock()
    await clock.sleep_until(clock.boottime() + 2.5)  # the time itself is the subject: more than the lease of 2 s
    await stage.push("true")
    await stage.until(lambda: stage.told("task.succeeded"))
    stopping.stop("a test")
    report = await worker
    assert (report.succeeded, report.lost) == (1, 0)
    assert stage.faults.count("renew") == 1


async def test_the_time_limit_drains(stage: Stage) -> None:
    await stage.push("true")
    report = await stage.work(idle_timeout=timedelta(hours=1), time_limit=timedelta(seconds=0.3))
    assert (report.succeeded, report.exit_code) == (1, 0)
