"""A fleet of real workers whose tasks only take time and whose machines vanish, on virtual time or on real services."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

from jobq.backend import Backend, Delivery
from jobq.events import Event, Events
from jobq.lease.keeper import LeaseKeeper
from jobq.run.process.spawner import Deadline
from jobq.run.stopping import Stopping
from jobq.run.worker.host import WorkerHost
from jobq.run.worker.worker import Worker
from jobq.run.worker.worker_report import WorkerReport
from jobq.settings import Settings
from jobq.task import Outcome, OutcomeKind, Task
from jobq.testing.clock import SteppedClock, VirtualClock
from jobq_memory import MemoryBackend, Router


class Vanished(asyncio.CancelledError):
    """Raised from whatever a worker waits for once its machine is gone: it tells nobody anything more."""


class Machine:
    """A clock and a door to services, there until the machine vanishes.

    Args:
        clock: everybody's.
    """

    def __init__(self, clock: SteppedClock) -> None:
        self._clock = clock
        self.gone = asyncio.get_running_loop().create_future()
        self.boottime, self.wall = clock.boottime, clock.wall
        self.running = 0

    def vanish(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)

    async def sleep_until(self, boottime: float) -> None:
        await self.alive(self._clock.sleep_until(boottime))

    async def alive(self, what: Any) -> Any:
        """Wait for something as long as the machine is there."""
        waiting = asyncio.ensure_future(what)
        try:
            await asyncio.wait({waiting, self.gone}, return_when=asyncio.FIRST_COMPLETED)
            if self.gone.done():
                raise Vanished
            return waiting.result()
        finally:
            waiting.cancel()


class _Far:
    """A backend, or a delivery, as seen from a machine: its verbs are answered while that is there."""

    def __init__(self, machine: Machine, near: Any) -> None:
        self._machine = machine
        self._near = near

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._near, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def verb(*arguments: Any, **named: Any) -> Any:
            answer = await self._machine.alive(found(*arguments, **named))
            return [_Far(self._machine, each) for each in answer] if name == "receive" else answer

        return verb


@dataclass
class Fleet:
    """Machines with one worker each; one that vanishes is followed by a new one.

    Attributes:
        clock: everybody's; virtual by default.
        store: entered, its queue is there; in memory by default.
        slots: of each worker.
        lives: returns the seconds that the next machine lives.
        settings: more of them, for each worker.
        takes: seconds by task id.
        killers: task ids whose attempts make their machine vanish as soon as they run.
        beside: how many others ran when the task was last started.
        done_at: boottime in seconds at which each task ended.
        host: each worker's; the same jitter in every run.
    """

    clock: SteppedClock = field(default_factory=VirtualClock)
    store: Backend | None = None
    slots: int = 64
    lives: Callable[[], float] = lambda: math.inf
    settings: dict[str, Any] = field(default_factory=dict)
    takes: dict[str, float] = field(default_factory=dict)
    killers: set[str] = field(default_factory=set)
    starts: Counter[str] = field(default_factory=Counter)
    beside: dict[str, int] = field(default_factory=dict)
    done_at: dict[str, float] = field(default_factory=dict)
    host: WorkerHost = field(default_factory=lambda: WorkerHost(Random(18)))
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.backend = MemoryBackend(Router(clock=self.clock), "fleet") if self.store is None else self.store

    async def push(self, *seconds: float, **fields: Any) -> list[str]:
        tasks = [Task.new(command="x", **fields) for _ in seconds]
        self.takes |= {task.id: length for task, length in zip(tasks, seconds, strict=True)}
        await self.backend.create()
        return await self.backend.push(tasks)

    async def work(self, machines: int = 1, *, most_seconds: float = 5000.0, grain: float = 0.5) -> None:
        """Work until nothing is left; look every `grain` seconds."""
        end = self.clock.boottime() + most_seconds
        hosts = [asyncio.create_task(self._host()) for _ in range(machines)]
        try:
            while (await self.backend.stats()).unfinished:
                assert self.clock.boottime() < end, "it does not end"
                await self.clock.advance(grain)
                if failed := [host for host in hosts if host.done()]:
                    failed[0].result()
        finally:
            for host in hosts:
                host.cancel()
            await asyncio.gather(*hosts, return_exceptions=True)

    async def dead(self) -> set[str]:
        return {letter.id for letter in await self.backend.dead_letters(10_000)}

    def told(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    async def one_worker(self, machine: Machine | None = None, **more: Any) -> WorkerReport:
        """Run one worker to its end."""
        return await self._worker(machine or Machine(self.clock), **more).run()

    async def _host(self) -> None:
        """Run one worker after the other."""
        while True:
            machine = Machine(self.clock)
            end = asyncio.create_task(self._end(machine, self.lives()))
            worker = asyncio.create_task(self.one_worker(machine, idle_timeout=timedelta(days=30)))
            try:
                await asyncio.wait({worker, machine.gone}, return_when=asyncio.FIRST_COMPLETED)
                if worker.done():
                    worker.result()
            finally:
                end.cancel()
                machine.vanish()
                worker.cancel()
                await asyncio.wait({worker})

    async def _end(self, machine: Machine, seconds: float) -> None:
        if math.isfinite(seconds):
            await self.clock.sleep_until(self.clock.boottime() + seconds)
            machine.vanish()

    def _worker(self, machine: Machine, stopping: Stopping | None = None, **more: Any) -> Worker:
        settings = {"num_workers": self.slots, "scheduled_events": "off", "guardian": "off"} | self.settings | more
        return Worker(
            _Far(machine, self.backend),
            Settings(**settings),
            clock=machine,
            runner=_Runner(self, machine),
            events=Events(self.events.append),
            environment={},
            stopping=stopping,
            host=self.host,
        )


class _Runner:
    """Starts attempts that only last."""

    def __init__(self, fleet: Fleet, machine: Machine) -> None:
        self._fleet = fleet
        self._machine = machine

    async def start(self, task: Task, delivery: Delivery, *, deadline: Deadline, keeper: LeaseKeeper) -> "_Running":
        self._fleet.starts[task.id] += 1
        self._fleet.beside[task.id] = self._machine.running
        if task.id in self._fleet.killers:
            self._machine.vanish()
        return _Running(self._fleet, self._machine, task.id)


class _Running:
    def __init__(self, fleet: Fleet, machine: Machine, task_id: str) -> None:
        self._fleet = fleet
        self._machine = machine
        self._id = task_id
        self._end = machine.boottime() + fleet.takes[task_id]
        machine.running += 1

    async def exited(self) -> None:
        await self._machine.sleep_until(self._end)

    def has_exited(self) -> bool:
        return self._machine.boottime() >= self._end

    async def ended(self) -> Outcome:
        await self.exited()
        self._fleet.done_at[self._id] = self._machine.boottime()
        return Outcome(kind=OutcomeKind.SUCCEEDED)

    async def over_limit(self) -> str:
        await asyncio.Event().wait()
        return ""

    def terminate(self) -> None:
        self._end = self._machine.boottime()

    def kill(self) -> None:
        self._end = self._machine.boottime()

    async def close(self) -> None:
        self._machine.running -= 1
