"""Tasks per second of a worker running `true`, beside a bare asyncio loop that spawns the same processes.

Both run `bash -c true` in sessions of their own with two output pipes each, read to their end. Ours claims each task
from SQLite under a lease, watches it, and settles it durably; through the guardian, as `jobq worker` does, and once
with the plain spawner.
"""

import asyncio
import statistics
import subprocess
import time
from pathlib import Path

from jobq.run.asyncio_spawner import AsyncioSpawner
from jobq.run.environment import shell_argv
from jobq.run.guardian_spawner import GuardianSpawner
from jobq.run.process import Spawner
from jobq.run.worker import Worker
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task

SLOTS = (1, 8, 64)


def measure(folder: Path, rounds: int) -> list[dict[str, object]]:
    """Return the rates and their ratios for each number of slots, with the guardian and without; sides take turns."""
    rows: list[dict[str, object]] = []
    for slots in SLOTS:
        tasks = 300 if slots == 1 else 800
        rates: dict[str, list[float]] = {"bare": [], "guardian": [], "asyncio": []}
        for number in range(rounds):
            rates["bare"].append(tasks / asyncio.run(_bare(tasks, slots)))
            for spawner, make in (("guardian", GuardianSpawner), ("asyncio", AsyncioSpawner)):
                path = folder / f"{slots}-{number}-{spawner}.db"
                rates[spawner].append(tasks / asyncio.run(_ours(path, tasks, slots, make())))
        bare = statistics.median(rates["bare"])
        for spawner in ("asyncio", "guardian"):
            ours = statistics.median(rates[spawner])
            rows.append(
                {
                    "what": f"worker, bash -c true, {slots} slots, {spawner}".ljust(42),
                    "jobq": ours,
                    "unit": "/s   bare",
                    "bare": bare,
                    "rel": "/s   ratio",
                    "ratio": ours / bare,
                }
            )
    return rows


async def _ours(path: Path, tasks: int, slots: int, spawner: Spawner) -> float:
    settings = Settings(num_workers=slots, scheduled_events="off")
    async with resolve(f"sqlite://{path}/bench", settings) as queue:
        await queue.create()
        await queue.push([Task.new(command="true") for _ in range(tasks)])
        began = time.perf_counter()
        report = await Worker(queue, settings, spawner=spawner).run()
        assert report.succeeded == tasks, report
        return time.perf_counter() - began


async def _bare(tasks: int, slots: int) -> float:
    left = iter(range(tasks))
    argv = shell_argv("true")

    async def slot() -> None:
        for _ in left:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            await process.communicate()
            assert process.returncode == 0

    began = time.perf_counter()
    await asyncio.gather(*(slot() for _ in range(slots)))
    return time.perf_counter() - began
