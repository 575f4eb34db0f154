"""Several workers on one SQLite file: claim and settle, one by one, as tasks a second, and how long the unlucky wait.

SQLite's write lock has no order: who has written for long leaves a gap, and who waits looks often (aim: 99 of 100
within 25 ms at four workers, and no share below half of the mean).
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from statistics import median

from benchmarks.measure import Row
from benchmarks.sections import Options
from jobq.settings import Settings
from jobq.settlement import Complete
from jobq.spec import resolve
from jobq.task import Task

WORKERS = (1, 2, 4)
SECONDS = 3.0
_TASKS = 12_000


def measure(folder: Path, options: Options) -> Iterator[Row]:
    """Yield a row for each number of workers."""
    for workers in WORKERS:
        rounds = [_round(folder / f"{workers}-{number}.db", workers) for number in range(options.rounds)]
        yield {
            "what": f"{workers} on one file",
            "claim and settle": {"/s": median(each["rate"] for each in rounds)},
            "each": {
                "ms, 99th": median(each["p99"] for each in rounds),
                "ms, longest": max(each["longest"] for each in rounds),
            },
            "least share": {"of the mean": min(each["share"] for each in rounds)},
        }


def _round(path: Path, workers: int) -> dict[str, float]:
    spec = f"sqlite://{path}/bench"
    asyncio.run(_fill(spec))
    begin = time.monotonic() + 1.0
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.local.shared_file", spec, str(begin)], stdout=subprocess.PIPE
        )
        for _ in range(workers)
    ]
    found = [json.loads(each.communicate()[0]) for each in running]
    waits = sorted(wait for each in found for wait in each)
    counts = [len(each) / 2 for each in found]
    return {
        "rate": sum(counts) / SECONDS,
        "p99": 1000 * waits[int(0.99 * len(waits))],
        "longest": 1000 * waits[-1],
        "share": min(counts) * workers / sum(counts),
    }


async def _fill(spec: str) -> None:
    async with resolve(spec, Settings()) as queue:
        await queue.create()
        await queue.push([Task.new(command="true") for _ in range(_TASKS)])


async def _work(spec: str, begin: float) -> list[float]:
    """Return how long each claim and each settle took, in seconds."""
    took: list[float] = []
    async with resolve(spec, Settings()) as queue:
        await queue.stats()
        await asyncio.sleep(begin - time.monotonic())
        while (began := time.monotonic()) < begin + SECONDS:
            (delivery,) = await queue.receive(1, None, timedelta(0))
            claimed = time.monotonic()
            await delivery.settle(Complete())
            took += (claimed - began, time.monotonic() - claimed)
    return took


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_work(sys.argv[1], float(sys.argv[2])))))
