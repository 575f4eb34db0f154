"""What a Python task costs whose function needs NumPy: in a new Python (cold), and forked from a zygote (warm).

Milliseconds a task, one after the other: once through the guardian's spawner alone, from asking for the process to
hearing of its end, and once through a real worker on SQLite with one slot, which also receives and settles each task.
Beside both the same function by a bare `python -c`. Only NumPy is preloaded: the task's own module is found in the
task's folder each time.
"""

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.measure import Figure, Meter, Row, compared, in_turns, live_children
from benchmarks.sections import Options
from jobq.events import Event, Events
from jobq.run.process.environment import argv_of
from jobq.run.process.spawner import Launch
from jobq.run.spawn.guardian_spawner import GuardianSpawner
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task

TASKS = {"bare": 10, "cold": 10, "warm": 60}
MODULE = "import numpy\n\n\ndef work():\n    assert numpy.arange(10).sum() == 45\n"
BARE = "python -c"


def measure(folder: Path, options: Options) -> Iterator[Row]:
    """Yield a row for each way through, warm and cold beside the bare one; then what preloading takes once."""
    (folder / "bench_call.py").write_text(MODULE)
    task = Task.new(call="bench_call:work", cwd=str(folder))
    preloads: list[Figure] = []

    def spawned(side: str, _: int) -> Figure:
        preload, each = asyncio.run(_spawned(task, side))
        preloads.extend(preload)
        return each

    def worked(side: str, number: int) -> Figure:
        return asyncio.run(_worked(folder / f"{side}-{number}.db", task, side))

    for through, run in (("spawner", spawned), ("worker", worked)):
        sides = {"warm": partial(run, "warm"), "cold": partial(run, "cold"), BARE: partial(_bare, folder)}
        yield compared(f"call, imports numpy, {through}", in_turns(options.rounds, sides), "ms")
    yield compared("call, once, until numpy is preloaded", {"jobq": preloads}, "ms")


def _bare(folder: Path, _: int) -> Figure:
    with Meter() as meter:
        for _number in range(TASKS["bare"]):
            subprocess.run([sys.executable, "-c", "import bench_call; bench_call.work()"], cwd=folder, check=True)
    return meter.figure(TASKS["bare"])


async def _spawned(task: Task, side: str) -> tuple[list[Figure], Figure]:
    """Return what preloading takes where there is one, and what each task takes."""
    null = os.open("/dev/null", os.O_RDWR)
    env = dict(os.environ)
    launch = Launch(argv=argv_of(task), env=env, cwd=task.cwd, stdout=null, stderr=null, forked=side == "warm")
    preloads = []
    async with GuardianSpawner() as spawner:
        guardian = live_children()
        if side == "warm":
            with Meter(*guardian) as preloading:
                await spawner.preload(("numpy",), env)
            preloads.append(preloading.figure(1))
        with Meter(*guardian) as meter:
            for _ in range(TASKS[side]):
                assert (await (await spawner.spawn(launch)).wait()).exit_code == 0
    os.close(null)
    return preloads, meter.figure(TASKS[side])


async def _worked(path: Path, task: Task, side: str) -> Figure:
    """Return what each task takes a worker, from when it is ready until the last one is settled."""
    count = TASKS[side]
    settings = Settings(scheduled_events="off", preload=("numpy",) if side == "warm" else ())
    measuring = ExitStack()
    meters: list[Meter] = []
    settled = itertools.count(1)

    def note(event: Event) -> None:
        if event.name == "worker.started":
            meters.append(measuring.enter_context(Meter(*live_children())))
        elif event.name == "task.succeeded" and next(settled) == count:
            measuring.close()

    async with resolve(f"sqlite://{path}/bench", settings) as queue:
        await queue.create()
        await queue.push([Task.new(call=task.call, cwd=task.cwd) for _ in range(count)])
        report = await Worker(queue, settings, events=Events(note), spawner=GuardianSpawner()).run()
        assert report.succeeded == count, report
    return meters[0].figure(count)
