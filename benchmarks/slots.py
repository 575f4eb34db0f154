"""Claims and settles of a backend, as a worker with so many slots makes them; the tasks do nothing."""

import asyncio
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from benchmarks.measure import Meter
from jobq.backend import Backend, Delivery
from jobq.settlement import Complete
from jobq.task import Task, TaskResult

DONE: Final = TaskResult(exit_code=0, duration=1.0)
LEASE: Final = timedelta(minutes=1)


@dataclass
class Drained:
    """Seconds of each claim and of each settle."""

    claims: list[float] = field(default_factory=list)
    settles: list[float] = field(default_factory=list)


async def fill(queue: Backend, count: int) -> None:
    for start in range(0, count, 2000):
        await queue.push([Task.new(command="true") for _ in range(min(2000, count - start))])


async def drain(queue: Backend, count: int, slots: int, meter: Meter) -> Drained:
    """Work until so many are done: never more claimed than there are free slots."""
    took, free, freed = Drained(), slots, asyncio.Event()

    async def settle(delivery: Delivery) -> None:
        nonlocal free
        began = time.perf_counter()
        await delivery.settle(Complete(DONE))
        took.settles.append(time.perf_counter() - began)
        free += 1
        freed.set()

    with meter:
        async with asyncio.TaskGroup() as group:
            done = 0
            while done < count:
                while not free:
                    freed.clear()
                    await freed.wait()
                began = time.perf_counter()
                claimed = await queue.receive(free, LEASE, timedelta(seconds=5))
                took.claims.append(time.perf_counter() - began)
                free -= len(claimed)
                done += len(claimed)
                for delivery in claimed:
                    group.create_task(settle(delivery))
    return took
