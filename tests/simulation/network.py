"""The network between one process and the broker, and the client's side of the backend protocol over it.

A request and its answer are two messages. Each may be late, lost, doubled, or held until a partition heals. What the
client hears follows the protocol: a refused connection is definite, anything else that is no answer is unknown.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any, Literal, Self

from jobq.backend import Capabilities, Delivery, QueueStats, Renewed
from jobq.delivery import BaseDelivery
from jobq.errors import AnswerLost, BackendUnavailable, PushUnknown, SettlementUnknown
from jobq.journal.records import Beat
from jobq.settlement import Settlement
from jobq.task import Task
from tests.simulation.broker import Reset, SimulatedBroker
from tests.simulation.loop import NODE

Way = Literal["out", "in"]
MEAN_SECONDS = 0.004


class NetworkLink:
    """One client's way to the broker and back.

    Args:
        broker: at its end.
        chance: decides what befalls each message.

    Attributes:
        slow, slow_seconds: the share of messages that take up to so many seconds.
        lose_request, lose_answer, double: shares of messages.
        refuses: whether new connections are refused.
        blocked: the ways on which a partition lets nothing through.
        holds: what is blocked is delivered when the partition heals; else it is lost.
    """

    def __init__(self, broker: SimulatedBroker, chance: Random) -> None:
        self.broker, self.chance = broker, chance
        self.slow = self.slow_seconds = 0.0
        self.lose_request = self.lose_answer = self.double = 0.0
        self.refuses = self.holds = False
        self.blocked: set[Way] = set()
        self._loop = broker.loop
        self._held: list[Callable[[], None]] = []
        self._open: dict[int, Any] = {}
        self._count = 0

    def heal(self) -> None:
        """End a partition, and deliver what was held."""
        self.blocked.clear()
        self.refuses = False
        held, self._held = self._held, []
        for deliver in held:
            self._loop.true_later(self._delay(), self.broker.node, deliver)

    def calm(self) -> None:
        """Heal, and let no more messages be lost, late or doubled."""
        self.heal()
        self.slow = self.lose_request = self.lose_answer = self.double = 0.0

    def reset(self) -> None:
        """Break all connections."""
        for number in list(self._open):
            self._answer(number, Reset("connection reset by peer"), failed=True)

    async def ask(self, handler: Callable[[], Awaitable[Any]], *, aborts: bool = False, may_double: bool = True) -> Any:
        """Send a request that the broker does, and return its answer.

        Args:
            handler: what the broker does.
            aborts: a client that gives up closes its connection, which the broker may see.
            may_double: somebody on the way may repeat it.

        Raises:
            BackendUnavailable: the connection was refused.
            Reset: nobody knows whether it was done.
        """
        if self.refuses or self.broker.is_down:
            self.broker.fired("refused connection")
            await asyncio.sleep(self._delay())
            raise BackendUnavailable("connection refused")
        answer = self._loop.create_future()
        self._count += 1
        number = self._count
        self._open[number] = answer, NODE.get()
        serving: list[asyncio.Task[Any]] = []
        self._send("out", lambda: self.broker.serve(handler, self.answered, number, serving), self.lose_request)
        if may_double and self.double and self.chance.random() < self.double:
            self.broker.fired("doubled request")
            self._send("out", lambda: self.broker.serve(handler, self.answered, -number, []), 0.0)
        try:
            return await answer
        except asyncio.CancelledError:
            if aborts and not self.blocked and self.chance.random() < 0.7:
                node = self.broker.node
                self._loop.true_later(self._delay(), node, lambda: [each.cancel() for each in serving])
            raise
        finally:
            self._open.pop(number, None)

    def answered(self, number: int, result: Any, *, failed: bool) -> None:
        """Send the broker's answer; to a doubled request there is none."""
        if number > 0:
            self._send("in", lambda: self._answer(number, result, failed=failed), self.lose_answer)

    def _delay(self) -> float:
        if self.slow and self.chance.random() < self.slow:
            self.broker.fired("slow message")
            return self.chance.uniform(0.0, self.slow_seconds)
        return self.chance.expovariate(1.0) * MEAN_SECONDS

    def _send(self, way: Way, deliver: Callable[[], None], loss: float) -> None:
        if way in self.blocked:
            self.broker.fired("held message" if self.holds else "lost to a partition")
            if self.holds:
                self._held.append(deliver)
        elif loss and self.chance.random() < loss:
            self.broker.fired("lost request" if way == "out" else "lost answer")
        else:
            self._loop.true_later(self._delay(), self.broker.node, deliver)

    def _answer(self, number: int, result: Any, *, failed: bool) -> None:
        if number not in self._open:
            return
        answer, node = self._open.pop(number)

        def answer_it() -> None:
            if not answer.done():
                answer.set_exception(result) if failed else answer.set_result(result)

        self._loop.true_later(0.0, node, answer_it)


