"""Starting tasks through a GuardianSpawner, for tests."""

import asyncio
from pathlib import Path

from jobq.run.process.output import OutputReader
from jobq.run.process.spawner import Deadline, ExitStatus, Launch, Process
from jobq.run.spawn.guardian_spawner import GuardianSpawner
from tests.guardian.stage import (
    ENV,
)


class Started:
    """A process and what it prints."""

    def __init__(self, process: Process, reader: OutputReader, lines: "asyncio.Queue[str]") -> None:
        self.process, self._reader, self._lines = process, reader, lines

    async def line(self) -> str:
        return await asyncio.wait_for(self._lines.get(), 10)

    async def finish(self) -> tuple[ExitStatus, str]:
        status = await asyncio.wait_for(self.process.wait(), 10)
        assert await self._reader.drain(5)
        self._reader.close()
        return status, self._reader.tail.text()


async def start(spawner: GuardianSpawner, *argv: str, env: dict[str, str] | None = None, **fields: object) -> Started:
    lines: asyncio.Queue[str] = asyncio.Queue()
    if isinstance(boottime := fields.get("deadline"), float | int):
        fields["deadline"] = Deadline(boottime)
    reader = OutputReader(lambda _stream, text: lines.put_nowait(text))
    try:
        launch = Launch(argv=argv, env=env or ENV, stdout=reader.stdout, stderr=reader.stderr, **fields)  # type: ignore[arg-type] # cwd, deadline
        started = Started(await spawner.spawn(launch), reader, lines)
    except BaseException:
        reader.close()
        raise
    reader.begin()
    return started


def guardian_of(spawner: GuardianSpawner) -> int:
    assert spawner._child is not None
    return spawner._child.pid


def descriptors(pid: int | str = "self") -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
