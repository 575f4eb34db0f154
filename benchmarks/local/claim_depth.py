"""What a claim costs among 1,000 tasks and among 1,000,000: it must not grow with the queue (aim: within 1.5 times)."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

from benchmarks.measure import Figure, Meter, Row, compared, in_turns, median
from benchmarks.sections import Options
from jobq.settings import Settings
from jobq.settlement import Release
from jobq.spec import resolve
from jobq.task import Task

DEPTHS = (1_000, 1_000_000)
CLAIMS = 200


def measure(folder: Path, options: Options) -> Iterator[Row]:
    """Yield the time of a claim in the deep queue beside that in the shallow one."""
    specs = {depth: f"sqlite://{folder}/{depth}.db/bench" for depth in map(options.scaled, DEPTHS)}
    for depth, spec in specs.items():
        asyncio.run(_fill(spec, depth))
    found = in_turns(options.rounds, {f"among {depth:,}": partial(_claim, spec) for depth, spec in specs.items()})
    yield compared("claim of 1", dict(reversed(found.items())), "us")


async def _fill(spec: str, depth: int) -> None:
    template = Task.new(command="echo a task of the usual size")
    async with resolve(spec, Settings()) as queue:
        await queue.create()
        for start in range(0, depth, 10_000):
            stop = min(start + 10_000, depth)
            await queue.push([template.copied({"id": f"t-{number:08}"}) for number in range(start, stop)])


def _claim(spec: str, _: int) -> Figure:
    return asyncio.run(_claims(spec))


async def _claims(spec: str) -> Figure:
    """Return the median of many claims, each of which is given back."""
    figures = []
    async with resolve(spec, Settings()) as queue:
        await queue.stats()  # connected, and the file's first pages read
        for _ in range(CLAIMS):
            with Meter() as meter:
                (delivery,) = await queue.receive(1, None, timedelta(0))
            figures.append(meter.figure(1))
            await delivery.settle(Release())
    return median(figures)
