"""A full disk behind standard output: what is lost there is told, and no exit code calls it a success (S5)."""

import errno
import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobq.cli.display.writer_thread import reader_has_gone
from jobq.task import Task
from tests.cli.conftest import Jobq

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
CAUSE = "cannot write to standard output: No space left on device"


@pytest.fixture
def full() -> Iterator[int]:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("arguments", [("run",), ("run", "-n", "2", "--view", "live"), ("run", "--json")])
def test_run(jobq: Jobq, full: int, arguments: tuple[str, ...]) -> None:
    said = jobq(*arguments, stdin="echo a\necho b\n", stdout=full, code=1).err
    assert said.count(CAUSE) == 1
    assert "2 done, 0 failed" in said


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--log-format", "text")])
def test_worker_settles_its_tasks_all_the_same(jobq: Jobq, full: int, arguments: tuple[str, ...]) -> None:
    jobq.fill(Task.new(command="echo a"), Task.new(command="echo b"))
    said = jobq("demo", "worker", *arguments, stdout=full, code=1).err
    assert sum(CAUSE in line for line in said.splitlines()) == 1
    assert jobq("demo", "size", "--json").objects == [{"visible": 0, "leased": 0, "scheduled": 0, "dead": 0}]


@pytest.mark.parametrize("arguments", [("--ids",), ("--json",)])
def test_push_tells_how_many_ids_are_missing(jobq: Jobq, full: int, arguments: tuple[str, ...]) -> None:
    lines = "".join(f"echo {number}\n" for number in range(700))
    said = jobq("demo", "push", *arguments, "-", stdin=lines, stdout=full, code=1).err
    assert said.count(CAUSE) == 1
    assert "700 tasks are queued, but their ids could not be written" in said
    assert len(jobq.commands()) == 700
    assert "1 task is queued" in jobq("demo", "push", *arguments, "-c", "true", stdout=full, code=1).err


@pytest.mark.parametrize("arguments", [("--ids",), ("--dry-run",)])
def test_push_of_a_specification(jobq: Jobq, full: int, arguments: tuple[str, ...]) -> None:
    (jobq.folder / "plain.py").write_text("def tasks():\n    print('mine')\n    yield 'echo hello'\n")
    said = jobq("demo", "push", "--spec", "plain:tasks", *arguments, stdout=full, code=1).err
    assert said.count(CAUSE) == 1
    assert ("1 task is queued, but its id could not be written" in said) == ("--ids" in arguments)
    assert "Traceback" not in said


def test_a_reader_that_has_gone_is_none(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="exit 3"))
    for arguments, code in (("push", "--ids", "-c", "true"), 0), (("peek", "--json"), 0):
        end, descriptor = os.pipe()
        os.close(end)
        said = jobq("demo", *arguments, stdout=descriptor, code=code).err
        os.close(descriptor)
        assert "cannot write" not in said


def test_a_terminal_that_hung_up_is_told_from_a_broken_disk(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    os.close(ours)
    with pytest.raises(OSError) as hung_up:  # noqa: PT011 - its number is what counts
        os.write(theirs, b"x")
    assert reader_has_gone(hung_up.value, theirs)
    os.close(theirs)
    with (tmp_path / "file").open("wb") as file:
        assert not reader_has_gone(OSError(errno.EIO, "Input/output error"), file.fileno())
