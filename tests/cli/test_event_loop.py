"""JOBQ_EVENT_LOOP=uvloop: signals, pidfds and deadlines do what they do on asyncio's own loop (P1, P3, P8)."""

import os
import signal
from pathlib import Path

import pytest

from jobq.task import Task
from tests.cli.conftest import Jobq, eventually

pytestmark = pytest.mark.check

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


@LOOPS
def test_tasks_end_as_they_end(jobq: Jobq, loop: str) -> None:
    jobq.fill(
        *(Task.new(command=f"echo line {number}") for number in range(30)),
        Task.new(id="signaled", command="kill -15 $$", budgets={"crashes": 1}),
        Task.new(id="failed", command="exit 7", budgets={"retries": 0}),
        Task.new(id="slow", command="sleep 60", timeout=0.3, budgets={"retries": 0}),
    )
    result = jobq("demo", "worker", "-n", "4", "--json", env={"JOBQ_EVENT_LOOP": loop})
    lines = result.objects
    ends = {line["task_id"]: line["event"] for line in lines if line.get("error_type") and "duration_s" in line}
    assert ends == {"signaled": "task.crashed", "failed": "task.failed", "slow": "task.timeout"}
    printed = sorted(line["line"] for line in lines if line["event"] == "task.output")
    assert printed == sorted(f"line {number}" for number in range(30))


@LOOPS
def test_p8_a_stop_gives_back_what_runs_with_all_that_it_has_started(jobq: Jobq, loop: str) -> None:
    jobq.fill(Task.new(command="(setsid sleep 1000 & echo $! > escaped); echo $$ > leader; sleep 1000"))
    process = jobq.start("demo", "worker", "--stop-grace", "1s", env={"JOBQ_EVENT_LOOP": loop})
    eventually(lambda: _numbers(jobq.folder, "leader", "escaped"))
    numbers = _numbers(jobq.folder, "leader", "escaped")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 143
    assert [Path(f"/proc/{number}").exists() for number in numbers] == [False, False]
    assert len(jobq.waiting()) == 1


def test_without_uvloop_it_says_what_to_do(jobq: Jobq, tmp_path: Path) -> None:
    (tmp_path / "uvloop.py").write_text("raise ModuleNotFoundError(\"No module named 'uvloop'\", name='uvloop')\n")
    environment = {"JOBQ_EVENT_LOOP": "uvloop", "PYTHONPATH": str(tmp_path), "JOBQ_GUARDIAN": "off"}
    jobq.fill(Task.new(command="true"))
    result = jobq("demo", "worker", env={**os.environ, **jobq.environment, **environment}, code=3)
    assert "needs uvloop; install it with: pip install uvloop" in result.err
    assert "never awaited" not in result.err


def _numbers(folder: Path, *names: str) -> list[int]:
    try:
        return [int((folder / name).read_text()) for name in names]
    except (FileNotFoundError, ValueError):
        return []
