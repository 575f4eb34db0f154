"""Senders and receivers of one AMQP connection: messages in, messages out, and how receivers settle them."""

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from proton import Condition, Delivery, Link, symbol

from jobq.testing.service_bus.access import Right
from jobq.testing.service_bus.codec import condition, contents_of, encode
from jobq.testing.service_bus.errors import BrokerError, LockLost, Unauthorized
from jobq.testing.service_bus.faults import Operation, Via
from jobq.testing.service_bus.queue import Queue

if TYPE_CHECKING:
    from jobq.testing.service_bus.amqp import AmqpConnection

_CREDIT: Final = 1000
_OPERATIONS: Final = {
    Delivery.ACCEPTED: Operation.COMPLETE,
    Delivery.REJECTED: Operation.DEAD_LETTER,
    Delivery.RELEASED: Operation.ABANDON,
    Delivery.MODIFIED: Operation.ABANDON,
}


def entity(address: str | None) -> str:
    """Return the path of a link's address, which may be a whole URL (`amqps://host:port/queue`)."""
    found = address or ""
    return (urlsplit(found).path if "://" in found else found).strip("/")


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

    def __init__(self, connection: "AmqpConnection") -> None:
        self._connection = connection
        self._receivers: dict[Link, _Receiver] = {}
        self._senders: dict[Link, str] = {}
        self._is_woken = False

    def attach(self, link: Link, path: str) -> None:
        """Open a link of a client, or refuse it: with null termini, then closed with the reason."""

        def act() -> None:
            self._connection.require(path, Right.SEND if link.is_receiver else Right.LISTEN)
            queue = self._connection.service.broker.queue(path)
            if link.is_receiver:
                link.max_message_size = queue.description.max_message_bytes
                link.open()
                link.flow(_CREDIT)
                self._senders[link] = path
            else:
                link.open()
                self._receivers[link] = _Receiver(queue, path, self._connection.service.clock.wall())
                queue.listeners.add(self._wake)
                self.flow(link)
                self._connection.service.broker.on_timer()

        def refuse(error: BrokerError) -> None:
            link.source.type = link.target.type = 0
            link.open()
            link.condition = condition(error)
            link.close()

        self._connection.perform(Operation.ATTACH, path, act, refuse)

    # Messages out

    def flow(self, link: Link) -> None:
        """Hand out what the receiver has credit for."""
        receiver = self._receivers.get(link)
        if receiver is None:
            return
        if link.credit:
            receiver.used = self._connection.service.clock.wall()
        is_destructive = link.remote_snd_settle_mode == Link.SND_SETTLED
        while link.credit > 0 and (message := receiver.queue.receive(destructive=is_destructive)) is not None:
            lock = message.lock
            delivery = link.delivery(
                lock.bytes_le if lock else uuid.uuid4().bytes
            )  # the tag is the token, as a .NET Guid
            link.send(encode(message))
            link.advance()
            request, _ = self._connection.service.gate.admit(Via.AMQP, Operation.RECEIVE, receiver.path)
            request.status = 200
            if lock is None:
                delivery.settle()
            else:
                receiver.locks[delivery] = lock
        if link.drain_mode:
            link.drained()

    def _wake(self) -> None:
        """Look for messages soon, once for however many came."""
        if not self._is_woken and self._connection.is_open:
            self._is_woken = True
            self._connection.loop.call_soon(self._look)

    def _look(self) -> None:
        self._is_woken = False
        for link in list(self._receivers):
            self.flow(link)
        self._connection.flush()

    def settled(self, link: Link, delivery: Delivery) -> None:
        """Do to a message what the receiver said of it, and answer with the same outcome, which the SDK awaits."""
        receiver = self._receivers.get(link)
        lock = receiver.locks.pop(delivery, None) if receiver and delivery.remote_state else None
        if lock is None or receiver is None:
            if delivery.settled:
                delivery.settle()
            return
        outcome, remote = delivery.remote_state, delivery.remote
        receiver.used = self._connection.service.clock.wall()

        def act() -> None:
            self._connection.require(receiver.path, Right.LISTEN)
            _settle(receiver.queue, lock, outcome, remote)
            if outcome == Delivery.MODIFIED:
                delivery.local.failed, delivery.local.undeliverable = remote.failed, remote.undeliverable
            delivery.update(outcome)
            delivery.settle()

        def refuse(error: BrokerError) -> None:
            _reject(delivery, error)

        self._connection.perform(_operation(outcome, remote), receiver.path, act, refuse)

    # Messages in

    def sent(self, path: str, raw: bytes, delivery: Delivery) -> None:
        """Take a message or a batch, and say so."""
        contents = contents_of(raw)

        def act() -> None:
            self._connection.require(path, Right.SEND)
            self._connection.service.broker.queue(path).send(contents)
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()

        def refuse(error: BrokerError) -> None:
            _reject(delivery, error)

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
            self._detach(link, Condition("amqp:link:detach-forced", "The link is force detached.", _TRACKING))

    def sweep(self) -> float | None:
        """Detach receivers that are idle, and links whose token has ended; return when to look again."""
        service = self._connection.service
        now, due = service.clock.wall(), self._connection.expiry_of_claims
        for link, path in [*self._senders.items(), *((link, one.path) for link, one in self._receivers.items())]:
            try:
                self._connection.require(path, Right.SEND if link.is_receiver else Right.LISTEN)
            except Unauthorized as error:
                self._detach(link, condition(error))
        if service.idle_detach is None:
            return due
        for link, receiver in list(self._receivers.items()):
            ends = receiver.used + service.idle_detach
            if ends <= now:
                told = f"The link is force detached: idle for {service.idle_detach:g} s."
                self._detach(link, Condition("amqp:link:detach-forced", told, _TRACKING))
            else:
                due = ends if due is None else min(due, ends)
        return due

    def _detach(self, link: Link, why: Condition) -> None:
        link.condition = why
        link.close()
        self.closed(link)


_TRACKING: Final = {symbol("tracking-id"): "emulator"}


def _settle(queue: Queue, lock: uuid.UUID, outcome: Any, remote: Any) -> None:
    match outcome:
        case Delivery.ACCEPTED:
            queue.complete(lock)
        case Delivery.REJECTED:
            info = (remote.condition.info if remote.condition else None) or {}
            texts = {str(name): value for name, value in info.items()}
            queue.dead_letter(lock, texts.get("DeadLetterReason"), texts.get("DeadLetterErrorDescription"))
        case Delivery.RELEASED:
            queue.abandon(lock, counts=False)
        case _ if remote.undeliverable:
            queue.defer(lock)
        case _:
            queue.abandon(lock)


def _operation(outcome: Any, remote: Any) -> Operation:
    if outcome == Delivery.MODIFIED and remote.undeliverable:
        return Operation.DEFER
    return _OPERATIONS.get(outcome, Operation.OTHER)


def _reject(delivery: Delivery, error: BrokerError) -> None:
    delivery.local.condition = condition(error)
    delivery.update(Delivery.REJECTED)
    delivery.settle()


def _give_up(queue: Queue, lock: uuid.UUID) -> None:
    try:
        queue.abandon(lock)
    except LockLost:
        return  # settled over another way
