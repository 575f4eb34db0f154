"""`push --resume NAME FILE`: killed anywhere and run again, no line is lost and none is queued twice (S1, S8, S9)."""

import contextlib
import random
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Jobq

pytestmark = pytest.mark.check

SHORT = {
    "JOBQ_ALLOW_SHORT_LEASE": "1",
    "JOBQ_LEASE_TTL": "2s",
    "JOBQ_KILL_MARGIN": "0.1s",
    "JOBQ_SCHEDULE_MARGIN": "0.05s",
}


@pytest.fixture(autouse=True)
def short(jobq: Jobq) -> None:
    jobq.environment |= SHORT


def commands_in(file: Path) -> list[str]:
    """Return the commands of all tasks in the order of their arrival, as cheaply as can be."""
    if not file.exists():
        return []
    with contextlib.closing(sqlite3.connect(file, timeout=30)) as database:
        try:
            return [
                command
                for (command,) in database.execute("SELECT json_extract(body, '$.command') FROM task ORDER BY seq")
            ]
        except sqlite3.OperationalError:  # not made yet
            return []


def count_in(file: Path) -> int:
    if not file.exists():
        return 0
    with contextlib.closing(sqlite3.connect(file, timeout=30)) as database:
        try:
            return int(database.execute("SELECT count(*) FROM task").fetchone()[0])
        except sqlite3.OperationalError:
            return 0


