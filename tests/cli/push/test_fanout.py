"""`fanout`: one task a record or a batch; interrupted, changed underfoot, refused."""

import os
import re
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Jobq
from tests.cli.push.shells import HOSTILE, said_by

pytestmark = pytest.mark.check


def lines_of(jobq: Jobq) -> list[str]:
    return [task.argv[-1] for task in jobq.waiting() if task.argv]


def fanout(*options: str) -> tuple[str, ...]:
    return ("demo", "fanout", "n", "--lines", "many", *options, "--", "echo", "{line}")


def table(folder: Path, count: int) -> None:
    with sqlite3.connect(folder / "u.db") as database:
        database.execute("CREATE TABLE users (id INTEGER, name TEXT, none TEXT)")
        rows = [(number, HOSTILE[number % len(HOSTILE)]) for number in range(count)]
        database.executemany("INSERT INTO users (id, name) VALUES (?, ?)", rows)
    database.close()


SQL = ("--sql", "u.db", "SELECT * FROM users WHERE name <> '*'", "--key", "id")


def test_rows_become_tasks_that_say_what_they_hold(jobq: Jobq) -> None:
    table(jobq.folder, len(HOSTILE))
    fanout = ("demo", "fanout", "users", "--priority", "2", *SQL, "--", "printf", "%s", "{id}:", "{name}", "={none}.")
    jobq(*fanout)
    tasks = jobq.waiting()
    expected = [f"{number}:{name}=." for number, name in enumerate(HOSTILE) if name != "*"]
    assert [said_by(task) for task in tasks] == expected
    assert {task.priority for task in tasks} == {2}
    assert "users is done" in jobq(*fanout).err
    other = jobq("demo", "fanout", "users", "--priority", "2", *SQL, "-c", "printf %s", code=2)
    assert "begun with another command" in other.err
    assert len(jobq.waiting()) == len(tasks)
    jobq("demo", "fanout", "users2", *SQL, "-c", """printf '%s' "$PARAM_id:" "$PARAM_name" "=${PARAM_none}." """)
    assert [said_by(task) for task in jobq.waiting()[len(tasks) :]] == expected


def test_batches_of_lines(jobq: Jobq) -> None:
    (jobq.folder / "files").write_text("a\n\nb c\n-e\nd\nf\n")
    command = ("printf", "[%s]", "{number}", "{count}", "{first}", "{last}", "--", "{items}")
    result = jobq("demo", "fanout", "files", "--lines", "files", "--batch", "3", "--json", "--", *command, code=2)
    assert "could pass for an option" in result.error["message"], "-e is the last batch's first"
    fanout = ("demo", "fanout", "files2", "--lines", "files", "--batch", "4")
    jobq(*fanout, "--", "printf", "[%s]", "{number}", "--", "{items}")
    jobq(*fanout[:2], "files3", *fanout[3:], "-c", """printf '[%s]' "$PARAM_number" -- "$@" """)
    assert [said_by(task) for task in jobq.waiting()] == ["[1][--][a][b c][-e]", "[2][--][d][f]"] * 2


def test_a_batch_is_the_same_across_pages(jobq: Jobq) -> None:
    (jobq.folder / "many").write_text("".join(f"{number}\n" for number in range(1, 1306)))
    jobq("demo", "fanout", "n", "--lines", "many", "--batch", "3", "-c", 'echo "$PARAM_first"')
    ranges = [(str(first), str(min(first + 2, 1305)), "3") for first in range(1, 1305, 3)]
    assert [
        tuple(task.env[f"PARAM_{name}"] for name in ("first", "last", "count")) for task in jobq.waiting()
    ] == ranges
    assert set(jobq.commands()) == {'set -- "$ITEM_1" "$ITEM_2" "$ITEM_3"\necho "$PARAM_first"'}


def test_an_interrupted_fanout_goes_on_and_adds_nothing_twice(jobq: Jobq) -> None:
    """Interrupted as by a kill between push and save: the second page was queued and its cursor not saved."""
    lines = [f"{number}" for number in range(1200)]
    (jobq.folder / "many").write_text("\n".join([*lines[:700], "-bad", *lines[700:]]))
    os.utime(jobq.folder / "many", (0, 0))  # left alone: its last line is one
    refused = jobq(*fanout(), code=2)
    assert "many, line 701" in refused.err
    assert "go on with --accept-changes, or leave such records out with --skip-refused" in refused.err
    assert len(jobq.waiting()) == 500
    (jobq.folder / "many").write_text("\n".join(lines))
    os.utime(jobq.folder / "many", (0, 0))
    result = jobq(*fanout("--accept-changes"))
    assert "going on with n after 500 records" in result.err
    assert lines_of(jobq) == lines


