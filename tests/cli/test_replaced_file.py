"""A worker whose queue's file is replaced ends its tasks and says so, with a code that is no success."""

from pathlib import Path

import pytest

from jobq.task import Task
from tests.cli.conftest import Jobq, eventually


@pytest.mark.parametrize("blow", ["deleted", "emptied", "log removed"])
def test_worker_ends_its_tasks_and_says_why(jobq: Jobq, tmp_path: Path, blow: str) -> None:
    """S1, S3: it does not idle blindly, and its task does not run on beside the one that others are given."""
    started, over = tmp_path / "started", tmp_path / "over"
    jobq.fill(Task.new(command=f"echo $$ > {started}; sleep 60; touch {over}"))
    worker = jobq.start("demo", "worker", "-n", "2", "--visibility-timeout", "5s", env={"JOBQ_ALLOW_SHORT_LEASE": "1"})
    pid = int(eventually(lambda: started.exists() and started.read_text()))
    match blow:
        case "deleted":
            jobq.file.unlink()
        case "emptied":
            with jobq.file.open("r+b") as file:
                file.truncate()
        case _:
            jobq.file.with_name("queues.db-wal").unlink()
    _, err = worker.communicate(timeout=20)
    assert worker.returncode == 3
    assert b"replaced while it was in use" in err
    assert not Path(f"/proc/{pid}").exists()
    assert not over.exists()


def test_an_idle_worker_ends_too(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true"))
    worker = jobq.start("demo", "worker", "--idle-timeout", "1h")
    assert worker.stderr is not None
    while b"succeeded" not in worker.stderr.readline():  # so the store has been open
        assert worker.poll() is None
    jobq.file.unlink()
    _, err = worker.communicate(timeout=20)
    assert worker.returncode == 3
    assert b"replaced while it was in use" in err