class Client:
    """The backend as one process sees it.

    Args:
        link: to the broker.
    """

    def __init__(self, link: NetworkLink) -> None:
        self._link = link
        self._broker = link.broker

    @property
    def name(self) -> str:
        """The queue's."""
        return self._broker.backend.name

    @property
    def capabilities(self) -> Capabilities:
        """The broker's."""
        return self._broker.backend.capabilities

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        """See `Backend`."""
        try:
            answer: list[str] = await self._link.ask(lambda: self._broker.push(tasks))
        except Reset as error:
            raise PushUnknown(str(error), [task.id for task in tasks]) from None
        return answer

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        """See `Backend`."""
        who, asked = NODE.get(), self._broker.loop.now
        try:
            found = await self._link.ask(lambda: self._broker.receive(max_tasks, lease, wait), aborts=True)
        except Reset as error:
            raise AnswerLost(str(error)) from None
        monitor = self._broker.monitor
        monitor.served(who)
        for each in found:
            monitor.extended(each.id, str(each.fencing), asked)
        return [_RemoteDelivery(self._link, each) for each in found]

    async def stats(self) -> QueueStats:
        """See `Backend`."""
        answer: QueueStats = await self._asked(self._broker.backend.stats)
        return answer

    async def cancel(self, task_id: str) -> None:
        """Cancel a task, as people do."""
        await self._asked(lambda: self._broker.cancel(task_id))

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """See `Backend`."""
        answer: list[str] = await self._asked(lambda: self._broker.redrive(ids))
        return answer

    async def _asked(self, handler: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await self._link.ask(handler)
        except Reset as error:
            raise AnswerLost(str(error)) from None


class _RemoteDelivery(BaseDelivery):
    """A delivery whose verbs are requests."""

    def __init__(self, link: NetworkLink, near: Delivery) -> None:
        super().__init__(
            id=near.id,
            body=near.body,
            deliveries=near.deliveries,
            lease=near.lease,
            checkpoint=near.checkpoint_value,
            journaled=near.journaled,
            cancel_requested=near.cancel_requested,
        )
        self._link, self._near = link, near
        self._broker, self._monitor = link.broker, link.broker.monitor
        self._turn = 0  # of a receipt that rotates: known only from an answer
        self._on_its_way = ""  # the verb

    async def renew(self, lease: timedelta, beat: Beat | None = None) -> Renewed:
        sent = self._broker.loop.now
        renewed: Renewed = await self._do("renew", lambda: self._near.renew(lease, beat), lease)
        self._monitor.extended(self.id, str(self.fencing), sent)
        if renewed.cancel:
            self._monitor.cancel_known(self.id, str(self.fencing))
        return renewed

    async def settle(self, settlement: Settlement) -> None:
        await self._do(settlement.verb, lambda: self._near.settle(settlement), settlement)

    async def checkpoint(self, value: str, number: int = 0) -> None:
        await self._do("checkpoint", lambda: self._near.checkpoint(value, number), value, number)
        self._monitor.checkpoint_acknowledged(self.id, value)

    async def _do(self, verb: str, action: Callable[[], Awaitable[object]], *values: Any) -> Any:
        turn = self._turn
        if self._on_its_way:
            self._monitor.broken("S4", f"{verb} of {self.id} is sent while {self._on_its_way} is unanswered")
        self._on_its_way = verb
        try:
            answer, self._turn = await self._link.ask(
                lambda: self._broker.fenced(self._near, verb, action, values, turn)
            )
        except Reset as error:
            raise SettlementUnknown(f"{verb} of {self.id}: {error}") from None
        finally:
            self._on_its_way = ""
        return answer
