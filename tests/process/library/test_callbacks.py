"""Callbacks inside this process: asynchronous ones, and plain ones in threads; what they are told, how they end."""

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import jobq
from jobq.errors import LockLost
from jobq.run.attempt.retry import Leave
from jobq.run.attempt.settle import Settled
from jobq.run.attempt.supervisor import DeliveryReport
from jobq.run.callbacks.callback import CallbackSignature
from jobq.run.callbacks.inline_runner import CallbackRunner
from jobq.run.stopping import Stopping
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from jobq.settlement import Complete, Requeue
from jobq.task import Outcome, OutcomeKind
from tests.process.stage import QUICK, stage_in, until_true


def settings(folder: Path, **own: Any) -> Settings:
    return Settings(home=folder, **{**QUICK, "max_consecutive_failures": 0, **own})


async def run_once(
    folder: Path, callback: Callable[..., Any], *, thread: bool = False, kwargs: dict[str, Any] | None = None
) -> tuple[DeliveryReport, Outcome]:
    async with jobq.connect("demo", settings=settings(folder)) as queue:
        await queue.push(jobq.Task.new(kwargs=kwargs or {}))
        report = await queue.pull_and_execute(callback, thread=thread)
    assert report is not None
    assert report.outcome is not None
    return report, report.outcome


# Asynchronous callbacks


async def test_arguments_that_do_not_fit_fail_the_attempt_by_name(tmp_path: Path) -> None:
    async def callback(n: int) -> None:  # noqa: ARG001 - what it is about
        raise AssertionError

    report, outcome = await run_once(tmp_path, callback, kwargs={"m": "canary"})
    assert isinstance(report.verdict, Requeue)
    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.detail.endswith("cannot take this task's arguments: missing 'n'; unknown 'm'")


async def test_a_cancelled_call_gives_its_task_back(tmp_path: Path) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def callback() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push(jobq.Task.new(kwargs={}))
        pulling = asyncio.create_task(queue.pull_and_execute(callback))
        await started.wait()
        pulling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pulling
        assert ended.is_set()
        assert (await queue.stats()).visible == 1


async def test_one_that_swallows_its_cancellation_cannot_settle(tmp_path: Path) -> None:
    lost: list[bool] = []
    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:

        async def callback(delivery: jobq.TaskContext) -> str:
            lost.append(delivery.lock_lost)
            with suppress(asyncio.CancelledError):
                await queue.clear()  # the next renewal is refused
                await delivery.lock_lost_event.wait()
                await asyncio.Event().wait()
            lost.append(delivery.lock_lost)
            with pytest.raises(LockLost):
                await delivery.save_checkpoint("late")
            return "as if nothing had happened"

        await queue.push(jobq.Task.new(kwargs={}))
        report = await queue.pull_and_execute(callback)
    assert report is not None
    assert (report.verdict, report.settled) == (Leave(), Settled.LOST)
    assert lost == [False, True]


async def test_one_that_never_ends_is_left_to_its_lease(tmp_path: Path) -> None:
    """It must not hold the worker for ever, and must not be given back while it runs."""
    started, release = asyncio.Event(), asyncio.Event()

    async def callback(command: str) -> None:  # noqa: ARG001 - given to it
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                started.set()
                await release.wait()

    async with stage_in(tmp_path) as stage:
        await stage.push("true")
        stopping = Stopping()
        runner = CallbackRunner(CallbackSignature(callback), patience=0.05)
        worker = Worker(stage.backend, settings(tmp_path), runner=runner, stopping=stopping)
        running = asyncio.create_task(worker.run())
        await started.wait()
        stopping.now("a test")
        report = await running
        assert (report.given_back, report.lost) == (0, 1)
        assert (await stage.backend.stats()).leased == 1
        release.set()


async def test_an_exit_inside_of_a_callback_ends_nobody_else(tmp_path: Path) -> None:
    """S11: asyncio ends the whole loop for a SystemExit in a task."""

    async def callback(code: int) -> None:
        sys.exit(code)

    _, outcome = await run_once(tmp_path, callback, kwargs={"code": 0})
    assert outcome.kind is OutcomeKind.SUCCEEDED
    _, outcome = await run_once(tmp_path, callback, kwargs={"code": 3})
    assert (outcome.kind, outcome.detail) == (OutcomeKind.FAILED, "CallbackFailed: it called exit(3)")


async def test_a_value_that_is_no_json_is_no_failure_and_no_settle_without_end(tmp_path: Path) -> None:
    async def callback() -> object:
        return object()

    report, outcome = await run_once(tmp_path, callback)
    assert report.settled is Settled.YES
    assert (outcome.kind, outcome.value) == (OutcomeKind.SUCCEEDED, None)
    assert outcome.value_lost == "it is not JSON: a object (TypeError)"


async def test_what_a_callback_does_to_its_arguments_does_not_travel_on(tmp_path: Path) -> None:
    seen: list[list[int]] = []

    async def callback(numbers: list[int], delivery: jobq.TaskContext) -> None:
        seen.append(list(numbers))
        numbers.append(2)
        assert delivery.task.kwargs is not None
        delivery.task.kwargs["numbers"] = "spoiled"
        raise RuntimeError

    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push(jobq.Task.new(kwargs={"numbers": [1]}, budgets={"retries": 1}))
        await queue.worker(callback)
    assert seen == [[1], [1]]


