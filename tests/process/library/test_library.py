"""The library's face, and callbacks under a lease."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

import jobq
from jobq.errors import ConfigurationError
from jobq.run.attempt.settle import Settled
from jobq.run.callbacks.callback import CallbackSignature
from jobq.run.callbacks.inline_runner import CallbackRunner
from jobq.run.stopping import Stopping
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.task import OutcomeKind
from tests.process.stage import QUICK, stage_in


def settings(folder: Path) -> Settings:
    return Settings(home=folder, **{**QUICK, "max_consecutive_failures": 0})


async def test_push_makes_the_queue_and_a_callback_is_settled(tmp_path: Path) -> None:
    seen: list[dict[str, object]] = []

    async def callback(n: int) -> None:
        seen.append({"n": n})

    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push([jobq.Task.new(kwargs={"n": number}) for number in range(3)])
        report = await queue.pull_and_execute(callback)
        assert report is not None
        assert (report.verdict, report.settled) == (Complete(), Settled.YES)
        assert (await queue.worker(callback)).succeeded == 2
        assert await queue.pull_and_execute(callback) is None
    assert sorted(seen, key=str) == [{"n": 0}, {"n": 1}, {"n": 2}]


async def test_a_program_that_takes_one_task_leaves_what_asks_for_a_gpu_alone(tmp_path: Path) -> None:
    """It offers nothing: what waits for a worker with a card is not put off by programs that look for other tasks."""

    async def callback(n: int) -> None:
        assert n == 1

    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push(jobq.Task.new(command="true", gpus=1))
        await queue.push([jobq.Task.new(kwargs={"n": 1}), jobq.Task.new(kwargs={"n": 2})])
        report = await queue.pull_and_execute(callback)
        assert report is not None
        assert report.verdict == Complete()
        async with queue.get() as taken:
            assert taken is not None
            await taken.complete()
        async with queue.get() as taken:
            assert taken is None
        assert await queue.pull_and_execute(callback) is None
        stats = await queue.stats()
    assert (stats.visible, stats.scheduled) == (1, 0)


async def test_push_takes_one_many_and_an_async_iterator(tmp_path: Path) -> None:
    async def many() -> AsyncIterator[jobq.Task | str]:
        for number in range(1200):
            yield f"echo {number}"
        yield jobq.Task.new(command="echo last")

    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        one = await queue.push("echo one")
        assert isinstance(one, str)
        assert len(await queue.push(["echo two", jobq.Task.new(command="echo three")])) == 2
        assert await queue.push(many()) == 1201
        assert (await queue.stats()).visible == 1204
        assert (await queue.peek(1))[0].id == one


async def test_an_iterator_that_fails_tells_what_was_added(tmp_path: Path) -> None:
    async def failing() -> AsyncIterator[str]:
        for number in range(500):
            yield f"echo {number}"
        async with asyncio.timeout(10):
            while not (await queue.stats()).visible:
                await asyncio.sleep(0)
        raise ZeroDivisionError

    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push("echo one")
        await queue.clear()
        with pytest.raises(ZeroDivisionError) as raised:
            await queue.push(failing())
        assert raised.value.__notes__ == ["500 tasks were queued before"]
        assert (await queue.stats()).visible == 500


async def test_a_worker_of_commands_tells_what_happens(tmp_path: Path) -> None:
    lines: list[tuple[str, str, str]] = []
    names: list[str] = []
    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        ids = await queue.push(["echo hello", "echo hello"])
        report = await queue.worker(
            num_workers=2,
            on_line=lambda *line: lines.append(line),
            on_event=lambda event: names.append(event.name),
        )
    assert report.succeeded == 2
    assert sorted(lines) == sorted((id_, "stdout", "hello") for id_ in ids)
    assert names.count("task.succeeded") == 2


@pytest.mark.parametrize("way", ["worker", "pull"])
async def test_nothing_is_left_running(tmp_path: Path, way: str) -> None:
    """On a local file attempts are looked at each second; a loop that is closed then would complain of the look."""
    async with jobq.connect(f"sqlite://{tmp_path}/jobs.db/demo") as queue:
        await queue.push("true")
        before = asyncio.all_tasks()
        await (queue.worker() if way == "worker" else queue.pull_and_execute())
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


async def test_a_worker_takes_no_more_than_it_was_told(tmp_path: Path) -> None:
    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push(["true", "true", "true"])
        assert (await queue.worker(max_tasks=2, num_workers=2)).succeeded == 2
        assert (await queue.stats()).visible == 1


async def test_a_cancelled_worker_gives_its_commands_back_at_once(tmp_path: Path) -> None:
    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push("trap '' TERM; echo up; sleep 1000")
        up = asyncio.Event()
        worker = asyncio.create_task(queue.worker(on_line=lambda *_: up.set()))
        await up.wait()
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker
        assert (await queue.stats()).visible == 1


async def test_a_worker_that_is_cancelled_while_it_drains_gives_its_commands_back(tmp_path: Path) -> None:
    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push("trap '' TERM; echo up; sleep 1000")
        up, draining, stopping = asyncio.Event(), asyncio.Event(), Stopping()
        worker = asyncio.create_task(
            queue.worker(
                stopping=stopping,
                on_line=lambda *_: up.set(),
                on_event=lambda event: draining.set() if event.name == "worker.draining" else None,
            )
        )
        await up.wait()
        stopping.drain("a test")
        await draining.wait()
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker
        assert (await queue.stats()).visible == 1


async def test_a_callback_that_raises_fails_the_attempt_and_keeps_its_secret(tmp_path: Path) -> None:
    """rules.md 3, A5: the text of a stranger's error may hold a connection string."""

    async def callback() -> None:
        raise RuntimeError("AccountKey=canary")

    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push(jobq.Task.new(kwargs={}, budgets={"retries": 1}))
        first = await queue.pull_and_execute(callback)
        assert first is not None
        assert isinstance(first.verdict, Requeue)
        second = await queue.pull_and_execute(callback, wait=timedelta(seconds=5))
        assert second is not None
        assert isinstance(second.verdict, MoveToDeadLetters)
        (dead,) = await queue.dead_letters()
        assert "RuntimeError" in dead.description
        assert "canary" not in dead.description


