"""A batch on Service Bus while its processes die, answers are lost and its table is away: the counts are exact.

Whatever befalls them: each acknowledged id runs and ends once in the counts, no two copies of one run at once, nothing
runs after somebody was told that it has ended, and the batch finishes, again after a redrive.
"""

import asyncio
import math
import random
from collections import Counter
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.backend import Delivery
from jobq.batch_plan import Plan
from jobq.batches import BatchState
from jobq.errors import AllPutBack, JobqError, LockLost
from jobq.settings import Settings
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue, Settlement
from jobq.spec import parse
from jobq.task import Task, new_id
from jobq.testing.harness import DONE
from jobq_azure.ledger.queue import LedgerQueue
from jobq_azure.service_bus.backend import ServiceBusBackend
from jobq_azure.service_bus.namespace import Namespace, place_of
from jobq_azure.service_bus.options import Options
from jobq_azure.table_journal import location
from tests.azure.emulator import ACCOUNT, Azurite, connection_string
from tests.azure.ledger.ledger_stage import NAME, SOON
from tests.azure.stage import LEASE
from tests.emulators.service_bus.faults import Drop, Fault, Operation
from tests.sb.stage import OTHER_WAY, Stage, staged, through
from tests.service_bus.leftovers import collected
from tests.support.http_proxy import HttpProxy, Strike

_COUNT = 24
_LONGEST_SECONDS = 0.8  # of an attempt: well below a lock
_FINISH_SECONDS = 90.0

