"""Whatever a queue holds, no command moves the cursor, hides text or begins a line with it (A5)."""

import asyncio
import json
import re
import sqlite3
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from jobq.backend import Backend
from jobq.cli.main import cli
from jobq.journal.records import Attempt, Beat
from jobq.pausing import Pause, pausable
from jobq.queue import Queue
from jobq.servable import served
from jobq.settings import Settings
from jobq.settlement import Complete, MoveToDeadLetters, Record
from jobq.spec import resolve
from jobq.task import Task, TaskResult
from tests.cli.conftest import Jobq
from tests.cli.test_json import TABLE, WITHOUT, commands

MARK: Final = "HOSTILE"
EVIL: Final = "\x1b[2J\x1b]0;pwned\x07 \u202e \x9b2J\r\nFAKE  confirmed  token 9"
_ESCAPED: Final = json.dumps(EVIL)[1:-1]
_LIVE: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
_FALSE_LINE: Final = re.compile("^FAKE", re.MULTILINE)
# Each command that shows what is in a queue, beside those of TABLE that need other ids here.
_DEAD, _DONE, _RUNS, _READY = ("01a1fe07-0000-7000-8000-00000000000" + each for each in "1234")
_LOOKS: Final = {
    **{name: arguments for name, (arguments, _, _) in TABLE.items()},
    "status": ("demo", "status", _DEAD, _DONE, _RUNS, _READY),
    "logs": ("demo", "logs", _DONE),
    "dead show": ("demo", "dead", "show", _DEAD, "--show-env"),
    "dead list": ("demo", "dead", "list", "--full"),
    "batch wait": ("demo", "batch", "wait", "s7", "--timeout", "0s"),
}
_MORE: Final = (
    ("demo", "dead", "list", "--group-by", "error,host,reason"),
    ("demo", "ps", "--batch", "s7"),
    ("demo", "batch", "list", "--full"),
    ("demo", "logs", _RUNS),
)
_NOT_HERE: Final = {
    "worker": "what it shows is what tasks print; tests/cli/display has it",
    "run": "as above",
    "healthcheck": "shows nothing of a queue",
    "help": "as above",
    "fanout": "as above",
    "results": "writes a file of data, as it is",
}