async def test_a_callback_is_cancelled_on_lock_loss_and_left_unsettled(tmp_path: Path) -> None:
    cancelled = asyncio.Event()
    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:

        async def callback() -> None:
            try:
                await queue.clear()  # the task is gone: the next renewal is refused
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        await queue.push(jobq.Task.new(kwargs={}))
        report = await queue.pull_and_execute(callback)
    assert report is not None
    assert report.outcome is not None
    assert report.outcome.kind is OutcomeKind.LOCK_LOST
    assert report.settled is Settled.LOST
    assert cancelled.is_set()


async def test_a_stopped_worker_cancels_its_callbacks_and_gives_them_back(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def callback(command: str) -> None:  # noqa: ARG001 - given to it
        started.set()
        await asyncio.Event().wait()

    async with stage_in(tmp_path) as stage:
        await stage.push("true")
        stopping = Stopping()
        worker = Worker(
            stage.backend, settings(tmp_path), runner=CallbackRunner(CallbackSignature(callback)), stopping=stopping
        )
        running = asyncio.create_task(worker.run())
        await started.wait()
        stopping.stop("a test")
        assert (await running).given_back == 1


async def test_no_queue_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOBQ_QUEUE", raising=False)
    with pytest.raises(ConfigurationError, match="JOBQ_QUEUE"):
        async with jobq.connect():
            pass


def test_importing_jobq_imports_nothing_heavy() -> None:
    """architecture 10."""
    heavy = "('pydantic', 'azure', 'aiohttp', 'rich', 'asyncio')"
    program = f"import sys, jobq; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["jobq.run.watcher", "jobq.run.guardian.__main__"])
def test_what_guards_a_worker_imports_little(module: str) -> None:
    """Each worker starts both anew."""
    heavy = "('tempfile', 'random', 'hashlib', 'pathlib', 'shutil', 'typing', 'asyncio', 'subprocess')"
    program = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
