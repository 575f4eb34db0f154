"""Children of an AsyncioSpawner, whose lines tests await instead of sleeping."""

import asyncio
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from jobq.run.process.output import OutputReader
from jobq.run.process.spawner import ExitStatus, Launch, Process
from jobq.run.spawn.asyncio_spawner import AsyncioSpawner

ENV = {"PATH": os.environ["PATH"]}


class Child:
    """A process and what it prints; tests await its lines instead of sleeping."""

    def __init__(self) -> None:
        self.process: Process
        self.reader = OutputReader(self._on_line)
        self._lines: asyncio.Queue[str] = asyncio.Queue()

    def _on_line(self, _stream: str, text: str) -> None:
        self._lines.put_nowait(text)

    async def line(self) -> str:
        return await asyncio.wait_for(self._lines.get(), 10)

    async def finish(self) -> tuple[ExitStatus, str]:
        status = await asyncio.wait_for(self.process.wait(), 10)
        assert await self.reader.drain(5)
        return status, self.reader.tail.text()


class Starter:
    def __init__(self, spawner: AsyncioSpawner) -> None:
        self.spawner = spawner
        self._children: list[Child] = []

    async def __call__(self, *argv: str, cwd: str | None = None, env: dict[str, str] | None = None) -> Child:
        child = Child()
        self._children.append(child)
        launch = Launch(
            argv=argv, env=ENV if env is None else env, cwd=cwd, stdout=child.reader.stdout, stderr=child.reader.stderr
        )
        child.process = await self.spawner.spawn(launch)
        child.reader.child_started()
        child.reader.begin()
        return child

    async def bash(self, script: str) -> Child:
        return await self("bash", "-c", script)

    def close(self) -> None:
        for child in self._children:
            child.reader.close()


@contextmanager
def watched(pid: int) -> Iterator[int]:
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def is_dead(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


OTHERS: set[int] = set()  # children that were there before the test: an emulator that other tests share


def zombies_and_children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.pid not in OTHERS]
