"""Many workers, one queue, a plan of faults: each worker is struck whenever it runs a tree, until the plan is done."""

import asyncio
import random
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from jobq.clock import SystemClock
from jobq.task import Budgets, Task
from jobq_sqlite import SqliteBackend, StoreFile
from jobq_sqlite.host import this_host
from tests.overlap import store_truth, task_program
from tests.overlap.blows import LEASE_SECONDS, NEED_ALL_SLOTS, Blow, Kind, Striker
from tests.overlap.crew import Member
from tests.overlap.observer import News, Observer, Tree, carriers
from tests.overlap.store_truth import Attempt, Lease
from tests.overlap.worker_program import QUEUE
from tests.process.stage import until_true

PERIOD_SECONDS = LEASE_SECONDS / 4  # between renewals
DRAIN_SECONDS = 30.0
_BUDGETS = Budgets(retries=10**6, preemptions=10**6, crashes=10**6)


@dataclass(frozen=True)
class Scale:
    """How big a campaign is.

    Attributes:
        plan: how often each fault strikes.
        workers: how many there are at a time.
        slots: how many tasks each runs at once.
        tasks: how many there are at a time; fewer than slots, so that one whose lease expired starts again at once.
        seconds: when a campaign that does not get through its plan is given up.
    """

    plan: Mapping[Kind, int]
    workers: int
    slots: int
    tasks: int
    seconds: float


@dataclass
class Record:
    """All that is known after a campaign."""

    blows: list[Blow]
    trees: Mapping[Attempt, Tree]
    leases: Mapping[Attempt, Lease]
    states: Mapping[str, str]
    left_alive: list[int]
    stamps: Mapping[tuple[Attempt, int], tuple[float, float]]
    ended_unasked: int = 0


@dataclass
class Campaign:
    """Runs a plan; see `run`."""

    folder: Path
    scale: Scale
    seed: int
    rule: str = "none"
    news: News = field(default_factory=News)

    async def run(self) -> Record:
        async with self._queue() as backend:
            self._backend = backend
            with Observer(self.folder, self.news) as observer:
                self._observer = observer
                self._striker = Striker(self.folder, observer, self.news)
                self._blows: list[Blow] = []
                self._members: list[Member] = []
                self._under_way = 0
                self._plan = deque(self._shuffled())
                self._give_up = False
                await self._push(self.scale.tasks)
                try:
                    await self._strike_all()
                    await self._drain()
                finally:
                    await asyncio.gather(*(member.dismiss() for member in self._members))
                await self.news.until(lambda: not observer.living(), 1.0)
                return self._record()

    @asynccontextmanager
    async def _queue(self) -> AsyncIterator[SqliteBackend]:
        file = StoreFile(path=self.folder / "queue.db", clock=SystemClock(), host=this_host())
        async with SqliteBackend(file, QUEUE) as backend:
            await backend.create()
            store_truth.record_from_now_on(file.path)
            yield backend

    def _shuffled(self) -> list[Kind]:
        kinds = list(Counter(self.scale.plan).elements())
        random.Random(self.seed).shuffle(kinds)
        return kinds

    async def _push(self, count: int) -> None:
        argv = (sys.executable, "-I", "-S", task_program.__file__, str(self.folder))
        await self._backend.push([Task.new(argv=argv, budgets=_BUDGETS) for _ in range(count)])

    async def _strike_all(self) -> None:
        timer = asyncio.get_running_loop().call_later(self.scale.seconds, self._out_of_time)
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self.scale.workers):
                    group.create_task(self._lane(number), name=f"lane {number}")
        finally:
            timer.cancel()

    def _out_of_time(self) -> None:
        self._plan.clear()
        self._give_up = True
        self.news.ring()

    async def _lane(self, number: int) -> None:
        """Strike one worker again and again, and its successors; at moments drawn from the seed."""
        choose = random.Random(f"{self.seed} {number}")
        member = await self._hired()
        while await self._has_prey(member):
            await asyncio.sleep(choose.uniform(0, PERIOD_SECONDS))  # the moment is the draw; nothing is waited for
            kind = self._next_for(member)
            if kind is not None:
                member = await self._strike(kind, member)

    def _next_for(self, member: Member) -> Kind | None:
        """Take the next fault of the plan that can strike this worker now."""
        running = len(self._observer.of(member.keeper))
        for kind in self._plan if running else ():
            if running == self.scale.slots or kind not in NEED_ALL_SLOTS:
                self._plan.remove(kind)
                return kind
        return None

    async def _has_prey(self, member: Member) -> bool:
        """Wait for a tree to strike; False when there is nothing more to do."""

        def finished() -> bool:
            return self._give_up or not (self._plan or self._under_way)

        await self.news.until(
            lambda: (self._plan and self._observer.of(member.keeper)) or finished(), self.scale.seconds
        )
        return not finished()

    async def _strike(self, kind: Kind, member: Member) -> Member:
        """Do one fault; return the worker to go on with. One that did not strike is planned anew."""
        self._under_way += 1
        try:
            blow = await self._striker.strike(kind, member)
        finally:
            self._under_way -= 1
        self._blows.append(blow)
        if not blow.has_struck and not self._give_up:
            self._plan.appendleft(kind)
        if kind in (Kind.COMPLETE_LATE, Kind.COMPLETE_LOST):
            await self._push(1)  # for the one that is done
        self.news.ring()
        if not member.was_ended:
            return member
        await member.ended()
        return await self._hired()

    async def _hired(self) -> Member:
        member = await Member.hired(self.folder, self.scale.slots, self.rule, self.news)
        self._members.append(member)
        return member

    async def _drain(self) -> None:
        """Let every task end by itself, and wait until all are settled."""
        for task in store_truth.states(self.folder / "queue.db"):
            (self.folder / "ends" / task).touch()

        async def all_done() -> bool:
            return set(store_truth.states(self.folder / "queue.db").values()) == {"done"}

        await until_true(all_done, DRAIN_SECONDS)

    def _record(self) -> Record:
        path = self.folder / "queue.db"
        return Record(
            blows=self._blows,
            trees=self._observer.trees,
            leases=store_truth.leases(path),
            states=store_truth.states(path),
            left_alive=carriers(self.folder),
            stamps=_stamps(self.folder / "lives"),
            ended_unasked=sum(member.has_ended and not member.was_ended for member in self._members),
        )


def _stamps(lives: Path) -> dict[tuple[Attempt, int], tuple[float, float]]:
    """Return what each process recorded of itself: its first and its last moment, boottime in seconds."""
    found = {}
    for life in lives.iterdir():
        task, number, pid = life.name.rsplit(".", 2)
        stamps = life.read_bytes()
        if not stamps:
            continue  # killed before its first moment
        first, last = (int.from_bytes(stamps[at : at + 8], "little") / 1e9 for at in (0, 8))
        found[Attempt(task, int(number)), int(pid)] = first, last
    return found
