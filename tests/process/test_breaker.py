"""What the breaker makes of failures: the machine's fault, or the task's own (architecture 6; S7, L1, P8)."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import pytest

from jobq.errors import ConfigurationError
from jobq.journal.store import journal_of
from jobq.pausing import mark_of
from jobq.run.circuit_breaker import HOLD_SECONDS, LATELY_SECONDS, MOST_BLAMES, MOST_RESTARTS, Breaker
from jobq.run.stopping import Stopping
from jobq.task import Task
from jobq.testing.clock import VirtualClock
from jobq.testing.faults import FaultyBackend
from jobq_sqlite import SqliteBackend
from tests.process.stage import Stage, stage_in, until_true

pytestmark = pytest.mark.check

LIMIT = 5


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage_in(tmp_path) as stage:
        yield stage


async def _failed(breaker: Breaker, count: int, **counters: int) -> "list[asyncio.Task[bool]]":
    tasks = [Task.new(command="x").requeued(**counters) for _ in range(count)]
    judged = [asyncio.create_task(breaker.blames_machine(task)) for task in tasks]
    for _ in range(3):
        await asyncio.sleep(0)
    return judged


async def _end(judged: "list[asyncio.Task[bool]]", breaker: Breaker) -> list[bool]:
    breaker.queue_is_empty(empty=True)
    return await asyncio.gather(*judged)


async def test_so_many_first_failures_in_a_row_blame_the_machine() -> None:
    breaker = Breaker(LIMIT, VirtualClock())
    judged = await _failed(breaker, LIMIT - 1)
    assert not breaker.tripped.is_set()
    judged += await _failed(breaker, 1)
    assert breaker.tripped.is_set()
    assert await _end(judged, breaker) == [True] * LIMIT


@pytest.mark.parametrize(("ago", "trips_after"), [(0.0, LIMIT + 3), (LATELY_SECONDS + 1, LIMIT)])
async def test_what_succeeded_lately_speaks_for_the_machine(ago: float, trips_after: int) -> None:
    clock = VirtualClock()
    breaker = Breaker(LIMIT, clock)
    for _ in range(3):
        breaker.succeeded()
    await clock.advance(ago)
    judged = await _failed(breaker, trips_after - 1)
    assert not breaker.tripped.is_set()
    judged += await _failed(breaker, 1)
    assert breaker.tripped.is_set()
    await _end(judged, breaker)


async def test_a_machine_that_breaks_after_any_number_of_successes_is_blamed() -> None:
    breaker = Breaker(LIMIT, VirtualClock())
    for _ in range(1000):
        breaker.succeeded()
    judged = await _failed(breaker, 5 * LIMIT)
    assert breaker.tripped.is_set()
    await _end(judged, breaker)


@pytest.mark.parametrize("counters", [{"failures": 1}, {"preemptions": MOST_BLAMES}])
async def test_a_task_that_failed_elsewhere_pays_for_itself(counters: dict[str, int]) -> None:
    breaker = Breaker(LIMIT, VirtualClock())
    judged = await _failed(breaker, 3 * LIMIT, **counters)
    assert [each.result() for each in judged] == [False] * 3 * LIMIT, "nor is it held"
    assert not breaker.tripped.is_set()


async def test_s7_a_task_without_preemptions_left_is_not_given_back() -> None:
    breaker = Breaker(1, VirtualClock())
    assert not await breaker.blames_machine(Task.new(command="x", budgets={"preemptions": 0}))


async def test_l1_tasks_that_always_fail_end_as_dead_letters_however_often_the_worker_is_started(stage: Stage) -> None:
    count, retries = 10, 2
    await stage.push(*["exit 1"] * count, budgets={"retries": retries})
    codes = []
    while len(await stage.backend.dead_letters(count)) < count:
        codes.append((await stage.work(max_consecutive_failures=LIMIT, num_workers=4)).exit_code)
        assert len(codes) < 20, "they are started for ever"
    assert codes[0] == 1, "the first worker blames its machine"
    # One that a stop of the blamed machine interrupts has not failed, and pays nothing.
    failures = Counter(event.fields["task_id"] for event in stage.told("task.failed"))
    assert max(failures.values()) <= 1 + retries + MOST_BLAMES


async def test_l1_what_no_machine_can_start_ends_however_often_the_worker_is_started() -> None:
    """Each worker had started nothing yet, so nobody paid, for ever."""
    task = Task.new(command="x")
    for _ in range(MOST_RESTARTS):
        assert Breaker(LIMIT, VirtualClock()).blames_for_start(task, "no such program")
        task = task.requeued()
    assert not Breaker(LIMIT, VirtualClock()).blames_for_start(task, "no such program")


def test_one_program_that_is_missing_in_many_tasks_ends_no_worker() -> None:
    """One user's slip ended each new worker of a shared queue, ten tasks at a time."""
    breaker = Breaker(LIMIT, VirtualClock())
    for _ in range(100):
        assert breaker.blames_for_start(Task.new(command="x"), "no such program: trian")
    assert not breaker.tripped.is_set()
    for number in range(LIMIT - 1):
        assert not breaker.tripped.is_set()
        assert breaker.blames_for_start(Task.new(command="x"), f"no such program: {number}")
    assert breaker.tripped.is_set()


async def test_a_machine_that_can_start_nothing_takes_ever_less_and_ends_its_worker() -> None:
    """One without a writable folder took each task, gave it back and charged it a preemption, for ever."""
    clock = VirtualClock()
    breaker = Breaker(0, clock)
    pauses = []
    while not breaker.tripped.is_set():
        for _ in range(2):  # slots that tried together
            breaker.falls_short("no room")
        pauses.append(breaker.pause_until - clock.boottime())
        await clock.advance(pauses[-1])
    assert pauses == [1, 2, 4, 8, 8]
    assert breaker.cause == "nothing could be started here for 15 s: no room"


