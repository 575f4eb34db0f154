"""AMQP 1.0: proton's engine, which does no input or output of its own, inside an asyncio protocol.

One object is one connection: here are bytes, events and requests to nodes; `links.py` has senders and receivers.
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

from proton import Collector, Connection, Delivery, Endpoint, Event, Link, Transport, int32, symbol
from proton import Message as AmqpMessage

from jobq.testing.service_bus import management
from jobq.testing.service_bus.access import Claim, Right
from jobq.testing.service_bus.errors import BrokerError, Injected, Unauthorized, condition_of, status_of
from jobq.testing.service_bus.faults import Drop, Fault, Operation, Request, Via
from jobq.testing.service_bus.links import Links, entity
from jobq.testing.service_bus.service import Service

CBS: Final = "$cbs"
MANAGEMENT: Final = "/$management"
_FRAME_BYTES: Final = 65536
_IDLE_SECONDS: Final = 60
_CREDIT: Final = 1000
_Refuse = Callable[[BrokerError], None]


class AmqpConnection(asyncio.Protocol):
    """One connection of a client.

    Args:
        service: the state behind it.
        connections: where it enters itself while it is open.
    """

    def __init__(self, service: Service, connections: "set[AmqpConnection]") -> None:
        self.service = service
        self.is_open = False
        self._connections = connections
        self._claims: dict[str, Claim] = {}
        self._replies: dict[str, list[Link]] = {}
        self._ticking: asyncio.TimerHandle | None = None
        self._links = Links(self)

    # Bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; no locks or links yet."""
        assert isinstance(transport, asyncio.Transport)
        self.loop, self._socket = asyncio.get_running_loop(), transport
        self._engine = Transport(Transport.SERVER)
        self._engine.max_frame_size, self._engine.idle_timeout = _FRAME_BYTES, _IDLE_SECONDS
        self._engine.sasl().allowed_mechs("ANONYMOUS")  # who it is comes later, on $cbs
        self._connection, self._events = Connection(), Collector()
        self._connection.collect(self._events)
        self._connection.container = "jobq-service-bus-emulator"
        self._engine.bind(self._connection)
        self.is_open = True
        self._connections.add(self)
        self._tick()
        self._pump()

    def data_received(self, data: bytes) -> None:
        """Feed the engine, as much as it takes at a time."""
        while data and (room := self._engine.capacity()) > 0:
            self._engine.push(data[:room])
            data = data[room:]
            self._pump()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """End; what becomes of locks is contested."""
        self.is_open = False
        self._connections.discard(self)
        if self._ticking is not None:
            self._ticking.cancel()
        self._links.lost()

    def drop(self) -> None:
        """Break the connection without a word."""
        self.is_open = False
        self._socket.abort()

    def flush(self) -> None:
        """Write what the engine has to say."""
        while self.is_open and (pending := self._engine.pending()) > 0:
            out = bytes(self._engine.peek(pending))
            self._socket.write(out)
            self._engine.pop(len(out))
        if self.is_open and self._engine.pending() < 0:
            self._socket.close()

    def _tick(self) -> None:
        now = time.monotonic()
        due = self._engine.tick(now)
        self.flush()
        wait = min(max(due - now, 0.5), 10) if due else 10
        self._ticking = self.loop.call_later(wait, self._tick)

    # Events

    def _pump(self) -> None:
        while (event := self._events.peek()) is not None:
            self._dispatch(event)
            self._events.pop()
        self.flush()

    def _dispatch(self, event: Any) -> None:
        match event.type:
            case Event.CONNECTION_REMOTE_OPEN:
                self._connection.open()
            case Event.SESSION_REMOTE_OPEN:
                event.session.open()
            case Event.LINK_REMOTE_OPEN:
                self._attach(event.link)
            case Event.LINK_FLOW:
                self._links.flow(event.link)
            case Event.DELIVERY:
                self._delivery(event.link, event.delivery)
            case Event.LINK_REMOTE_CLOSE | Event.LINK_REMOTE_DETACH:
                self._links.closed(event.link)
                event.link.close()
            case Event.SESSION_REMOTE_CLOSE:
                event.session.close()
            case Event.CONNECTION_REMOTE_CLOSE:
                self._connection.close()

    def _attach(self, link: Link) -> None:
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.snd_settle_mode, link.rcv_settle_mode = link.remote_snd_settle_mode, link.remote_rcv_settle_mode
        node = entity(link.remote_target.address if link.is_receiver else link.remote_source.address)
        if node == CBS or node.endswith(MANAGEMENT):
            link.open()
            if link.is_receiver:
                link.flow(_CREDIT)
            else:
                self._replies.setdefault(node, []).append(link)
        else:
            self._links.attach(link, node)

    def _delivery(self, link: Link, delivery: Delivery) -> None:
        if link.is_sender:
            if delivery.updated:
                self._links.settled(link, delivery)
            return
        if not delivery.readable or delivery.partial:
            return
        raw = bytes(link.recv(delivery.pending))
        link.advance()
        if link.credit < _CREDIT // 2:
            link.flow(_CREDIT // 2)
        node = entity(link.target.address)
        if node == CBS or node.endswith(MANAGEMENT):
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()
            self._ask(node, raw)
        else:
            self._links.sent(node, raw, delivery)

    # Requests

    def perform(
        self, operation: Operation, path: str, act: Callable[[], object], refuse: _Refuse, *, messages: int = 1
    ) -> None:
        """Carry out a request of any kind: log it, let befall it what is planned, do it or refuse it.

        Args:
            operation: what was asked.
            path: of the queue.
            act: does it and answers; raises BrokerError.
            refuse: answers with an error.
            messages: how many it is about.
        """
        request, fault = self.service.gate.admit(Via.AMQP, operation, path, messages)
        if fault.delay:
            self.loop.call_later(fault.delay, self._carry_out, request, fault, act, refuse)
        else:
            self._carry_out(request, fault, act, refuse)

    def _carry_out(self, request: Request, fault: Fault, act: Callable[[], object], refuse: _Refuse) -> None:
        if not self.is_open:
            return
        if fault.drop is Drop.BEFORE:
            self.drop()
            return
        try:
            if fault.status:
                raise Injected(fault.status)
            self.service.gate.charge(request)
            act()
            request.status = 200
        except BrokerError as error:
            request.status = status_of(error)
            refuse(error)
        if fault.drop is Drop.AFTER:
            self.drop()
        self.flush()

    def require(self, path: str, right: Right) -> None:
        """Raise Unauthorized unless a token was put that allows this now."""
        now = self.service.clock.wall()
        if not any(claim.allows(path, right, now) for claim in self._claims.values()):
            raise Unauthorized(f"Unauthorized access. '{right}' claim(s) are required to perform this operation.")

    def _ask(self, node: str, raw: bytes) -> None:
        asked = AmqpMessage()
        asked.decode(raw)
        if node == CBS:
            self._put_token(asked)
        else:
            self._manage(node, asked)

    def _put_token(self, asked: AmqpMessage) -> None:
        audience = entity(str((asked.properties or {}).get("name", "")))

        def act() -> None:
            self._claims[audience.lower()] = self.service.access.verify(str(asked.body))
            self._reply(CBS, asked, {"status-code": int32(202), "status-description": "Accepted"}, None)

        def refuse(error: BrokerError) -> None:
            told = {"status-code": int32(status_of(error)), "status-description": str(error)}
            self._reply(CBS, asked, told, None)

        self.perform(Operation.AUTHORIZE, audience, act, refuse)

    def _manage(self, node: str, asked: AmqpMessage) -> None:
        path = node.removesuffix(MANAGEMENT)

        def refuse(error: BrokerError) -> None:
            told = {
                "statusCode": int32(status_of(error)),
                "statusDescription": str(error),
                "errorCondition": symbol(condition_of(error)),
            }
            self._reply(node, asked, told, {})

        name = str((asked.properties or {}).get("operation"))
        try:
            call = management.read(name, asked.body or {}, self.service.broker.fidelity)
        except BrokerError as error:
            refuse(error)
            return

        def act() -> None:
            self.require(path, call.right)
            self._links.used(path)
            answer = call.run(self.service.broker.queue(path))
            told = {"statusCode": int32(204), "statusDescription": "No Content"}
            if answer is not None:
                told = {"statusCode": int32(200), "statusDescription": "OK"}
            self._reply(node, asked, told, answer or {})

        self.perform(call.operation, path, act, refuse, messages=call.messages)

    def _reply(self, node: str, asked: AmqpMessage, properties: dict[str, Any], body: object) -> None:
        """Answer on the link of this connection that reads from the node."""
        message = AmqpMessage(body=body)
        message.correlation_id, message.properties = asked.id, properties
        usable = Endpoint.LOCAL_ACTIVE, Endpoint.REMOTE_ACTIVE
        for link in self._replies.get(node, []):
            if all(link.state & state for state in usable):
                delivery = link.delivery(uuid.uuid4().bytes)
                link.send(message.encode())
                link.advance()
                delivery.settle()
                return

    # Time and tests

    def sweep(self) -> float | None:
        """Detach what is idle or no longer allowed; return when to look again, in seconds since the epoch."""
        due = self._links.sweep()
        self.flush()
        return due

    def detach_receivers(self) -> None:
        """Detach all receivers, as the service does to idle ones."""
        self._links.detach_receivers()
        self.flush()

    @property
    def expiry_of_claims(self) -> float | None:
        """When the first token ends, in seconds since the epoch."""
        now = self.service.clock.wall()
        return min((claim.expires for claim in self._claims.values() if claim.expires > now), default=None)
