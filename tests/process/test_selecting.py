"""Workers of a queue that knows what its tasks ask for: they get what they have room for, and leave the rest alone."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.backend import Delivery
from jobq.clock import SystemClock
from jobq.pausing import Pause
from jobq.resources.offer import Gpu, Offer
from jobq.resources.room import Room
from jobq.run.attempt import task_grants
from jobq.run.attempt.held_grant import HeldGrant
from jobq.run.stopping import Stopping
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from jobq.settlement import Release
from jobq.testing.faults import Faults
from jobq_sqlite import SqliteBackend
from jobq_sqlite.host import this_host
from jobq_sqlite.open_file import StoreFile
from tests.process.stage import QUICK, Stage

pytestmark = pytest.mark.check

HOLD = "while ! test -e go; do sleep 0.05; done; echo first"


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    file = StoreFile(path=tmp_path / "queue.db", clock=SystemClock(), host=this_host())
    async with SqliteBackend(file, "stage") as backend:
        await backend.create()
        yield Stage(backend, Faults(), tmp_path)


async def test_what_fits_overtakes_what_does_not_and_that_starts_once_there_is_room(stage: Stage) -> None:
    """Nothing is put off, nothing waits under a lease: who overtakes for less than an hour may."""
    await stage.push(HOLD, cpus=3, cwd=str(stage.folder))
    await stage.push("echo big", cpus=4)
    await stage.push("true", gpus=1)
    await stage.push("echo small; touch go", cpus=1, cwd=str(stage.folder))
    report = await stage.work(num_workers=4, offer_cpus="4")
    assert (report.succeeded, report.exit_code) == (3, 0)
    assert [line for _, _, line in stage.lines] == ["small", "first", "big"]
    assert not stage.told("task.misfit")
    assert not stage.told("task.reserved")
    (last,) = stage.told("worker.misfits")
    assert last.fields["detail"] == "1 task waits that this worker cannot run: gpus=1 (1)"


async def test_who_waits_with_little_room_asks_again_when_there_is_more(stage: Stage) -> None:
    """It stays for a task for twenty seconds at once, of a queue in which nothing changes meanwhile."""
    await stage.push(HOLD, cpus=3, cwd=str(stage.folder))
    stopping = Stopping()
    working = asyncio.create_task(
        stage.worker(stopping, num_workers=4, offer_cpus="4", idle_timeout=timedelta(seconds=60)).run()
    )
    await stage.until(lambda: stage.told("task.started"))
    await stage.push("echo big", cpus=4)
    await asyncio.sleep(1.0)  # it has looked, and stays
    (stage.folder / "go").touch()
    began = time.monotonic()
    await stage.until_printed("big")
    assert time.monotonic() - began < 5.0
    stopping.drain("the test has seen it")
    await working


async def test_what_was_overtaken_for_long_waits_under_its_lease_and_comes_next(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_grants, "OVERTAKEN_SECONDS", 0.0)
    await stage.push(HOLD, cpus=3, cwd=str(stage.folder))
    await stage.push("echo big", cpus=4)
    await stage.push("echo small", cpus=1)
    working = asyncio.create_task(stage.work(num_workers=4, offer_cpus="4"))
    await stage.until(lambda: stage.told("task.reserved"))
    await asyncio.sleep(2.0)
    assert not stage.lines
    (stage.folder / "go").touch()
    report = await working
    assert report.succeeded == 3
    assert [line for _, _, line in stage.lines] == ["first", "big", "small"]


async def test_no_worker_ends_beside_what_will_fit(stage: Stage) -> None:
    """A device is freed a moment after the attempt that held it has ended, and the next one waits for it."""
    await stage.push(*["true"] * 40, gpus=1)
    report = await stage.work(num_workers=4, offer_gpus="0")
    assert report.succeeded == 40
    assert (await stage.backend.stats()).unfinished == 0


class _SlowToSay(SqliteBackend):
    """It takes long to say whether the queue is paused, which a worker asks once before it ends."""

    is_asked = False

    async def paused(self) -> Pause | None:
        self.is_asked = True
        await asyncio.sleep(1.0)
        return await super().paused()


async def test_who_is_about_to_end_looks_again_when_a_card_was_freed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The empty answer spoke of the room that there was when it was asked for."""
    file = StoreFile(path=tmp_path / "queue.db", clock=SystemClock(), host=this_host())
    async with _SlowToSay(file, "stage") as backend:
        await backend.create()
        stage = Stage(backend, Faults(), tmp_path)
        forget, later = task_grants.TaskGrants._forget, list[asyncio.Task[None]]()

        async def freed(grants: task_grants.TaskGrants, held: HeldGrant) -> None:
            while not backend.is_asked:
                await asyncio.sleep(0.01)
            forget(grants, held)

        monkeypatch.setattr(
            task_grants.TaskGrants, "_forget", lambda *given: later.append(asyncio.ensure_future(freed(*given)))
        )
        await stage.push("true", "true", gpus=1)
        report = await Worker(backend, Settings(**QUICK), offer=Offer(gpus=(Gpu("0"),))).run()
        assert (report.succeeded, (await backend.stats()).visible) == (2, 0)


class _FarAway(SqliteBackend):
    """Its answers are on their way for a while; who hangs up meanwhile gives back what they grant."""

    given_back = 0

    async def receive_fitting(
        self, room: Room, max_tasks: int, lease: timedelta | None, wait: timedelta, *, worker_id: str = ""
    ) -> list[Delivery]:
        await asyncio.sleep(0.1)
        found = await super().receive_fitting(room, max_tasks, lease, wait, worker_id=worker_id)
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            self.given_back += len(found)
            for each in found:
                await asyncio.shield(each.settle(Release()))
            raise
        return found


async def test_who_asks_again_because_something_ended_hears_the_answer(tmp_path: Path) -> None:
    """Where something ends all the time, the next end would cut that receive short, too, and what it grants go back."""
    file = StoreFile(path=tmp_path / "queue.db", clock=SystemClock(), host=this_host())
    async with _FarAway(file, "stage") as backend:
        await backend.create()
        stage = Stage(backend, Faults(), tmp_path)
        for number in range(60):
            await stage.push(f"sleep {0.2 + number % 13 / 10:.1f}", cpus=1)
        report = await stage.work(num_workers=32, offer_cpus="16", visibility_timeout=timedelta(seconds=20))
    assert report.succeeded == 60
    assert backend.given_back <= 15
