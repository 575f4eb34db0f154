"""Workers that offer something of their machine: what tasks get, what does not fit, and when a device is handed on."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobq.run.stopping import Stopping
from jobq.settlement import Release
from jobq.task import Counters, Task
from jobq.testing.faults import Fault, FaultyBackend
from jobq_sqlite import SqliteBackend
from tests.guardian.undying import undying
from tests.process.stage import Stage, stage_in

pytestmark = pytest.mark.check

SHOW = 'echo "$JOBQ_CPUS|$JOBQ_GPUS|$JOBQ_MEMORY|$CUDA_VISIBLE_DEVICES|$OMP_NUM_THREADS"'
# Leaves a process that holds the device in a session of its own, and ends well.
ESCAPES = (
    "import os, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid(); print('left', os.getpid(), flush=True); time.sleep(1000)\n"
    "time.sleep(0.5)\n"
)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage_in(tmp_path) as stage:
        yield stage


async def test_a_task_finds_what_it_was_granted(stage: Stage) -> None:
    await stage.push(SHOW, cpus=2.5, gpus=1, mem="1G", env={"CUDA_VISIBLE_DEVICES": "7", "JOBQ_CPUS": "99"})
    report = await stage.work(offer_cpus="4", offer_memory="2G", offer_gpus="3,5")
    assert report.succeeded == 1
    assert [line for _, _, line in stage.lines] == [f"2.5|1|{1024**3}|3|2"]


async def test_what_asks_for_no_gpu_sees_none_where_some_are_offered(stage: Stage) -> None:
    await stage.push('echo "<${CUDA_VISIBLE_DEVICES-unset}>"')
    await stage.work(offer_gpus="0")
    await stage.push('echo "<${CUDA_VISIBLE_DEVICES-unset}>"')
    await stage.work()
    assert [line for _, _, line in stage.lines] == ["<>", "<unset>"]


async def test_no_two_run_on_one_device(stage: Stage) -> None:
    """Eight on two cards: what runs at once is what fits."""
    script = "mkdir card-$CUDA_VISIBLE_DEVICES || exit 9; sleep 0.1; rmdir card-$CUDA_VISIBLE_DEVICES"
    await stage.push(*[script] * 8, gpus=1, cwd=str(stage.folder))
    report = await stage.work(num_workers=8, offer_gpus="0,1")
    assert (report.succeeded, report.failed) == (8, 0)


async def test_as_many_as_fit(stage: Stage) -> None:
    """`-n auto`: who asks for no processor counts as one."""
    meet = "touch $JOBQ_TASK_ID; for _ in $(seq 100); do test $(ls | wc -l) = 3 && exit 0; sleep 0.1; done; exit 9"
    folder = stage.folder / "meet"
    folder.mkdir()
    await stage.push(meet, cwd=str(folder))
    await stage.push(meet, meet, cpus=0.5, cwd=str(folder))
    await stage.push("test $(ls | wc -l) = 3", cwd=str(folder))
    report = await stage.work(num_workers="auto", offer_cpus="2")
    assert (report.succeeded, report.failed) == (4, 0)
    assert stage.told("worker.started")[0].fields["slots"] == 2


async def test_its_memory_is_its_limit_and_the_neighbour_with_more_lives(stage: Stage) -> None:
    fill = "import sys, time; x = b'x' * (150 << 20); time.sleep(float(sys.argv[1]))"
    small = Task.new(argv=[sys.executable, "-c", fill, "30"], mem="100M", budgets={"retries": 0})
    large = Task.new(argv=[sys.executable, "-c", fill, "2"], mem="1G")
    await stage.backend.push([small, large])
    report = await stage.work(num_workers=2, offer_memory="2G")
    assert (report.succeeded, report.dead_lettered) == (1, 1)
    (dead,) = await stage.backend.dead_letters(1)
    assert (dead.id, dead.reason) == (small.id, "memory_limit")
    assert "over its memory limit of 100 MiB" in dead.description


@pytest.mark.parametrize("offer", [{}, {"offer_gpus": "0", "tags": "eu"}])
async def test_what_does_not_fit_goes_back_and_the_last_words_say_so(stage: Stage, offer: dict[str, Any]) -> None:
    """S7: no budget is touched, and the worker does not wait for them."""
    await stage.push("true", "true", gpus=2)
    await stage.push("true", needs=["a100", "eu"])
    await stage.push("true")
    report = await stage.work(**offer)
    assert (report.succeeded, report.failed, report.exit_code) == (1, 0, 0)
    assert len(stage.told("task.misfit")) == 3
    delays = [event.fields["delay_s"] for event in stage.told("task.released")]
    assert all(15 <= delay <= 30 for delay in delays)
    needs = "needs a100" if offer else "needs a100, eu"
    (last,) = stage.told("worker.misfits")
    assert last.fields["detail"] == f"3 tasks wait that this worker cannot run: gpus=2 (2), {needs} (1)"
    assert (await stage.backend.stats()).scheduled == 3


async def test_a_later_delay_is_longer(stage: Stage) -> None:
    (task_id,) = await stage.push("true", gpus=1)
    delays = []
    for _ in range(3):
        await _inner(stage).hasten([task_id])
        await stage.work()
        delays.append(stage.told("task.released")[-1].fields["delay_s"])
    assert 15 <= delays[0] <= 30 <= delays[1] <= 60 <= delays[2] <= 120


async def test_a_delay_is_as_long_as_misfits_say_whatever_else_it_went_back_for(stage: Stage) -> None:
    await stage.push("true", gpus=1)
    for _ in range(6):
        (delivery,) = await stage.backend.receive(1, timedelta(seconds=5), timedelta(0))
        await delivery.settle(Release())
    await stage.work()
    (released,) = stage.told("task.released")
    assert 15 <= released.fields["delay_s"] <= 30


async def test_s7_what_no_worker_can_run_is_a_dead_letter_in_the_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does not wait for ever; no budget is touched, and a retry begins anew."""
    monkeypatch.setattr("jobq.run.attempt.retry.MOST_MISFITS", 3)
    (task_id,) = await stage.push("true", gpus=2, needs=["a100"])
    for _ in range(3):
        await _inner(stage).hasten([task_id])
        report = await stage.work()
    assert (report.dead_lettered, report.exit_code) == (1, 0)
    (letter,) = await stage.backend.dead_letters(2)
    assert (letter.id, letter.reason) == (task_id, "unplaceable")
    assert "(gpus=2 needs a100)" in letter.description
    assert Task.decode(letter.body).counters == Counters(ends=2, misfits=2)
    assert await stage.backend.redrive([task_id]) == [task_id]
    report = await stage.work(offer_gpus="0,1", tags="a100")
    assert report.succeeded == 1


