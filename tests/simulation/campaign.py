"""Runs many seeds and adds up what was seen; a share that saw too little is void, not passed."""

import gc
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, Final

from tests.simulation.blows import BLOWS
from tests.simulation.broker import MakeBackend
from tests.simulation.menu import NOT_OF_THE_BUS
from tests.simulation.store import SimulatedStore
from tests.simulation.world import World

SEEDS_A_PROCESS: Final = 25  # nothing of a run is freed before its process ends, as `run_one` says
_MOST_CUT_SHORT: Final = 0.02  # of the runs
_LEAST_INTERRUPTED: Final = 0.05  # of the starts
# Faults that befall messages and requests, beside the blows.
_ON_THE_WAY: Final = (
    "slow message",
    "lost request",
    "lost answer",
    "doubled request",
    "held message",
    "lost to a partition",
    "refused connection",
    "receipt that has rotated",
    "cancel",
    "redrive",
)


@dataclass(frozen=True)
class BrokenRun:
    """A run that broke a rule."""

    seed: int
    rule: str
    text: str


@dataclass
class Totals:
    """What was seen in many runs.

    Attributes:
        steps: callbacks of the product, the simulated kernels and the network that were run.
        checks: how often rules were looked at.
        lease_hours: of all leases, in simulated time.
        cut_short: runs that ended at the limit of steps.
        interrupted: starts that did not end by themselves.
        faults: how often each kind struck.
        counts: how often each thing happened.
    """

    seeds: int = 0
    steps: int = 0
    checks: int = 0
    leases: int = 0
    lease_hours: float = 0.0
    cut_short: int = 0
    interrupted: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[BrokenRun] = field(default_factory=list)

    def add(self, other: "Totals") -> None:
        """Add what other runs saw, except the time they took."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.checks += other.checks
        self.leases += other.leases
        self.lease_hours += other.lease_hours
        self.cut_short += other.cut_short
        self.interrupted += other.interrupted
        self.faults.update(other.faults)
        self.counts.update(other.counts)
        self.failures += other.failures

    def figures(self) -> dict[str, Any]:
        """Return all as JSON has it."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        failures = [asdict(failure) for failure in self.failures]
        return {**plain, "faults": dict(self.faults), "counts": dict(self.counts), "failures": failures}


@dataclass(frozen=True, kw_only=True)
class Floors:
    """What a share must have seen to count; see `Totals`.

    Attributes:
        each_fault: how often each kind of fault must have struck.
        without: kinds that the store does not know.
        counted: what must have happened how often.
    """

    seeds: int
    steps: int
    leases: int
    lease_hours: float
    each_fault: int
    without: frozenset[str] = frozenset()
    counted: Mapping[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("complete refused", "settle repeated", "reported unknown", "expired", "checkpoint accepted"), 1
        )
    )

    def missed(self, totals: Totals) -> list[str]:
        """Return what there was too little of, in words; nothing = the share counts."""
        too_few = [
            f"{name}: {getattr(totals, name):,.0f} of {getattr(self, name):,.0f}"
            for name in ("seeds", "steps", "leases", "lease_hours")
            if getattr(totals, name) < getattr(self, name)
        ]
        too_few += [
            f"{kind}: struck {totals.faults[kind]} times, {self.each_fault} are asked for"
            for kind in sorted({*BLOWS, *_ON_THE_WAY} - self.without)
            if totals.faults[kind] < self.each_fault
        ]
        too_few += [
            f"{what}: {totals.counts[what] or 'never'}{f', {least} are asked for' if least > 1 else ''}"
            for what, least in self.counted.items()
            if totals.counts[what] < least
        ]
        if totals.interrupted < _LEAST_INTERRUPTED * totals.counts["starts"]:
            too_few.append(f"starts that were interrupted: {totals.interrupted} of {totals.counts['starts']}")
        if totals.cut_short > _MOST_CUT_SHORT * totals.seeds:
            too_few.append(f"{totals.cut_short} runs ended at the limit of steps")
        return too_few


