"""`size`, `peek`, `create`, `clear` and `dead`: what they print, for people and for programs."""

import os
import pty
import sqlite3
import subprocess
from datetime import timedelta

import pytest

from jobq.backend import Backend
from jobq.task import Task
from tests.cli.conftest import Jobq

EVIL = "echo \x1b]0;owned\x07 \x9b2J \u202e \ttab\nline"


def test_size(jobq: Jobq) -> None:
    jobq.fill(*(Task.new(command="true") for _ in range(12)))
    jobq.kill_tasks(Task.new(command="dies", priority=1))
    assert jobq("demo", "size", "--json").objects == [{"visible": 12, "leased": 0, "scheduled": 0, "dead": 1}]
    head, counts = jobq("demo", "size").lines
    assert head.split() == ["visible", "leased", "scheduled", "dead"]
    assert counts.split() == ["12", "0", "0", "1"]


def test_size_fails_if_empty(jobq: Jobq) -> None:
    jobq("demo", "create")
    jobq("demo", "size", "--fail-if-empty", code=4)
    jobq("demo", "push", "-c", "true", "--delay", "1h")
    jobq("demo", "size", "--fail-if-empty")


def test_peek(jobq: Jobq) -> None:
    first, second, third = jobq.fill(
        Task.new(command=EVIL, env={"TOKEN": "canary"}), Task.new(argv=["prog", "a b"]), Task.new(kwargs={"x": 1})
    )
    result = jobq("demo", "peek")
    assert [line.split(maxsplit=2) for line in result.lines] == [
        [first, "0", "echo \\x1b]0;owned\\x07 \\x9b2J \\u202e \\ttab\\nline"],
        [second, "0", "prog 'a b'"],
        [third, "0", '{"x":1}'],
    ]
    objects = jobq("demo", "peek", "-n", "2", "--json").objects
    assert [set(found) for found in objects] == [{"id", "deliveries", "task"}] * 2
    assert objects[0]["task"]["command"] == EVIL
    assert objects[0]["task"]["env"] == {"TOKEN": "(hidden)"}


def test_peek_shows_a_malformed_body_as_such(jobq: Jobq) -> None:
    (id_,) = jobq.fill(Task.new(command="true"))
    database = sqlite3.connect(jobq.file)
    with database:
        database.execute("UPDATE task SET body = ?", (b"\xff{\x1b[2J",))
    database.close()
    result = jobq("demo", "peek")
    assert result.lines == [f"{id_}    0  (not a task: byte 0: not UTF-8)"]
    (found,) = jobq("demo", "peek", "--json").objects
    assert found["task"] is None
    assert found["body"] == "(hidden: 6 bytes)"


def test_create(jobq: Jobq) -> None:
    jobq("demo", "create")
    jobq("demo", "create")
    assert "exists already" in jobq("demo", "create", "--no-exist-ok", code=3).err


