"""How well workers that select pack their machines, by the decisions that they really make, on simulated time.

`jobq.run.attempt.task_grants` decides for each worker, and `jobq_memory.selecting` for the queue; only time, arrivals
and durations are made up. Prints, of several seeds the middle one: of a closed backlog the lower bound over the time
that it took, of a stream how much of the machines was busy, and the longest wait of tasks that need a whole machine.
"""

import heapq
import itertools
import random
import statistics
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from jobq.resources.gpus import named_gpus
from jobq.resources.offer import Offer
from jobq.resources.request import UNIT
from jobq.run.attempt import task_grants
from jobq.run.attempt.held_grant import HeldGrant
from jobq.run.attempt.neighbours import Admission, Placement
from jobq.run.attempt.task_grants import TaskGrants
from jobq.task import Task
from jobq_memory.entry import Entry
from jobq_memory.selecting import ShapeSelection

if TYPE_CHECKING:
    from jobq.clock import Clock

MACHINES: Final = 16
SEEDS: Final = (1, 2, 3)
MEAN_SECONDS: Final = 600.0
STREAM_SECONDS: Final = 24 * 3600.0
BACKLOG: Final = 4000
OFFER: Final = Offer(cpus=16 * UNIT, gpus=named_gpus(["0", "1", "2", "3"]), mem=64 * 1024**3)
# cpus, gpus and GiB of memory, and how often of a thousand; the last one takes a whole machine.
SHAPES: Final = (
    ((1, 0, 2), 400),
    ((2, 0, 8), 250),
    ((4, 1, 12), 200),
    ((8, 2, 24), 95),
    ((4, 0, 32), 50),
    ((16, 4, 60), 5),
)
RULES: Final = {  # the share of its life that a machine may idle, and after how many seconds of being overtaken
    "no reservation": (0.0, 3600.0),
    "after an hour, 5 %": (0.05, 3600.0),
    "at once, 5 %": (0.05, 0.0),
}


@dataclass(order=True)
class Job:
    """A task, in the order of its arrival."""

    order: int
    arrived: float = field(compare=False)
    seconds: float = field(compare=False)
    shape: int = field(compare=False)
    entry: Entry = field(compare=False)
    began: float | None = field(compare=False, default=None)

    @property
    def request(self) -> Any:
        """What it asks for, as `ShapeSelection` wants it."""
        return self.entry.request

    @property
    def id(self) -> str:
        """Its name."""
        return self.entry.id


class SimulatedClock:
    """Shows what it is told to."""

    now = 0.0

    def boottime(self) -> float:
        """Return the time."""
        return self.now


@dataclass
class Machine:
    """One worker, and what waits there for room."""

    grants: TaskGrants
    reserved: tuple[HeldGrant, Job] | None = None


class Simulation:
    """A queue and its workers.

    Args:
        share: of its life that each machine may idle to make room.
        jobs: that come, in their order.
    """

    def __init__(self, share: float, jobs: list[Job]) -> None:
        self.clock = SimulatedClock()
        clock: Clock = self.clock  # type: ignore[assignment] # nothing else of one is asked for
        chance = random.Random(1)
        self.machines = [Machine(TaskGrants(OFFER, clock, share, chance=chance)) for _ in range(MACHINES)]
        self.jobs = jobs
        self.ended_at = 0.0
        self._ready: list[Job] = []
        self._selection = ShapeSelection()
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Any]] = []
        for job in jobs:
            self._at(job.arrived, lambda job=job: self._arrive(job))

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until:
            self.clock.now, _, happen = heapq.heappop(self._events)
            happen()

    def _at(self, when: float, happen: Any) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), happen))

    def _arrive(self, job: Job) -> None:
        insort(self._ready, job)
        for machine in self.machines:
            if machine.reserved is None and machine.grants.room(may_reserve=False).holds(job.request):
                self._claim(machine)
                if job.began is not None:
                    return

    def _claim(self, machine: Machine) -> None:
        while machine.reserved is None and self._ready:
            room = machine.grants.room(may_reserve=True)
            found: list[Any] = self._selection.fitting(cast("Any", self._ready), room, 16, self.clock.now)
            for job in found:
                self._ready.remove(job)
                self._place(machine, job)
            if not found:
                return

    def _place(self, machine: Machine, job: Job) -> None:
        task = _TASKS[job.shape].copied({"id": job.id})
        place = machine.grants.place(SimpleNamespace(id=job.id, deliveries=next(self._numbers), task=task), Placement())
        held = place.grant
        if place.admission is Admission.START and held is not None:
            self._start(machine, held, job)
        elif place.admission is Admission.RESERVED and held is not None:
            machine.reserved = held, job
            self._at(held._until, lambda: self._look(machine, held))
        else:
            insort(self._ready, job)

    def _start(self, machine: Machine, held: HeldGrant, job: Job) -> None:
        job.began = self.clock.now
        self._at(self.clock.now + job.seconds, lambda: self._end(machine, held))

    def _end(self, machine: Machine, held: HeldGrant) -> None:
        self.ended_at = self.clock.now
        held.over()
        if machine.reserved is not None:
            self._look(machine, machine.reserved[0])
        self._claim(machine)

    def _look(self, machine: Machine, held: HeldGrant) -> None:
        """Start what waited for room, or give it back."""
        if machine.reserved is None or machine.reserved[0] is not held:
            return
        job = machine.reserved[1]
        if held.grant is not None:
            machine.reserved = None
            self._start(machine, held, job)
        elif self.clock.now >= held._until:
            machine.reserved = None
            held.over()
            insort(self._ready, job)
            self._claim(machine)
        else:
            self._at(held._until, lambda: self._look(machine, held))


