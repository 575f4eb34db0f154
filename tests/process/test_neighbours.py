"""Eight tasks of one worker, one of which loses its lease: the seven others notice nothing (S11)."""

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.process.stage import Stage, alive, stage_in, until_true

pytestmark = pytest.mark.check

SLOTS = 8


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage_in(tmp_path) as stage:
        yield stage


def steal(stage: Stage, task_id: str) -> None:
    """Make the receipt of one task stale, as a service does that has given the message to another."""
    with sqlite3.connect(stage.folder / "queue.db") as database:
        found = database.execute("UPDATE task SET receipt = 'another' WHERE id = ?", (task_id,)).rowcount
    database.close()
    assert found == 1


def pids(stage: Stage) -> dict[str, int]:
    """Return the last number that each task printed."""
    return {task_id: int(line) for task_id, _, line in stage.lines if line.isdigit()}


@pytest.mark.parametrize("behavior", ["sigkill", "sigterm"])
async def test_s11_lock_loss_of_one_of_eight_leaves_seven_undisturbed(stage: Stage, behavior: str) -> None:
    finish = stage.folder / "finish"
    command = (
        "trap 'echo disturbed' TERM HUP INT CONT USR1; echo $$;"
        f' until [ -e {finish} ] || [ $JOBQ_ATTEMPT -gt 1 ]; do sleep 0.05; done; echo "end $JOBQ_ATTEMPT"'
    )
    ids = await stage.push(*[command] * SLOTS)
    grace: dict[str, Any] = {"lock_lost_behavior": behavior, "lock_lost_grace": timedelta(seconds=0.2)}
    worker = asyncio.create_task(stage.work(num_workers=SLOTS, idle_timeout=timedelta(seconds=3), **grace))
    await stage.until(lambda: len(pids(stage)) == SLOTS)
    before = pids(stage)
    loser = ids[3]
    steal(stage, loser)
    await stage.until(lambda: stage.told("task.lease_lost"))
    (lost,) = stage.told("task.lease_lost")
    assert lost.fields["task_id"] == loser
    assert not alive(before[loser])
    # Two whole leases later the seven still run, each the process that it was, renewed and not restarted.
    renewed = stage.faults.count("renew")
    await stage.faults.begun("renew", renewed + 8 * (SLOTS - 1))
    others = {task_id: pid for task_id, pid in before.items() if task_id != loser}
    assert all(alive(pid) for pid in others.values())
    finish.touch()
    report = await worker
    assert (report.succeeded, report.failed, report.lost, report.exit_code) == (SLOTS, 0, 1, 0)
    assert {task_id: pids(stage)[task_id] for task_id in others} == others
    assert not [line for _, _, line in stage.lines if line == "disturbed" and behavior == "sigkill"]
    assert {task_id for task_id, _, line in stage.lines if line == "disturbed"} <= {loser}
    ends = {task_id: line for task_id, _, line in stage.lines if line.startswith("end")}
    assert ends == {**dict.fromkeys(others, "end 1"), loser: "end 2"}
    await until_true(lambda: _all_dead(others))


async def _all_dead(processes: dict[str, int]) -> bool:
    return not any(alive(pid) for pid in processes.values())


async def test_s11_a_worker_whose_guardian_is_gone_takes_nothing_more(stage: Stage) -> None:
    """Below a watcher it is killed in a moment, and what it took would be charged; else it could start nothing."""
    killer, other = await stage.push("kill -9 $PPID", "true")
    async with asyncio.timeout(20):
        report = await stage.work(num_workers=1)
    assert report.exit_code == 137
    assert [event.fields["task_id"] for event in stage.told("task.leased")] == [killer]
    (waiting,) = [each for each in await stage.backend.peek(10) if each.id == other]
    assert waiting.deliveries == 0


async def test_s11_a_task_that_removes_the_workers_folder_costs_no_other_anything(stage: Stage) -> None:
    """Each later task of the worker failed, and so did who ran meanwhile and had something to save."""
    again = stage.folder / "again"
    says = f"{sys.executable} -m jobq checkpoint 1 && echo 1 > $JOBQ_RESULT_FILE && ls $JOBQ_RESULT_FILE"
    await stage.push(f"until [ -e {again} ]; do sleep 0.05; done; {says}", 'rm -rf "$(dirname "$JOBQ_RESULT_FILE")"')
    await stage.push(f"{says}; touch {again}")
    report = await stage.work(num_workers=2, visibility_timeout=timedelta(seconds=30))
    assert (report.succeeded, report.failed) == (3, 0)
    assert len(stage.lines) == 2, "both found their results"
