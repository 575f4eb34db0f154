"""Plain callbacks in processes of their own: what goes wrong there, and that they die with their lease (P1 to P5)."""

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import jobq
from jobq.run.attempt.retry import Leave
from jobq.run.attempt.settle import Settled
from jobq.run.attempt.supervisor import DeliveryReport
from jobq.settings import Settings
from jobq.settlement import Complete, Requeue
from jobq.task import Outcome, OutcomeKind
from tests.process import callbacks
from tests.process.stage import QUICK, alive, until_true

pytestmark = pytest.mark.check

Kwargs = dict[str, Any]


@pytest.fixture(autouse=True)
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:  # noqa: ARG001 - made before it
    """A temporary folder of our own, in which nothing may be left (P5); short, as a socket's path must be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
        assert list(Path(folder).iterdir()) == []


def settings(folder: Path, **own: Any) -> Settings:
    return Settings(home=folder, **{**QUICK, "max_consecutive_failures": 0, **own})


async def run_once(
    folder: Path, callback: Callable[..., Any], kwargs: Kwargs | None = None, **fields: Any
) -> DeliveryReport:
    async with jobq.connect("demo", settings=settings(folder)) as queue:
        await queue.push(jobq.Task.new(kwargs=kwargs or {}, **fields))
        report = await queue.pull_and_execute(callback)
        assert report is not None
        return report


async def outcome_of(folder: Path, callback: Callable[..., Any], kwargs: Kwargs | None = None) -> Outcome:
    outcome = (await run_once(folder, callback, kwargs)).outcome
    assert outcome is not None
    return outcome


async def test_an_exception_is_a_failure_with_its_type_and_text(tmp_path: Path) -> None:
    report = await run_once(tmp_path, callbacks.fail)
    assert isinstance(report.verdict, Requeue)
    outcome = report.outcome
    assert outcome is not None
    assert (outcome.kind, outcome.detail) == (OutcomeKind.FAILED, "ValueError (exit code 1)")
    assert "ValueError: the text of it" in outcome.output_tail
    assert "child_program" not in outcome.output_tail


@pytest.mark.parametrize(
    ("callback", "kwargs", "kind", "detail"),
    [
        (callbacks.leave, {"code": 3}, OutcomeKind.FAILED, "exit code 3"),
        (callbacks.leave, {"code": 0}, OutcomeKind.SUCCEEDED, "exit code 0"),
        (callbacks.vanish, {"code": 0}, OutcomeKind.FAILED, "before the callback had returned"),
        (callbacks.double, {}, OutcomeKind.FAILED, "double cannot take this task's arguments: missing 'n'"),
    ],
)
async def test_each_end_is_told_as_what_it_is(
    tmp_path: Path, callback: Callable[..., Any], kwargs: Kwargs, kind: OutcomeKind, detail: str
) -> None:
    outcome = await outcome_of(tmp_path, callback, kwargs)
    assert outcome.kind is kind
    assert detail in outcome.detail


@pytest.mark.parametrize("callback", [callbacks.when, callbacks.large, callbacks.deep, callbacks.changing])
async def test_a_value_that_cannot_be_kept_is_no_failure(tmp_path: Path, callback: Callable[..., Any]) -> None:
    """It has run, and would run as often as it may for nothing."""
    outcome = await outcome_of(tmp_path, callback, {})
    assert (outcome.kind, outcome.value) == (OutcomeKind.SUCCEEDED, None)
    assert outcome.value_lost


async def test_a_process_that_never_gets_as_far_as_the_callback_is_a_failure(tmp_path: Path) -> None:
    """Its socket is removed all the same: the fixture looks."""
    report = await run_once(tmp_path, callbacks.double, {"n": 1}, env={"PYTHONHOME": str(tmp_path / "missing")})
    assert report.outcome is not None
    assert report.outcome.kind is OutcomeKind.FAILED
    missing = await run_once(tmp_path / "other", callbacks.double, {"n": 1}, cwd=str(tmp_path / "missing"))
    assert missing.outcome is not None
    assert missing.outcome.start_failed


async def test_a_lost_lease_kills_the_tree_and_leaves_the_delivery(tmp_path: Path) -> None:
    lines: asyncio.Queue[str] = asyncio.Queue()
    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push(jobq.Task.new(kwargs={}))
        pulling = asyncio.create_task(
            queue.pull_and_execute(callbacks.tree, on_line=lambda _task, _stream, line: lines.put_nowait(line))
        )
        pids = [int(pid) for pid in (await lines.get()).split()[1:]]
        assert all(alive(pid) for pid in pids)
        await queue.clear()  # the next renewal is refused
        report = await pulling
    assert report is not None
    assert (report.verdict, report.settled) == (Leave(), Settled.LOST)
    assert not any(alive(pid) for pid in pids)


async def test_a_cancelled_call_kills_the_process_and_gives_the_task_back(tmp_path: Path) -> None:
    lines: asyncio.Queue[str] = asyncio.Queue()
    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push(jobq.Task.new(kwargs={}))
        pulling = asyncio.create_task(
            queue.pull_and_execute(callbacks.tree, on_line=lambda _task, _stream, line: lines.put_nowait(line))
        )
        pids = [int(pid) for pid in (await lines.get()).split()[1:]]
        pulling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pulling
        assert not any(alive(pid) for pid in pids)
        assert (await queue.stats()).visible == 1


async def test_a_checkpoint_reaches_the_next_attempt(tmp_path: Path) -> None:
    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push(jobq.Task.new(kwargs={}))
        first = await queue.pull_and_execute(callbacks.resume)
        assert first is not None
        assert isinstance(first.verdict, Requeue)
        second = await queue.pull_and_execute(callbacks.resume, wait=timedelta(seconds=10))
        assert second is not None
        assert second.outcome is not None
        assert second.outcome.value == "second"


async def test_a_checkpoint_that_comes_too_late_is_refused_in_the_process(tmp_path: Path) -> None:
    """S9, S4. The lease is long, so that no renewal is quicker than the checkpoint."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    flag = tmp_path / "flag"
    long = settings(tmp_path, visibility_timeout=timedelta(seconds=60))
    async with jobq.connect("demo", settings=long) as queue:
        await queue.push(jobq.Task.new(kwargs={"flag": str(flag)}))
        pulling = asyncio.create_task(
            queue.pull_and_execute(
                callbacks.save_when_told, on_line=lambda _task, _stream, line: lines.put_nowait(line)
            )
        )
        assert await lines.get() == "up"
        await queue.clear()
        flag.touch()
        assert await lines.get() == "LockLost"
        report = await pulling
    assert report is not None
    assert report.settled is Settled.LOST