async def _fill(backend: Backend) -> None:
    """Put a mark into each field that somebody else may write."""
    await backend.create()
    queue = Queue(backend, Settings())
    async with queue.batch("s7") as batch:
        await batch.push([Task.new(command=f"true {MARK}", id=_RUNS)])
    fields = {"command": f"true {MARK}", "env": {"NAME": MARK}, "cwd": f"/{MARK}"}
    for id_ in (_DEAD, _DONE):
        await backend.push([Task.new(id=id_, priority=9, **fields)])
        (delivery,) = await backend.receive(1, timedelta(hours=1), timedelta(0))
        attempt = Attempt(
            attempt=1, outcome=MARK, then="dead" if id_ == _DEAD else "done", ended=time.time(), started=1.7e9,
            host=MARK, detail=MARK, exit_code=3, value=MARK, program=MARK,
        )  # fmt: skip
        record = Record(attempt, MARK)
        letter = MoveToDeadLetters(MARK, MARK, record=record)
        await delivery.settle(letter if id_ == _DEAD else Complete(TaskResult(value=MARK), record=record))
    (delivery,) = await backend.receive(1, timedelta(hours=1), timedelta(0))
    await delivery.renew(timedelta(hours=1), Beat(at=1.7e9, started=1.7e9, text=MARK, output=MARK))
    await delivery.checkpoint(MARK, 1)
    await backend.push([Task.new(id=_READY, **fields), Task.new(argv=["true", MARK]), Task.new(kwargs={"x": MARK})])
    async with queue.lease("nightly") as lease:
        await lease.save(MARK)
    async with queue.lease("confirmed") as lease:
        await lease.confirm(MARK)
    await pausable(backend).pause(Pause(at=1.7e9, by=MARK, reason=MARK))
    token = {"name": MARK, "hash": "", "scopes": ["read"], "queues": ["*"], "created": 0.0, "id": "0123456789ab"}
    assert await served(backend).write_document("tokens", json.dumps({"tokens": [token]}).encode(), 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a queue in which all that is marked is hostile, as any writer of the file could make it."""
    home = tmp_path_factory.mktemp("shown")

    async def fill() -> None:
        async with resolve("demo", Settings(home=home)) as backend:
            await _fill(backend)

    asyncio.run(fill())
    file = home / "queues.db"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE task SET holder = ?", (MARK,))
        database.execute("UPDATE lease SET holder = ?", (MARK,))
        database.execute("UPDATE batch SET plan = ?", (json.dumps({"template": MARK}),))
        marked = 0
        tables = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
        for (table,) in tables.fetchall():
            for _, column, *_ in database.execute(f"PRAGMA table_info({table})").fetchall():
                held = f"instr(CAST({column} AS TEXT), ?)"
                is_json = f"substr(CAST({column} AS TEXT), 1, 1) IN ('{{', '[')"
                swapped = f"replace(CAST({column} AS TEXT), ?, CASE WHEN {is_json} THEN ? ELSE ? END)"
                changed = f"CASE typeof({column}) WHEN 'blob' THEN CAST({swapped} AS BLOB) ELSE {swapped} END"
                values = (MARK, _ESCAPED, EVIL) * 2
                marked += database.execute(
                    f"UPDATE {table} SET {column} = {changed} WHERE {held}", (*values, MARK)
                ).rowcount
        assert marked > 20
    return file


def _copied(jobq: Jobq, place: Path) -> None:
    jobq.home.mkdir()
    jobq.file.touch(0o600)
    with closing(sqlite3.connect(place)) as origin, closing(sqlite3.connect(jobq.file)) as copy:
        origin.backup(copy)


def test_each_command_is_looked_at() -> None:
    found = {name for name, _ in commands(cli)}
    assert found == set(_LOOKS) | set(WITHOUT) | {"ui"}
    assert set(_NOT_HERE) < set(_LOOKS)


@pytest.mark.parametrize(
    "arguments", [*(each for name, each in _LOOKS.items() if name not in _NOT_HERE), *_MORE], ids=" ".join
)
def test_it_shows_no_live_character_of_anybody(jobq: Jobq, place: Path, arguments: tuple[str, ...]) -> None:
    _copied(jobq, place)
    jobq.environment["JOBQ_TRUSTED_KEYS"] = str(jobq.folder / "trusted.json")
    (jobq.folder / "own.key").write_text(EVIL)
    (jobq.folder / "trusted.json").write_text(json.dumps({"keys": [EVIL]}))
    shown = jobq(*arguments, code=None)
    assert _LIVE.search(shown.out + shown.err) is None
    if "logs" not in arguments:  # which shows the lines of a task
        assert _FALSE_LINE.search(shown.out + shown.err) is None
    assert "Traceback" not in shown.err, shown.err


def test_what_is_looked_for_is_there(jobq: Jobq, place: Path) -> None:
    """The hostile text itself is in what the commands above show, as escapes."""
    _copied(jobq, place)
    for arguments in (
        ("demo", "status", _DEAD), ("demo", "status", _RUNS), ("demo", "ps"), ("demo", "top"),
        ("demo", "status", _DONE), ("demo", "logs", _DONE), ("demo", "dead", "list"),
        ("demo", "dead", "show", _DEAD), ("demo", "lease", "list"),
        ("demo", "lease", "show", "confirmed"), ("demo", "peek"), ("demo", "batch", "show", "s7"), ("demo", "size"),
        ("serve", "token", "list", "demo"), ("demo", "resume"),
    ):  # fmt: skip
        shown = jobq(*arguments)
        assert "\\x1b[2J" in shown.out + shown.err, arguments
