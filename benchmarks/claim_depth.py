"""What a claim costs among 1,000 tasks and among 1,000,000: it must not grow with the queue (aim: within 1.5 times)."""

import asyncio
import statistics
import time
from datetime import timedelta
from pathlib import Path

from jobq.backend import Backend
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task

DEPTHS = (1_000, 1_000_000)
CLAIMS = 200


def measure(folder: Path, rounds: int) -> list[dict[str, object]]:
    """Return the median time of one claim at each depth, rounds taken in turn, and their ratio."""
    return asyncio.run(_measure(folder, rounds))


async def _measure(folder: Path, rounds: int) -> list[dict[str, object]]:
    times: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    for depth in DEPTHS:
        async with resolve(f"sqlite://{folder}/depth-{depth}.db/bench", Settings()) as queue:
            await queue.create()
            await _fill(queue, depth)
    for _ in range(rounds):
        for depth in DEPTHS:
            async with resolve(f"sqlite://{folder}/depth-{depth}.db/bench", Settings()) as queue:
                times[depth].append(await _claim(queue))
    costs = {depth: statistics.median(values) for depth, values in times.items()}
    rows: list[dict[str, object]] = [
        {"what": f"claim of 1 among {depth:,}", "microseconds": cost * 1e6, "unit": "us"}
        for depth, cost in costs.items()
    ]
    ratio = costs[DEPTHS[-1]] / costs[DEPTHS[0]]
    return [*rows, {"what": f"claim among {DEPTHS[-1]:,} against {DEPTHS[0]:,}: ratio", "ratio": ratio}]


async def _fill(queue: Backend, depth: int) -> None:
    template = Task.new(command="echo a task of the usual size")
    for start in range(0, depth, 10_000):
        stop = min(start + 10_000, depth)
        await queue.push([template.model_copy(update={"id": f"t-{number:08}"}) for number in range(start, stop)])


async def _claim(queue: Backend) -> float:
    await queue.stats()  # connected, and the file's first pages read
    times = []
    for _ in range(CLAIMS):
        began = time.perf_counter()
        (delivery,) = await queue.receive(1, None, timedelta(0))
        times.append(time.perf_counter() - began)
        await delivery.release()
        assert isinstance(delivery.task.id, str)
    return statistics.median(times)
