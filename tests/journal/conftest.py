"""A queue with a journal on each store that keeps one, driven by the real command line."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import pytest

from jobq.backend import Backend
from jobq.cli.display.format_journal import record_as_json
from jobq.journal.records import TaskRecord
from jobq.journal.store import journal_of
from jobq.settings import Settings, variable_of
from jobq.spec import resolve
from jobq.task import new_id
from tests.azure.emulator import ACCOUNT
from tests.cli.conftest import Jobq, Result, eventually
from tests.guardian.stage import worker_below
from tests.service.server import running

if TYPE_CHECKING:
    from tests.postgres.server import Database

T = TypeVar("T")
# A lease of two seconds, so that its end can be waited for; a heartbeat comes each half second.
SHORT = {
    "JOBQ_VISIBILITY_TIMEOUT": "2s",
    "JOBQ_ALLOW_SHORT_LEASE": "1",
    "JOBQ_KILL_MARGIN": "100ms",
    "JOBQ_SCHEDULE_MARGIN": "50ms",
    "JOBQ_STOP_GRACE": "1s",
    "JOBQ_BACKOFF": "10ms",
    "JOBQ_SCHEDULED_EVENTS": "off",
}


@dataclass(frozen=True)
class Place:
    """A queue, the command line that uses it, and its journal seen from inside."""

    jobq: Jobq
    spec: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_embedded(self) -> bool:
        """Whether the queue and its journal are in one file."""
        return self.spec == "demo"

    @property
    def is_azure(self) -> bool:
        """Whether the journal is beside the queue: what it hears comes a little later."""
        return bool(self.settings)

    def __call__(self, *arguments: str, code: int | None = 0, env: dict[str, str] | None = None) -> Result:
        return self.jobq(self.spec, *arguments, code=code, env=SHORT | (env or {}))

    def push(self, *commands: str, more: tuple[str, ...] = ()) -> list[str]:
        arguments = [word for command in commands for word in ("-c", command)]
        return self("push", "--ids", *arguments, *more).lines

    def work(self, *more: str, env: dict[str, str] | None = None) -> Result:
        """Run a worker until nothing is left; without a guardian, whose start would cost most of it."""
        return self("worker", "--quiet-output", *more, env={"JOBQ_GUARDIAN": "off"} | (env or {}))

    def start_worker(self, *more: str) -> Any:
        return self.jobq.start(self.spec, "worker", "--idle-timeout", "1m", *more, env=SHORT, stdout=-3, stderr=-3)

    @staticmethod
    def kill_worker_alone(watcher: Any) -> None:
        """Kill the worker, and wait for the end of its watcher."""
        os.kill(worker_below(watcher.pid), signal.SIGKILL)
        watcher.wait(20)

    def kill_worker(self, watcher: Any) -> None:
        """Kill all of a worker, as a machine that vanishes does; P2 ends the tasks."""
        worker = worker_below(watcher.pid)
        watcher.send_signal(signal.SIGKILL)
        watcher.wait()
        eventually(lambda: not Path(f"/proc/{worker}").exists() or "Z" in _status(worker))

    def inside(self, work: Callable[[Backend], Awaitable[T]]) -> T:
        async def connected() -> T:
            async with resolve(self.spec, Settings(home=self.jobq.home, **self.settings)) as backend:
                return await work(backend)

        return asyncio.run(connected())

    def record(self, id_: str) -> TaskRecord:
        async def work(backend: Backend) -> list[TaskRecord]:
            return await journal_of(backend).find([id_])

        return self.inside(work)[0]

    @staticmethod
    def until_line(stream: IO[bytes]) -> str:
        """Return the id in the first line that a push with --json prints."""
        id_: str = json.loads(stream.readline())["id"]
        return id_

    def status(self, id_: str) -> dict[str, Any]:
        """Return what `status --json` prints, without paying for a process; tests of the command itself call it."""
        found: dict[str, Any] = json.loads(json.dumps(record_as_json(self.record(id_))))
        return found

    def until(self, id_: str, condition: Callable[[TaskRecord], object]) -> TaskRecord:
        """Return the record of a task once the condition holds for it."""

        def found() -> TaskRecord | None:
            record = self.record(id_)
            return record if condition(record) else None

        record = eventually(found)
        assert record is not None
        return record


def _status(pid: int) -> str:
    try:
        return next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("State"))
    except OSError:
        return "Z"


# What a store keeps is held by the conformance cases: of most commands one place is enough.
embedded = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
beside = pytest.mark.parametrize("place", ["sqlite", "azurite"], indirect=True)  # a worker writes it later there
# For tests that a journal beside its queue must pass, too, and one that a service shows. Each of Azure's command lines
# imports an SDK.
everywhere = pytest.mark.parametrize("place", ["sqlite", "postgres", "azurite", "http"], indirect=True)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    line = Jobq(tmp_path)
    database: Database | None = None
    if request.param == "postgres":
        database = request.getfixturevalue("postgres").fresh()
    settings: dict[str, Any] = {}
    spec = "demo" if database is None else database.spec()
    if request.param == "azurite":
        azurite = request.getfixturevalue("azurite")
        spec = f"{ACCOUNT}/q-{new_id()[-12:]}"
        settings = {"connection_string": azurite.connection_string, "journal": "tables"}
        line.environment |= {variable_of(name): value for name, value in settings.items()} | {"JOBQ_POLL_MAX": "500ms"}
    service = contextlib.ExitStack()
    if request.param == "http":
        spec = f"{service.enter_context(running(f'sqlite://{tmp_path}/served.db/demo', tmp_path)).url}/demo"
    try:
        with service:
            yield Place(line, spec, settings)
    finally:
        for process in line.running:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        if database is not None:
            database.drop()