def test_clear_needs_a_yes(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true"), Task.new(command="false"))
    assert "--yes" in jobq("demo", "clear", code=2).err
    assert len(jobq.waiting()) == 2
    assert jobq("demo", "clear", "--yes").out == "cleared 2 tasks from demo\n"
    assert jobq.waiting() == []


@pytest.mark.parametrize(("answer", "code", "left"), [(b"y\n", 0, 0), (b"\n", 1, 1)])
def test_clear_asks_on_a_terminal(jobq: Jobq, answer: bytes, code: int, left: int) -> None:
    jobq.fill(Task.new(command="true"))
    ours, theirs = pty.openpty()
    try:
        process = jobq.start("demo", "clear", stdin=theirs)
        os.write(ours, answer)
        assert process.wait(10) == code
    finally:
        os.close(ours)
        os.close(theirs)
    assert len(jobq.waiting()) == left


def test_dead_list_and_show(jobq: Jobq) -> None:
    first, second = jobq.kill_tasks(Task.new(command=EVIL, env={"TOKEN": "canary"}), Task.new(argv=["prog", "x y"]))
    result = jobq("demo", "dead", "list")
    assert [line.split()[0] for line in result.lines] == [first, second]
    assert all("failed" in line for line in result.lines)
    assert "more than 1" in jobq("demo", "dead", "list", "-n", "1").err
    keys = {"id", "reason", "description", "deliveries", "died", "task"}
    assert [set(letter) for letter in jobq("demo", "dead", "list", "--json").objects] == [keys, keys]
    shown = jobq("demo", "dead", "show", first)
    assert "\x1b" not in shown.out
    assert "the \\x1b[31mlast words" in shown.out
    assert "canary" not in shown.out
    assert "TOKEN=canary" in jobq("demo", "dead", "show", first, "--show-env").out
    (letter,) = jobq("demo", "dead", "show", first, "--json", "--show-env").objects
    assert letter["task"]["env"] == {"TOKEN": "canary"}
    assert letter["description"].startswith("failed 4 times")
    missing = jobq("demo", "dead", "show", "nobody", "--json", code=4)
    assert missing.error["ids"] == ["nobody"]


@pytest.mark.parametrize(("verb", "done", "waiting"), [("retry", "retried", 2), ("purge", "purged", 0)])
def test_dead_by_id_does_the_others_first(jobq: Jobq, verb: str, done: str, waiting: int) -> None:
    first, second, third = jobq.kill_tasks(*(Task.new(command="true") for _ in range(3)))
    result = jobq("demo", "dead", verb, first, "nobody", third, first, code=4)
    assert result.out == f"{done} 2 dead letters\n"
    assert "no dead letter with the id nobody" in result.err
    assert [line.split()[0] for line in jobq("demo", "dead", "list").lines] == [second]
    assert len(jobq.waiting()) == waiting


@pytest.mark.parametrize("verb", ["retry", "purge"])
def test_dead_all_goes_in_batches(jobq: Jobq, verb: str) -> None:
    jobq.kill_tasks(*(Task.new(command="true") for _ in range(1234)))
    if verb == "purge":
        assert "--yes" in jobq("demo", "dead", "purge", "--all", code=2).err
    result = jobq("demo", "dead", verb, "--all", *(["--yes"] if verb == "purge" else []))
    assert "1234 dead letters" in result.out
    assert jobq("demo", "size", "--json").objects[0]["dead"] == 0


def test_dead_choice_is_checked(jobq: Jobq) -> None:
    for arguments in (["retry"], ["retry", "x", "--all"], ["purge"]):
        assert "not both" in jobq("demo", "dead", *arguments, code=2).err


def test_retry_all_leaves_those_that_die_again(jobq: Jobq) -> None:
    """A queue whose tasks die at once would otherwise be retried for ever."""
    jobq.kill_tasks(*(Task.new(command="true") for _ in range(700)))
    program = """
from datetime import timedelta
from jobq.settlement import MoveToDeadLetters
from jobq_sqlite.backend import SqliteBackend
redrive = SqliteBackend.redrive
async def deadly(self, ids):
    found = await redrive(self, ids)
    for delivery in await self.receive(1000, timedelta(seconds=60), timedelta(0)):
        await delivery.settle(MoveToDeadLetters("failed", "again"))
    return found
SqliteBackend.redrive = deadly
from jobq.cli.main import main
main()
"""
    completed = subprocess.run(
        [*jobq.argv()[:1], "-c", program, "demo", "dead", "retry", "--all"],
        capture_output=True, text=True, env=jobq.environment, check=True, timeout=60,
    )  # fmt: skip
    assert completed.stdout == "retried 700 dead letters\n"

    async def epochs(backend: Backend) -> set[int]:
        assert not await backend.receive(1, timedelta(seconds=60), timedelta(0))
        return {Task.decode(letter.body).epoch for letter in await backend.dead_letters(1000)}

    assert jobq.inside(epochs) == {1}