pytestmark = [pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore::ResourceWarning")]


class _Process:
    """One that pushes or works, behind proxies of its own, so that it can die."""

    def __init__(self, storm: "_Storm", stack: AsyncExitStack) -> None:
        self._storm = storm
        self._stack = stack
        self.is_dead = False
        self.rest: HttpProxy
        self.tables: HttpProxy
        self.queue: LedgerQueue

    async def begin(self) -> None:
        stage, azurite = self._storm.stage, self._storm.azurite
        self.rest = await self._stack.enter_async_context(HttpProxy(int(stage.emulator.rest_url.rpartition(":")[2])))
        self.tables = await self._stack.enter_async_context(HttpProxy(azurite.table_port))
        signed = through(stage.emulator, self.rest)
        journal = {
            "journal": f"tables://{ACCOUNT}",
            "journal_connection_string": connection_string(1, table_port=self.tables.port),
        }
        place = location.place_of(parse(stage.spec), Settings(connection_string=signed, **journal))
        assert place is not None
        options = Options(
            stats_seconds=0.0, longest_poll_seconds=1.0, dedup_window=timedelta(seconds=self._storm.window)
        )
        bus = ServiceBusBackend(Namespace(place_of("emulator", stage.name, signed, "")), options)
        queue = LedgerQueue(bus, place, LEASE * 1000)
        self.queue = await self._stack.enter_async_context(queue)
        await self.queue._wire.create()
        await bus.prepare()

    def hurt(self) -> None:
        """Let something befall the next requests of it."""
        chance = self._storm.chance
        for proxy in (self.rest, self.tables):
            strike = chance.choice([Strike.LOSE_ANSWER, Strike.BREAK, Strike.BUSY, Strike.THROTTLE])
            count = chance.choice([1, 1, 2, 8])
            proxy.strike(strike, count=count, matches=lambda _: chance.random() < 0.5)

    def has_died(self) -> bool:
        return self.is_dead

    def die(self) -> None:
        """Send nothing more, and run nothing more."""
        self.is_dead = True
        for proxy in (self.rest, self.tables):
            proxy.strike(Strike.BREAK, count=math.inf)


class _Storm:
    """One batch, and what is known of it."""

    def __init__(self, stage: Stage, azurite: Azurite, seed: int, window: float) -> None:
        self.stage = stage
        self.azurite = azurite
        self.window = window  # seconds
        self.chance = random.Random(seed)
        self.ids = [f"{NAME}.{number}" for number in range(_COUNT)]
        self.dying = set(self.chance.sample(self.ids, 4))  # they end dead, until they are put back
        self.runs: Counter[str] = Counter()
        self.live: Counter[str] = Counter()
        self.ended: dict[str, str] = {}  # how, by who was told
        self.faults: list[str] = []
        self.is_calm = False
        self.deaths = 0

    async def push(self, process: _Process) -> None:
        """Push all, and again what was not acknowledged, as the command does."""
        tasks = [Task.new(command="true", batch=NAME, id=id_) for id_ in self.ids]
        while True:
            with suppress(JobqError):
                await process.queue.batches.begin(NAME, Plan())
                await process.queue.push(tasks)
                return
            await asyncio.sleep(0.2)

    def _settlement(self, delivery: Delivery) -> Settlement:
        if delivery.id in self.dying:
            return MoveToDeadLetters("failed", "by the storm")
        dice = self.chance.random()
        if self.is_calm or dice < 0.6:
            return Complete(DONE)
        if dice < 0.8:
            return Requeue(delivery.task.counters.raised(failures=1), SOON * self.chance.choice([0, 0, 1]))
        return Release()

    async def attempt(self, process: _Process, delivery: Delivery) -> None:
        id_ = delivery.id
        if process.has_died():
            return
        self.runs[id_] += 1
        if id_ in self.ended:
            self.faults.append(f"{id_} runs again, though it has ended as {self.ended[id_]}")
        self.live[id_] += 1
        if self.live[id_] > 1:
            self.faults.append(f"two copies of {id_} run")
        await asyncio.sleep(self.chance.random() * _LONGEST_SECONDS)
        self.live[id_] -= 1
        settlement = self._settlement(delivery)
        for _ in range(3):
            if process.has_died():
                return
            try:
                await delivery.settle(settlement)
            except LockLost:
                return
            except JobqError:
                await asyncio.sleep(0.1)
            else:
                if isinstance(settlement, Complete | MoveToDeadLetters):
                    self.ended[id_] = type(settlement).__name__
                return

    async def work(self, process: _Process, until: float) -> None:
        """Work until then, or until it dies."""
        attempts: set[asyncio.Task[None]] = set()
        while asyncio.get_running_loop().time() < until and not process.is_dead:
            with suppress(AllPutBack, JobqError):
                for delivery in await process.queue.receive(4, None, SOON):
                    attempts.add(asyncio.create_task(self.attempt(process, delivery)))
            if not self.is_calm and self.chance.random() < 0.3:
                process.hurt()
            is_overdue = not self.deaths and asyncio.get_running_loop().time() > until - 8
            if not self.is_calm and (is_overdue or self.chance.random() < 0.08):
                process.die()
                self.deaths += 1
            await asyncio.sleep(0.05)
        await asyncio.gather(*attempts)

    async def finished(self, healthy: _Process) -> Counter[str]:
        """Work until it has finished; return its counts."""
        self.is_calm = True
        loop = asyncio.get_running_loop()
        end = loop.time() + _FINISH_SECONDS
        while True:
            await self.work(healthy, loop.time() + 1)
            with suppress(JobqError):
                found = await healthy.queue.batches.find(NAME)
                if found.state is BatchState.FINISHED:
                    return Counter({name: count for name, count in found.counts.items() if count})
                assert loop.time() < end, f"it does not finish: {found}, {self.stage.queue.messages()}"


async def _storm(azurite: Azurite, folder: Path, seed: int, seconds: float = 15.0) -> None:
    window = (0.0, 20.0, 600.0)[seed % 3]
    fidelity = OTHER_WAY if seed % 2 else None
    name = f"q-{new_id()[-12:]}"
    async with AsyncExitStack() as stack:
        stack.enter_context(collected())
        stage = await stack.enter_async_context(staged(folder, fidelity, name=name, dedup_window=window))
        storm = _Storm(stage, azurite, seed, window)

        async def process() -> _Process:
            found = _Process(storm, stack)
            await found.begin()
            return found

        healthy = await process()
        pusher = await process()
        end = asyncio.get_running_loop().time() + seconds
        faults = stage.emulator.faults
        for drop in (Drop.BEFORE, Drop.AFTER):
            for operation in (Operation.SEND, Operation.DEAD_LETTER, Operation.COMPLETE, Operation.RECEIVE):
                faults.plan(Fault(drop=drop), operation, count=math.inf, chance=0.02)

        async def works() -> None:
            while asyncio.get_running_loop().time() < end:
                await storm.work(await process(), end)

        async def pushes() -> None:
            pusher.hurt()
            await storm.push(pusher)

        await asyncio.gather(pushes(), *(works() for _ in range(3)))
        stage.emulator.gate.faults = type(faults)()
        while True:
            with suppress(JobqError):
                await healthy.queue.batches.seal(NAME)
                break
            await asyncio.sleep(0.5)
        counts = await storm.finished(healthy)
        assert storm.faults == []
        assert counts == Counter(succeeded=_COUNT - len(storm.dying), dead=len(storm.dying)), counts
        assert set(storm.runs) == set(storm.ids), "an acknowledged task was lost"
        letters = await healthy.queue.dead_letters(100)
        assert {each.id for each in letters} == storm.dying
        put_back = sorted(storm.dying)
        for id_ in put_back:
            storm.ended.pop(id_, None)
        storm.dying.clear()
        await healthy.queue.redrive(put_back)
        assert await storm.finished(healthy) == Counter(succeeded=_COUNT)
        assert storm.faults == []
        print(f"seed {seed}: {storm.runs.total()} starts, {storm.deaths} deaths, {faults.hits} broken")
        assert storm.deaths, "void: nobody died"


@pytest.mark.parametrize("seed", [1])
async def test_a_storm(azurite: Azurite, tmp_path: Path, seed: int) -> None:
    await _storm(azurite, tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 32))
async def test_storms(azurite: Azurite, tmp_path: Path, seed: int) -> None:
    await _storm(azurite, tmp_path, seed)
