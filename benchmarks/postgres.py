"""`make bench-postgres`: jobq beside procrastinate and PGQueuer on one PostgreSQL, in one run; sides take turns.

What is measured of each is its own way into and out of the database, in one process, with tasks that do nothing: jobq's
claims and settles through its backend, as its worker makes them. The peers neither fence nor renew a lease per task.
"""

import argparse
import asyncio
import statistics
import subprocess
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jobq.backend import Delivery
from jobq.task import Task, TaskResult
from jobq_postgres import PostgresBackend
from tests.postgres.server import Database, session

if TYPE_CHECKING:
    from collections.abc import Callable

_PEER_PYTHON: Final = Path(__file__).parents[1] / ".peer-postgres/bin/python"
_PROGRAM: Final = Path(__file__).with_name("postgres_peer.py")
_TABLE: Final = {"procrastinate": "procrastinate_jobs", "pgqueuer": "pgqueuer"}
_PEERS: Final = tuple(_TABLE)
_DONE: Final = TaskResult()
_LEASE: Final = timedelta(minutes=1)
_NOW: Final = timedelta(0)


class Ours:
    """jobq, in this process."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def run(self, verb: str, count: int, at_once: int = 1) -> float:
        """Return the seconds of one figure."""
        return asyncio.run(self._run(verb, count, at_once))

    async def _run(self, verb: str, count: int, at_once: int) -> float:
        async with PostgresBackend(self.database.server(), "bench") as queue:
            await queue.create()
            await queue.clear()
            await queue.push([Task.new(command="true")])
            await (await queue.receive(1, _LEASE, _NOW))[0].complete(_DONE)
            return await {"push": self._push, "bulk": self._bulk, "work": self._work, "latency": self._latency}[verb](
                queue, count, at_once
            )

    async def _push(self, queue: PostgresBackend, count: int, at_once: int) -> float:
        left = iter([Task.new(command="true") for _ in range(count)])

        async def some() -> None:
            for task in left:
                await queue.push([task])

        began = time.perf_counter()
        await asyncio.gather(*(some() for _ in range(at_once)))
        return time.perf_counter() - began

    async def _bulk(self, queue: PostgresBackend, count: int, _: int) -> float:
        tasks = [Task.new(command="true") for _ in range(count)]
        began = time.perf_counter()
        await queue.push(tasks)
        return time.perf_counter() - began

    async def _work(self, queue: PostgresBackend, count: int, at_once: int) -> float:
        """Work with so many slots: never more claimed than there are free ones."""
        await self._bulk(queue, count, 1)
        free, freed = at_once, asyncio.Event()
        began = time.perf_counter()

        async def settle(delivery: Delivery) -> None:
            nonlocal free
            await delivery.complete(_DONE)
            free += 1
            freed.set()

        async with asyncio.TaskGroup() as group:
            done = 0
            while done < count:
                while not free:
                    freed.clear()
                    await freed.wait()
                found = await queue.receive(free, _LEASE, timedelta(seconds=5))
                free -= len(found)
                done += len(found)
                for delivery in found:
                    group.create_task(settle(delivery))
        return time.perf_counter() - began

    async def _latency(self, queue: PostgresBackend, count: int, _: int) -> float:
        async with PostgresBackend(self.database.server(), "bench") as worker:
            found = []

            async def claimed() -> tuple[float, Delivery]:
                (delivery,) = await worker.receive(1, _LEASE, timedelta(seconds=60))
                return time.perf_counter(), delivery

            for _number in range(count):
                waiting = asyncio.create_task(claimed())
                await asyncio.sleep(0.05)
                began = time.perf_counter()
                await queue.push([Task.new(command="true")])
                at, delivery = await waiting
                found.append(at - began)
                await delivery.complete(_DONE)
            return statistics.median(found)


def _peer(database: Database, which: str, verb: str, *numbers: int) -> float:
    if verb != "prepare":
        database.run(f"TRUNCATE {_TABLE[which]} CASCADE")
    if which == "procrastinate" and verb == "work":
        return _slowest(database, numbers)
    return _told(database, which, verb, *numbers)


def _slowest(database: Database, numbers: tuple[int, ...]) -> float:
    """It takes its jobs one by one: fewer of them give the same rate, in a fraction of the minutes."""
    count = min(numbers[0], 1000)
    return _told(database, "procrastinate", "work", count, *numbers[1:]) * numbers[0] / count


def _told(database: Database, which: str, verb: str, *numbers: int) -> float:
    told = subprocess.run(
        [_PEER_PYTHON, _PROGRAM, which, database.url, verb, *map(str, numbers)],
        check=True,
        capture_output=True,
        text=True,
        timeout=900,
    )
    return float(told.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is shown")
    parser.add_argument("--scale", type=float, default=1.0, help="of the counts; less for a quick look")
    options = parser.parse_args()

    def scaled(count: int) -> int:
        return max(20, int(count * options.scale))

    figures: list[tuple[str, str, tuple[int, ...], bool]] = [
        ("push, one at a time, tasks/s", "push", (scaled(1000), 1), True),
        ("push, 8 at a time, tasks/s", "push", (scaled(3000), 8), True),
        ("bulk push, tasks/s", "bulk", (scaled(10_000),), True),
        ("claim + settle, 1 slot, tasks/s", "work", (scaled(1000), 1), True),
        ("claim + settle, 10 slots, tasks/s", "work", (scaled(4000), 10), True),
        ("claim + settle, 100 slots, tasks/s", "work", (scaled(20_000), 100), True),
        ("push to start, ms", "latency", (scaled(60),), False),
    ]
    with session() as database:
        homes = {name: database.fresh() for name in ("jobq", *_PEERS)}
        for peer in _PEERS:
            _peer(homes[peer], peer, "prepare")
        sides: dict[str, Callable[..., float]] = {"jobq": Ours(homes["jobq"]).run}
        for peer in _PEERS:
            sides[peer] = lambda verb, *numbers, peer=peer: _peer(homes[peer], peer, verb, *numbers)
        for title, verb, numbers, rate in figures:
            seconds: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(options.rounds):
                for name, run in sides.items():
                    seconds[name].append(run(verb, *numbers))
            found = {name: statistics.median(each) for name, each in seconds.items()}
            values = {name: numbers[0] / each if rate else each * 1e3 for name, each in found.items()}
            best = (max if rate else min)(values[peer] for peer in _PEERS)
            ratio = values["jobq"] / best if rate else best / values["jobq"]
            shown = "  ".join(f"{name} {each:>10,.1f}" for name, each in values.items())
            print(f"{title:<36} {shown}  {ratio:.2f} x the better of both", flush=True)


if __name__ == "__main__":
    main()
