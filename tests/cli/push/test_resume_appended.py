"""`push --resume` of a file that others write meanwhile: halves of lines, another file, other content (S1, S9)."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobq.errors import SourceChanged
from jobq.lease.traversal import Progress
from jobq.submit import settled_end
from jobq.submit.resumable_file import WalkedFile
from tests.cli.conftest import Jobq

if TYPE_CHECKING:
    from subprocess import Popen

pytestmark = pytest.mark.check

PUSH = ("demo", "push", "--resume", "n", "f")


def append(file: Path, text: str) -> None:
    with file.open("a") as more:
        more.write(text)


def waiting_push(jobq: Jobq) -> "Popen[bytes]":
    """Return a push that waits for the end of the last line, however long its process took to start."""
    os.utime(jobq.folder / "f", (time.time() + 1000,) * 2)
    process = jobq.start(*PUSH)
    assert process.stderr is not None
    assert b"f: its last line has no line end, and was written just now: waiting " in process.stderr.readline()
    return process


def end_of(process: "Popen[bytes]") -> str:
    error = process.communicate(timeout=20)[1].decode()
    assert process.returncode == 0, error
    return error


def test_half_a_line_is_no_command(jobq: Jobq) -> None:
    """`echo li` was queued, and the name was dead: "line 2, which is queued, is longer now"."""
    file = jobq.folder / "f"
    file.write_text("echo 1\necho li")
    push = waiting_push(jobq)
    append(file, "ne 2\necho")
    assert "f has more than when this began, or half a last line: run the same command again" in end_of(push)
    assert jobq.commands() == ["echo 1", "echo line 2"]
    append(file, " 3\n")
    assert jobq(*PUSH).err == "going on with f, which has grown, at line 3\nqueued 1 task on demo\n"
    assert jobq.commands() == ["echo 1", "echo line 2", "echo 3"]


def test_a_last_line_without_its_end_is_taken_where_nobody_writes(jobq: Jobq) -> None:
    (jobq.folder / "f").write_text("echo 1\necho 2")
    assert end_of(waiting_push(jobq)).endswith("queued 2 tasks on demo\n"), "and nothing is said of more"
    os.utime(jobq.folder / "f", (0, 0))
    assert jobq(*PUSH).err == "n is done: all of f was queued before\n", "and nothing was waited for"
    assert "n is done: all of f was queued before" in end_of(waiting_push(jobq))


def test_a_line_that_was_noted_by_half_and_not_queued_may_be_completed(jobq: Jobq) -> None:
    """Else the name would be refused for ever."""
    file = jobq.folder / "f"
    file.write_text("".join(f"echo {number}\n" for number in range(500)) + '{"nonsense": 1}\necho e')
    os.utime(file, (0, 0))
    assert "line 501: nonsense" in jobq(*PUSH, code=2).err
    append(file, "nd\n")
    assert "line 501: nonsense" in jobq(*PUSH, code=2).err, "and no other file"


def begun(path: Path) -> WalkedFile:
    return WalkedFile(path, lambda _: None)


async def walked(file: WalkedFile, pages: int) -> tuple[list[bytes], Progress]:
    """Return the lines of some pages of two, and where they end."""
    progress = await file.continued(Progress(), "push:n", accepts_changes=False)
    found: list[bytes] = []
    for _ in range(pages):
        page = await file.lines()(progress.after, 2)
        found += [line.content for line in page.items]
        progress = Progress(after=page.after, mark=page.mark, is_done=page.is_last, source=progress.source)
    return found, progress


async def test_a_file_that_is_replaced_midway_is_refused(tmp_path: Path) -> None:
    """A mixture of both was queued, and all was well."""
    path, other = tmp_path / "f", tmp_path / "other"
    path.write_text("old 1\nold 2\nold 3\n")
    other.write_text("new 1\nnew 2\nnew 3\n")
    with begun(path) as file:
        _, progress = await walked(file, 1)
        other.replace(path)
        with pytest.raises(SourceChanged, match="was replaced by another file"):
            await file.lines()(progress.after, 2)


async def test_a_file_that_is_removed_and_made_again_is_another(tmp_path: Path) -> None:
    """Its inode is given to no other while the former is held."""
    path = tmp_path / "f"
    path.write_text("old 1\nold 2\nold 3\n")
    with begun(path) as file:
        _, progress = await walked(file, 1)
        path.unlink()
        path.write_text("new 1\nnew 2\nnew 3\n")
        with pytest.raises(SourceChanged, match="was replaced by another file"):
            await file.lines()(progress.after, 2)


async def test_a_file_that_is_rewritten_midway_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old 1\nold 2\nold 3\n")
    with begun(path) as file:
        _, progress = await walked(file, 1)
        path.write_text("new 1\nnew 2\nnew 3\n")
        page = await file.lines()(progress.after, 2)
        with pytest.raises(SourceChanged, match="was changed while it was read"):
            file.check_unchanged(Progress(after=page.after))


async def test_what_is_added_meanwhile_is_for_the_next(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("1\n2\n3\n")
    with begun(path) as file:
        assert not file.has_more()
        append(path, "4\nha")
        found, progress = await walked(file, 2)
        assert found == [b"1", b"2", b"3"]
        assert progress.is_done
        file.check_unchanged(progress)
        assert file.has_more()


@pytest.mark.parametrize("length", [0, 1, settled_end._CHUNK_BYTES, 3 * settled_end._CHUNK_BYTES + 7])
def test_the_last_line_end_is_found_however_long_the_half_line_is(
    tmp_path: Path, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told = tmp_path / "f", list[str]()
    for start in ("", "a line\n"):
        path.write_text(start + length * "x")

        def write(_seconds: float) -> None:
            append(path, "y")

        monkeypatch.setattr(time, "sleep", write)
        with WalkedFile(path, told.append) as file:
            assert file.size == len(start)
    assert len(told) == (2 if length else 0)


def test_the_wait_for_the_end_of_a_line_can_be_interrupted(jobq: Jobq) -> None:
    (jobq.folder / "f").write_text("echo 1\necho 2")
    process = waiting_push(jobq)
    process.send_signal(2)
    assert b"Traceback" not in process.communicate(timeout=20)[1]
    assert process.returncode == 130
    assert not jobq.file.exists()


def test_the_same_file_may_be_waited_for_by_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file server whose clock is ahead: the wait is bounded."""
    path, waited = tmp_path / "f", list[float]()
    path.write_text("1")
    os.utime(path, (time.time() + 1000,) * 2)
    monkeypatch.setattr(time, "sleep", waited.append)
    with begun(path) as file:
        assert file.size == 1
    assert waited == [settled_end.QUIET_SECONDS]
