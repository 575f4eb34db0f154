"""One campaign: workers behind proxies, tasks that come and go, blows until the time is over; heal, drain, count."""

import asyncio
import math
import random
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from jobq.errors import JobqError, PushUnknown
from jobq.queue import Queue
from jobq.task import Budgets, Task
from tests.chaos import task_program
from tests.chaos.blows import Kind, Striker, Struck, boottime, deck
from tests.chaos.checker import ENDED, Evidence
from tests.chaos.crew import LEASE_SECONDS, Member, carriers
from tests.chaos.history import History
from tests.chaos.store_truth import wall_ahead_of_boottime
from tests.chaos.stores import Store
from tests.support.tcp_proxy import TcpProxy, TcpStrike

LOOK_SECONDS: Final = 0.1
FEED_SECONDS: Final = 1.0
DRAIN_SECONDS: Final = 180.0  # a loaded machine's; what has not ended by then is lost
GONE_SECONDS: Final = 1.0  # rules.md T4: what lives then is left
CLOCK_SECONDS: Final = 0.005  # more, and somebody has set the wall clock: the store's times say nothing
_WAITING: Final = 12  # tasks that wait at the most: enough that no slot is idle, few to drain
_BUDGETS: Final = Budgets(retries=1, preemptions=10**6, crashes=10**6)
# Share, seconds from and to, how the task ends, how often it starts when nothing interrupts it.
_MIX: Final = (
    (0.66, 0.1, 1.0, "ok", 1),
    (0.12, 1.0, 4.0, "ok", 1),
    (0.06, LEASE_SECONDS, 2 * LEASE_SECONDS, "ok", 1),
    (0.08, 0.1, 0.5, "fail-first", 2),
    (0.08, 0.1, 0.5, "fail", 2),
)
# T5 is about trees that live when their worker is cut off.
LONG: Final = ((1.0, 2 * LEASE_SECONDS, 4 * LEASE_SECONDS, "ok", 1),)
_CANCELED: Final = 0.1  # of those that were pushed


@dataclass(frozen=True)
class Plan:
    """How big a campaign is.

    Attributes:
        seconds: for how long blows fall.
        seed: of all that is drawn.
        workers: how many there are at a time.
        slots: how many tasks each runs at once.
        tasks: how many there are at a time; 0 = one for each slot and, unless all live for long, some that wait.
        mix: of tasks.
        only: these blows; empty = all.
        enough: blows that strike, after which no more fall though there is time.
        strikes: what may befall one verb.
        lease_seconds: of the workers.
        environment: of the workers, besides.
        older: another checkout of jobq, which the first of the workers is of; None = all are of this one.
    """

    seconds: float
    seed: int
    workers: int = 4
    slots: int = 3
    tasks: int = 0
    mix: Sequence[tuple[float, float, float, str, int]] = _MIX
    only: Sequence[Kind] = ()
    strikes: Sequence[TcpStrike] = tuple(TcpStrike)
    enough: float = math.inf
    lease_seconds: float = LEASE_SECONDS
    environment: Mapping[str, str] = field(default_factory=dict)
    older: Path | None = None


@dataclass
class Outcome:
    """What a campaign leaves.

    Attributes:
        evidence: for the checker.
        blows: all of them, those that struck nothing too.
        clock_stepped: by how much the wall clock was set meanwhile, in seconds.
        seconds: how long it all took.
    """

    evidence: Evidence
    blows: Sequence[Struck]
    clock_stepped: float
    seconds: float


