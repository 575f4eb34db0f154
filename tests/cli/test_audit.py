"""What commands change stands in the audit: who, what, and what came of it; and no command suffers for it."""

import asyncio
import contextlib
import getpass
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from jobq.backend import Backend
from jobq.batch_plan import Plan
from jobq.batches import batches_of
from jobq.journal.changes import QueueChange
from jobq.journal.notes import NoteKind
from jobq.journal.observations import observations_of
from jobq.task import Task
from tests.cli.conftest import Jobq
from tests.dashboard.support import Dashboard
from tests.postgres.server import Database
from tests.service.server import running

pytestmark = pytest.mark.check

_MANY: Final = 20_000  # dead letters: many steps
_BUSY_SECONDS: Final = 5.0  # that a command waits for the file's lock
_MORE_SECONDS: Final = 2.0  # about one for the notes, and some for a slow machine
_HOLD: Final = "BEGIN IMMEDIATE"


async def _noted(backend: Backend) -> list[QueueChange]:
    notes = observations_of(backend)
    assert notes is not None
    found = [QueueChange.decode(note.value) for note in await notes.page(NoteKind.CHANGE, "", 100)]
    assert None not in found
    return [each for each in found if each is not None]


def _audit(jobq: Jobq) -> Sequence[QueueChange]:
    """Return what is noted, in the order in which it began: keys tell seconds apart."""
    return sorted(jobq.inside(_noted), key=lambda each: each.at)


async def _batch(backend: Backend) -> None:
    await batches_of(backend).begin("s7", Plan())
    await backend.push([Task.new(command="true", batch="s7") for _ in range(2)])


def test_each_command_that_changes_something_is_noted(jobq: Jobq) -> None:
    jobq.kill_tasks(*(Task.new(command="false", id=f"dead-{number}") for number in range(4)))
    jobq.fill(*(Task.new(command="true", id=f"task-{number}") for number in range(3)))
    jobq.inside(_batch)
    commands = {
        "cancel": ("cancel", "task-0", "unknown-task"),
        "cancel where": ("cancel", "--where", "id=task-1"),
        "pause": ("pause", "a new driver"),
        "resume": ("resume",),
        "retry": ("dead", "retry", "dead-0", "dead-1"),
        "purge": ("dead", "purge", "--where", "id=dead-2"),
        "purge all": ("dead", "purge", "--all", "--yes"),
        "retry batch": ("batch", "retry", "s7"),
        "cancel batch": ("batch", "cancel", "s7", "--yes"),
        "clear": ("clear", "--yes"),
    }
    for words in commands.values():
        jobq("demo", *words, code=4 if "unknown-task" in words else 0)
    found = dict(zip(commands, _audit(jobq), strict=True))
    for change in found.values():
        assert (change.by, change.address) == (f"{getpass.getuser()}@{socket.gethostname()}", "command line")
        assert change.state == "done"
        assert time.time() - 120 < change.at <= time.time()
    told = {name: (each.did, each.count, each.filter, each.said) for name, each in found.items()}
    assert told == {
        "cancel": ("cancel", 2, "", "1 canceled, 1 unknown"),
        "cancel where": ("cancel", 1, "id=task-1", "1 canceled"),
        "pause": ("pause", None, "", "a new driver"),
        "resume": ("resume", None, "", told["resume"][3]),
        "retry": ("retry", 2, "", "retried 2"),
        "purge": ("purge", 1, "id=dead-2", "purged 1"),
        "purge all": ("purge", 1, "all", "purged 1"),
        "retry batch": ("retry-batch", 0, "batch=s7", "0 put back"),
        "cancel batch": ("cancel-batch", 2, "batch=s7", "2 canceled, 0 left"),
        "clear": ("clear", 3, "", "3 deleted"),
    }
    assert told["resume"][3].endswith(": a new driver")
    assert found["cancel"].ids == ("task-0", "unknown-task")
    assert found["retry"].ids == ("dead-0", "dead-1")
    assert found["purge"].ids == ("dead-2",)


def test_what_is_refused_or_only_looks_is_not_said_to_be_done(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true"))
    jobq("demo", "size")
    jobq("demo", "dead", "list")
    jobq("demo", "cancel", code=2)
    assert _audit(jobq) == []
    jobq("demo", "pause", "x" * 201, code=3)
    assert _audit(jobq) == [], "nothing was begun"
    jobq("demo", "batch", "retry", "never-begun", code=4)
    (change,) = _audit(jobq)
    assert change.state == "failed"
    assert "never-begun" in change.said


@pytest.fixture
def dashboard(tmp_path: Path, jobq: Jobq) -> Iterator[Dashboard]:
    """The page of the same place."""
    spec = f"sqlite://{jobq.file}/demo"
    jobq.fill()
    with running(spec, tmp_path, "--ui", is_open=False) as server:
        yield Dashboard(server, spec, jobq.home)


def test_the_page_shows_it_beside_what_was_done_there(jobq: Jobq, dashboard: Dashboard) -> None:
    """To administrators; to others what their own tokens did."""
    jobq.fill(Task.new(command="true", id="task-b"))
    jobq("demo", "cancel", "--where", "id=task-<b>*")
    jobq("demo", "cancel", "task-b")
    page = dashboard.ask("GET", "/ui/q/demo/audit", cookie=dashboard.cookie("admin", "view")).text
    assert f"{getpass.getuser()}@{socket.gethostname()}" in page
    assert "command line" in page
    assert "done: 1 canceled" in page
    assert "id=task-&lt;b&gt;*" in page
    assert "What commands change stands in no audit" not in page
    other = dashboard.ask("GET", "/ui/q/demo/audit", cookie=dashboard.cookie("view")).text
    assert "command line" not in other


def test_a_command_that_was_killed_has_begun_and_nobody_knows_how_it_ended(jobq: Jobq, dashboard: Dashboard) -> None:
    jobq.kill_tasks(Task.new(command="false", id="dead-0"))
    with contextlib.closing(sqlite3.connect(jobq.file, isolation_level=None, timeout=30)) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(task)") if row[1] not in ("seq", "id")]
        listed = ", ".join(columns)
        numbers = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < ?)"
        copied = f"INSERT INTO task (id, {listed}) {numbers} SELECT 'dead-' || x, {listed} FROM task, n"
        database.execute(copied, (_MANY,))
        purge = jobq.start("demo", "dead", "purge", "--all", "--yes")
        while not database.execute("SELECT EXISTS (SELECT 1 FROM observation WHERE kind = 'change')").fetchone()[0]:
            time.sleep(0.001)
            assert purge.poll() is None
        purge.send_signal(signal.SIGKILL)
        purge.wait()
        assert database.execute("SELECT count(*) FROM task WHERE state = 'dead'").fetchone()[0] > 0, "it had ended"
    (change,) = _audit(jobq)
    assert (change.did, change.filter, change.state, change.said) == ("purge", "all", "began", "")
    page = dashboard.ask("GET", "/ui/q/demo/audit", cookie=dashboard.cookie("admin", "view")).text
    assert "began; how it ended nobody has told" in page