def _task(cpus: int, gpus: int, mem: int) -> Task:
    return Task.new(command="true", cpus=cpus, mem=f"{mem}G", **({"gpus": gpus} if gpus else {}))


_TASKS: Final = tuple(_task(*shape) for shape, _ in SHAPES)


def _shares(shape: int) -> tuple[float, float, float]:
    cpus, gpus, mem = SHAPES[shape][0]
    return cpus / 16, gpus / 4, mem / 64


def _load(jobs: list[Job]) -> float:
    """Return how many seconds all machines need at least."""
    return max(sum(_shares(job.shape)[dimension] * job.seconds for job in jobs) for dimension in range(3)) / MACHINES


def _jobs(chance: random.Random, arrivals: Iterator[float]) -> list[Job]:
    kinds = range(len(SHAPES))
    weights = [weight for _, weight in SHAPES]
    jobs = []
    for order, arrived in enumerate(arrivals):
        (shape,) = chance.choices(kinds, weights)
        entry = Entry(id=f"t{order}", body=b"", order=order)
        entry.hold(_TASKS[shape], b"")
        jobs.append(Job(order, arrived, chance.expovariate(1 / MEAN_SECONDS), shape, entry))
    return jobs


def closed(seed: int, share: float) -> float:
    """Return the lower bound over the time that a backlog took."""
    jobs = _jobs(random.Random(seed), iter([0.0] * BACKLOG))
    simulation = Simulation(share, jobs)
    simulation.run(float("inf"))
    assert all(job.began is not None for job in jobs)
    return max(_load(jobs), *(job.seconds for job in jobs)) / simulation.ended_at


def stream(seed: int, share: float, load: float) -> tuple[float, float]:
    """Return what share of the machines was busy, in the scarcest dimension, and the longest wait in seconds."""
    chance = random.Random(seed)
    mean = max(
        sum(_shares(shape)[each] * weight for shape, (_, weight) in enumerate(SHAPES)) / 1000 for each in range(3)
    )
    gap = mean * MEAN_SECONDS / MACHINES / load
    moments = itertools.accumulate(iter(lambda: chance.expovariate(1 / gap), None))
    jobs = _jobs(chance, itertools.takewhile(lambda moment: moment < STREAM_SECONDS, moments))
    simulation = Simulation(share, jobs)
    simulation.run(STREAM_SECONDS)
    ran = [job for job in jobs if job.began is not None]
    done = [
        sum(_shares(job.shape)[each] * min(job.seconds, STREAM_SECONDS - (job.began or 0.0)) for job in ran)
        for each in range(3)
    ]
    whole = [job for job in jobs if job.shape == len(SHAPES) - 1]
    waits = [(STREAM_SECONDS if job.began is None else job.began) - job.arrived for job in whole]
    return max(done) / MACHINES / STREAM_SECONDS, max(waits, default=0.0)


def main() -> None:
    """Print the table."""
    print(f"{'':>22}{'closed':>10}{'95 %: busy':>14}{'longest wait':>15}{'105 %: busy':>14}{'longest wait':>15}")
    for rule, (share, after) in RULES.items():
        task_grants.OVERTAKEN_SECONDS = after  # type: ignore[misc] # what is compared
        backlog = statistics.median(closed(seed, share) for seed in SEEDS)
        cells = [f"{rule:>22}{backlog:>10.2f}"]
        for load in (0.95, 1.05):
            busy, waits = zip(*(stream(seed, share, load) for seed in SEEDS), strict=True)
            cells.append(f"{statistics.median(busy):>14.2f}{statistics.median(waits):>13.0f} s")
        print("".join(cells), flush=True)


if __name__ == "__main__":
    main()
