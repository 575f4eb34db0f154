"""What a claim costs where tasks ask for different things, beside one where they ask for nothing, in both databases."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

from benchmarks.measure import Figure, Meter, Row, compared, in_turns, median
from benchmarks.sections import Options
from jobq.resources.request import UNIT, Resources
from jobq.resources.room import Room, Space
from jobq.selecting import selecting
from jobq.settings import Settings
from jobq.settlement import Release
from jobq.spec import resolve
from jobq.task import Task
from tests.postgres.server import session

READY = 100_000
SHAPES = (1, 4, 16, 64)  # all of which fit
CLAIMS = 200
_WARM = 20


def measure(folder: Path, options: Options) -> Iterator[Row]:
    """Yield the time of a claim of 1 and of 8 tasks, by how many shapes fit."""
    with session() as database:
        places = {"SQLite": f"sqlite://{folder}/shapes.db/", "PostgreSQL": f"{database.url}/"}
        for store, place in places.items():
            specs = {shapes: f"{place}q{shapes}" for shapes in (0, *SHAPES)}
            for shapes, spec in specs.items():
                asyncio.run(_fill(spec, options.scaled(READY), shapes))
            for most in (1, 8):
                sides = {_told(shapes): partial(_claim, spec, most) for shapes, spec in specs.items()}
                found = in_turns(options.rounds, sides)
                for shapes in SHAPES:
                    both = {name: found[name] for name in (_told(shapes), _told(0))}
                    yield compared(f"claim of {most}, {_told(shapes)} ({store})", both, "us")


def _told(shapes: int) -> str:
    return "no shape" if not shapes else "1 shape" if shapes == 1 else f"{shapes} shapes"


async def _fill(spec: str, count: int, shapes: int) -> None:
    plain = Task.new(command="echo a task of the usual size")
    kinds = [plain.copied({"resources": Resources(cpus=(n + 1) * UNIT)}) for n in range(shapes)] or [plain]
    async with resolve(spec, Settings()) as queue:
        await queue.create()
        for start in range(0, count, 10_000):
            numbers = range(start, min(start + 10_000, count))
            await queue.push([kinds[number % len(kinds)].copied({"id": f"t-{number:08}"}) for number in numbers])


def _claim(spec: str, most: int, _: int) -> Figure:
    return asyncio.run(_claims(spec, most))


async def _claims(spec: str, most: int) -> Figure:
    """Return the median of many claims, each of which is given back."""
    figures = []
    space = Space(cpus=1_000 * UNIT)
    room = Room(free=space, total=space)
    async with resolve(spec, Settings()) as queue:
        selects = selecting(queue)
        assert selects is not None
        for number in range(_WARM + CLAIMS):
            with Meter() as meter:
                found = await selects.receive_fitting(room, most, None, timedelta(0))
            assert len(found) == most
            figures += [meter.figure(1)] if number >= _WARM else []
            for delivery in found:
                await delivery.settle(Release())
    return median(figures)