async def test_a_machine_that_runs_something_is_only_held_back() -> None:
    clock = VirtualClock()
    breaker = Breaker(LIMIT, clock)
    breaker.started()
    for _ in range(10):
        breaker.falls_short("no descriptors")
        await clock.advance(10)
    breaker.started()
    breaker.ended()
    breaker.ended()
    breaker.falls_short("no descriptors")
    assert breaker.pause_until == clock.boottime() + 1, "it counts from the last start on"
    assert not breaker.tripped.is_set()


@pytest.mark.parametrize("seed", range(3))
async def test_an_ordinary_sweep_ends_with_the_defaults(stage: Stage, seed: int) -> None:
    """12 of 100 fail for good, so their retries gather where nothing else is left to run."""
    commands = ["exit 1"] * 12 + ["true"] * 88
    random.Random(seed).shuffle(commands)
    await stage.push(*commands)
    report = await stage.work(num_workers=4, backoff=timedelta(seconds=0.3))
    assert (report.exit_code, report.succeeded, report.dead_lettered) == (0, 88, 12)


async def test_failures_at_the_end_of_a_list_are_the_tasks_own(stage: Stage) -> None:
    """A sweep's bad corner stands together: 12 first failures in a row, and 30 successes before them."""
    await stage.push(*["true"] * 30, *["exit 1"] * 12, budgets={"retries": 0})
    report = await stage.work(num_workers=2)
    assert (report.exit_code, report.succeeded, report.dead_lettered) == (0, 30, 12)


@pytest.mark.parametrize("how", ["notice", "stop", "drain"])
async def test_p8_a_notice_or_a_stop_settles_what_is_held(stage: Stage, how: str) -> None:
    stopping = Stopping()
    await stage.push("exit 1")
    await stage.push("trap '' TERM; echo runs; while :; do sleep 0.1; done")
    worker = asyncio.create_task(stage.worker(stopping, num_workers=1, stop_grace=timedelta(seconds=15)).run())
    await stage.until_printed("runs")
    await stage.until(lambda: stage.told("task.failed"))
    assert not stage.told("task.retry_scheduled"), "it is held"
    if how == "notice":
        stopping.pause("a notice", 15.0)
    elif how == "stop":
        stopping.stop("a test")
    else:
        stopping.drain("a test")
    await stage.until(lambda: stage.told("task.retry_scheduled"), 5.0)
    stopping.now("the test is over")
    await worker


async def test_p8_an_error_that_ends_the_loop_settles_what_is_held(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for company that could not come any more, and the worker with it."""
    await stage.push("exit 1")
    await stage.push(f"echo runs; while [ ! -e {stage.folder}/go ]; do sleep 0.1; done; exit 1")
    worker = asyncio.create_task(stage.worker(num_workers=1, num_retries=1).run())
    await stage.until_printed("runs")
    await stage.until(lambda: stage.told("task.failed"))
    assert not stage.told("task.retry_scheduled"), "it is held"

    async def refused(*_: object) -> NoReturn:
        raise ConfigurationError("by a test")

    monkeypatch.setattr(SqliteBackend, "receive", refused)
    monkeypatch.setattr(SqliteBackend, "receive_as", refused)
    (stage.folder / "go").touch()
    async with asyncio.timeout(HOLD_SECONDS / 3):
        with pytest.raises(ConfigurationError, match="by a test"):
            await worker
    assert len(stage.told("task.retry_scheduled")) == 2


async def test_a_paused_queue_is_no_empty_one(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure that waited for company was settled, and paid for its machine."""
    looks: list[bool] = []
    take_in = Breaker.queue_is_empty

    def looked(breaker: Breaker, *, empty: bool) -> None:
        take_in(breaker, empty=empty)
        looks.append(empty)
        stage._changed.set()

    monkeypatch.setattr(Breaker, "queue_is_empty", looked)
    assert isinstance(stage.backend, FaultyBackend)
    assert isinstance(stage.backend.inner, SqliteBackend)
    stage.backend = queue = stage.backend.inner
    (first,) = await stage.push("echo runs; until test -e release; do sleep 0.02; done; exit 1", cwd=str(stage.folder))
    await stage.push("sleep 60")
    worker = asyncio.create_task(stage.worker(num_workers=2, max_consecutive_failures=2).run())
    await stage.until_printed("runs")
    await stage.until(lambda: len(stage.told("task.started")) == 2)
    await queue.pause(mark_of(""))
    looks.clear()
    (stage.folder / "release").touch()
    await stage.until(lambda: looks and stage.told("task.failed"))
    await queue.resume()
    await stage.push("exit 1")
    assert (await worker).exit_code == 1
    (found,) = [each.body for each in await queue.peek(3) if each.id == first]
    assert Task.decode(found).counters.failures == 0


async def test_a_failure_that_is_held_is_not_shown_as_running(stage: Stage) -> None:
    """For half a minute `ps` had a task as running that had failed."""
    assert isinstance(stage.backend, FaultyBackend)
    assert isinstance(stage.backend.inner, SqliteBackend)
    stage.backend = stage.backend.inner
    (failing,) = await stage.push("exit 3")
    await stage.push("echo runs; while :; do sleep 0.1; done")
    stopping = Stopping()
    worker = asyncio.create_task(stage.worker(stopping, num_workers=1).run())
    await stage.until_printed("runs")

    async def is_shown() -> bool:
        (record,) = await journal_of(stage.backend).find([failing])
        return record.beat is not None and record.beat.text.startswith("failed (exit code 3)")

    await until_true(is_shown)
    stopping.now("the test is over")
    await worker
