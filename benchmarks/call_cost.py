"""What a Python task costs whose function needs NumPy: in a new Python (cold), and forked from a zygote (warm).

Milliseconds a task, one after the other: once through the guardian's spawner alone, from asking for the process to
hearing of its end, and once through a real worker on SQLite with one slot, which also receives and settles each task.
Beside both the same function by a bare `python -c`. Only NumPy is preloaded: the task's own module is found in the
task's folder each time.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from jobq.events import Event, Events
from jobq.run.environment import argv_of
from jobq.run.guardian_spawner import GuardianSpawner
from jobq.run.process import Launch
from jobq.run.worker import Worker
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task

TASKS = {"bare": 10, "cold": 10, "warm": 60}
MODULE = "import numpy\n\n\ndef work():\n    assert numpy.arange(10).sum() == 45\n"
SIDES = ("cold", "warm")


def measure(folder: Path, rounds: int) -> list[dict[str, object]]:
    """Return the medians, and warm by cold; sides take turns."""
    (folder / "bench_call.py").write_text(MODULE)
    task = Task.new(call="bench_call:work", cwd=str(folder))
    costs: dict[tuple[str, str], list[float]] = {("", "bare"): []}
    costs |= {(through, side): [] for through in ("spawner", "worker") for side in SIDES}
    preloads: list[float] = []
    for number in range(rounds):
        costs["", "bare"].append(_bare(folder))
        for side in SIDES:
            preload, each = asyncio.run(_spawned(task, side))
            costs["spawner", side].append(each)
            if side == "warm":
                preloads.append(preload)
            costs["worker", side].append(asyncio.run(_worked(folder / f"{side}-{number}.db", task, side)))
    median = {key: statistics.median(values) for key, values in costs.items()}
    rows: list[dict[str, object]] = [
        {
            "what": f"call, imports numpy, {through}, {side}".ljust(42),
            "jobq": value,
            "unit": "ms   bare python -c",
            "bare": median["", "bare"],
            "rel": "ms   ratio to cold",
            "ratio": value / median[through, "cold"],
        }
        for (through, side), value in median.items()
        if through
    ]
    once = statistics.median(preloads)
    return [*rows, {"what": "call, once, until numpy is preloaded".ljust(42), "jobq": once, "unit": "ms"}]


def _bare(folder: Path) -> float:
    began = time.perf_counter()
    for _ in range(TASKS["bare"]):
        subprocess.run([sys.executable, "-c", "import bench_call; bench_call.work()"], cwd=folder, check=True)
    return 1000 * (time.perf_counter() - began) / TASKS["bare"]


async def _spawned(task: Task, side: str) -> tuple[float, float]:
    """Return the milliseconds that preloading takes, and those that each task takes."""
    null = os.open("/dev/null", os.O_RDWR)
    env = dict(os.environ)
    launch = Launch(argv=argv_of(task), env=env, cwd=task.cwd, stdout=null, stderr=null, forked=side == "warm")
    async with GuardianSpawner() as spawner:
        began = time.perf_counter()
        if side == "warm":
            await spawner.preload(("numpy",), env)
        ready = time.perf_counter()
        for _ in range(TASKS[side]):
            assert (await (await spawner.spawn(launch)).wait()).exit_code == 0
        ended = time.perf_counter()
    os.close(null)
    return 1000 * (ready - began), 1000 * (ended - ready) / TASKS[side]


async def _worked(path: Path, task: Task, side: str) -> float:
    """Return the milliseconds that each task takes a worker, from when it is ready until the last one is settled."""
    settings = Settings(scheduled_events="off", preload=("numpy",) if side == "warm" else ())
    at: dict[str, float] = {}

    def note(event: Event) -> None:
        at[event.name] = time.perf_counter()  # of the last one of each name

    async with resolve(f"sqlite://{path}/bench", settings) as queue:
        await queue.create()
        await queue.push([Task.new(call=task.call, cwd=task.cwd) for _ in range(TASKS[side])])
        report = await Worker(queue, settings, events=Events(note), spawner=GuardianSpawner()).run()
        assert report.succeeded == TASKS[side], report
    return 1000 * (at["task.succeeded"] - at["worker.started"]) / TASKS[side]
