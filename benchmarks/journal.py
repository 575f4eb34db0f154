"""What the journal costs and how fast it is read.

Costs: tasks per second of a worker that runs `true` through the guardian, with the journal and without, on SQLite and
PostgreSQL; sides take turns in one run. And the same without processes: receive and settle alone, where there is
nothing for the journal to hide behind. Aim: under 15 % of a worker's rate.

Reading: medians of `ps` and `status` among 100,000 tasks on SQLite, asked of the open queue. Aim: under 100 ms. The
command adds what Python takes to start (`start` measures that).
"""

import asyncio
import statistics
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from jobq.backend import Backend
from jobq.journal.page import page_of
from jobq.journal.records import Attempt
from jobq.journal.store import journal_of
from jobq.run.guardian_spawner import GuardianSpawner
from jobq.run.worker import Worker
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task, TaskResult
from tests.postgres.server import session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SLOTS = 8
TASKS = 300
BARE_TASKS = 2000
KEPT = 100_000
_OUTPUT = "a line of output of the usual kind\n" * 20


def measure(folder: Path, rounds: int) -> list[dict[str, object]]:
    """Return the rates with and without a journal, and the medians of reading."""
    rows = []
    with session() as database:
        for store, spec in (("sqlite", lambda name: f"sqlite://{folder}/{name}.db/bench"), ("postgres", database.spec)):
            for what, run, count in (("worker", _worker, TASKS), ("receive and settle", _bare, BARE_TASKS)):
                rates: dict[str, list[float]] = {"auto": [], "off": []}
                for number in range(rounds):
                    for mode in ("auto", "off") if number % 2 else ("off", "auto"):
                        name = f"{what[0]}{mode}{number}"
                        rates[mode].append(count / asyncio.run(run(spec(name), _settings(mode), count)))
                rows.append(_row(f"{store}, {what}", rates["auto"], rates["off"]))
    return rows + asyncio.run(_reading(folder, rounds))


def _settings(mode: str) -> Settings:
    return Settings.model_validate({"num_workers": SLOTS, "scheduled_events": "off", "journal": mode})


def _row(what: str, kept: list[float], off: list[float]) -> dict[str, object]:
    ours, bare = statistics.median(kept), statistics.median(off)
    return {
        "what": f"journal on {what}".ljust(42),
        "jobq": ours,
        "unit": "/s   without",
        "bare": bare,
        "rel": "/s   cost",
        "cost": 1 - ours / bare,
    }


async def _worker(spec: str, settings: Settings, count: int) -> float:
    async with resolve(spec, settings) as queue:
        await queue.create()
        await queue.push([Task.new(command="true") for _ in range(count)])
        began = time.perf_counter()
        report = await Worker(queue, settings, spawner=GuardianSpawner()).run()
        assert report.succeeded == count, report
        return time.perf_counter() - began


async def _bare(spec: str, settings: Settings, count: int) -> float:
    async with resolve(spec, settings) as queue:
        await queue.create()
        await queue.push([Task.new(command="true") for _ in range(count)])
        began = time.perf_counter()
        await _settle_all(queue, "")
        return time.perf_counter() - began


async def _settle_all(queue: Backend, output: str, group: int = 32) -> None:
    while deliveries := await queue.receive(group, None, timedelta(0)):
        for delivery in deliveries:
            page = page_of(delivery)
            if page is not None:
                page.attempt = Attempt(attempt=1, outcome="succeeded", then="done", ended=time.time(), exit_code=0)
                page.output = output
        await asyncio.gather(*(delivery.complete(TaskResult(exit_code=0)) for delivery in deliveries))


async def _reading(folder: Path, rounds: int) -> list[dict[str, object]]:
    async with resolve(f"sqlite://{folder}/kept.db/bench", Settings()) as queue:
        await queue.create()
        ids: list[str] = []
        for _ in range(0, KEPT, 10_000):
            ids += await queue.push([Task.new(command="echo a task of the usual size") for _ in range(10_000)])
            await _settle_all(queue, _OUTPUT, group=500)
        await queue.push([Task.new(command="sleep 60") for _ in range(64)])
        await queue.receive(64, None, timedelta(0))
        journal = journal_of(queue)
        asks: dict[str, Callable[[int], Awaitable[object]]] = {
            "ps, 64 running": lambda _: journal.running(1000),
            "status": lambda number: journal.find([ids[number * 997 % KEPT]]),
            "history": lambda number: journal.attempts(ids[number * 997 % KEPT]),
            "stats": lambda _: journal.stats(3600.0),
        }
        rows: list[dict[str, object]] = []
        for what, ask in asks.items():
            times = []
            for number in range(20 * rounds):
                began = time.perf_counter()
                await ask(number)
                times.append(time.perf_counter() - began)
            name = f"journal of {KEPT:,} tasks, {what}".ljust(42)
            rows.append({"what": name, "milliseconds": statistics.median(times) * 1e3, "unit": "ms"})
        return rows
