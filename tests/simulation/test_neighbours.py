"""A killer among neighbours: the attempt whose crash would use up the budget runs alone on its worker (S7, S11, L1)."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from jobq.journal.records import TaskState
from jobq.journal.store import KeepsJournal
from jobq.run.attempt import neighbours, retry
from jobq.run.attempt.neighbours import PATIENT, SHARE
from jobq.run.attempt.retry import Backoff
from jobq.run.stopping import Stopping
from jobq.settlement import Requeue
from jobq.task import Budgets, Task
from jobq.testing.clock import VirtualClock
from jobq.testing.harness import Harness
from tests.azure.emulator import ACCOUNT
from tests.conformance import harnesses
from tests.simulation.fleet import Fleet

pytestmark = pytest.mark.check

NOW = timedelta(0)
LEASE = timedelta(seconds=60)
QUICK = {  # a lease of 2 s, for services that keep their own time
    "visibility_timeout": timedelta(seconds=2),
    "allow_short_lease": True,
    "kill_margin": timedelta(seconds=0.3),
    "schedule_margin": timedelta(seconds=0.1),
}
ONE_CRASH = Budgets(crashes=1)


async def suspects(
    fleet: Fleet, count: int, *, seconds: float = 1.0, times_back: int = 0, due_in: float = 0.0
) -> list[str]:
    """Push tasks, let them crash until one more is their last, and let them go back so often."""
    ids = await fleet.push(*[seconds] * count, budgets=ONE_CRASH)
    await fleet.backend.receive(count, timedelta(seconds=1), NOW)
    await fleet.clock.advance(1)
    for time in range(times_back):
        for delivery in await fleet.backend.receive(count, LEASE, NOW):
            delay = timedelta(seconds=due_in) if time == times_back - 1 else NOW
            await delivery.settle(Requeue(delivery.task.requeued().counters, delay))
    return ids


async def crashes_of_the_one(fleet: Fleet) -> int:
    (delivery,) = await fleet.backend.receive(1, LEASE, NOW)
    return retry.crashes_before(delivery.task, delivery.deliveries)


@asynccontextmanager
async def fleet_on(harness: Harness, **more: Any) -> AsyncIterator[Fleet]:
    async with harness.connect(harness.queue_name()) as backend:
        yield Fleet(harness.clock, backend, **more)
    harness.close()


async def test_s11_a_killer_takes_none_of_its_neighbours_with_it() -> None:
    fleet = Fleet(slots=4)
    killer, *good = await fleet.push(*[5.0] * 21)
    fleet.killers = {killer}
    await fleet.work()
    assert await fleet.dead() == {killer}
    assert fleet.done_at.keys() == set(good)
    assert fleet.starts[killer] == 4, "S7: as many as ever"
    assert fleet.beside[killer] == 0


@pytest.fixture(params=["postgres", "storage_queue"])
def harness(request: pytest.FixtureRequest) -> Harness:
    if request.param == "postgres":
        return harnesses.postgres(request.getfixturevalue("postgres"))
    return harnesses.storage_queue(request.getfixturevalue("azurite").connection_string, ACCOUNT)


@pytest.mark.slow("runs dozens of seeds")
async def test_s11_a_killer_takes_none_of_its_neighbours_with_it_on(harness: Harness) -> None:
    async with fleet_on(harness, slots=4, settings=QUICK | {"backoff": timedelta(0)}) as fleet:
        killer, *fellows = await suspects(fleet, 4, seconds=0.05)  # it has taken three with it before
        good = await fleet.push(*[0.05] * 17)
        fleet.killers = {killer}
        await fleet.work(grain=0.05)
        assert await fleet.dead() == {killer}
        assert fleet.done_at.keys() == {*fellows, *good}
        assert fleet.beside[killer] == 0


async def test_l1_a_worker_with_one_slot_runs_each_at_once() -> None:
    fleet = Fleet(slots=1)
    await suspects(fleet, 3)
    began = fleet.clock.boottime()
    await fleet.work(most_seconds=10)
    assert sum(fleet.starts.values()) == 3
    assert fleet.clock.boottime() - began <= 4
    assert not fleet.told("task.released")


async def test_l1_room_is_made_in_a_queue_that_is_never_empty() -> None:
    fleet = Fleet(slots=4, settings={"backoff": NOW})
    (task_id,) = await suspects(fleet, 1)
    lengths = itertools.cycle((3.0, 7.0, 4.0, 6.0, 5.0))

    async def push_for_ever() -> None:
        while True:
            await fleet.push(next(lengths))
            await fleet.clock.sleep_until(fleet.clock.boottime() + 1.25)

    await fleet.push(*itertools.islice(lengths, 8))
    pushing = asyncio.create_task(push_for_ever())
    working = asyncio.create_task(fleet.work())
    for _ in range(100):
        await fleet.clock.advance(1)
    for each in (pushing, working):
        each.cancel()
    await asyncio.gather(pushing, working, return_exceptions=True)
    assert task_id in fleet.done_at
    assert fleet.beside[task_id] == 0
    assert len(fleet.told("task.runs_alone")) == 1


@pytest.fixture
async def waiting() -> AsyncIterator[tuple[Fleet, Stopping, "asyncio.Task[Any]"]]:
    """A worker that runs one task for long, and makes room for another meanwhile."""
    fleet, stopping = Fleet(slots=2), Stopping()
    await suspects(fleet, 1, times_back=PATIENT, due_in=5.0)
    (long,) = await fleet.push(40.0)
    worker = asyncio.create_task(fleet.one_worker(stopping=stopping))
    await fleet.clock.advance(6)
    assert set(fleet.starts) == {long}
    assert fleet.told("task.runs_alone")
    yield fleet, stopping, worker
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def test_p8_a_stop_gives_back_what_waits_for_room(
    waiting: tuple[Fleet, Stopping, "asyncio.Task[Any]"],
) -> None:
    fleet, stopping, worker = waiting
    stopping.drain("a test")
    await fleet.clock.advance(1)
    assert not worker.done(), "what runs is finished"
    assert await crashes_of_the_one(fleet) == 1, "uncharged"


async def test_l2_a_worker_takes_tasks_again_when_room_was_made_in_vain(
    waiting: tuple[Fleet, Stopping, "asyncio.Task[Any]"],
) -> None:
    fleet, _, _ = waiting
    (other,) = await fleet.push(1.0)
    await fleet.clock.advance(45)
    assert other in fleet.done_at


async def test_s1_the_lease_is_kept_while_room_is_made(waiting: tuple[Fleet, Stopping, "asyncio.Task[Any]"]) -> None:
    fleet, _, worker = waiting
    await fleet.clock.advance(3 * LEASE.total_seconds())
    await worker
    assert len(fleet.done_at) == 2
    assert not await fleet.dead()
    assert set(fleet.starts.values()) == {1}


async def test_what_was_canceled_while_it_waited_for_room_does_not_start() -> None:
    """A short task would have ended before its next renewal, with which a worker hears of it."""
    fleet = Fleet(slots=2)
    (suspect,) = await suspects(fleet, 1, times_back=PATIENT, due_in=5.0)
    (long,) = await fleet.push(12.0)
    working = asyncio.create_task(fleet.one_worker())
    await fleet.clock.advance(8)
    assert fleet.told("task.runs_alone")
    assert isinstance(fleet.backend, KeepsJournal)
    assert fleet.backend.journal is not None
    assert await fleet.backend.journal.cancel([suspect]) == ["stopping"]
    await fleet.clock.advance(10)
    await working
    assert set(fleet.starts) == {long}
    (record,) = await fleet.backend.journal.find([suspect])
    assert record.state is TaskState.CANCELED


class _Delivered:
    """What `places` looks at."""

    def __init__(self, *, crashes: int, ends: int = 0) -> None:
        self.task = Task.new(command="x", budgets=Budgets(crashes=3)).requeued(ends=ends)
        self.deliveries = 1 + ends + crashes


def admitted(given: neighbours.Neighbours, *deliveries: _Delivered, is_idle: bool) -> list[tuple[int, str]]:
    found = given.places(deliveries, is_idle=is_idle)  # type: ignore[arg-type]
    return [(deliveries.index(each), place.admission.value) for each, place in found]


GOOD, LAST, PATIENT_ONE = _Delivered(crashes=2), _Delivered(crashes=3), _Delivered(crashes=3, ends=PATIENT)


@pytest.mark.parametrize(
    ("deliveries", "is_idle", "found"),
    [
        ((GOOD, GOOD), False, [(0, "start"), (0, "start")]),
        ((LAST,), True, [(0, "alone")]),
        ((LAST,), False, [(0, "later")]),
        ((GOOD, LAST), True, [(0, "start"), (1, "later")]),
        ((LAST, PATIENT_ONE), True, [(0, "later"), (1, "alone")]),
        ((PATIENT_ONE, LAST, GOOD), True, [(1, "later"), (2, "back"), (0, "alone")]),
        ((PATIENT_ONE, GOOD), False, [(1, "back"), (0, "alone")]),
    ],
)
def test_s11_who_starts(deliveries: tuple[_Delivered, ...], is_idle: bool, found: list[tuple[int, str]]) -> None:
    assert admitted(neighbours.Neighbours(VirtualClock()), *deliveries, is_idle=is_idle) == found


async def test_room_has_its_share_of_a_workers_time() -> None:
    clock = VirtualClock()
    given = neighbours.Neighbours(clock)

    def makes_room() -> bool:
        return admitted(given, PATIENT_ONE, is_idle=False) == [(0, "alone")]

    assert makes_room()
    await clock.advance(10)
    given.have_room()
    await clock.advance(10 / SHARE - 10 - 1)
    assert not makes_room()
    await clock.advance(1)
    assert makes_room()


def test_s7_a_task_of_which_no_crash_is_forgiven_has_neighbours() -> None:
    """Else a user who forgives none would have one task a worker."""
    assert not retry.is_one_crash_from_its_end(Task.new(command="x", budgets=Budgets(crashes=0)), 1)


def test_what_goes_back_does_not_come_hot() -> None:
    none = Backoff(first=NOW, longest=NOW)
    for ends, most in ((0, 0.1), (4, 1.6), (30, 30.0)):
        seconds = [neighbours.delay(ends + 1, none).total_seconds() for _ in range(100)]
        assert most / 2 < max(seconds) <= most


async def _a_thousand(judged: Callable[[Task, int], bool] | None, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return how many seconds 950 of 1,000 good tasks take where machines vanish each minute, and all end."""
    if judged is not None:
        monkeypatch.setattr(neighbours, "is_one_crash_from_its_end", judged)
    chance = random.Random(18)
    fleet = Fleet(lives=lambda: chance.uniform(45, 75))
    await fleet.push(*[float(chance.randint(1, 8)) for _ in range(1000)])
    began = fleet.clock.boottime()
    await fleet.work(grain=1.0)
    assert not await fleet.dead()
    assert len(fleet.done_at) == 1000
    assert sum(fleet.starts.values()) > 1050, "no machine vanished"
    return sorted(fleet.done_at.values())[949] - began


@pytest.mark.slow("runs dozens of seeds")
async def test_throughput_where_machines_vanish_each_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """S11: what is given back for a killer's sake costs the good ones 5 % at most."""
    now = await _a_thousand(None, monkeypatch)
    before = await _a_thousand(lambda _task, _deliveries: False, monkeypatch)
    assert before / now >= 0.95
