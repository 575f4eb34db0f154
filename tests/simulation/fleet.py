"""A fleet in virtual time: real workers on the in-process router, tasks that only take time, machines that vanish."""

import asyncio
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from jobq.backend import Backend, Delivery
from jobq.clock import Moment
from jobq.events import Event, Events
from jobq.lease.keeper import LeaseKeeper
from jobq.run.process.spawner import Deadline
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from jobq.task import Outcome, OutcomeKind, Task
from jobq.testing.clock import VirtualClock
from jobq_memory import MemoryBackend, Router

GRAIN_SECONDS = 0.5  # what tasks last, and machines live, is a multiple: so many things happen at one instant


class Vanished(BaseException):
    """Raised from whatever a worker waits for once its machine is gone: it tells nobody anything more."""


class Machine:
    """A clock and a backend that are there until the machine vanishes.

    Args:
        clock: everybody's.
        backend: everybody's.
    """

    def __init__(self, clock: VirtualClock, backend: Backend) -> None:
        self._clock = clock
        self._backend = backend
        self._gone = asyncio.get_running_loop().create_future()
        self.boottime, self.wall = clock.boottime, clock.wall
        self.running = 0

    @property
    def is_gone(self) -> bool:
        return self._gone.done()

    def vanish(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)

    async def sleep_until(self, boottime: float) -> None:
        await self.alive(self._clock.sleep_until(boottime))

    async def alive(self, what: Any) -> Any:
        """Wait for something as long as the machine is there."""
        if self.is_gone:
            getattr(what, "close", lambda: None)()
            raise Vanished
        waiting = asyncio.ensure_future(what)
        try:
            await asyncio.wait({waiting, self._gone}, return_when=asyncio.FIRST_COMPLETED)
            if self.is_gone:
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
            if name == "receive":
                return [_Far(self._machine, delivery) for delivery in answer]
            return answer

        return verb

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


@dataclass
class Fleet:
    """Machines with one worker each; a machine that vanishes is followed by a new one.

    Attributes:
        machines: how many there are at a time.
        slots: of each worker.
        lives: seconds that a machine lives; called for each.
        killers: task ids whose attempts kill their worker, and after how many seconds.
    """

    machines: int
    slots: int
    lives: Callable[[], float] = lambda: math.inf
    lease: float = 60.0
    killers: dict[str, float] = field(default_factory=dict)
    takes: dict[str, float] = field(default_factory=dict)
    starts: Counter[str] = field(default_factory=Counter)
    beside: dict[str, int] = field(default_factory=dict)  # how many others ran when it was last started
    deaths: int = 0
    most_idle: float = 0.0

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.router = Router(clock=self.clock)
        self.backend = MemoryBackend(self.router, "fleet")
        self.events: list[Event] = []

    async def push(self, seconds: list[float], **fields: Any) -> list[str]:
        await self.backend.create()
        tasks = [Task.new(command="x", **fields) for _ in seconds]
        self.takes |= {task.id: length for task, length in zip(tasks, seconds, strict=True)}
        return await self.backend.push(tasks)

    async def work(self, *, most_seconds: float = 100_000.0) -> float:
        """Work until nothing is left; return for how many seconds."""
        began = self.clock.boottime()
        hosts = [asyncio.create_task(self._host()) for _ in range(self.machines)]
        try:
            while await self._is_left():
                assert self.clock.boottime() - began < most_seconds, "it does not end"
                await self.clock.advance(GRAIN_SECONDS)
            return self.clock.boottime() - began
        finally:
            for host in hosts:
                host.cancel()
            await asyncio.gather(*hosts, return_exceptions=True)

    async def _is_left(self) -> bool:
        for host_stats in [await self.backend.stats()]:
            return bool(host_stats.unfinished)
        return False

    async def _host(self) -> None:
        """Run one worker after the other."""
        while True:
            machine = Machine(self.clock, self.backend)
            end = asyncio.create_task(self._end(machine, self.lives()))
            try:
                await self._worker(machine).run()
            except Vanished:
                self.deaths += 1
            finally:
                end.cancel()
                machine.vanish()

    async def _end(self, machine: Machine, seconds: float) -> None:
        if math.isfinite(seconds):
            await self.clock.sleep_until(self.clock.boottime() + seconds)
            machine.vanish()

    def _worker(self, machine: Machine) -> Worker:
        settings = Settings(
            num_workers=self.slots,
            visibility_timeout=timedelta(seconds=self.lease),
            idle_timeout=timedelta(days=30),
            scheduled_events="off",
            guardian="off",
        )
        return Worker(
            _Far(machine, self.backend),  # type: ignore[arg-type] - one backend seen through another
            settings,
            clock=machine,
            runner=_Runner(self, machine),
            events=Events(self.events.append),
            environment={},
        )


class _Runner:
    """Starts attempts that only last."""

    def __init__(self, fleet: Fleet, machine: Machine) -> None:
        self._fleet = fleet
        self._machine = machine

    async def start(self, task: Task, delivery: Delivery, *, deadline: Deadline, keeper: LeaseKeeper) -> "_Running":
        self._fleet.starts[task.id] += 1
        self._fleet.beside[task.id] = self._machine.running
        return _Running(self._machine, self._fleet.takes[task.id], self._fleet.killers.get(task.id))


class _Running:
    def __init__(self, machine: Machine, seconds: float, kills_after: float | None) -> None:
        self._machine = machine
        self._end = machine.boottime() + seconds
        self._kill_at = None if kills_after is None else machine.boottime() + kills_after
        machine.running += 1

    async def exited(self) -> None:
        if self._kill_at is not None:
            await self._machine.sleep_until(self._kill_at)
            self._machine.vanish()
        await self._machine.sleep_until(self._end)

    def has_exited(self) -> bool:
        return self._machine.boottime() >= self._end

    async def ended(self) -> Outcome:
        await self.exited()
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
