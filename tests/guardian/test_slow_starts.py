"""A start that takes long: its deadline moves with its lease, and what is not wanted any more never runs (P1, P2)."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from jobq.run.process.spawner import Deadline, StatusLost
from tests.guardian.stage import boottime, state, until_async
from tests.guardian.zygote.warming import impatient_guardian, stage


async def test_p1_a_deadline_that_moves_while_a_task_is_started_counts() -> None:
    async with stage() as made:
        zygote = made.zygote
        os.kill(zygote, signal.SIGSTOP)
        first = boottime() + 0.5
        deadline = Deadline(first)
        start = asyncio.create_task(made.call("end", code=6, launch={"deadline": deadline}))
        await until_async(lambda: deadline._enforce is not None)
        deadline.move(boottime() + 1000)
        await asyncio.sleep(first + 0.1 - boottime())  # the time itself is what is waited for
        os.kill(zygote, signal.SIGCONT)
        status, _ = await (await start).finish()
        assert (status.exit_code, status.overdue) == (6, False)


async def test_p1_a_task_whose_deadline_passes_while_it_is_started_never_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And is no failed start: its lease has run out."""
    with impatient_guardian(monkeypatch, "ANSWER_SECONDS"):
        async with stage() as made:
            os.kill(made.zygote, signal.SIGSTOP)
            with pytest.raises(StatusLost, match="lease ended"):
                await made.call("os:mkdir", path=str(tmp_path / "ran"), launch={"deadline": boottime() + 0.02})
            assert not (tmp_path / "ran").exists()


async def test_p2_a_start_that_is_cancelled_while_the_zygote_hangs_never_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with impatient_guardian(monkeypatch, "ANSWER_SECONDS"):
        async with stage() as made:
            zygote = made.zygote
            os.kill(zygote, signal.SIGSTOP)
            start = asyncio.create_task(made.call("os:mkdir", path=str(tmp_path / "ran")))
            await until_async(lambda: made.spawner._tasks)
            start.cancel()
            await until_async(lambda: state(zygote) == "X")
            await until_async(lambda: not made.spawner._tasks)  # it was told what became of it
            assert (await (await made.call("end", code=6)).finish())[0].exit_code == 6
            assert not (tmp_path / "ran").exists()
