"""The synchronous face: interrupted, closed, misused, beside a running loop; and that every verb works."""

import asyncio
import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import jobq
from jobq.errors import InvalidSpec
from jobq.settings import Settings
from tests.process import callbacks
from tests.process.stage import QUICK, alive


def settings(folder: Path, **own: Any) -> Settings:
    return Settings(home=folder, **{**QUICK, "max_consecutive_failures": 0, **own})


def test_a_spec_that_cannot_be_served_is_raised_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(InvalidSpec):
        jobq.sync.connect("no queue")
    assert threading.active_count() == before


def test_a_closed_queue_says_so(tmp_path: Path) -> None:
    queue = jobq.sync.connect("demo", settings=settings(tmp_path))
    queue.push("true")
    queue.close()
    queue.close()
    for call in (queue.stats, queue.peek, queue.worker, queue.pull_and_execute, lambda: queue.push("true")):
        with pytest.raises(RuntimeError, match="closed; connect again"):
            call()


def test_closing_gives_back_what_another_thread_runs(tmp_path: Path) -> None:
    lines: list[str] = []
    up = threading.Event()

    def hear(_task: str, _stream: str, line: str) -> None:
        lines.append(line)
        up.set()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with jobq.sync.connect("demo", settings=settings(tmp_path)) as queue:
            queue.push(jobq.Task.new(kwargs={}))
            working = pool.submit(queue.worker, callbacks.tree, on_line=hear)
            assert up.wait(20)
        with pytest.raises(RuntimeError, match="closed meanwhile"):
            working.result()
    assert not any(alive(int(pid)) for pid in lines[0].split()[1:])
    with jobq.sync.connect("demo", settings=settings(tmp_path)) as queue:
        assert queue.stats().visible == 1


def test_a_callback_on_the_queues_own_thread_cannot_wait_for_it(tmp_path: Path) -> None:
    """It would wait for itself for ever."""
    with jobq.sync.connect("demo", settings=settings(tmp_path)) as queue:

        async def callback() -> str:
            with pytest.raises(RuntimeError, match="own thread") as raised:
                queue.stats()
            return str(raised.value)

        queue.push(jobq.Task.new(kwargs={}))
        report = queue.pull_and_execute(callback)
    assert report is not None
    assert report.outcome is not None
    assert report.outcome.value


def test_every_verb(tmp_path: Path) -> None:
    factor = 2
    with jobq.sync.connect("demo", settings=settings(tmp_path)) as queue:
        one = queue.push("exit 3")
        assert isinstance(one, str)
        assert [waiting.id for waiting in queue.peek()] == [one]
        assert queue.clear() == 1
        ids = queue.push(jobq.Task.new(kwargs={"n": n}, budgets={"retries": 0}) for n in (1, 2))
        assert queue.stats().visible == 2
        report = queue.pull_and_execute(lambda n: n * factor)
        assert report is not None
        assert report.outcome is not None
        assert report.outcome.value == 2
        assert queue.worker(callbacks.fail).dead_lettered == 1
        assert [dead.id for dead in queue.dead_letters()] == ids[1:]
        assert queue.redrive(ids) == ids[1:]
        assert queue.worker(lambda n: n, thread=True).succeeded == 1
        assert queue.purge_dead(ids) == []
        assert queue.pull_and_execute(wait=timedelta(0)) is None
        assert queue.worker(num_workers=2, max_tasks=1).succeeded == 0


async def test_it_works_inside_of_a_running_loop(tmp_path: Path) -> None:
    """As in a notebook."""
    assert asyncio.get_running_loop().is_running()
    with jobq.sync.connect("demo", settings=settings(tmp_path)) as queue:
        queue.push(["true", "true"])
        assert queue.worker(num_workers=2).succeeded == 2


def test_several_threads_may_use_one(tmp_path: Path) -> None:
    with (
        jobq.sync.connect("demo", settings=settings(tmp_path)) as queue,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        ids = set(pool.map(queue.push, (f"echo {number}" for number in range(200))))
        assert len(ids) == 200
        assert queue.stats().visible == 200


def test_an_error_of_the_queue_comes_through(tmp_path: Path) -> None:
    with jobq.sync.connect("demo", settings=settings(tmp_path)) as queue:
        queue.push(jobq.Task.new(command="true", id="one"))
        with pytest.raises(jobq.JobqError, match="one"):
            queue.push(jobq.Task.new(command="false", id="one"))
        with pytest.raises(jobq.JobqError, match="a function, not str"):
            queue.worker("training:fold")  # type: ignore[arg-type] # the point


PROGRAM = """
import datetime, signal, sys
import jobq

def show(task, stream, line):
    print(line, flush=True)

with jobq.sync.connect("demo") as queue:
    queue.push("trap 'echo told; {on_term}' TERM; echo up; while :; do sleep 0.01; done")
    try:
        {call}
    except KeyboardInterrupt:
        print("interrupted", queue.stats().visible, flush=True)
        raise
"""


CALLS = ["queue.worker(on_line=show)", "queue.pull_and_execute(on_line=show)"]


@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c_gives_back_what_runs_and_is_raised(tmp_path: Path, call: str) -> None:
    with _program(tmp_path, call, "exit 0") as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        program.send_signal(signal.SIGINT)
        told = program.stdout.read().splitlines()
    assert "told" in told  # it had its SIGTERM
    assert told[-1] == "interrupted 1"
    assert program.returncode == -signal.SIGINT


def test_ctrl_c_ends_a_long_wait_for_a_task(tmp_path: Path) -> None:
    call = "queue.clear(); print('waiting', flush=True); queue.pull_and_execute(wait=datetime.timedelta(days=1))"
    with _program(tmp_path, call, "exit 0") as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "waiting\n"
        program.send_signal(signal.SIGINT)
        assert program.stdout.read() == "interrupted 0\n"
    assert program.returncode == -signal.SIGINT


@pytest.mark.parametrize("call", CALLS)
def test_a_second_ctrl_c_ends_the_grace(tmp_path: Path, call: str) -> None:
    with _program(tmp_path, call, ":") as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        program.send_signal(signal.SIGINT)
        while program.stdout.readline() != "told\n":  # SIGTERM has come, and is ignored
            pass
        program.send_signal(signal.SIGINT)
        assert program.stdout.read().splitlines()[-1] == "interrupted 1"
    assert program.returncode == -signal.SIGINT


def test_a_handler_of_the_program_itself_stays_in_force_and_may_end_the_call(tmp_path: Path) -> None:
    call = "signal.signal(signal.SIGALRM, lambda *_: sys.exit(5)); queue.worker(on_line=show)"
    with _program(tmp_path, call, ":") as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        program.send_signal(signal.SIGALRM)
        program.stdout.read()
    assert program.returncode == 5
    with jobq.sync.connect("demo", settings=Settings(home=tmp_path)) as queue:
        assert queue.stats().visible == 1


def _program(folder: Path, call: str, on_term: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM.format(call=call, on_term=on_term)],
        env={"JOBQ_HOME": str(folder), "HOME": str(folder), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_a_forked_child_is_told_to_connect_again(tmp_path: Path) -> None:
    """Its copy has no thread: a call would wait for ever."""
    with jobq.sync.connect("demo", settings=Settings(home=tmp_path)) as queue:
        child = os.fork()
        if child == 0:
            try:
                queue.push("true")
            except RuntimeError as error:
                os._exit(7 if "connect in it" in str(error) else 1)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
