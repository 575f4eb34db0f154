"""Tasks per second of a worker running `true`, beside a bare asyncio loop that spawns the same processes.

Both run `bash -c true` in sessions of their own with two output pipes each, read to their end. Ours claims each task
from SQLite under a lease, watches it, and settles it durably; through the guardian, as `jobq worker` does, and once
with the plain spawner.
"""

import asyncio
import itertools
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.local.spawn_rate import beside_bare
from benchmarks.measure import Figure, Meter, Row
from benchmarks.sections import Options
from benchmarks.slots import fill
from jobq.run.process.environment import shell_argv
from jobq.run.process.spawner import Spawner
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from jobq.spec import resolve

SLOTS = (1, 8, 64)


def measure(folder: Path, options: Options) -> Iterator[Row]:
    """Yield a row for each number of slots, with the guardian and without."""
    numbers = itertools.count()

    async def ours(tasks: int, slots: int, spawner: Spawner) -> Figure:
        settings = Settings(num_workers=slots, scheduled_events="off")
        return await worked(f"sqlite://{folder}/{next(numbers)}.db/bench", settings, tasks, spawner)

    for slots in SLOTS:
        tasks = options.scaled(300 if slots == 1 else 800)
        yield from beside_bare(
            f"worker, bash -c true, {slots} slots",
            options.rounds,
            partial(_bare, tasks, slots),
            partial(ours, tasks, slots),
        )


async def worked(spec: str, settings: Settings, tasks: int, spawner: Spawner) -> Figure:
    """Return what a worker makes of so many `true`, from its start to its end."""
    async with resolve(spec, settings) as queue:
        await queue.create()
        await fill(queue, tasks)
        with Meter() as meter:
            report = await Worker(queue, settings, spawner=spawner).run()
        assert report.succeeded == tasks, report
    return meter.figure(tasks)


def _bare(tasks: int, slots: int) -> Figure:
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

    async def all_slots() -> Meter:
        with Meter() as meter:
            await asyncio.gather(*(slot() for _ in range(slots)))
        return meter

    return asyncio.run(all_slots()).figure(tasks)
