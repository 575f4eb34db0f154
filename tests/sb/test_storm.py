"""Many tasks while connections break at random: none lost, none overlapping, no delivery settled twice (S1, S5, P1)."""

import asyncio
import math
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.queue import Queue
from jobq.run.worker import empty_queue
from jobq.settings import Settings
from jobq.task import Budgets, Task
from jobq_azure.service_bus.backend import ServiceBusBackend
from jobq_azure.service_bus.namespace import Namespace, place_of
from jobq_azure.service_bus.options import Options
from tests.emulators.service_bus.faults import Drop, Fault, Operation
from tests.sb.stage import QUEUE, Stage, staged

pytestmark = pytest.mark.night("a storm of broken connections: 15 s")

_SLOTS = 16
_CHANCE = 0.02  # of each request, for each of the two ways to break


def _settlements(stage: Stage) -> dict[str, int]:
    """Count what the service has accepted of each delivery, in its own words."""
    accepted: dict[str, int] = defaultdict(int)
    queue = stage.queue
    real = queue.complete

    def complete(lock: object) -> None:
        real(lock)  # type: ignore[arg-type] # a token
        accepted[str(lock)] += 1

    queue.complete = complete  # type: ignore[method-assign] # counted
    return accepted


async def _storm(folder: Path, count: int, workers: int, lock_seconds: float) -> None:
    async with staged(folder, lock_duration=lock_seconds, dedup_window=600.0) as stage:
        accepted = _settlements(stage)
        tasks = [
            Task.new(kwargs={"number": number, "fails": number % 10 == 0}, budgets=Budgets(crashes=50))
            for number in range(count)
        ]
        await stage.backend.push(tasks)
        for drop in (Drop.BEFORE, Drop.AFTER):
            for operation in (Operation.RECEIVE, Operation.RENEW, Operation.COMPLETE, Operation.SEND):
                stage.emulator.faults.plan(Fault(drop=drop), operation, count=math.inf, chance=_CHANCE)
        live: set[str] = set()
        overlaps: list[str] = []
        starts: dict[str, int] = defaultdict(int)
        done: set[int] = set()

        async def work(number: int, fails: bool, delivery: object) -> None:
            task_id: str = delivery.task.id  # type: ignore[attr-defined] # the library's
            if task_id in live:
                overlaps.append(task_id)
            live.add(task_id)
            starts[task_id] += 1
            try:
                await asyncio.sleep(0.02)
                if fails and starts[task_id] == 1:
                    raise RuntimeError("the first time")
                done.add(number)
            finally:
                live.discard(task_id)

        settings = Settings(
            num_workers=_SLOTS,
            allow_short_lease=True,
            scheduled_events="off",
            backoff=timedelta(seconds=0.1),
            max_consecutive_failures=0,
            idle_timeout=timedelta(
                seconds=lock_seconds + 2
            ),  # longer than a lock: what was lost with an answer comes again
        )

        async def run_one() -> None:
            place = place_of("emulator", QUEUE, stage.signed, "")
            async with ServiceBusBackend(Namespace(place), Options(longest_poll_seconds=2.0)) as backend:
                await Queue(backend, settings).worker(work)

        async with asyncio.timeout(1800):
            await asyncio.gather(*(run_one() for _ in range(workers)))
        hits = stage.emulator.faults.hits
        extra = sum(starts.values()) - count - count // 10
        print(f"{count} tasks, {hits} connections broken, {extra} starts beyond the needed")
        assert hits >= count // 20, "too few faults: void, not passed"
        assert done == set(range(count)), "tasks were lost"
        assert overlaps == []
        assert set(accepted.values()) == {1}, "a delivery was settled twice"
        assert stage.queue.messages() == stage.dead.messages() == []


async def test_connections_that_break_lose_and_double_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(empty_queue, "_LONG_WAIT", timedelta(seconds=2))  # the last of them would be waited out
    await _storm(tmp_path, 80, workers=2, lock_seconds=5.0)


@pytest.mark.night
@pytest.mark.timeout(1800)
async def test_two_thousand_tasks_through_broken_connections(tmp_path: Path) -> None:
    await _storm(tmp_path, 2000, workers=4, lock_seconds=20.0)