@dataclass
class Campaign:
    """Runs a plan on a store that is started already; see `run`.

    Attributes:
        folder: of the store.
        store: which.
        plan: how big.
        progress: called with how it goes.
    """

    folder: Path
    store: Store
    plan: Plan
    progress: Callable[[str], None]
    acknowledged: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    _members: list[Member] = field(default_factory=list)
    _ended_unasked: int = 0
    _stuck: int = 0

    async def run(self) -> Outcome:
        """Strike, heal, drain, and gather the evidence."""
        began, ahead = boottime(), wall_ahead_of_boottime()
        self._choose = random.Random(self.plan.seed)
        self._history = self.folder / "history"
        self._history.touch()
        self._striker = Striker(
            self.store, random.Random(f"{self.plan.seed} blows"), self.plan.lease_seconds, self.plan.strikes
        )
        self._deck = deck(self.store, random.Random(f"{self.plan.seed} deck"), self.plan.only)
        self._until = began + self.plan.seconds
        self._queue = await self.store.queue()
        try:
            async with self._proxies() as proxies:
                await self._strike_all(proxies)
                await self._drain()
                for member in self._members:
                    self._ended_unasked += member.has_ended and not member.was_struck
                    self._stuck += not await member.dismissed()
                self._members.clear()
                left = await self._left()
        finally:
            await asyncio.gather(*(member.dismissed() for member in self._members))
        with self._history.open() as lines:
            history = History.read(lines)
        evidence = Evidence(
            history=history,
            leases=await self.store.leases(),
            ends=await self.store.ends(),
            acknowledged=self.acknowledged,
            unknown=self.unknown,
            interruptions=[blow.interruption() for blow in self._striker.struck],
            lease_seconds=self.plan.lease_seconds,
            left=left + self._stuck,
            ended_unasked=self._ended_unasked,
        )
        return Outcome(evidence, self._striker.struck, wall_ahead_of_boottime() - ahead, boottime() - began)

    @asynccontextmanager
    async def _proxies(self) -> AsyncIterator[list[TcpProxy | None]]:
        """One before each worker: a partition cuts off one of them."""
        async with AsyncExitStack() as stack:
            if not self.store.port:
                yield [None] * self.plan.workers
                return
            yield [await stack.enter_async_context(TcpProxy(self.store.port)) for _ in range(self.plan.workers)]

    async def _strike_all(self, proxies: Sequence[TcpProxy | None]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed(), name="feed")
            if self.store.can_be_killed and not self.plan.only:
                group.create_task(self._strike_store(), name="strikes at the store")
            for number, proxy in enumerate(proxies):
                group.create_task(self._lane(number, proxy), name=f"lane {number}")

    async def _lane(self, number: int, proxy: TcpProxy | None) -> None:
        """Strike one worker again and again, and its successors."""
        choose = random.Random(f"{self.plan.seed} {number}")
        older = None if number else self.plan.older
        member = await self._hired(proxy, older)
        while await self._has_prey(member):
            await asyncio.sleep(
                choose.uniform(0, self.plan.lease_seconds / 4)
            )  # the moment, between two renewals, is the draw; nothing is waited for
            if not member.has_ended:
                await self._striker.strike(next(self._deck), member)
            if member.has_ended:
                self._members.remove(member)
                self._ended_unasked += not member.was_struck
                self._stuck += not await member.ended()
                member = await self._hired(proxy, older)
            self.progress(self._standing())

    async def _hired(self, proxy: TcpProxy | None, older: Path | None) -> Member:
        member = await Member.hired(self.store, self.plan.slots, proxy, self.plan.environment, older)
        self._members.append(member)
        return member

    async def _has_prey(self, member: Member) -> bool:
        """Wait for a tree to strike, or for the worker's end; False when the time is over."""
        while not self._is_over():
            if member.has_ended or member.processes.leaders():
                return True
            await asyncio.sleep(LOOK_SECONDS)  # trees are born and die without a word to us
        return False

    def _is_over(self) -> bool:
        struck = sum(blow.has_struck for blow in self._striker.struck)
        return boottime() >= self._until or struck >= self.plan.enough

    async def _strike_store(self) -> None:
        choose = random.Random(f"{self.plan.seed} store")
        while boottime() < self._until:
            await asyncio.sleep(choose.uniform(1, 3) * self.plan.lease_seconds)  # the moment is the draw
            if boottime() < self._until:
                await self._striker.strike_store(self._members)

    async def _feed(self) -> None:
        """Push while blows fall, so that a little always waits; cancel some."""
        while not self._is_over():
            slots = self.plan.workers * self.plan.slots
            wanted = (self.plan.tasks or slots + (0 if self.plan.mix is LONG else _WAITING)) - await self._open()
            if wanted > 0:
                await self._push(self._queue, wanted)
            await asyncio.sleep(FEED_SECONDS)  # what is done meanwhile is not reported to us
            self.progress(self._standing())

    async def _push(self, queue: Queue, count: int) -> None:
        tasks = {}
        mix = self.plan.mix
        for _ in range(count):
            _, least, most, ending, starts = self._choose.choices(mix, [share for share, *_ in mix])[0]
            seconds = f"{self._choose.uniform(least, most) * self.plan.lease_seconds / LEASE_SECONDS:.2f}"
            program = (sys.executable, "-I", "-S", task_program.__file__, str(self._history), seconds, ending)
            task = Task.new(argv=program, budgets=_BUDGETS)
            tasks[task.id] = task, starts
        canceled = [id_ for id_ in tasks if self._choose.random() < _CANCELED and self.store.cancels]
        planned = {id_: starts for id_, (_, starts) in tasks.items()}
        try:
            await queue.push([task for task, _ in tasks.values()])
        except PushUnknown:
            self.unknown |= planned
            return
        except JobqError:
            return  # refused: the store is away
        self.acknowledged |= planned
        if canceled:
            try:
                await queue.cancel(canceled)
            except JobqError:
                return  # done or not: it ends all the same

    async def _open(self) -> int:
        """Count the tasks that have not ended; none is known to have while the store is away."""
        try:
            ends = await self.store.ends()
        except JobqError:
            return len(self.acknowledged)
        missing = len(self.acknowledged.keys() - ends.keys())
        return missing + sum(not ENDED & set(end) for end in ends.values())

    async def _drain(self) -> None:
        """Wait until all that was pushed has ended; what has not is reported by the checker."""
        if self.plan.mix is LONG:  # they are there to be struck
            self._history.with_name("history.end").touch()
        end = boottime() + DRAIN_SECONDS
        while (left := await self._open()) and boottime() < end:
            self.progress(f"healed; {left} tasks to drain")
            await asyncio.sleep(5 * LOOK_SECONDS)

    async def _left(self) -> int:
        """Count the processes of tasks that live when all workers are gone."""
        end = boottime() + GONE_SECONDS
        while (found := carriers(self._history)) and boottime() < end:
            await asyncio.sleep(LOOK_SECONDS)
        return len(found)

    def _standing(self) -> str:
        struck = sum(blow.has_struck for blow in self._striker.struck)
        left = max(0.0, self._until - boottime())
        return f"{left:.0f} s left, {len(self.acknowledged)} tasks pushed, {struck} blows struck"