def test_without_a_journal_it_works_as_ever(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true"))
    off = {"JOBQ_JOURNAL": "off"}
    assert jobq("demo", "pause", env=off).err == "queue demo is paused; go on with: jobq demo resume\n"
    jobq("demo", "resume", env=off)
    assert "cleared 1 task" in jobq("demo", "clear", "--yes", env=off).out
    assert _audit(jobq) == []


def test_notes_that_cannot_be_written_fail_no_command(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true"))
    with contextlib.closing(sqlite3.connect(jobq.file, isolation_level=None)) as database:
        database.execute("CREATE TRIGGER full BEFORE INSERT ON observation BEGIN SELECT RAISE(ABORT, 'full'); END")
    assert jobq("demo", "pause").err == "queue demo is paused; go on with: jobq demo resume\n"
    assert "is not in the audit" in jobq("demo", "resume", "--verbose").err
    cleared = jobq("demo", "clear", "--yes")
    assert (cleared.out, cleared.err) == ("cleared 1 task from demo\n", "")
    assert _audit(jobq) == []


@pytest.mark.parametrize("words", [("pause",), ("clear", "--yes")], ids=" ".join)
def test_a_file_that_is_locked_costs_a_second_more_at_most(jobq: Jobq, words: tuple[str, ...]) -> None:
    """With an event loop and without; it fails as ever."""
    jobq.fill(Task.new(command="true"))
    with contextlib.closing(sqlite3.connect(jobq.file, isolation_level=None)) as database:
        database.execute(_HOLD)
        began = time.monotonic()
        jobq("demo", *words, code=75)
        took = time.monotonic() - began
        database.execute("ROLLBACK")
    assert took < _BUSY_SECONDS + _MORE_SECONDS
    assert jobq("demo", *words).code == 0, "nothing is left behind"


async def test_a_table_that_is_locked_costs_a_second_more_at_most(database: Database, tmp_path: Path) -> None:
    """On PostgreSQL, where a note has a connection of its own."""
    jobq = Jobq(tmp_path)
    spec = database.spec()
    await asyncio.to_thread(jobq, spec, "push", "-c", "true")
    began = time.monotonic()
    await asyncio.to_thread(jobq, spec, "pause")
    usual = time.monotonic() - began
    connection = await database.server().connect("test")
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE jobq.observation IN ACCESS EXCLUSIVE MODE")
            began = time.monotonic()
            await asyncio.to_thread(jobq, spec, "resume")
            assert time.monotonic() - began < usual + _MORE_SECONDS
    finally:
        await connection.close()
    found = await asyncio.to_thread(jobq.inside, _noted, spec)
    assert [(each.did, each.state) for each in found] == [("pause", "done")]


@pytest.fixture
def database(postgres: Database) -> Iterator[Database]:
    """An empty database."""
    made = postgres.fresh()
    try:
        yield made
    finally:
        made.drop()


def test_over_http_the_service_names_who_it_was(jobq: Jobq, tmp_path: Path) -> None:
    """After the token; without the right to change anything there is nothing to note, and no command suffers."""
    place = f"sqlite://{jobq.file}/demo"
    jobq.fill(Task.new(command="true", id="task-0"))
    token = jobq("serve", "token", "create", place, "--scope", "operate", "--scope", "view").out.strip()
    with running(place, tmp_path, is_open=False) as server:
        spec, environment = f"{server.url}/demo", {"JOBQ_HTTP_TOKEN": token}
        jobq(spec, "cancel", "task-0", env=environment)
        jobq(spec, "pause", "a new driver", env=environment)
        looks = jobq("serve", "token", "create", place, "--scope", "view").out.strip()
        jobq(spec, "resume", env={"JOBQ_HTTP_TOKEN": looks}, code=3)
    canceled, paused = _audit(jobq)
    assert (canceled.did, canceled.said, canceled.ids) == ("cancel", "1 canceled", ("task-0",))
    assert canceled.by == f"{token.split('_')[1]} {getpass.getuser()}@{socket.gethostname()}"
    assert canceled.address == "127.0.0.1, command line"
    assert (paused.did, paused.state, paused.said) == ("pause", "done", "a new driver")
