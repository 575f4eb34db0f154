"""`make bench-http`: the service beside the bare SQL backend that it stands on, in one run; sides take turns.

One process of the service, one client process, tasks that do nothing: claims and settles as a worker with so many
slots makes them, and how long each call takes. All of it, the database too, shares this machine's cores.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from jobq.backend import Backend, Delivery
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task, TaskResult
from tests.postgres.server import session
from tests.service.server import running

_DONE: Final = TaskResult(exit_code=0, duration=1.0)
_LEASE: Final = timedelta(minutes=1)
_AIM: Final = 0.3  # of the bare backend, for each process of the service


@dataclass
class Figures:
    """What one round has taken, in seconds."""

    rate: float = 0.0
    claims: list[float] = field(default_factory=list)
    settles: list[float] = field(default_factory=list)


async def work(queue: Backend, count: int, slots: int) -> Figures:
    """Work with so many slots: never more claimed than there are free ones."""
    for start in range(0, count, 2000):
        await queue.push([Task.new(command="true") for _ in range(min(2000, count - start))])
    found, free, freed = Figures(), slots, asyncio.Event()

    async def settle(delivery: Delivery) -> None:
        nonlocal free
        began = time.perf_counter()
        await delivery.complete(_DONE)
        found.settles.append(time.perf_counter() - began)
        free += 1
        freed.set()

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        done = 0
        while done < count:
            while not free:
                freed.clear()
                await freed.wait()
            asked = time.perf_counter()
            claimed = await queue.receive(free, _LEASE, timedelta(seconds=5))
            found.claims.append(time.perf_counter() - asked)
            free -= len(claimed)
            done += len(claimed)
            for delivery in claimed:
                group.create_task(settle(delivery))
    found.rate = count / (time.perf_counter() - began)
    return found


async def measured(spec: str, count: int, slots: int) -> Figures:
    """Return one round of a queue, warm."""
    async with resolve(spec, Settings()) as queue:
        await queue.create()
        await queue.clear()
        await work(queue, 2 * slots, slots)
        return await work(queue, count, slots)


def _shown(name: str, rounds: list[Figures]) -> str:
    def percentile(pick: Callable[[Figures], list[float]], share: float) -> float:
        values = sorted(value for figures in rounds for value in pick(figures))
        return 1e3 * values[min(len(values) - 1, int(share * len(values)))]

    claims = f"{percentile(lambda f: f.claims, 0.5):6.1f}/{percentile(lambda f: f.claims, 0.99):6.1f}"
    settles = f"{percentile(lambda f: f.settles, 0.5):6.1f}/{percentile(lambda f: f.settles, 0.99):6.1f}"
    rate = statistics.median(figures.rate for figures in rounds)
    return f"    {name:<8} {rate:>9,.0f} tasks/s   claim {claims} ms   settle {settles} ms   (median/99th)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is shown")
    parser.add_argument("--scale", type=float, default=1.0, help="of the counts; less for a quick look")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(session())
        for store, place in (("PostgreSQL", database.url), ("SQLite", f"sqlite://{folder}/jobs.db")):
            served = stack.enter_context(running(f"{place}/served", folder, "--rate-limit", "1000000"))
            specs = {"bare": f"{place}/bare", "service": f"{served.url}/served"}
            for slots, count in ((1, 500), (10, 2000), (100, 6000)):
                found: dict[str, list[Figures]] = {name: [] for name in specs}
                for _ in range(options.rounds):
                    for name, spec in specs.items():
                        scaled = max(20, int(count * options.scale))
                        found[name].append(asyncio.run(measured(spec, scaled, slots)))
                rates = {name: statistics.median(each.rate for each in rounds) for name, rounds in found.items()}
                ratio = rates["service"] / rates["bare"]
                aim = "reaches the aim" if ratio >= _AIM else "misses the aim"
                print(f"{store}, {slots} slots: {ratio:.2f} of the bare backend ({aim} of {_AIM})")
                for name, rounds in found.items():
                    print(_shown(name, rounds), flush=True)


if __name__ == "__main__":
    main()
