"""What is said and kept when the store fails: rights, damage, locks, full disks, lost answers (S1, S8)."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Jobq


def test_unwritable_home(jobq: Jobq) -> None:
    (jobq.folder / "blocked").touch()
    result = jobq("demo", "push", "-c", "true", env={"JOBQ_HOME": str(jobq.folder / "blocked" / "home")}, code=None)
    assert result.code in (3, 75)
    assert "Not a directory" in result.err
    result = jobq("demo", "push", "-c", "true", env={"JOBQ_HOME": "/proc/jobq"}, code=None)
    assert result.code in (3, 75)
    assert "/proc/jobq" in result.err


def test_corrupt_file(jobq: Jobq) -> None:
    jobq.home.mkdir()
    jobq.file.write_bytes(b"this is no database, but it is long enough to be read as one" * 100)
    for arguments in (["push", "-c", "true"], ["size"], ["worker"]):
        assert "is damaged or no SQLite database" in jobq("demo", *arguments, code=3).err


def test_locked_file(jobq: Jobq) -> None:
    jobq.fill()
    holder = sqlite3.connect(jobq.file, isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        result = jobq("demo", "push", "-c", "true", "--ids", code=75)
    finally:
        holder.close()
    assert f"stayed locked by process {os.getpid()} (" in result.err
    assert result.out == ""
    assert jobq.commands() == []


def test_full_disk(jobq: Jobq) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    disk = jobq.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount here: {mounted.stderr.decode().strip()}")
    try:
        jobq.home = disk
        jobq.environment["JOBQ_HOME"] = str(disk)
        result = jobq("demo", "push", "--ids", stdin="".join(f"echo {n}\n" for n in range(10_000)), code=75)
        assert "no space left" in result.err
        assert f"the lines before {len(result.lines) + 1} are queued; go on with: tail -n +" in result.err
        assert result.lines
        assert set(result.lines) == set(_ids_in_copy_of(disk, jobq.folder / "copy"))
    finally:
        subprocess.run(["umount", disk], check=True)


def _ids_in_copy_of(disk: Path, copy: Path) -> list[str]:
    """Read what is on the full disk from a copy: opening it there would need room for the write-ahead log."""
    shutil.copytree(disk, copy)
    database = sqlite3.connect(copy / "queues.db")
    try:
        return [id_ for (id_,) in database.execute("SELECT id FROM task")]
    finally:
        database.close()


def test_answer_that_is_lost_is_asked_for_again(jobq: Jobq) -> None:
    program = """
from jobq_sqlite.backend import SqliteBackend
from jobq.errors import PushUnknown
push, failures = SqliteBackend.push, [%d]
async def losing(self, tasks):
    ids = await push(self, tasks)
    if failures[0]:
        failures[0] -= 1
        raise PushUnknown("the answer was lost", ids)
    return ids
SqliteBackend.push = losing
from jobq.cli.main import main
main()
"""
    for failures, code in ((1, 0), (2, 75)):
        completed = subprocess.run(
            [sys.executable, "-c", program % failures, "demo", "push", "-c", "true", "--json"],
            capture_output=True, text=True, env=jobq.environment, check=False,
        )  # fmt: skip
        assert completed.returncode == code, completed
    error = json.loads(completed.stderr)
    assert error["ids"] == [jobq.waiting()[-1].id]
    assert "in doubt: 1 task (" in error["message"]
    assert len(jobq.waiting()) == 2


def test_a_repetition_that_is_refused_leaves_the_first_in_doubt(jobq: Jobq) -> None:
    # S8: the first may be queued; that the second was not done says nothing of it, and no line may be pushed again.
    program = """
from jobq_sqlite.backend import SqliteBackend
from jobq.errors import BackendUnavailable, PushUnknown
push, calls = SqliteBackend.push, []
async def losing(self, tasks):
    if calls:
        raise BackendUnavailable("the database is locked")
    calls.append(ids := await push(self, tasks))
    raise PushUnknown("the answer was lost", ids)
SqliteBackend.push = losing
from jobq.cli.main import main
main()
"""
    completed = subprocess.run(
        [sys.executable, "-c", program, "demo", "push", "-"],
        input="true\ntrue\n", capture_output=True, text=True, env=jobq.environment, check=False,
    )  # fmt: skip
    assert completed.returncode == 75, completed
    assert len(jobq.waiting()) == 2
    assert "in doubt: 2 tasks" in completed.stderr
    assert "no line is queued" not in completed.stderr
    assert "tail -n +1 " not in completed.stderr


def test_a_run_does_not_take_a_lost_answer_for_a_refusal(jobq: Jobq) -> None:
    """S8: what it has fed may be queued, though the second push of it was refused."""
    program = """
from jobq_sqlite.backend import SqliteBackend
from jobq.errors import BackendUnavailable, PushUnknown
push, calls = SqliteBackend.push, []
async def losing(self, tasks):
    calls.append(tasks)
    if len(calls) == 1:
        raise PushUnknown("the answer was lost", await push(self, tasks))
    raise BackendUnavailable("the database is locked")
SqliteBackend.push = losing
from jobq.cli.main import main
main()
"""
    completed = subprocess.run(
        [sys.executable, "-c", program, "run"],
        input="true\n", capture_output=True, text=True, env=jobq.environment, check=False,
    )  # fmt: skip
    assert completed.returncode == 75, completed
    assert "the answer was lost" in completed.stderr
