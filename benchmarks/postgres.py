"""`make bench OF=postgres`: jobq beside procrastinate and PGQueuer on one PostgreSQL, in one run; sides take turns.

Workers against workers: each side's own, in one process, with a coroutine that does nothing. The peers neither fence
nor renew a lease per task. CPU is that of the process, without PostgreSQL's.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Final

from benchmarks import sections
from benchmarks.commands import output
from benchmarks.measure import Figure, Meter, Row, compared, in_turns, median
from benchmarks.sections import ROOT, Options
from jobq.queue import Queue, connect
from jobq.task import Task
from tests.postgres.server import Database, session

_PEER_PYTHON: Final = ROOT / ".peer-postgres/bin/python"
_TABLE: Final = {"procrastinate": "procrastinate_jobs", "pgqueuer": "pgqueuer"}


class Ours:
    """jobq, in this process: its worker with a coroutine that does nothing, beside theirs with theirs."""

    def __init__(self, database: Database) -> None:
        self._spec = f"{database.url}/bench"
        self._called = 0
        self._at = 0.0
        self._event = asyncio.Event()

    async def nothing(self, number: int) -> None:  # noqa: ARG002 - the task's argument
        self._called += 1
        self._at = time.perf_counter()
        self._event.set()

    async def run(self, verb: str, count: int, at_once: int = 1) -> Figure:
        async with connect(self._spec) as queue:
            await queue.backend.create()
            await queue.clear()
            if verb == "latency":
                return await self._latency(queue, count)
            meter = Meter()
            tasks = [Task.new(kwargs={"number": number}) for number in range(count)]
            if verb == "push":
                await self._push(queue, tasks, at_once, meter)
            elif verb == "bulk":
                with meter:
                    await queue.push(tasks)
            else:
                await queue.push(tasks)
                with meter:
                    began = time.perf_counter()
                    await queue.worker(self.nothing, num_workers=at_once)
                meter.seconds = self._at - began  # until the last one, as theirs
                assert self._called == count, self._called
            return meter.figure(count)

    async def _push(self, queue: Queue, tasks: list[Task], at_once: int, meter: Meter) -> None:
        left = iter(tasks)

        async def some() -> None:
            for task in left:
                await queue.push([task])

        with meter:
            await asyncio.gather(*(some() for _ in range(at_once)))

    async def _latency(self, queue: Queue, count: int) -> Figure:
        async with connect(self._spec) as own:
            working = asyncio.create_task(own.worker(self.nothing, idle_timeout=timedelta(seconds=60)))
            figures = []
            for number in range(count):
                await asyncio.sleep(0.05)
                self._event.clear()
                with Meter() as meter:
                    await queue.push(Task.new(kwargs={"number": number}))
                    await self._event.wait()
                figures.append(meter.figure(1))
            working.cancel()
            await asyncio.wait([working])
            return median(figures)


def _peer(database: Database, which: str, verb: str, *numbers: int) -> str:
    if verb != "prepare":
        database.run(f"TRUNCATE {_TABLE[which]} CASCADE")
    argv = (str(_PEER_PYTHON), "-m", "benchmarks.postgres_peer", which, database.url, verb, *map(str, numbers))
    return output(argv, {**os.environ, "PYTHONPATH": str(ROOT)})


def _section(
    homes: Mapping[str, Database], title: str, verb: str, numbers: tuple[int, ...], rounds: int
) -> Iterator[Row]:
    def side(name: str, _: int) -> Figure:
        if name == "jobq":
            return asyncio.run(Ours(homes[name]).run(verb, *numbers))
        count, *at_once = numbers
        if name == "procrastinate" and verb == "work":
            # It takes its jobs one by one: fewer of them give the same rate, in a fraction of the minutes.
            count = min(count, 1000)
        return Figure.printed(_peer(homes[name], name, verb, count, *at_once))

    found = in_turns(rounds, {name: partial(side, name) for name in homes})
    yield compared(title, found, "ms" if verb == "latency" else "/s")


def _prepare(options: Options, stack: ExitStack) -> Mapping[str, sections.Section]:
    database = stack.enter_context(session())
    homes = {name: database.fresh() for name in ("jobq", *_TABLE)}
    for peer in _TABLE:
        _peer(homes[peer], peer, "prepare")
    figures = {
        "push-1": ("push, one at a time", "push", 1000, 1),
        "push-8": ("push, 8 at a time", "push", 3000, 8),
        "bulk": ("bulk push", "bulk", 10_000, 1),
        "work-1": ("worker, 1 slot", "work", 1000, 1),
        "work-10": ("worker, 10 slots", "work", 4000, 10),
        "work-100": ("worker, 100 slots", "work", 20_000, 100),
        "latency": ("push to start", "latency", 60, 1),
    }
    return {
        name: partial(_section, homes, title, verb, (options.scaled(count), at_once), options.rounds)
        for name, (title, verb, count, at_once) in figures.items()
    }


if __name__ == "__main__":
    sections.main(__doc__, _prepare, rounds=3, peer=_PEER_PYTHON)
