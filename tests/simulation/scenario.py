"""What one run is made of: settings, machines, tasks and what they will do; drawn from the seed, or given as data."""

import math
from dataclasses import dataclass, replace
from datetime import timedelta
from errno import EAGAIN, ENOENT
from random import Random
from typing import Final

from jobq.run.spawn.pings import SECONDS
from jobq.settings import Settings
from jobq.task import Budgets, Task
from tests.simulation import menu
from tests.simulation.machine.trees import TreePlan
from tests.simulation.network import NetworkLink

_SIGSEGV: Final = 11


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One run's.

    Attributes:
        kinds: of faults that exist in it.
        machines: how many, with one worker each.
        lease: in seconds.
        slots: of each worker.
        fault_seconds: for how long faults strike.
        ping_seconds: how often each worker asks whether its guardian lives: mostly more seldom than it does by default,
            as a fifth of all steps is these questions and answers.
        settings: of each worker.
        tasks: that are pushed.
    """

    kinds: frozenset[str]
    machines: int
    lease: float
    slots: int
    fault_seconds: float
    ping_seconds: float
    settings: Settings
    tasks: tuple[Task, ...]

    @classmethod
    def draw(cls, chance: Random, without: frozenset[str] = frozenset()) -> "Scenario":
        """Return one by chance; kinds that the store does not know are left out."""
        kinds = menu.choose(chance) - without
        lease = float(chance.choice([10, 20, 60, 60, 60, 120]))
        slots, machines = chance.choice([1, 2, 3]), chance.choice([1, 2, 2, 3])
        return cls(
            kinds=kinds,
            machines=machines,
            lease=lease,
            slots=slots,
            fault_seconds=lease * chance.uniform(6, 20),
            ping_seconds=chance.choice([SECONDS, 10.0, 10.0]),
            settings=_settings(chance, kinds, lease, slots),
            tasks=tuple(_task(chance, kinds, lease, number) for number in range(chance.randint(2, 8 + 6 * machines))),
        )

    def set_up(self, link: NetworkLink, chance: Random) -> None:
        """Give a worker's link the faults that befall its messages."""
        if "slow" in self.kinds:
            link.slow, link.slow_seconds = chance.choice([0.02, 0.2]), self.lease * chance.choice([0.1, 0.5, 2.0])
        if "lose request" in self.kinds:
            link.lose_request = chance.choice([0.01, 0.1])
        if "lose answer" in self.kinds:
            link.lose_answer = chance.choice([0.01, 0.1])
        if "double" in self.kinds:
            link.double = chance.choice([0.02, 0.3])

    def plan(self, chance: Random, *, is_faulty: bool) -> TreePlan:
        """Return what one attempt does; once everything has healed, every start succeeds."""
        kinds = self.kinds
        longest = (
            0.3 * self.lease if "short runs" in kinds else 2.5 * self.lease if "long runs" in kinds else self.lease
        )
        run = chance.uniform(0.01, longest)
        fails = is_faulty and "failed start" in kinds and chance.random() < 0.2
        plan = TreePlan(
            start=chance.expovariate(1.0) * 0.005,
            fails=chance.choice([ENOENT, EAGAIN]) if fails else 0,
            run=run,
            code=chance.choice([1, 2, 75]) if "failing" in kinds and chance.random() < 0.4 else 0,
            signal=_SIGSEGV if "crashing" in kinds and chance.random() < 0.2 else 0,
            saves=tuple(sorted(chance.uniform(0, run) for _ in range(chance.randint(1, 5))))
            if "checkpoints" in kinds
            else (),
        )
        if "hostile" not in kinds or chance.random() < 0.5:
            return plan
        return replace(
            plan,
            start=chance.expovariate(1.0) * 0.3,
            on_term=chance.choice(["exit", "ignore", "slow"]),
            escapees=chance.randint(0, 3),
            left=chance.randint(0, 2),
            death=chance.choice([0.002, 0.05, 0.3, 0.9]),
        )

    def drain_seconds(self) -> float:
        """Return how long all may take to end once everything has healed (L1).

        For one task that is a lease, its backoff, its run and 5 s; here they wait for each other, and for leases that
        nobody holds.
        """
        longest = (2.5 if "long runs" in self.kinds else 1.0) * self.lease
        rounds = 5 * math.ceil(len(self.tasks) / (self.machines * self.slots)) + 10
        return 120.0 + rounds * (self.lease + 60.0 + longest + 5.0)


def _settings(chance: Random, kinds: frozenset[str], lease: float, slots: int) -> Settings:
    has_grace = lease >= 20 and chance.random() < 0.4
    return Settings(
        visibility_timeout=timedelta(seconds=lease),
        num_workers=slots,
        backoff=timedelta(seconds=chance.choice([0.5, 5])),
        backoff_max=timedelta(seconds=chance.choice([10, 60])),
        lock_lost_behavior="sigterm" if has_grace else "sigkill",
        lock_lost_grace=timedelta(seconds=0.1 * lease),
        stop_grace=timedelta(seconds=chance.choice([1, 5, 20])),
        idle_timeout=timedelta(0) if "ends when empty" in kinds else timedelta(days=100),
        max_consecutive_failures=chance.choice([0, 0, 2, 10]),
        scheduled_events="off",
    )


def _task(chance: Random, kinds: frozenset[str], lease: float, number: int) -> Task:
    has_limit = "time limit" in kinds and chance.random() < 0.4
    return Task(
        argv=("/bin/task",),
        id=f"t{number}",
        created=None,
        timeout=lease * chance.uniform(0.2, 1.5) if has_limit else None,
        budgets=Budgets(
            retries=chance.choice([0, 1, 3]), preemptions=chance.choice([1, 20]), crashes=chance.choice([1, 3, 10])
        ),
    )
