"""A real worker on a real SQLite file with real processes, and short leases so that a test can see one end."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from jobq.backend import Backend
from jobq.clock import StoreClock
from jobq.events import Event, Events
from jobq.run.attempt.task_grants import IDLE_SHARE
from jobq.run.process.spawner import Spawner
from jobq.run.process.usage import UsageSampler, Watch
from jobq.run.stopping import Stopping
from jobq.run.worker.host import WorkerHost
from jobq.run.worker.worker import Worker
from jobq.run.worker.worker_report import WorkerReport
from jobq.settings import Settings
from jobq.task import Task
from jobq.testing.faults import Faults, FaultyBackend
from jobq_sqlite import SqliteBackend, StoreFile
from jobq_sqlite.host import this_host

# A lease of 2 s that may be held for 1.58 s: short enough to watch, long enough for a slow machine.
QUICK = {
    "visibility_timeout": timedelta(seconds=2),
    "allow_short_lease": True,
    "kill_margin": timedelta(seconds=0.3),
    "schedule_margin": timedelta(seconds=0.1),
    "backoff": timedelta(seconds=0.05),
    "scheduled_events": "off",
}


@dataclass
class Stage:
    """A queue, its faults, and everything its workers told."""

    backend: Backend
    faults: Faults
    folder: Path
    events: list[Event] = field(default_factory=list)
    lines: list[tuple[str, str, str]] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def worker(
        self,
        stopping: Stopping | None = None,
        spawner: Spawner | None = None,
        max_tasks: int | None = None,
        host: WorkerHost | None = None,
        environment: Mapping[str, str] | None = None,
        idle_share: float = IDLE_SHARE,
        **settings: Any,
    ) -> Worker:
        return Worker(
            self.backend,
            Settings(**{**QUICK, **settings}),
            events=Events(self._hear),
            on_line=self._read,
            stopping=stopping,
            spawner=spawner,
            max_tasks=max_tasks,
            host=host,
            environment=environment,
            idle_share=idle_share,
        )

    async def work(self, host: WorkerHost | None = None, **settings: Any) -> WorkerReport:
        return await self.worker(host=host, **settings).run()

    async def push(self, *commands: str, **fields: Any) -> list[str]:
        return await self.backend.push([Task.new(command=command, **fields) for command in commands])

    def told(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    async def until(self, condition: Callable[[], object], seconds: float = 20.0) -> None:
        """Wait for something the worker tells or a task prints; no sleeping."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_printed(self, text: str) -> None:
        await self.until(lambda: any(line == text for _, _, line in self.lines))

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    def _read(self, task_id: str, stream: str, line: str) -> None:
        self.lines.append((task_id, stream, line))
        self._changed.set()


@asynccontextmanager
async def stage_in(folder: Path) -> AsyncIterator[Stage]:
    file = StoreFile(path=folder / "queue.db", clock=StoreClock(), host=this_host())
    faults = Faults()
    async with FaultyBackend(SqliteBackend(file, "stage"), faults) as backend:
        await backend.create()
        yield Stage(backend, faults, folder)


async def until_true(condition: Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
    """Poll the kernel or a file, which tell nobody when they change, up to a deadline."""
    end = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.005)


async def until_measured(sampler: UsageSampler, condition: Any) -> Watch:
    """Wait until a sample of some task is as wanted, and return that task's watch."""
    found: list[Watch] = []

    async def is_measured() -> bool:
        found[:] = [watch for watch in sampler._watched if watch.samples and condition(watch)]
        return bool(found)

    await until_true(is_measured)
    return found[0]


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before, or while, it was read
        return False
