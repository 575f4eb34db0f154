"""Service Bus as one simulated process sees it: the real backend, whose requests go over the simulated network."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast
from uuid import UUID

from jobq.backend import Delivery, Renewed
from jobq.errors import BackendUnavailable, LockLost
from jobq.journal.records import Beat
from jobq_azure.common.errors import NoAnswer
from jobq_azure.service_bus.backend import Sdk, ServiceBusBackend
from jobq_azure.service_bus.namespace import QueueAddress
from jobq_azure.service_bus.options import Options
from jobq_azure.service_bus.responses import Response
from jobq_azure.service_bus.seen import Seen
from tests.emulators.service_bus import errors
from tests.emulators.service_bus.message import Message, State
from tests.simulation.broker import Reset
from tests.simulation.loop import NODE, Machine
from tests.simulation.network import NetworkLink
from tests.simulation.service_bus.bus import NAME, Bus
from tests.simulation.service_bus.copy_monitor import CopyMonitor

if TYPE_CHECKING:
    from jobq_azure.service_bus.amqp_client import Amqp
    from jobq_azure.service_bus.namespace import Namespace
    from tests.simulation.service_bus.copies import Lock

T = TypeVar("T")
_PLACE: Final = QueueAddress(namespace="simulated", queue=NAME, rest_url="https://bus", host="bus")
_ANSWER_SECONDS: Final = 30.0  # as in `Namespace.request`
_AMQP_SECONDS: Final = 10.0  # as in `Amqp`, like the next
_SETTLE_SECONDS: Final = 3.0
# What somebody between client and service may repeat (RFC 9110 9.2.2); with duplicate detection, all.
_IDEMPOTENT: Final = frozenset({"GET", "PUT", "DELETE"})


@asynccontextmanager
async def connected(link: NetworkLink, machine: Machine) -> "AsyncIterator[_Watched]":
    """Lend the real backend over a link, entered."""
    bus, rules = cast("Any", link.broker.backend), cast("Any", link.broker.monitor)
    rules.struck = link.broker.faults.total
    rules.doubles |= bool(link.double)
    requests = _Requests(link, bus, rules)
    options = Options(lock=timedelta(seconds=bus.queue.description.lock_duration))
    async with _Watched(cast("Any", requests), options, machine.monotonic, _NoSdk(requests)) as backend:
        backend.rules = rules
        yield backend


class _Requests:
    """Sends requests of one process; in the place of a `Namespace`."""

    place = _PLACE

    def __init__(self, link: NetworkLink, bus: Bus, rules: CopyMonitor) -> None:
        self.link, self.bus, self.rules = link, bus, rules
        self._unanswered: set[str] = set()  # paths of locks

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        seconds: float = _ANSWER_SECONDS,
    ) -> Response:
        """See `Namespace.request`."""
        node, sent = NODE.get(), self.link.broker.loop.now
        is_poll = path.endswith("/head") or "/head?" in path
        if path in self._unanswered and not is_poll:
            self.rules.broken("S4", f"{method} {path} is sent while another request on this lock is unanswered")
        if method == "POST" and body:
            self.rules.leaves(node, headers or {}, body)

        async def handler() -> Any:
            work = self.bus.request(method, path, body, headers or {})
            return await (self.link.broker.unless_it_crashes(work) if is_poll else work)

        is_on_lock = "/messages/" in path and not is_poll
        if is_on_lock:
            self._unanswered.add(path)
        try:
            async with asyncio.timeout(seconds):
                may_double = self.rules.deduplicates or method in _IDEMPOTENT
                answer = await self.link.ask(handler, aborts=is_poll, may_double=may_double)
        except (Reset, TimeoutError) as error:
            raise NoAnswer(f"{_PLACE}: the answer was lost ({type(error).__name__})") from None
        finally:
            self._unanswered.discard(path)
        status, answered, content, date, lock = answer
        if lock is not None:
            self.rules.reached(cast("Lock", lock), node, sent)
        return Response(status, answered, content, date)


class _NoSdk(Sdk):
    """Speaks to the simulated broker, without a thread."""

    def __init__(self, requests: _Requests) -> None:
        self._requests = requests

    async def load(self) -> None:
        """Nothing is to be imported."""

    def connect(self, namespace: "Namespace", *, websocket: bool) -> "Amqp":
        """Return what speaks to it."""
        return cast("Amqp", _Amqp(self._requests))


class _Amqp:
    """In the place of `Amqp`, as far as a worker and a redrive need it."""

    def __init__(self, requests: _Requests) -> None:
        self._link, self._bus = requests.link, requests.bus

    async def aclose(self) -> None:
        """Nothing is open."""

    async def reach(self) -> None:
        await self._asked(lambda: self._bus.look(1, 1, dead=False))

    async def survey(self, keep: Callable[[Seen], T]) -> list[T]:
        return [keep(_seen(each)) for each in await self._asked(lambda: self._bus.look(1, 10_000, dead=True))]

    async def lock_dead(self, count: int) -> list[Seen]:
        return [_seen(each) for each in await self._asked(lambda: self._bus.lock_dead(count))]

    async def renew_dead(self, tokens: Sequence[UUID]) -> None:
        await self._asked(lambda: self._bus.on_dead("renewed", tokens))

    async def settle_dead(self, settlement: str, tokens: Sequence[UUID]) -> None:
        await self._asked(lambda: self._bus.on_dead(settlement, tokens))

    async def dead_letter(self, token: UUID, reason: str, description: str, properties: Mapping[str, Any]) -> None:
        await self._asked(lambda: self._bus.dead_letter(token, reason, description, properties), _SETTLE_SECONDS)

    async def _asked(self, handler: Callable[[], Awaitable[Any]], seconds: float = _AMQP_SECONDS) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await self._link.ask(handler, may_double=False)
        except (Reset, TimeoutError, BackendUnavailable) as error:  # the SDK does not say whether it ever connected
            raise NoAnswer(f"{_PLACE}: the answer over AMQP was lost ({type(error).__name__})") from None
        except errors.LockLost:
            raise LockLost("the lock is gone: it ran out, or the task was settled") from None


def _seen(message: Message) -> Seen:
    return Seen(
        number=message.number,
        message_id=str(message.content.message_id),
        body=message.content.body,
        ended=message.delivery_count,
        is_scheduled=message.state is State.SCHEDULED,
        is_deferred=message.is_deferred,
        enqueued=message.enqueued,
        reason=message.reason or "",
        description=message.description or "",
        properties=message.all_properties,
        token=message.lock,
    )


class _Watched(ServiceBusBackend):
    """The real backend; reports to the rules what its worker knows."""

    rules: CopyMonitor

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        """See `Backend`."""
        node = NODE.get()
        asked = node.machine.loop.now
        found = await super().receive(max_tasks, lease, wait)
        self.rules.served(node)
        return [cast("Delivery", _Delivery(self.rules, each, asked)) for each in found]

    async def cancel(self, task_id: str) -> None:
        """Without a journal nobody can."""


class _Delivery:
    """A delivery; reports to the rules what extended its lease as far as its worker knows."""

    def __init__(self, rules: CopyMonitor, inner: Delivery, asked: float) -> None:
        self._rules, self._inner = rules, inner
        rules.received(inner.id, str(inner.fencing), asked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def renew(self, lease: timedelta, beat: Beat | None = None) -> Renewed:
        sent = NODE.get().machine.loop.now
        renewed = await self._inner.renew(lease, beat)
        self._rules.extended(self._inner.id, str(self._inner.fencing), sent)
        return renewed
