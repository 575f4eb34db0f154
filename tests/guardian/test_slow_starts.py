"""A start that takes long: its deadline moves with its lease, and what is not wanted any more never runs (P1, P2)."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobq.run.process.spawner import Deadline, StatusLost
from jobq.run.spawn.guardian_spawner import GuardianSpawner
from tests.guardian.spawning import guardian_of, start
from tests.guardian.stage import boottime, until_async


@contextmanager
def stopped(spawner: GuardianSpawner) -> Iterator[None]:
    """Keep the guardian from doing anything meanwhile."""
    os.kill(guardian_of(spawner), signal.SIGSTOP)
    yield
    os.kill(guardian_of(spawner), signal.SIGCONT)


async def test_p1_a_deadline_that_moves_while_a_task_is_started_counts() -> None:
    async with GuardianSpawner() as spawner:
        first = boottime() + 0.5
        deadline = Deadline(first)
        with stopped(spawner):
            starting = asyncio.create_task(start(spawner, "sh", "-c", "exit 6", deadline=deadline))
            await until_async(lambda: deadline._enforce is not None)
            deadline.move(boottime() + 1000)
            await asyncio.sleep(first + 0.1 - boottime())  # the time itself is what is waited for
        status, _ = await (await starting).finish()
        assert (status.exit_code, status.overdue) == (6, False)


async def test_p1_a_task_whose_deadline_passes_while_it_is_started_never_runs(tmp_path: Path) -> None:
    """And is no failed start: its lease has run out."""
    async with GuardianSpawner() as spawner:
        with stopped(spawner):
            deadline = boottime() + 0.02
            starting = asyncio.create_task(start(spawner, "mkdir", str(tmp_path / "ran"), deadline=deadline))
            await until_async(lambda: spawner._tasks and boottime() > deadline)
        with pytest.raises(StatusLost, match="lease ended"):
            await starting
        assert not (tmp_path / "ran").exists()


async def test_p2_a_start_that_is_cancelled_while_the_guardian_is_stopped_does_not_live(tmp_path: Path) -> None:
    async with GuardianSpawner() as spawner:
        command = f"touch {tmp_path}/ran; exec sleep 1000"
        with stopped(spawner):
            starting = asyncio.create_task(start(spawner, "sh", "-c", command))
            await until_async(lambda: spawner._tasks)
            starting.cancel()
        await until_async(lambda: not spawner._tasks)  # it was told what became of it
        with pytest.raises(asyncio.CancelledError):
            await starting
        status, _ = await (await start(spawner, "sh", "-c", "exit 6")).finish()
        assert status.exit_code == 6
