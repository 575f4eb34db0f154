"""Senders and receivers of one AMQP connection: messages in, messages out, and how receivers settle them."""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import urlsplit

from jobq.testing.amqp.faults import DECODE_ERROR
from jobq.testing.amqp.link import Delivery, Link
from jobq.testing.amqp.performatives import (
    Accepted,
    Error,
    Received,
    Rejected,
    Source,
    Target,
)
from jobq.testing.amqp.types import Malformed, Symbol
from jobq.testing.service_bus.access import Right
from jobq.testing.service_bus.codec import contents_of, encode_message, error_of
from jobq.testing.service_bus.errors import (
    BrokerError,
    Invalid,
    LockLost,
    NotAllowed,
    TooLarge,
    Unauthorized,
    Unsupported,
)
from jobq.testing.service_bus.faults import Operation, Via
from jobq.testing.service_bus.outcomes import NO_TRANSACTIONS, operation_of, settle
from jobq.testing.service_bus.queue import Queue
from jobq.testing.service_bus.service import Service

CREDIT: Final = 1000  # messages that a client may send before it hears more
_DETACHED: Final = "amqp:link:detach-forced"
_SESSION_FILTER: Final = "com.microsoft:session-filter"
_VIA: Final = "com.microsoft:transfer-destination-address"
Refuse = Callable[[BrokerError], None]


def path_of(address: str) -> str:
    """Return the path of an address, which may be a whole URL (`amqps://host:port/queue`)."""
    return (urlsplit(address).path if "://" in address else address).strip("/")


def entity(link: Link) -> str:
    """Return the path of the node that a link is to; "" where it names none."""
    end = link.remote.source if link.is_sender else link.remote.target
    return path_of(end.address or "") if isinstance(end, (Source, Target)) else ""


class _Connection(Protocol):
    service: Service
    loop: asyncio.AbstractEventLoop
    is_open: bool

    @property
    def expiry_of_claims(self) -> float | None: ...
    def require(self, path: str, right: Right) -> None: ...
    def perform(
        self, operation: Operation, path: str, act: Callable[[], object], refuse: Refuse, *, messages: int = 1
    ) -> None: ...


@dataclass
class _Receiver:
    """A link that hands out messages.

    Attributes:
        queue: whose.
        path: as the client named it.
        used: when the client last did something with it, in seconds since the epoch.
        locks: what was handed out over it and is not settled.
    """

    queue: Queue
    path: str
    used: float
    locks: dict[Delivery, uuid.UUID] = field(default_factory=dict)