def test_what_cannot_work_is_told_before_anything_is_done(jobq: Jobq) -> None:
    table(jobq.folder, 3)
    (jobq.folder / "f").write_text("a\n")
    for arguments, code, text in (
        (("-c", "echo"), 2, "one place"),
        (("--lines", "f", *SQL, "-c", "echo"), 2, "one place"),
        (("--sql", "u.db", "SELECT 1", "-c", "echo"), 2, "--sql and --key go together"),
        (("--lines", "f"), 2, "what to run: a program and its arguments after `--`, or -c"),
        (("--lines", "f", "--"), 2, "what to run"),
        (("--lines", "f", "-c", "echo", "--", "echo", "{line}"), 2, "what to run"),
        (("--lines", "f", "--", "echo", "{nmae}"), 2, "no field {nmae}; there are: line, number, offset"),
        (("--lines", "f", "-c", "echo {line}"), 2, 'write "$PARAM_line" there'),
        (("--lines", "f", "--batch", "2", "-c", "echo {items}"), 2, 'write "$@" there'),
        (("--lines", "f", "--batch", "2", "--", "echo", "a{items}"), 2, "{items} is many words"),
        (("--lines", "missing", "-c", "echo"), 2, "cannot read missing: No such file"),
        (("--lines", ".", "-c", "echo"), 3, "no file that can be read again"),
        (("--sql", "missing.db", "SELECT 1", "--key", "id", "-c", "echo"), 3, "no SQLite file"),
        (("--blobs", "account", "-c", "echo"), 3, "names no container"),
    ):
        assert text in jobq("demo", "fanout", "n", *arguments, code=code).err
    assert not jobq.file.exists()
    bad = jobq("demo", "fanout", "n", "--sql", "u.db", "SELEC", "--key", "id", "--", "echo", "{id}", code=3)
    assert "no such table: SELEC" in bad.err
    assert jobq.inside(_count) == 0


async def _count(backend: object) -> int:
    from jobq.errors import QueueNotFound  # noqa: PLC0415 - of this one alone

    try:
        return int((await backend.stats()).visible)  # type: ignore[attr-defined] # a backend
    except QueueNotFound:
        return 0


def test_a_worker_runs_what_was_meant(jobq: Jobq) -> None:
    """From the file to the process, through a queue and a worker's environment (A2, A6)."""
    names = ["a$(touch PWN).txt", "it's", '"; touch PWN; "', "two  words", "a[$(touch PWN)]", "x" * 100_000]
    (jobq.folder / "names").write_text("".join(f"{name}\n" for name in names))
    write = 'import sys; print(sys.argv[1], file=open("out", "a"))'
    jobq("demo", "fanout", "n", "--lines", "names", "-c", 'out=$(basename -- "$PARAM_line"); echo "$out" >> out')
    jobq("demo", "fanout", "n2", "--lines", "names", "--", sys.executable, "-c", write, "{line}")
    jobq("demo", "worker", env={"JOBQ_TASK_ENV": "clean"})
    assert sorted((jobq.folder / "out").read_text().splitlines()) == sorted(2 * names)
    assert not (jobq.folder / "PWN").exists()


@pytest.fixture
def interrupted(jobq: Jobq) -> Path:
    """A fanout of which the first of two pages was queued, for the second holds a record that is refused."""
    file = jobq.folder / "many"
    file.write_text("".join(f"{number}\n" for number in range(600)) + "-bad\nend\n")
    assert "queued 500 tasks" in jobq(*fanout(), code=2).err
    return file


def test_a_changed_file_is_refused(jobq: Jobq, interrupted: Path) -> None:
    before = interrupted.read_text()
    for changed, text in (
        ("inserted\n" + before, "its first 500 lines, which are queued, have changed"),
        ("short\n", "has become shorter"),
    ):
        interrupted.write_text(changed)
        assert "fanout:n was begun with another file" in jobq(*fanout(), code=2).err
        assert text in jobq(*fanout("--accept-changes"), code=2).err
    assert len(jobq.waiting()) == 500
    interrupted.write_text(before.replace("-bad", "good"))
    assert "another file" in jobq(*fanout(), code=2).err
    jobq(*fanout("--accept-changes"))
    assert lines_of(jobq) == interrupted.read_text().splitlines()


def test_lines_appended_when_it_was_done_are_not_dropped_in_silence(jobq: Jobq) -> None:
    file = jobq.folder / "many"
    file.write_text("a\n")
    assert "queued 1 task on" in jobq(*fanout()).err
    with file.open("a") as more:
        more.write("b\n")
    assert "another file" in jobq(*fanout(), code=2).err
    assert "has grown since n was done; use another name" in jobq(*fanout("--accept-changes"), code=2).err
    assert lines_of(jobq) == ["a"]


def test_lines_that_are_added_while_it_runs_are_not_dropped_in_silence(jobq: Jobq) -> None:
    """It waits for the end of its last line, which the other program does not write: that line is none of the file."""
    file = jobq.folder / "many"
    file.write_text("a\nb")
    os.utime(file, (time.time() + 1000,) * 2)  # however long it takes to start
    process = jobq.start(*fanout())
    assert process.stderr is not None
    assert b"no line end" in process.stderr.readline()
    with file.open("a") as more:
        more.write("c")
    assert b"many has grown while it was read" in process.communicate(timeout=20)[1]
    assert process.returncode == 2
    assert lines_of(jobq) == ["a"]


