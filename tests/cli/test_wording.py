"""What is said of a command line, slips of the finger included: `wording.txt` has each with its exit code and texts.

A line is added by writing it there with its `$`; `make accept` writes what is said now below each. What is another
each time (ids, times, folders) stands there as a word in capitals. Elsewhere tests assert the exit code and what is
named, not the words.
"""

import json
import os
import re
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from jobq.backend import Backend
from jobq.journal.store import journal_of
from jobq.task import Budgets, Task
from tests.cli.conftest import Jobq, Result

_FILE: Final = Path(__file__).with_name("wording.txt")
_ACCEPTS: Final = "JOBQ_TEST_ACCEPT" in os.environ
_EMPTY: Final = "on a machine without a queue"
_FILLED: Final = "on a queue with two tasks, one that was canceled and a dead letter"
_VARYING: Final = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}", "ID"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?", "TIME"),
    (r"\b\d\d:\d\d:\d\d\b", "TIME"),
    (r"\b\d+(\.\d+)?(ms|us|s)\b(?= ago|,|$)|(?<=in )\d+(\.\d+)?(ms|s)\b", "SECONDS"),
    (re.escape(socket.gethostname()) + r":\d+", "HOST:PID"),
)


class Said(NamedTuple):
    """A command line and what is said of it."""

    scene: str
    line: str
    text: str

    def __str__(self) -> str:
        return self.line


def read() -> Iterator[Said]:
    """Yield what the file has."""
    scene, found = "", list[Said]()
    for line in _FILE.read_text().splitlines():
        if line.startswith("== "):
            scene = line.removeprefix("== ")
        elif line.startswith("$ "):
            found.append(Said(scene, line.removeprefix("$ "), ""))
        elif line:
            found[-1] = found[-1]._replace(text=f"{found[-1].text}{line}\n")
    yield from found


def said(result: Result, folder: Path) -> str:
    """Return how a command line ended and what it printed, without what is another each time."""
    lines = [f"exit code {result.code}"]
    for stream, text in (("out", result.out), ("err", result.err)):
        shown = text.replace(str(folder), "FOLDER")
        for pattern, word in _VARYING:
            shown = re.sub(pattern, word, shown, flags=re.MULTILINE)
        lines += [f"{stream}| {line}".rstrip() for line in shown.splitlines()]
    return "\n".join(lines) + "\n"


def typed(jobq: Jobq, line: str) -> Result:
    """Run a line as a shell would that knows variables and `~`, and no more."""
    before, after = re.fullmatch(r"((?:[A-Z_]+=\S+ )*)jobq(.*)", line).groups()  # type: ignore[union-attr] # else no line
    words = [re.sub("^~", f"{jobq.folder}/home", word) for word in shlex.split(after)]
    environment = dict(word.split("=", 1) for word in before.split()) | {"COLUMNS": "100", "TZ": "UTC"}
    return jobq(*words, env=environment, code=None)


def fill(jobq: Jobq) -> None:
    """Make what `_FILLED` says, and files to push."""
    as_pushed = Budgets(retries=3, preemptions=100, crashes=3)
    jobq.kill_tasks(Task(id="lost-task", command="exit 3"))
    jobq.fill(*(Task.new(id=f"train-{n}", command=f"echo {n}", budgets=as_pushed) for n in (1, 12)))
    jobq.fill(Task(id="gone-task", command="true"))
    jobq.inside(lambda backend: journal_of(backend).cancel(["gone-task"]))
    named = [{"id": "train-1", "command": "echo 1"}, {"id": "train-3", "command": "true"}]
    files = {
        "same.txt": "echo 1\n",
        "bad.txt": 'true\n{"command": 3}\ntrue\n',
        "list.json": '[{"cmd": "true"}, {"cmd": "true"}]',
        "lines.json": '[\n  {"cmd": "true"}\n]\n',
        "object.json": '{\n  "cmd": "true"\n}\n',
        "script.sh": "#!/bin/sh\ntrue\n",
        "named.txt": "\n".join(map(json.dumps, named)),
    }
    for name, text in files.items():
        (jobq.folder / name).write_text(text)

    async def create(backend: Backend) -> None:
        await backend.create()

    jobq.inside(create, "empty")


@pytest.fixture(scope="module")
def accepted() -> Iterator[dict[tuple[str, str], str]]:
    """What is said now; written into the file when it is to be accepted."""
    found: dict[tuple[str, str], str] = {}
    yield found
    if _ACCEPTS:
        lines: list[str] = []
        for each in read():
            if (head := f"== {each.scene}") not in lines:
                lines += ["", head] if lines else [head]
            lines += ["", f"$ {each.line}", *found.get((each.scene, each.line), each.text).splitlines()]
        _FILE.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("entry", list(read()), ids=str)
def test_it_says_what_it_said(jobq: Jobq, accepted: dict[tuple[str, str], str], entry: Said) -> None:
    if entry.scene == _FILLED:
        fill(jobq)
    result = typed(jobq, entry.line)
    assert "Traceback" not in result.err
    if entry.scene == _EMPTY and result.code:
        assert not list(jobq.home.glob("*.db")), "a slip makes no queue anywhere"
    text = accepted[entry.scene, entry.line] = said(result, jobq.folder)
    assert _ACCEPTS or text == entry.text