async def test_what_has_no_room_now_waits_under_its_lease_and_comes_next(stage: Stage) -> None:
    """One at a time, and nothing small overtakes it meanwhile."""
    first = "touch runs; while ! test -e go; do sleep 0.05; done; echo first"
    await stage.push(first, cpus=3, cwd=str(stage.folder))
    await stage.push("echo big", cpus=4)
    await stage.push("echo small", cpus=1)
    working = asyncio.create_task(stage.work(num_workers=4, offer_cpus="4"))
    await stage.until(lambda: stage.told("task.reserved"))
    await asyncio.sleep(3.0)  # longer than a lease: it is renewed
    assert not stage.lines
    assert not stage.told("task.lease_lost")
    (stage.folder / "go").touch()
    report = await working
    assert report.succeeded == 3
    assert [line for _, _, line in stage.lines] == ["first", "big", "small"]


async def test_without_a_share_nothing_is_reserved_and_the_small_one_goes_on(stage: Stage) -> None:
    first = "touch runs; while ! test -e go; do sleep 0.05; done; echo first"
    await stage.push(first, cpus=3, cwd=str(stage.folder))
    await stage.push("echo big", cpus=4)
    await stage.push(f"echo small; touch {stage.folder}/go", cpus=1)
    stopping = Stopping()
    working = asyncio.create_task(stage.worker(stopping, num_workers=4, offer_cpus="4", idle_share=0.0).run())
    await stage.until_printed("first")
    stopping.drain("the test has seen it")
    report = await working
    assert {line for _, _, line in stage.lines} == {"small", "first"}, "the first one ends once the small one has run"
    assert report.succeeded == 2
    assert "no room beside what runs: cpus=4" in [event.fields["detail"] for event in stage.told("task.misfit")]


async def test_what_comes_together_with_the_same_that_has_no_room_is_not_put_off(stage: Stage) -> None:
    """Four come at once for one card: one starts, one is put off for another shape, two keep their place."""
    await stage.push(*["sleep 0.3"] * 4, gpus=1)
    stopping = Stopping()
    working = asyncio.create_task(stage.worker(stopping, num_workers=4, offer_gpus="0", idle_share=0.0).run())
    await stage.until(lambda: len(stage.told("task.succeeded")) == 2, seconds=10)
    stopping.drain("the test has seen it")
    await working
    assert len(stage.told("task.misfit")) <= 2