def test_refused_records_are_left_out_and_named(jobq: Jobq, interrupted: Path) -> None:
    lines = interrupted.read_text().splitlines()
    result = jobq(*fanout("--skip-refused"))
    assert "left out: many, line 601: " in result.err
    assert "queued 101 tasks on demo of 602 records; 1 refused one was left out" in result.err
    assert lines_of(jobq) == [line for line in lines if line != "-bad"]
    assert "n is done" in jobq(*fanout()).err


@pytest.mark.slow("real processes, and leases of seconds")
def test_what_is_refused_is_left_out_of_its_batch(jobq: Jobq) -> None:
    (jobq.folder / "many").write_bytes(b"a\n-b\nc\n\xff\nd\n-e\n-f\n-g\nh\n-i\n-j\n-k\n")
    result = jobq(*fanout("--batch", "3", "--skip-refused")[:-1], "{items}", "{count}")
    assert [said_by(task) for task in jobq.waiting()] == ["a c 2\n", "d 1\n", "h 1\n"]
    assert re.findall(r"left out: many, line (\d+): ", result.err) == ["2", "4", "6", "7", "8", "10", "11", "12"]
    assert "8 refused ones were left out" in result.err
    (jobq.folder / "big").write_text("x\n" * 10_000 + "z\n")
    long = ("-c", "echo" + 4_000 * " long", "--batch", "10000")  # more than a program takes
    both = jobq("demo", "fanout", "big", "--lines", "big", *long, "--skip-refused")
    assert "left out: big, line 1: the command has" in both.err
    assert "(and the others of its batch of 10000)" in both.err
    assert [task.env["ITEM_1"] for task in jobq.waiting()[3:]] == ["z"]
    (jobq.folder / "u").write_bytes(b"a\n\xff\n")
    assert "u, line 2: byte 1: not UTF-8" in jobq("demo", "fanout", "u", "--lines", "u", "-c", "echo", code=2).err


def test_rows_with_bytes_are_refused_or_left_out(jobq: Jobq) -> None:
    table(jobq.folder, 2)
    query = ("--sql", "u.db", "SELECT id, CASE id WHEN 0 THEN x'00' ELSE name END AS name FROM users", "--key", "id")
    fanout = ("demo", "fanout", "r", *query)
    run = ("--", "echo", "{name}")
    assert "select hex(...) of them; leave such records out" in jobq(*fanout, *run, code=2).err
    assert "left out: the row with id 0: name: bytes" in jobq(*fanout, "--skip-refused", *run).err
    assert [said_by(task) for task in jobq.waiting()] == ["two words\n"]
    assert "goes with --lines" in jobq(*fanout, "--accept-changes", *run, code=2).err


def test_a_dry_run_shows_the_first_three_tasks(jobq: Jobq) -> None:
    (jobq.folder / "f").write_text("a\n\nb\nc\nd\n")
    fanout = ("demo", "fanout", "n", "--dry-run", "--lines", "f")
    assert jobq(*fanout, "--", "wc", "--", "{line}").lines == ["wc -- a", "wc -- b"]
    result = jobq(*fanout, "--batch", "2", "-c", 'wc -- "$@"')
    assert len(result.lines) == 3
    assert "nothing is queued" in result.err
    assert not jobq.file.exists()


def test_one_text_that_is_no_utf8_concerns_its_row_alone(jobq: Jobq) -> None:
    """All rows were refused, no row was named, and the advice was to run the same again."""
    table(jobq.folder, 3)
    with sqlite3.connect(jobq.folder / "u.db") as database:
        database.execute("INSERT INTO users (id, name) VALUES (3, CAST(x'4a6f73e9' AS TEXT))")
    fanout = ("demo", "fanout", "t", "--sql", "u.db", "SELECT id, name FROM users", "--key", "id")
    run = ("--", "echo", "{name}")
    assert "leave such records out with --skip-refused" in jobq(*fanout, *run, code=2).err
    assert (
        "left out: the row with id 3: name: bytes cannot stand in a command, nor a text that is not UTF-8"
        in jobq(*fanout, "--skip-refused", *run).err
    )
    assert len(jobq.waiting()) == 3


def test_one_key_that_is_no_utf8_concerns_its_row_alone(jobq: Jobq) -> None:
    with sqlite3.connect(jobq.folder / "u.db") as database:
        database.execute("CREATE TABLE users (id TEXT)")
        database.executemany("INSERT INTO users VALUES (?)", [("a",), ("b",), ("z",)])
        database.execute("INSERT INTO users VALUES (CAST(x'62e9' AS TEXT))")
        database.execute("INSERT INTO users VALUES (CAST(x'ff' AS TEXT))")
    fanout = ("demo", "fanout", "t", "--sql", "u.db", "SELECT id FROM users", "--key", "id", "--skip-refused")
    said = jobq(*fanout, "--", "echo", "{id}").err
    assert said.count("left out: the row with id b'b\\xe9'") == 1
    assert said.count("left out: the row with id b'\\xff'") == 1
    assert [task.argv[-1] for task in jobq.waiting() if task.argv] == ["a", "b", "z"]
