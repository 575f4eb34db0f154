"""What the journal costs and how fast it is read.

Costs: tasks per second of a worker that runs `true` through the guardian, with the journal and without, on SQLite and
PostgreSQL; sides take turns in one run. And the same without processes: receive and settle alone, where there is
nothing for the journal to hide behind. Aim: under 15 % of a worker's rate.

Reading: medians of `ps` and `status` among 100,000 tasks on SQLite, asked of the open queue. Aim: under 100 ms. The
command adds what Python takes to start (`start` measures that).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.local.worker_rate import worked
from benchmarks.measure import Figure, Meter, Row, compared, in_turns
from benchmarks.sections import Options
from benchmarks.slots import fill
from jobq.backend import Backend
from jobq.journal.records import Attempt
from jobq.journal.store import journal_of
from jobq.run.spawn.guardian_spawner import GuardianSpawner
from jobq.settings import Settings
from jobq.settlement import Complete, Record
from jobq.spec import resolve
from jobq.task import Task, TaskResult
from tests.postgres.server import session

SLOTS = 8
TASKS = 300
BARE_TASKS = 2000
KEPT = 100_000
Run = Callable[[str, Settings, int], Coroutine[Any, Any, Figure]]
_OUTPUT = "a line of output of the usual kind\n" * 20


def measure(folder: Path, options: Options) -> Iterator[Row]:
    """Yield the rates with a journal beside those without, then the medians of reading."""
    with session() as database:
        for store, spec in (("sqlite", lambda name: f"sqlite://{folder}/{name}.db/bench"), ("postgres", database.spec)):
            for what, run, count in (("worker", _worker, TASKS), ("receive and settle", _bare, BARE_TASKS)):
                yield _cost(f"{store}, {what}", spec, run, options.scaled(count), options.rounds)
    yield from asyncio.run(_reading(folder, options))


def _cost(what: str, spec: Callable[[str], str], run: Run, count: int, rounds: int) -> Row:
    def side(journal: str, number: int) -> Figure:
        settings = Settings({"num_workers": SLOTS, "scheduled_events": "off", "journal": journal})
        return asyncio.run(run(spec(f"{run.__name__.strip('_')}{journal}{number}"), settings, count))

    sides = {"with": partial(side, "auto"), "without": partial(side, "off")}
    return compared(f"journal on {what}", in_turns(rounds, sides))


async def _worker(spec: str, settings: Settings, count: int) -> Figure:
    return await worked(spec, settings, count, GuardianSpawner())


async def _bare(spec: str, settings: Settings, count: int) -> Figure:
    async with resolve(spec, settings) as queue:
        await queue.create()
        await fill(queue, count)
        with Meter() as meter:
            await _settle_all(queue, "")
    return meter.figure(count)


async def _settle_all(queue: Backend, output: str, group: int = 32) -> None:
    while deliveries := await queue.receive(group, None, timedelta(0)):
        attempt = Attempt(attempt=1, outcome="succeeded", then="done", ended=time.time(), exit_code=0)
        done = Complete(TaskResult(exit_code=0), record=Record(attempt, output))
        await asyncio.gather(*(delivery.settle(done) for delivery in deliveries))


async def _reading(folder: Path, options: Options) -> list[Row]:
    kept = options.scaled(KEPT)
    async with resolve(f"sqlite://{folder}/kept.db/bench", Settings()) as queue:
        await queue.create()
        ids: list[str] = []
        while len(ids) < kept:
            ids += await queue.push(
                [Task.new(command="echo a task of the usual size") for _ in range(min(kept, 10_000))]
            )
            await _settle_all(queue, _OUTPUT, group=500)
        await queue.push([Task.new(command="sleep 60") for _ in range(64)])
        await queue.receive(64, None, timedelta(0))
        journal = journal_of(queue)
        asks: dict[str, Callable[[int], Awaitable[object]]] = {
            "ps, 64 running": lambda _: journal.running(1000),
            "status": lambda number: journal.find([ids[number * 997 % kept]]),
            "history": lambda number: journal.attempts(ids[number * 997 % kept]),
            "stats": lambda _: journal.stats(3600.0),
        }
        rows: list[Row] = []
        for what, ask in asks.items():
            figures = []
            for number in range(20 * options.rounds):
                with Meter() as meter:
                    await ask(number)
                figures.append(meter.figure(1))
            rows.append(compared(f"journal of {kept:,} tasks, {what}", {"jobq": figures}, "ms"))
        return rows
