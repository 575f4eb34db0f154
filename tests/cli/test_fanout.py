"""`fanout`: one task a record or a batch, and no value that says anything but itself to the shell (A2)."""

import shlex
import sqlite3
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.cli.templates import CommandTemplate, InvalidTemplate
from jobq.errors import MalformedTask

from .conftest import Jobq

HOSTILE = [
    "plain", "two words", "it's", '"', "'", "''", "\\", "\\'", "a\nb", "\n", "$(touch pwned)", "`touch pwned`", "$HOME",
    "${HOME}", "; touch pwned", "&& touch pwned", "| touch pwned", "> pwned", "#", "*", "~", "!!", "{line}", "{{",
    "a b'c\"d", "\t", " ", "ünï", "\u202e", "\x1b[31m", "%s", "\r", "a=b",
]  # fmt: skip


def said_by(command: str) -> str:
    """Run a command as a worker does."""
    done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, check=True, cwd="/", env={"HOME": "/"})
    return done.stdout.decode()


@pytest.mark.parametrize("value", HOSTILE, ids=ascii)
def test_a_hostile_value_stays_one_word(value: str) -> None:
    filled = CommandTemplate("printf '[%s]' -- x{v} {v} --o={v} $(printf %s {v} >/dev/null; echo ok)").filled(
        {"v": value}
    )
    assert said_by(filled) == f"[--][x{value}][{value}][--o={value}][ok]"
    assert not Path("/pwned").exists()


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20))
def test_any_value_is_one_word(value: str) -> None:
    assert shlex.split(CommandTemplate("echo -- {v}").filled({"v": value}), posix=True) == ["echo", "--", value]


@pytest.mark.parametrize("value", ["-", "-rf", "--help", "-n 1"])
def test_a_leading_dash_that_could_pass_for_an_option_is_refused(value: str) -> None:
    for refused in (
        "rm {v}",
        "rm ''{v}",
        "rm {e}{v}",
        "rm -- x; rm {v}",
        "rm {v} --",
        "rm $(ls {v})",
        "rm -- $(ls {v})",
    ):
        with pytest.raises(MalformedTask, match="could pass for an option"):
            CommandTemplate(refused).filled({"v": value, "e": ""})
    for allowed in ("rm -- {v}", "rm -f -- a {v}", "rm ./{v}", "rm --file={v}"):
        assert shlex.quote(value) in CommandTemplate(allowed).filled({"v": value})


def test_a_nul_is_refused() -> None:
    with pytest.raises(MalformedTask, match="holds a NUL"):
        CommandTemplate("echo {v}").filled({"v": "a\0b"})


@pytest.mark.parametrize(
    "template",
    [
        "echo '{v}'", 'echo "{v}"', "echo `echo {v}`", 'echo "$(echo {v})"', "echo 1 # {v}", "cat <<EOF\n{v}\nEOF",
        "echo $'it\\'s {v}'", "echo 'a\\' {w} 'b {v}'", 'echo "a\\" {v}"',
    ],
)  # fmt: skip
def test_a_field_within_quotes_is_refused(template: str) -> None:
    with pytest.raises(InvalidTemplate):
        CommandTemplate(template)


def test_braces_of_the_shell_are_left_to_it() -> None:
    filled = CommandTemplate("a=1; echo ${a} {{v}} {v} {1..2} \\{v\\}").filled({"v": "x"})
    assert filled == "a=1; echo ${a} {v} x {1..2} \\{v\\}"


def test_unknown_fields_and_templates_without_any_are_refused() -> None:
    with pytest.raises(InvalidTemplate, match=r"no field {nmae}; there are: id, name\..*{{nmae}}"):
        CommandTemplate("echo {nmae}").check({"id", "name"})
    with pytest.raises(InvalidTemplate, match="has no field"):
        CommandTemplate("echo hello")


def test_a_list_becomes_words() -> None:
    filled = CommandTemplate("printf '[%s]' -- {items}").filled({"items": ["a b", "-x", "c'd"]})
    assert said_by(filled) == "[--][a b][-x][c'd]"


def table(folder: Path, count: int) -> None:
    with sqlite3.connect(folder / "u.db") as database:
        database.execute("CREATE TABLE users (id INTEGER, name TEXT, none TEXT)")
        rows = [(number, HOSTILE[number % len(HOSTILE)]) for number in range(count)]
        database.executemany("INSERT INTO users (id, name) VALUES (?, ?)", rows)
    database.close()


SQL = ("--sql", "u.db", "SELECT * FROM users WHERE name <> '*'", "--key", "id")