async def test_a_checkpoint_reaches_the_next_attempt_and_the_context_tells_the_truth(tmp_path: Path) -> None:
    seen: list[tuple[int, str, str | None]] = []

    async def callback(delivery: jobq.TaskContext) -> str:
        seen.append((delivery.attempt, str(delivery.fencing_number), delivery.checkpoint))
        assert delivery.id == delivery.task.id
        assert 0 < delivery.remaining() <= 1.58
        if delivery.checkpoint is None:
            await delivery.save_checkpoint("half")
            raise RuntimeError
        return delivery.checkpoint

    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push(jobq.Task.new(kwargs={}))
        await queue.pull_and_execute(callback)
        second = await queue.pull_and_execute(callback, wait=timedelta(seconds=10))
    assert second is not None
    assert second.outcome is not None
    assert second.outcome.value == "half"
    assert seen == [(1, "0.0.1", None), (2, "0.1.2", "half")]


async def test_the_time_that_is_left_moves_with_renewals(tmp_path: Path) -> None:
    async def callback(delivery: jobq.TaskContext) -> None:
        last = delivery.remaining()

        async def moved() -> bool:
            nonlocal last
            before, last = last, delivery.remaining()
            return last > before

        await until_true(moved)

    report, _ = await run_once(tmp_path, callback)
    assert report.verdict == Complete()


async def test_a_command_comes_by_name(tmp_path: Path) -> None:
    async def callback(command: str) -> str:
        return command

    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push("echo a")
        report = await queue.pull_and_execute(callback)
    assert report is not None
    assert report.outcome is not None
    assert report.outcome.value == "echo a"


# Threads


async def test_a_thread_saves_and_returns(tmp_path: Path) -> None:
    def callback(delivery: jobq.SyncTaskContext) -> list[Any]:
        assert threading.current_thread() is not threading.main_thread()
        if delivery.checkpoint is None:
            delivery.save_checkpoint("half")
            raise RuntimeError
        return [delivery.checkpoint, delivery.lock_lost, 0 < delivery.remaining() <= 1.58]

    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push(jobq.Task.new(kwargs={}))
        first = await queue.pull_and_execute(callback, thread=True)
        assert first is not None
        assert isinstance(first.verdict, Requeue)
        second = await queue.pull_and_execute(callback, thread=True, wait=timedelta(seconds=10))
    assert second is not None
    assert second.outcome is not None
    assert second.outcome.value == ["half", False, True]


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (ValueError("canary"), "ValueError"),
        (StopIteration("canary"), "CallbackFailed: StopIteration"),
        (KeyboardInterrupt("canary"), "CallbackFailed: KeyboardInterrupt"),
        (SystemExit(3), "CallbackFailed: it called exit(3)"),
        (SystemExit("canary"), "CallbackFailed: it called exit(...)"),
    ],
)
async def test_whatever_a_thread_raises_is_its_failure_alone(tmp_path: Path, error: BaseException, detail: str) -> None:
    def callback() -> None:
        raise error

    _, outcome = await run_once(tmp_path, callback, thread=True)
    assert (outcome.kind, outcome.detail) == (OutcomeKind.FAILED, detail)


async def test_a_thread_learns_of_the_lost_lease_and_settles_nothing(tmp_path: Path) -> None:
    release, learned = threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:

        def callback(delivery: jobq.SyncTaskContext) -> None:
            asyncio.run_coroutine_threadsafe(queue.clear(), loop).result()
            while not delivery.lock_lost:
                release.wait(0.005)
            with pytest.raises(LockLost):
                delivery.save_checkpoint("late")
            learned.set()
            release.wait(20)

        await queue.push(jobq.Task.new(kwargs={}))
        report = await queue.pull_and_execute(callback, thread=True)
        assert report is not None
        assert (report.verdict, report.settled) == (Leave(), Settled.LOST)
        assert await asyncio.to_thread(learned.wait, 20)  # it runs on: nothing can end it
        release.set()


async def test_a_thread_that_does_not_end_is_not_given_back_while_it_runs(tmp_path: Path) -> None:
    started, learned, release = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def callback(delivery: jobq.SyncTaskContext) -> None:
        loop.call_soon_threadsafe(started.set)
        while not delivery.lock_lost:  # nobody renews it any more
            release.wait(0.005)
        learned.set()

    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push(jobq.Task.new(kwargs={}))
        worker = asyncio.create_task(queue.worker(callback, thread=True))
        await started.wait()
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker
        assert (await queue.stats()).visible == 0
        assert (await queue.stats()).leased == 1
        assert await asyncio.to_thread(learned.wait, 20)


def test_a_thread_that_outlives_the_loop_is_told_that_its_lease_is_lost(tmp_path: Path) -> None:
    told: list[BaseException] = []
    closed, ended = threading.Event(), threading.Event()

    async def main() -> None:
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def callback(delivery: jobq.SyncTaskContext) -> None:
            loop.call_soon_threadsafe(started.set)
            closed.wait(20)
            try:
                delivery.save_checkpoint("late")
            except jobq.JobqError as error:
                told.append(error)
            ended.set()

        async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
            await queue.push(jobq.Task.new(kwargs={}))
            pulling = asyncio.create_task(queue.pull_and_execute(callback, thread=True))
            await started.wait()
            pulling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pulling

    asyncio.run(main())
    closed.set()
    assert ended.wait(20)
    assert isinstance(told[0], LockLost)