# The CI share (rules.md 2, T1).
SHARE: Final = Floors(seeds=2_000, steps=6_000_000, leases=50_000, lease_hours=500.0, each_fault=200)
# The one of Service Bus: what goes back by half there, what is dropped by name, what a poll brings when nobody waits.
BUS_SHARE: Final = Floors(
    seeds=200,
    steps=1_500_000,
    leases=5_000,
    lease_hours=50.0,
    each_fault=40,
    without=NOT_OF_THE_BUS | {"receipt that has rotated", "cancel"},
    counted={
        "original beside its copy": 80,
        "copy dropped by name": 20,
        "push dropped by name": 40,
        "lock gone between the steps": 1,
        "abandoned poll handed over": 5,
        "abandoned poll given back": 50,
        "redriven": 70,
        "reported unknown": 100,
        "expired": 500,
    },
)
SHARES: Final = {"memory": SHARE, "service-bus": BUS_SHARE}


def run_one(
    seed: int,
    make_backend: SimulatedStore | MakeBackend,
    *,
    skip: frozenset[int] = frozenset(),
    keeps_trace: bool = False,
) -> World:
    """Run one seed to its end.

    Nothing is ever freed: what the tasks of killed workers would do as they are destroyed is no part of a run, and when
    that happened would depend on other runs. So the process must end soon, by `os._exit`.
    """
    gc.disable()
    world = World(seed, make_backend, BLOWS, keeps_trace=keeps_trace, skip=skip)
    _kept.append(world)
    return world.run()


def totals_of(world: World) -> Totals:
    """Return what one run saw."""
    monitor = world.monitor
    return Totals(
        seeds=1,
        steps=world.loop.steps,
        checks=monitor.checks,
        leases=monitor.leases,
        lease_hours=monitor.lease_seconds / 3600,
        cut_short=int(world.is_cut_short),
        interrupted=monitor.interrupted,
        faults=world.broker.faults,
        counts=monitor.counts,
        failures=[BrokenRun(world.seed, broken.rule, broken.text) for broken in monitor.violations[:1]],
    )


def run_many(
    seeds: Iterable[int],
    make_backend: SimulatedStore | MakeBackend,
    *,
    processes: int | None = None,
    stop_at: Callable[[Totals], bool] = lambda _totals: False,
    on_progress: Callable[[Totals], None] = lambda _totals: None,
) -> Totals:
    """Run seeds side by side.

    Args:
        seeds: which.
        make_backend: importable by name, for other processes.
        processes: how many at once; None = one a processor.
        stop_at: called with what was seen so far; True = begin no more.
        on_progress: called likewise.
    """
    began, totals = time.monotonic(), Totals()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    count = processes or len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(count, mp_context=context, max_tasks_per_child=1) as pool:
        waiting = iter(_chunks(seeds))
        running = [
            pool.submit(_run_chunk, chunk, make_backend) for _, chunk in zip(range(2 * count), waiting, strict=False)
        ]
        while running:
            totals.add(running.pop(0).result())
            totals.seconds = time.monotonic() - began
            on_progress(totals)
            if not stop_at(totals) and (chunk := next(waiting, None)) is not None:
                running.append(pool.submit(_run_chunk, chunk, make_backend))
    return totals


_kept: Final[list[World]] = []


def _run_chunk(seeds: list[int], make_backend: SimulatedStore | MakeBackend) -> Totals:
    totals = Totals()
    for seed in seeds:
        totals.add(totals_of(run_one(seed, make_backend)))
    return totals


def _chunks(seeds: Iterable[int]) -> Iterator[list[int]]:
    waiting = iter(seeds)
    take = partial(next, waiting, None)
    while some := [seed for seed in (take() for _ in range(SEEDS_A_PROCESS)) if seed is not None]:
        yield some
