"""A delivery whose answers a test scripts: the one place where nothing real can be as exact as the rule demands."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from jobq.backend import FencingNumber, Renewed
from jobq.clock import Clock
from jobq.errors import BackendUnavailable, LockLost
from jobq.journal.records import Beat
from jobq.settlement import MoveToDeadLetters, Record, Release, Settlement
from jobq.task import Task

Answer = Callable[[], Awaitable[None]]


class ScriptedDelivery:
    """Answers renewals from a list, then with success; remembers when each was sent."""

    def __init__(self, clock: Clock, *, lease: float = 60.0, task: Task | None = None) -> None:
        self.clock = clock
        self.lease = timedelta(seconds=lease)
        self.task = task or Task.new(command="true", id="scripted")
        self.id = self.task.id
        self.body = self.task.encode()
        self.deliveries = 1
        self.fencing = FencingNumber(0, 0, 1)
        self.checkpoint_value: str | None = None
        self.journaled = self.cancel_requested = False
        self.renewed_at: list[float] = []
        self.settled: list[str] = []
        self.records: list[Record | None] = []
        self.answers: list[Answer] = []
        self.settle_answers: list[Answer] = []
        self.always: Answer = self.accept

    async def accept(self) -> None:
        pass

    async def refuse(self) -> None:
        raise BackendUnavailable("503")

    async def stale(self) -> None:
        raise LockLost("409")

    async def hang(self) -> None:
        await asyncio.Event().wait()

    def after(self, seconds: float) -> Answer:
        async def late() -> None:
            await self.clock.sleep_until(self.clock.boottime() + seconds)

        return late

    async def renew(self, lease: timedelta, beat: Beat | None = None) -> Renewed:
        assert lease == self.lease
        self.renewed_at.append(self.clock.boottime())
        await (self.answers.pop(0) if self.answers else self.always)()
        return Renewed()

    async def _settle(self, verb: str) -> None:
        self.settled.append(verb)
        if self.settle_answers:
            await self.settle_answers.pop(0)()

    async def settle(self, settlement: Settlement) -> None:
        self.records.append(None if isinstance(settlement, Release) else settlement.record)
        reason = f" {settlement.reason}" if isinstance(settlement, MoveToDeadLetters) else ""
        await self._settle(f"{settlement.verb}{reason}")

    async def checkpoint(self, value: str, number: int = 0) -> None:
        await self._settle("checkpoint")
