"""The broker: a real backend on the server's clock, behind a door that can be shut."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, TypeVar

from jobq.backend import Backend, Delivery
from jobq.errors import LockLost
from jobq.journal.store import KeepsJournal
from jobq.task import Task
from tests.simulation.loop import Loop, Machine, Node
from tests.simulation.rules.monitor import Monitor

T = TypeVar("T")
MakeBackend = Callable[[Machine], AbstractContextManager[Backend]]


class Reset(Exception):
    """The connection broke: whether the request was done is unknown."""


class SimulatedBroker:
    """Serves requests, each in a task of its own.

    Args:
        loop: the run's.
        monitor: sees each request before and after it is done.
        machine: the server's.
        backend: on the server's clock; all of its work is done within one instant.

    Attributes:
        is_down: whether connections are refused.
        rotates: whether each accepted verb of a delivery changes its receipt, as on a Storage Queue: who did not get
            the answer has lost the lease (rules.md 1.3 rule 9).
        faults: how often each kind has struck.
    """

    def __init__(self, loop: Loop, monitor: Monitor, machine: Machine, backend: Backend) -> None:
        self.loop, self.monitor = loop, monitor
        self.node = Node(machine, "broker")
        self.backend = backend
        self.is_down = self.rotates = False
        self.faults: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()  # of each receipt
        self._receiving: dict[asyncio.Task[Any], None] = {}

    def fired(self, fault: str) -> None:
        """Count a fault that has struck."""
        self.faults[fault] += 1

    def serve(
        self,
        handler: Callable[[], Awaitable[Any]],
        answered: Callable[..., None],
        number: int,
        serving: list["asyncio.Task[Any]"],
    ) -> None:
        """Do a request that has arrived, and send the answer.

        Args:
            handler: does it.
            answered: `Link.answered`, which sends the answer.
            number: of the request.
            serving: takes the task that does it.
        """
        if self.is_down:
            answered(number, Reset("the broker is down"), failed=True)
            return

        async def work() -> None:
            try:
                result, failed = await handler(), False
            except Exception as error:  # noqa: BLE001 - an error is an answer
                result, failed = error, True
            answered(number, result, failed=failed)

        serving.append(self.node.run(self.loop.create_task, work()))

    def crash(self) -> None:
        """End it, as by SIGKILL: what was committed stays, of what was on its way nobody knows."""
        self.is_down = True
        for waiting in list(self._receiving):
            waiting.cancel()  # anything else that has arrived is done by now: only its answer is lost

    async def unless_it_crashes(self, work: Coroutine[Any, Any, T]) -> T:
        """Do what may take time; a crash ends it."""
        serving = asyncio.current_task()
        assert serving is not None
        self._receiving[serving] = None
        try:
            return await work
        finally:
            del self._receiving[serving]

    # Requests

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        """Add tasks."""
        ids = await self.backend.push(tasks)
        self.monitor.pushed(ids)
        return ids

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        """Lease tasks."""
        try:
            found = await self.unless_it_crashes(self.backend.receive(max_tasks, lease, wait))
        except asyncio.CancelledError:
            self.monitor.abandoned()
            raise
        for each in found:
            self.monitor.granted(each)
        return found

    async def cancel(self, task_id: str) -> None:
        """Cancel a task, where the queue keeps a journal."""
        if isinstance(self.backend, KeepsJournal) and self.backend.journal is not None:
            self.monitor.cancel_asked(task_id)
            (answer,) = await self.backend.journal.cancel([task_id])
            self.monitor.canceled(task_id, answer)

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back."""
        found = await self.backend.redrive(ids)
        self.monitor.redriven(found)
        return found

    async def fenced(
        self, near: Any, verb: str, action: Callable[[], Awaitable[object]], values: tuple[Any, ...], turn: int
    ) -> tuple[object, int]:
        """Do a verb of a delivery; return its answer, and the receipt's next turn."""
        receipt = f"{near.id} {near.fencing}"
        if self.rotates and turn != self._turns[receipt]:
            self.fired("receipt that has rotated")
            self.monitor.rotated(near.id, str(near.fencing))
            raise LockLost(f"{verb} of {near.id}: the receipt has rotated")
        expected = self.monitor.expects(near, verb, values)
        is_accepted = False
        try:
            answer = await action()
            is_accepted = True
            if self.monitor.expects(near, verb, values) == "again":
                expected = "again"  # its twin was done meanwhile: a machine that stood still does both at once
        finally:
            self.monitor.did(near, verb, values, expected, is_accepted=is_accepted)
        self._turns[receipt] += 1
        return answer, self._turns[receipt]