def killed_and_run_again(jobq: Jobq, count: int, kills: int, seconds: float) -> None:
    file = jobq.folder / "tasks.txt"
    lines = [f"echo {number}" for number in range(count)]
    file.write_text("\n".join(lines) + "\n")
    push = ("demo", "push", "--resume", "monday", "tasks.txt")
    dice = random.Random(count)
    killed = 0
    while killed < kills:
        process = jobq.start(*push, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        began = count_in(jobq.file)
        give_up = time.monotonic() + seconds
        # Once it has moved on, at any moment: in a push, between it and the save, in the save.
        while process.poll() is None and count_in(jobq.file) == began and time.monotonic() < give_up:
            time.sleep(0.002)
        time.sleep(dice.uniform(0, 0.05))
        process.kill()
        assert process.wait() == -9, "it was done before it was killed; the file is too short"
        killed += 1
    last = jobq.start(*push, stderr=subprocess.DEVNULL, env={"JOBQ_LEASE_TTL": "20s"})  # nobody waits for its end
    assert last.wait(1500) == 0
    assert commands_in(jobq.file) == lines, "every line once, in the order of the file"
    assert "is done" in jobq(*push).err
    assert count_in(jobq.file) == count


def test_killed_anywhere_it_is_finished_by_running_it_again(jobq: Jobq) -> None:
    killed_and_run_again(jobq, 30_000, kills=3, seconds=20)


@pytest.mark.night
@pytest.mark.timeout(1800)
def test_a_million_lines_killed_many_times(jobq: Jobq) -> None:
    killed_and_run_again(jobq, 1_000_000, kills=20, seconds=60)


def test_lines_have_ids_of_the_name_and_their_offset_and_keep_their_own(jobq: Jobq) -> None:
    (jobq.folder / "f").write_text('true\n\n# a comment\nfalse\n{"command": "echo own", "id": "own"}\n')
    jobq("demo", "push", "--resume", "n", "f", "--priority", "3")
    assert sorted((task.id, task.command, task.priority) for task in jobq.waiting()) == [
        ("n.0", "true", 3),
        ("n.18", "false", 3),
        ("own", "echo own", 3),
    ]


def test_what_was_done_is_not_done_again_under_another_name(jobq: Jobq) -> None:
    (jobq.folder / "f").write_text("true\n")
    jobq("demo", "push", "--resume", "a", "f", "--ids")
    result = jobq("demo", "push", "--resume", "b", "f", "--json")
    assert result.objects == [{"id": "b.0"}]
    assert len(jobq.waiting()) == 2


def test_a_bad_line_is_told_with_its_number_and_mended(jobq: Jobq) -> None:
    file = jobq.folder / "f"
    file.write_text('echo 1\necho 2\n{"nonsense": 1}\necho 4\n')
    bad = jobq("demo", "push", "--resume", "n", "f", code=2)
    assert "f, line 3: nonsense: unknown field" in bad.err
    assert "--accept-changes" in bad.err
    assert jobq.commands() == ["echo 1", "echo 2"]
    file.write_text("echo 1\necho 2\necho 3\necho 4\n")
    jobq("demo", "push", "--resume", "n", "f", "--accept-changes")
    assert jobq.commands() == ["echo 1", "echo 2", "echo 3", "echo 4"]


@pytest.fixture
def interrupted(jobq: Jobq) -> Path:
    """A push of two pages of which the first was queued: the second begins with what is no task."""
    file = jobq.folder / "f"
    file.write_text("".join(f"echo {number}\n" for number in range(500)) + '{"nonsense": 1}\necho end\n')
    jobq("demo", "push", "--resume", "n", "f", code=2)
    assert count_in(jobq.file) == 500
    return file


def test_a_changed_file_is_refused(jobq: Jobq, interrupted: Path) -> None:
    interrupted.write_text(interrupted.read_text().replace('{"nonsense": 1}', "echo mended"))
    refused = jobq("demo", "push", "--resume", "n", "f", code=2)
    assert "push:n was begun with another file" in refused.err
    assert count_in(jobq.file) == 500
    jobq("demo", "push", "--resume", "n", "f", "--accept-changes")
    assert jobq.commands()[500:] == ["echo mended", "echo end"]


def test_a_file_whose_queued_lines_changed_is_refused_in_any_case(jobq: Jobq, interrupted: Path) -> None:
    interrupted.write_text(interrupted.read_text().replace("echo 7\n", "echo 8\n"))
    refused = jobq("demo", "push", "--resume", "n", "f", "--accept-changes", code=2)
    assert "its first 500 lines, which are queued, have changed" in refused.err
    interrupted.write_text("short\n")
    assert "has become shorter" in jobq("demo", "push", "--resume", "n", "f", "--accept-changes", code=2).err
    assert count_in(jobq.file) == 500


def test_other_options_are_refused(jobq: Jobq, interrupted: Path) -> None:
    assert interrupted.exists()
    refused = jobq("demo", "push", "--resume", "n", "f", "--priority", "1", code=2)
    assert "was begun with another options" in refused.err


@pytest.mark.parametrize(
    "words", [("push", "--resume", "n", "f"), ("fanout", "n", "--lines", "f", "--", "echo", "{line}")]
)
def test_each_run_may_have_a_trace_of_its_own(jobq: Jobq, words: tuple[str, ...]) -> None:
    """With tracing it could not be finished by running the same line again: "begun with another options"."""
    (jobq.folder / "f").write_text("true\nfalse\n")
    for trace in "ab":
        told = jobq("demo", *words, env={"TRACEPARENT": f"00-{trace * 32}-{trace * 16}-01"})
    assert "n is done: all" in told.err
    assert len(jobq.waiting()) == 2


def append(file: Path, text: str) -> None:
    with file.open("a") as more:
        more.write(text)


def test_lines_that_are_appended_are_pushed_alone(jobq: Jobq) -> None:
    """It was refused: a sweep is extended by some lines."""
    file = jobq.folder / "f"
    file.write_text("echo 1\n")
    jobq("demo", "push", "--resume", "n", "f")
    append(file, "echo 2\n")
    grown = jobq("demo", "push", "--resume", "n", "f")
    assert grown.err == "going on with f, which has grown, at line 2\nqueued 1 task on demo\n"
    assert "n is done" in jobq("demo", "push", "--resume", "n", "f").err
    append(file, "echo 3")
    jobq("demo", "push", "--resume", "n", "f")
    append(file, "\necho 4\n")
    jobq("demo", "push", "--resume", "n", "f", "--accept-changes")
    assert jobq.commands() == ["echo 1", "echo 2", "echo 3", "echo 4"]
    file.write_text(file.read_text().replace("echo 2", "echo x") + "echo 5\n")
    assert "which are queued, have changed" in jobq("demo", "push", "--resume", "n", "f", code=2).err


@pytest.mark.parametrize("more", [(), ("--accept-changes",)])
def test_a_queued_line_that_goes_on_is_refused(jobq: Jobq, more: tuple[str, ...]) -> None:
    """Its last line had no end: what was queued of it is another command than what stands there now."""
    file = jobq.folder / "f"
    file.write_text("echo 1\necho 2")
    jobq("demo", "push", "--resume", "n", "f")
    append(file, "3\necho 4\n")
    refused = jobq("demo", "push", "--resume", "n", "f", *more, code=2).err
    assert ("line 2 of f, which is queued, is longer now" if more else "was begun with another file") in refused
    assert jobq.commands() == ["echo 1", "echo 2"]


def test_an_interrupted_push_goes_on_with_what_was_appended(jobq: Jobq, interrupted: Path) -> None:
    append(interrupted, "echo more\n")
    assert "line 501: nonsense" in jobq("demo", "push", "--resume", "n", "f", code=2).err, "and no other file"
    interrupted.write_text(interrupted.read_text().replace('{"nonsense": 1}', "echo mended"))
    jobq("demo", "push", "--resume", "n", "f", "--accept-changes")
    append(interrupted, "echo last\n")
    jobq("demo", "push", "--resume", "n", "f")
    assert jobq.commands()[500:] == ["echo mended", "echo end", "echo more", "echo last"]


def test_what_cannot_be_resumed_is_told_before_anything_is_done(jobq: Jobq) -> None:
    (jobq.folder / "f").write_text("true\n")
    push = ("demo", "push")
    for arguments, code, text in (
        ((*push, "--resume", "n"), 2, "reads a FILE"),
        ((*push, "--resume", "n", "-"), 2, "reads a FILE"),
        ((*push, "--resume", "n", "f", "--delay", "1s"), 2, "--delay counts from"),
        ((*push, "--accept-changes", "f"), 2, "goes with --resume"),
        ((*push, "--resume", "n", "missing"), 2, "cannot read missing: No such file"),
        ((*push, "--resume", "n", "."), 2, "no file that can be read again"),
        ((*push, "--resume", "a/b", "f"), 3, "is no name for a lease"),
        ((*push, "--resume", "x" * 76, "f"), 3, "at most 75 characters"),
        ((*push, "--resume", "n", "f", "-c", "true"), 2, "one place"),
    ):
        assert text in jobq(*arguments, code=code).err
    assert not jobq.file.exists()


@pytest.mark.parametrize("words", [("push", "--resume", "n", "f"), ("fanout", "n", "--lines", "f", "-c", "true")])
def test_a_cursor_that_would_end_with_the_command_is_refused(jobq: Jobq, words: tuple[str, ...]) -> None:
    """It was accepted, and each run queued all of it again."""
    (jobq.folder / "f").write_text("true\n")
    for leases in ("memory://a/b", "MEMORY://a/b"):
        refused = jobq("demo", *words, env={"JOBQ_LEASES": leases}, code=3).err
        assert "JOBQ_LEASES: memory:// lives in one process and ends with this command" in refused
        assert "Name an embedded queue, such as: cursors" in refused
    assert not jobq.file.exists()


def test_one_that_is_done_is_not_said_to_be_where_its_queue_is_gone(jobq: Jobq) -> None:
    (jobq.folder / "lines").write_text("echo 1\necho 2\n")
    push = ("demo", "push", "--resume", "nightly", "lines")
    fanout = ("demo", "fanout", "nightly", "--lines", "lines", "--", "echo", "{line}")
    for words in (push, fanout):
        jobq(*words)
        jobq("demo", "delete", "--force")
        told = jobq(*words, code=4).err
        assert "queue 'demo' does not exist" in told
        assert "nightly was done, and what it had queued is gone with the queue; to queue it again" in told