async def test_the_context_tells_the_truth(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    report = await run_once(tmp_path, callbacks.facts, env={"NAME": "a"}, cwd=str(folder))
    assert report.outcome is not None
    value = report.outcome.value
    assert isinstance(value, dict)
    left = value.pop("remaining")
    assert isinstance(left, float)
    assert 0 < left <= 1.58
    assert value == {
        "id": report.task_id,
        "attempt": 1,
        "fencing": True,
        "rises": True,
        "checkpoint": None,
        "lost": False,
        "hidden": True,
        "name": "a",
        "cwd": str(folder),
    }


async def test_the_time_that_is_left_moves_with_renewals(tmp_path: Path) -> None:
    assert (await outcome_of(tmp_path, callbacks.see_a_renewal)).value is True


async def test_the_context_refuses_to_be_used_by_a_child(tmp_path: Path) -> None:
    assert (await outcome_of(tmp_path, callbacks.forks)).value == 7


async def test_whatever_can_be_called_is_called(tmp_path: Path) -> None:
    factor = 5

    def closure(n: int) -> int:
        return n * factor

    for callback, value in (
        (callbacks.double, 6),
        (callbacks.returns_a_coroutine, 4),
        (closure, 15),
        (lambda n: [n, factor], [3, 5]),
    ):
        async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
            await queue.push(jobq.Task.new(kwargs={"n": 3}))
            report = await queue.pull_and_execute(callback)
        assert report is not None
        assert report.verdict == Complete()
        assert report.outcome is not None
        assert report.outcome.value == value


async def test_a_worker_runs_several_at_once_and_passes_on_what_they_print(tmp_path: Path) -> None:
    lines: list[str] = []
    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push(jobq.Task.new(kwargs={}) for _ in range(4))
        report = await queue.worker(
            callbacks.print_and_return, num_workers=2, on_line=lambda _task, _stream, line: lines.append(line)
        )
    assert report.succeeded == 4
    assert lines == ["told"] * 4


async def test_a_command_is_run_when_there_is_no_callback(tmp_path: Path) -> None:
    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push("exit 3")
        report = await queue.pull_and_execute()
        assert await queue.pull_and_execute() is None or report is not None
    assert report is not None
    assert report.outcome is not None
    assert report.outcome.exit_code == 3


async def test_it_works_without_a_guardian_too(tmp_path: Path) -> None:
    async with jobq.connect("demo", settings=settings(tmp_path, guardian="off")) as queue:
        await queue.push(jobq.Task.new(kwargs={"n": 2}))
        report = await queue.pull_and_execute(callbacks.double)
    assert report is not None
    assert report.outcome is not None
    assert report.outcome.value == 4


async def test_a_callback_over_the_memory_limit_is_killed(tmp_path: Path) -> None:
    limited = settings(tmp_path, memory_limit=100 * 1024 * 1024)
    async with jobq.connect("demo", settings=limited) as queue:
        await queue.push(jobq.Task.new(kwargs={"megabytes": 200}))
        report = await queue.pull_and_execute(callbacks.fill)
    assert report is not None
    assert report.outcome is not None
    assert report.outcome.over_memory_limit


PROGRAM = """
import asyncio, sys, time
import jobq
from jobq.settings import Settings

def stay(n):
    import os
    print("up", os.getpid(), n, flush=True)
    time.sleep(1000)

async def main():
    async with jobq.connect("demo") as queue:
        await queue.push(jobq.Task.new(kwargs={"n": 1}))
        await queue.worker(stay, on_line=lambda task, stream, line: print(line, flush=True))

asyncio.run(main())
"""


async def test_a_killed_program_takes_its_callback_along_and_leaves_no_folder(tmp_path: Path, room: Path) -> None:
    """P2, P5; and a function of `__main__` goes by cloudpickle."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={"JOBQ_HOME": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "TMPDIR": str(room)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        assert program.stdout is not None
        word, pid, n = program.stdout.readline().split()
        assert (word, n) == ("up", "1")
        assert alive(int(pid))
        assert list(room.iterdir()) == []
        program.kill()

        async def gone() -> bool:
            return not alive(int(pid))

        await until_true(gone)
    assert program.returncode == -signal.SIGKILL


async def test_a_callback_that_holds_what_cannot_travel_takes_no_task(tmp_path: Path) -> None:
    lock = threading.Lock()
    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push(jobq.Task.new(kwargs={}))
        with pytest.raises(jobq.JobqError, match="cannot be sent to a process of its own"):
            await queue.pull_and_execute(lock.acquire)
        (waiting,) = await queue.peek()
    assert waiting.deliveries == 0
    assert json.loads(waiting.body)["kwargs"] == {}


async def test_s9_a_signal_handler_may_save_a_checkpoint_at_any_moment(tmp_path: Path) -> None:
    """The usual way to end well: it comes while the main line asks something itself."""
    stopping = jobq.Stopping()
    async with jobq.connect("demo", settings=settings(tmp_path)) as queue:
        await queue.push(jobq.Task.new(kwargs={}))
        first = await queue.pull_and_execute(
            callbacks.save_when_stopped, stopping=stopping, on_line=lambda *_: stopping.stop("the test says so")
        )
        assert first is not None
        assert first.outcome is not None
        assert first.outcome.duration < 10  # not killed after its grace
        second = await queue.pull_and_execute(callbacks.save_when_stopped, wait=timedelta(seconds=10))
        assert second is not None
        assert second.outcome is not None
        assert second.outcome.value == "at the end"


async def test_s9_an_exception_in_the_midst_of_a_question_puts_no_answer_out_of_step(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, callbacks.interrupted_again_and_again)
    assert outcome.kind is OutcomeKind.SUCCEEDED, outcome
    assert isinstance(outcome.value, float)