class Links:
    """All of one connection.

    Args:
        connection: whose they are.
    """

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._receivers: dict[Link, _Receiver] = {}
        self._senders: dict[Link, str] = {}
        self._is_woken = False

    def attach(self, link: Link, path: str) -> None:
        """Open a link of a client, or refuse it."""

        def act() -> None:
            self._connection.require(path, Right.LISTEN if link.is_sender else Right.SEND)
            end = _end_of(link)
            queue = self._connection.service.broker.queue(path)
            _require_emulated(link, end)
            if link.is_ended:  # the client has left while this was delayed
                return
            if link.is_sender:
                link.open()
                self._receivers[link] = _Receiver(queue, path, self._connection.service.clock.wall())
                queue.listeners.add(self._wake)
                self.flow(link)
                self._connection.service.broker.on_timer()
            else:
                self._senders[link] = path
                link.open(max_message_bytes=queue.description.max_message_bytes, credit=CREDIT)

        self._connection.perform(Operation.ATTACH, path, act, lambda error: link.detach(error_of(error)))

    # Messages out

    def asked(self, link: Link) -> None:
        """Note that a receiver gave credit, and hand out what it has credit for."""
        receiver = self._receivers.get(link)
        if receiver is not None and link.credit:
            receiver.used = self._connection.service.clock.wall()
        self.flow(link)

    def flow(self, link: Link) -> None:
        """Hand out what the receiver has credit for, and can take."""
        receiver = self._receivers.get(link)
        if receiver is not None:
            self._hand_out(link, receiver)
        link.drained()

    def _hand_out(self, link: Link, receiver: _Receiver) -> None:
        is_destructive = not link.awaits_outcomes
        while link.can_send and (message := receiver.queue.receive(destructive=is_destructive)) is not None:
            receiver.used = self._connection.service.clock.wall()
            lock = message.lock
            tag = lock.bytes_le if lock else uuid.uuid4().bytes  # the tag is the token, as a .NET Guid
            request, _ = self._connection.service.gate.admit(Via.AMQP, Operation.RECEIVE, receiver.path)
            request.status = 200
            delivery = link.send(encode_message(message), tag, is_settled=lock is None)
            if lock is not None:
                receiver.locks[delivery] = lock

    def _wake(self) -> None:
        """Look for messages soon, once for however many came."""
        if not self._is_woken and self._connection.is_open:
            self._is_woken = True
            self._connection.loop.call_soon(self._look)

    def _look(self) -> None:
        self._is_woken = False
        for link in list(self._receivers):
            self.flow(link)

    def settled(self, delivery: Delivery, outcome: object) -> None:
        """Do to a message what the receiver said of it, and answer with the same outcome, which the SDK awaits."""
        receiver = self._receivers.get(delivery.link)
        if receiver is None or delivery not in receiver.locks or outcome is None or isinstance(outcome, Received):
            return
        lock = receiver.locks.pop(delivery)
        receiver.used = self._connection.service.clock.wall()

        def act() -> None:
            self._connection.require(receiver.path, Right.LISTEN)
            settle(receiver.queue, lock, outcome)
            delivery.settle(Rejected() if isinstance(outcome, Rejected) else outcome)

        def refuse(error: BrokerError) -> None:
            delivery.settle(Rejected(error=error_of(error)))

        self._connection.perform(operation_of(outcome), receiver.path, act, refuse)

    # Messages in

    def sent(self, delivery: Delivery) -> None:
        """Take a message or a batch, and say so."""
        path = self._senders[delivery.link]
        try:
            is_whole = not delivery.is_too_large
            contents = contents_of(bytes(delivery.payload), delivery.message_format) if is_whole else []
        except Malformed as malformed:
            delivery.settle(Rejected(error=_error(DECODE_ERROR, str(malformed))))
            return

        def act() -> None:
            self._connection.require(path, Right.SEND)
            queue = self._connection.service.broker.queue(path)
            if delivery.state is not None:
                raise Unsupported(NO_TRANSACTIONS)
            if delivery.is_too_large:
                raise TooLarge(delivery.size, delivery.link.max_message_bytes)
            queue.send(contents)
            delivery.settle(Accepted())

        def refuse(error: BrokerError) -> None:
            delivery.settle(Rejected(error=error_of(error)))

        self._connection.perform(Operation.SEND, path, act, refuse, messages=len(contents))

    # Ends

    def closed(self, link: Link) -> None:
        """Forget a link; locks that were got over it go on."""
        self._senders.pop(link, None)
        receiver = self._receivers.pop(link, None)
        if receiver is not None and all(other.queue is not receiver.queue for other in self._receivers.values()):
            receiver.queue.listeners.discard(self._wake)

    def lost(self) -> None:
        """Forget all; whether locks of links that were not closed go on is contested."""
        receivers = list(self._receivers.values())
        for link in list(self._receivers):
            self.closed(link)
        if self._connection.service.broker.fidelity.locks_survive_disconnect:
            return
        for receiver in receivers:
            for lock in receiver.locks.values():
                _give_up(receiver.queue, lock)

    def used(self, path: str) -> None:
        """Note that the receivers of a path are in use: `$management` counts."""
        now = self._connection.service.clock.wall()
        for receiver in self._receivers.values():
            if receiver.path == path:
                receiver.used = now

    def detach_receivers(self) -> None:
        """Detach all, as idle ones are."""
        for link in list(self._receivers):
            self._detach(link, _error(_DETACHED, "The link is force detached."))

    def sweep(self) -> float | None:
        """Detach receivers that are idle, and links whose token has ended; return when to look again."""
        service = self._connection.service
        now, due = service.clock.wall(), self._connection.expiry_of_claims
        for link, path in [*self._senders.items(), *((link, one.path) for link, one in self._receivers.items())]:
            try:
                self._connection.require(path, Right.LISTEN if link.is_sender else Right.SEND)
            except Unauthorized as error:
                self._detach(link, error_of(error))
        if service.idle_detach is None:
            return due
        for link, receiver in list(self._receivers.items()):
            ends = receiver.used + service.idle_detach
            if ends <= now:
                why = f"The link is force detached: idle for {service.idle_detach:g} s."
                self._detach(link, _error(_DETACHED, why))
            else:
                due = ends if due is None else min(due, ends)
        return due

    def _detach(self, link: Link, why: Error) -> None:
        link.detach(why)
        self.closed(link)


def _end_of(link: Link) -> Source | Target:
    end = link.remote.source if link.is_sender else link.remote.target
    if end is None:
        raise Invalid("The link is to no node.")
    if not isinstance(end, (Source, Target)):
        raise Unsupported(NO_TRANSACTIONS)
    return end


def _require_emulated(link: Link, end: Source | Target) -> None:
    """Raise what the service answers to a link that it, or this emulation of it, does not have."""
    if end.dynamic:
        raise Unsupported("Nodes that a link makes are not emulated.")
    if _VIA in (link.remote.properties or {}):
        raise Unsupported("Sending via another queue is not emulated.")
    for name in (end.filter or {}) if isinstance(end, Source) else ():
        if name == _SESSION_FILTER:  # with any value: null asks for the next session
            raise NotAllowed(
                "A sessionful message receiver cannot be created on an entity that does not require sessions."
                " Sessions are not emulated."
            )
        raise Unsupported(f"The filter {name} is not emulated.")


def _error(condition: str, text: str) -> Error:
    return Error(condition=condition, description=text, info={Symbol("tracking-id"): "emulator"})


def _give_up(queue: Queue, lock: uuid.UUID) -> None:
    try:
        queue.abandon(lock)
    except LockLost:
        return  # settled over another way
