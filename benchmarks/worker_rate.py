"""Tasks per second of a worker running `true`, beside a bare asyncio loop that spawns the same processes.

Both run `bash -c true` in sessions of their own with two output pipes each, read to their end. Ours claims each task
from SQLite under a lease, watches it, and settles it durably.
"""

import asyncio
import statistics
import subprocess
import time
from pathlib import Path

from jobq.run.environment import shell_argv
from jobq.run.worker import Worker
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task

SLOTS = (1, 8, 64)


def measure(folder: Path, rounds: int) -> list[dict[str, object]]:
    """Return both rates and their ratio for each number of slots; the sides take turns."""
    rows: list[dict[str, object]] = []
    for slots in SLOTS:
        tasks = 300 if slots == 1 else 800
        ours, bare = [], []
        for number in range(rounds):
            bare.append(tasks / asyncio.run(_bare(tasks, slots)))
            ours.append(tasks / asyncio.run(_ours(folder / f"{slots}-{number}.db", tasks, slots)))
        ours_rate, bare_rate = statistics.median(ours), statistics.median(bare)
        rows.append(
            {
                "what": f"worker, bash -c true, {slots} slots".ljust(42),
                "jobq": ours_rate,
                "unit": "/s   bare",
                "bare": bare_rate,
                "rel": "/s   ratio",
                "ratio": ours_rate / bare_rate,
            }
        )
    return rows


async def _ours(path: Path, tasks: int, slots: int) -> float:
    settings = Settings(num_workers=slots)
    async with resolve(f"sqlite://{path}/bench", settings) as queue:
        await queue.create()
        await queue.push([Task.new(command="true") for _ in range(tasks)])
        began = time.perf_counter()
        report = await Worker(queue, settings).run()
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