async def test_no_more_is_taken_than_fits_while_what_does_not_fit_is_still_going_back(stage: Stage) -> None:
    """`-n auto` where the service answers receives, but no settles: leases do not pile up."""
    await stage.push(*["true"] * 40, gpus=1)
    stage.faults.next("release", Fault.HANG, times=1000)
    stopping = Stopping()
    working = asyncio.create_task(stage.worker(stopping, num_workers="auto", offer_cpus="2").run())
    await stage.until(lambda: len(stage.told("task.misfit")) >= 2)
    await asyncio.sleep(0.5)
    held = (await stage.backend.stats()).leased or 0
    stage.faults.clear()
    stage.faults.release()
    stopping.now("the test has seen it")
    await working
    assert 1 <= held <= 2


@pytest.mark.parametrize("how", ["stop", "cancel", "drain"])
async def test_s7_a_reservation_is_given_back_uncharged(stage: Stage, how: str) -> None:
    await stage.push("sleep 1000", cpus=3)
    (task_id,) = await stage.push("echo big", cpus=4)
    stopping = Stopping()
    working = asyncio.create_task(
        stage.worker(stopping, num_workers=4, offer_cpus="4", stop_grace=timedelta(seconds=0.1)).run()
    )
    await stage.until(lambda: stage.told("task.reserved"))
    if how == "stop":
        stopping.stop("the test says so")
    elif how == "drain":
        stopping.drain("the test says so")
        await stage.until(lambda: stage.told("task.released"))
        stopping.stop("the test says so")
    else:
        journal = _inner(stage).journal
        assert journal is not None
        await journal.cancel([task_id])
        await stage.until(lambda: any(event.fields["task_id"] == task_id for event in stage.told("task.cancelled")))
        stopping.stop("the test says so")
    await working
    if how != "cancel":
        found = {each.id: each for each in await stage.backend.receive(2, timedelta(seconds=5), timedelta(0))}
        counters = found[task_id].task.counters
        assert (counters.failures, counters.preemptions, counters.ends) == (0, 0, 1)


async def test_s7_a_reservation_is_given_back_uncharged_when_the_breaker_trips(stage: Stage) -> None:
    await stage.push("sleep 1000", cpus=2)
    await stage.push("sleep 1; exit 3", cpus=1)
    (task_id,) = await stage.push("echo big", cpus=4)
    report = await stage.work(
        num_workers=4, offer_cpus="4", max_consecutive_failures=1, stop_grace=timedelta(seconds=0.1)
    )
    assert report.exit_code == 1
    assert stage.told("task.reserved")
    found = {each.id: each for each in await stage.backend.receive(3, timedelta(seconds=5), timedelta(0))}
    counters = found[task_id].task.counters
    assert (counters.failures, counters.preemptions, counters.ends) == (0, 0, 1)


@pytest.mark.parametrize("code", [0, 3])
async def test_a_device_is_not_handed_on_before_its_tree_is_dead(stage: Stage, code: int) -> None:
    """Neither after an exit 0 with survivors nor after a failure: the next on that card starts when they are gone."""
    first = Task.new(argv=[sys.executable, "-c", f"{ESCAPES}raise SystemExit({code})"], gpus=1, budgets={"retries": 0})
    await stage.backend.push([first])
    stopping = Stopping()
    worker = stage.worker(stopping, num_workers=2, offer_gpus="0", idle_timeout=timedelta(minutes=1))
    working = asyncio.create_task(worker.run())
    await stage.until(lambda: stage.lines)
    with undying(int(stage.lines[0][2].split()[1])):
        await stage.until(lambda: stage.told("task.succeeded") or stage.told("task.lease_lost"))
        await stage.push("echo second", gpus=1)
        await stage.push("echo neighbour")
        await stage.until_printed("neighbour")
        await stage.until(lambda: stage.told("task.misfit"))
        assert not any(line == "second" for _, _, line in stage.lines), "the card was handed on"
        assert not worker._grants._grants.room.gpus
    async with asyncio.timeout(10):
        while not worker._grants._grants.room.gpus:
            await asyncio.sleep(0.02)
    for event in stage.told("task.misfit"):
        await _inner(stage).hasten([str(event.fields["task_id"])])
    await stage.until_printed("second")
    stopping.stop("the test has seen it")
    await working


async def test_a_start_that_is_cut_short_frees_its_device(stage: Stage) -> None:
    """What could not be started holds nothing."""
    await stage.push("true", gpus=1, cwd="/no/such/folder", budgets={"retries": 0, "crashes": 0})
    await stage.push("echo second", gpus=1)
    report = await stage.work(offer_gpus="0", max_consecutive_failures=0)
    assert report.succeeded == 1
    assert [line for _, _, line in stage.lines] == ["second"]


def _inner(stage: Stage) -> SqliteBackend:
    assert isinstance(stage.backend, FaultyBackend)
    found = stage.backend.inner
    assert isinstance(found, SqliteBackend)
    return found
