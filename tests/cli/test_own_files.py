"""Nothing that a command writes for people or probes may be given the place of the queue's own file (S1)."""

import os
from pathlib import Path

import pytest

from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task
from tests.cli.conftest import Jobq


def test_a_health_file_is_not_put_in_the_place_of_the_queue(jobq: Jobq) -> None:
    """It was replaced within a second, and all tasks with it."""
    jobq.fill(Task.new(command="true"))
    (jobq.folder / "link").symlink_to(jobq.file)
    os.link(jobq.file, jobq.folder / "hard")
    for place in (jobq.file, jobq.folder / "link", jobq.folder / "hard", f"{jobq.file}-wal"):
        refused = jobq("demo", "worker", env={"JOBQ_HEALTH_FILE": str(place)}, code=3).err
        assert f"JOBQ_HEALTH_FILE={place} is the queue's own file, which it would destroy; name another" in refused
    (jobq.folder / "hard").unlink()
    assert jobq.commands() == ["true"]


def test_a_job_log_is_not_put_in_the_place_of_the_queue(jobq: Jobq) -> None:
    """It was emptied while it was in use; now nothing is made."""
    (jobq.folder / "f").write_text("true\n")
    for log in ("queue", "./queue", "queue-shm"):
        refused = jobq("run", "--queue-file", "queue", "--joblog", log, "f", code=3).err
        assert "--joblog queue" in refused
        assert "is the queue's own file, which it would destroy; name another" in refused
    assert not (jobq.folder / "queue").exists()


@pytest.mark.parametrize("file", [("f",), ("-",)])
def test_a_job_log_is_not_put_in_the_place_of_the_commands(jobq: Jobq, file: tuple[str, ...]) -> None:
    (jobq.folder / "f").write_text("true\n")
    with (jobq.folder / "f").open() as given:
        process = jobq.start("run", "--joblog", "f", *file, stdin=given.fileno())
        assert b"--joblog f is the file of commands, which it would destroy" in process.communicate(timeout=20)[1]
    assert process.returncode == 3
    assert (jobq.folder / "f").read_text() == "true\n"


def test_other_files_may_lie_beside_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "other").symlink_to(tmp_path / "folder")
    backend = resolve(f"sqlite://{tmp_path}/folder/q.db/demo", Settings())
    keeps = backend.keeps  # type: ignore[attr-defined] # of a file
    kept = ["folder/q.db", "other/q.db", "other/../folder/q.db-wal"]
    assert [keeps(tmp_path / name) for name in kept] == [True] * 3, "also before any of them is there"
    assert not any(keeps(tmp_path / name) for name in ("folder/q.db-log", "folder/health", "q.db", "folder/q.db/x"))