def test_rows_become_tasks_that_say_what_they_hold(jobq: Jobq) -> None:
    table(jobq.folder, len(HOSTILE))
    jobq("demo", "fanout", "users", *SQL, "-c", "printf '%s' {id}: {name} [{none}]", "--priority", "2")
    tasks = jobq.waiting()
    expected = [f"{number}:{name}[]" for number, name in enumerate(HOSTILE) if name != "*"]
    assert [said_by(str(task.command)) for task in tasks] == expected
    assert {task.priority for task in tasks} == {2}
    again = jobq("demo", "fanout", "users", *SQL, "-c", "printf '%s' {id}: {name} [{none}]", "--priority", "2")
    assert "users is done" in again.err
    other = jobq("demo", "fanout", "users", *SQL, "-c", "echo {id}", code=2)
    assert "begun with another command" in other.err
    assert len(jobq.waiting()) == len(tasks)


def test_batches_of_lines(jobq: Jobq) -> None:
    (jobq.folder / "files").write_text("a\n\nb c\n-e\nd\nf\n")
    command = "printf '[%s]' {number} {count} {first} {last} -- {items}"
    result = jobq("demo", "fanout", "files", "--lines", "files", "--batch", "3", "-c", command, "--json", code=2)
    assert "could pass for an option" in result.error["message"], "-e is the last batch's first"
    jobq("demo", "fanout", "files2", "--lines", "files", "--batch", "4", "-c", "printf '[%s]' {number} -- {items}")
    assert [said_by(str(command)) for command in jobq.commands()] == ["[1][--][a][b c][-e]", "[2][--][d][f]"]


def test_a_batch_is_the_same_across_pages(jobq: Jobq) -> None:
    (jobq.folder / "many").write_text("".join(f"{number}\n" for number in range(1, 1306)))
    jobq("demo", "fanout", "n", "--lines", "many", "--batch", "3", "-c", "echo {first} {last} {count}")
    ranges = [f"echo {first} {min(first + 2, 1305)} 3" for first in range(1, 1305, 3)]
    assert jobq.commands() == ranges


def test_an_interrupted_fanout_goes_on_and_adds_nothing_twice(jobq: Jobq) -> None:
    """Interrupted as by a kill between push and save: the second page was queued and its cursor not saved."""
    lines = [f"{number}" for number in range(1200)]
    (jobq.folder / "many").write_text("\n".join([*lines[:700], "-bad", *lines[700:]]))
    fanout = ("demo", "fanout", "n", "--lines", "many", "-c", "echo {line}")
    refused = jobq(*fanout, code=2)
    assert "many, line 701" in refused.err
    assert len(jobq.waiting()) == 500
    (jobq.folder / "many").write_text("\n".join(lines))
    result = jobq(*fanout)
    assert "going on with n after 500 records" in result.err
    assert jobq.commands() == [f"echo {line}" for line in lines]


def test_what_cannot_work_is_told_before_anything_is_done(jobq: Jobq) -> None:
    table(jobq.folder, 3)
    (jobq.folder / "f").write_text("a\n")
    for arguments, code, text in (
        (("-c", "echo {line}"), 2, "one place"),
        (("--lines", "f", *SQL, "-c", "echo {line}"), 2, "one place"),
        (("--sql", "u.db", "SELECT 1", "-c", "echo {id}"), 2, "--sql and --key go together"),
        (("--lines", "f", "-c", "echo {nmae}"), 2, "no field {nmae}; there are: line, number, offset"),
        (("--lines", "f", "-c", "echo '{line}'"), 2, "stands within quotes"),
        (("--lines", "missing", "-c", "echo {line}"), 3, "no file"),
        (("--sql", "missing.db", "SELECT 1", "--key", "id", "-c", "echo {id}"), 3, "no SQLite file"),
        (("--blobs", "account", "-c", "echo {name}"), 3, "names no container"),
    ):
        assert text in jobq("demo", "fanout", "n", *arguments, code=code).err
    assert not jobq.file.exists()
    bad = jobq("demo", "fanout", "n", "--sql", "u.db", "SELEC", "--key", "id", "-c", "echo {id}", code=3)
    assert "no such table: SELEC" in bad.err
    assert jobq.inside(_count) == 0


async def _count(backend: object) -> int:
    from jobq.errors import QueueNotFound  # noqa: PLC0415 - of this one alone

    try:
        return int((await backend.stats()).visible)  # type: ignore[attr-defined] # a backend
    except QueueNotFound:
        return 0
