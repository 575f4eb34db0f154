"""Runs the real command line in a process of its own, with an empty home and no JOBQ_* but what a test says."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from jobq.backend import Backend
from jobq.queue import Queue
from jobq.servable import served
from jobq.settings import Settings
from jobq.settlement import MoveToDeadLetters
from jobq.spec import resolve
from jobq.task import Task
from tests.fork_server import forked

T = TypeVar("T")
DEADLINE_SECONDS = 20.0


@dataclass(frozen=True)
class Result:
    """How a command line ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    @property
    def error(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.err)
        return value


class Jobq:
    """The command line, and its queue seen from inside.

    Args:
        folder: HOME is below it, and JOBQ_HOME.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "jobq home"
        (folder / "home").mkdir()
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        # Where something answers at the address of Azure's metadata, each worker would load an HTTP client to ask it.
        own = {"JOBQ_HOME": str(self.home), "JOBQ_SCHEDULED_EVENTS": "off"}
        self.environment = kept | {"HOME": str(folder / "home")} | own
        self.running: list[subprocess.Popen[bytes]] = []

    @property
    def file(self) -> Path:
        return self.home / "queues.db"

    def __call__(
        self,
        *arguments: str | bytes,
        stdin: str | bytes = b"",
        env: dict[str, str] | None = None,
        stdout: int | None = None,
        code: int | None = 0,
    ) -> Result:
        """Run to the end; `code` is what it must end with, None = anything."""
        completed = forked.run(
            self.argv(*arguments),
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE,
            env=self.environment | (env or {}),
            cwd=self.folder,
            check=False,
            timeout=60,
        )
        result = Result(completed.returncode, (completed.stdout or b"").decode(), completed.stderr.decode())
        assert code is None or result.code == code, f"{arguments}: {result}"
        return result

    def all(self, *command_lines: Sequence[str], code: int) -> list[Result]:
        """Run independent command lines, two at a time; all must end with `code`."""
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda arguments: self(*arguments, code=code), command_lines))

    def start(self, *arguments: str, env: dict[str, str] | None = None, **more: int) -> subprocess.Popen[bytes]:
        """Start, with pipes unless asked otherwise; killed at the end of the test at the latest."""
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | more
        process = forked.Popen[bytes](
            self.argv(*arguments),
            stdin=streams["stdin"],
            stdout=streams["stdout"],
            stderr=streams["stderr"],
            env=self.environment | (env or {}),
            cwd=self.folder,
        )
        self.running.append(process)
        return process

    @staticmethod
    def argv(*arguments: str | bytes) -> list[str | bytes]:
        return [sys.executable, "-m", "jobq", *arguments]

    def inside(self, work: Callable[[Backend], Awaitable[T]], spec: str = "demo") -> T:
        """Do something with the queue, without paying for a process."""

        async def connected() -> T:
            async with resolve(spec, Settings(home=self.home)) as backend:
                return await work(backend)

        return asyncio.run(connected())

    def fill(self, *tasks: Task) -> list[str]:
        async def work(backend: Backend) -> list[str]:
            await backend.create()
            return await backend.push(tasks)

        return self.inside(work)

    def waiting(self) -> list[Task]:
        """Return the tasks that could be received now."""

        async def work(backend: Backend) -> list[Task]:
            return [Task.decode(found.body) for found in await backend.peek(1_000_000)]

        return self.inside(work)

    def commands(self) -> list[str | None]:
        return [task.command for task in self.waiting()]

    def kill_tasks(self, *tasks: Task) -> list[str]:
        """Fill the dead-letter place; return the ids."""

        async def work(backend: Backend) -> list[str]:
            await backend.create()
            ids = await backend.push(tasks)
            for delivery in await backend.receive(len(tasks), timedelta(seconds=60), timedelta(0)):
                await delivery.settle(
                    MoveToDeadLetters("failed", "failed 4 times; last: exit code 3\nthe \x1b[31mlast words")
                )
            return ids

        return self.inside(work)

    def hold(self) -> None:
        """Leave one task leased, as a worker that is gone does."""

        async def work(backend: Backend) -> None:
            await backend.receive(1, timedelta(seconds=60), timedelta(0))

        self.inside(work)

    def lease(self, name: str) -> None:
        """Let a lease have been held and released."""

        async def work(backend: Backend) -> None:
            async with Queue(backend, Settings(home=self.home)).lease(name):
                pass

        self.inside(work)

    def token(self, token_id: str) -> None:
        """Let there be a token of the service."""

        async def work(backend: Backend) -> None:
            await backend.create()
            fields = {"name": "", "hash": "", "scopes": ["read"], "queues": ["*"], "created": 0.0}
            value = json.dumps({"tokens": [{"id": token_id, **fields}]}).encode()
            assert await served(backend).write_document("tokens", value, 0)

        self.inside(work)


@pytest.fixture
def jobq(tmp_path: Path) -> Iterator[Jobq]:
    line = Jobq(tmp_path)
    yield line
    for process in line.running:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def leaves_nothing(jobq: Jobq, request: pytest.FixtureRequest) -> Iterator[None]:
    """P5: no temporary folder and no process of a test's command lines is left, whatever it did."""
    temporary = jobq.folder / "tmp"
    temporary.mkdir()
    jobq.environment |= {"TMPDIR": str(temporary), "MARK": request.node.name}
    before, forked.is_cold = forked.is_cold, True  # /proc shows the fork server's environment of what it forked
    yield
    forked.is_cold = before
    for process in jobq.running:
        process.wait(DEADLINE_SECONDS)
    eventually(lambda: not _alive(f"MARK={request.node.name}"))
    assert list(temporary.iterdir()) == []


def _alive(variable: str) -> list[str]:
    """Return the command lines of those processes that have a variable in their environment, as far as they show it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


def read_job_log(path: Path) -> list[list[str]]:
    """Return the fields of each line of a job log."""
    head, *rest = path.read_text().splitlines()
    assert head.split("\t") == ["Seq", "Host", "Starttime", "JobRuntime", "Exitval", "Signal", "Command"]
    return [line.split("\t") for line in rest]


def eventually(condition: Callable[[], T]) -> T:
    """Return what the condition returns once it is true; fail when it is not in time."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < end, "not in time"
        time.sleep(0.01)
    return value
