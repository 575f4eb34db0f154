"""The AMQP side of the service: one connection's tokens and requests to nodes; `links.py` has senders and receivers."""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, Final

from jobq.testing.amqp.connection import Connection
from jobq.testing.amqp.faults import DECODE_ERROR, MESSAGE_SIZE, LinkFault
from jobq.testing.amqp.link import Delivery, Link
from jobq.testing.amqp.performatives import Accepted
from jobq.testing.amqp.types import Int, Malformed, Symbol
from jobq.testing.service_bus import management
from jobq.testing.service_bus.access import Claim, Right
from jobq.testing.service_bus.codec import Asked, encode_answer, read_request
from jobq.testing.service_bus.errors import BrokerError, Injected, Unauthorized
from jobq.testing.service_bus.faults import Drop, Fault, Operation, Request, Via
from jobq.testing.service_bus.links import CREDIT, Links, Refuse, entity, path_of
from jobq.testing.service_bus.service import Service

CBS: Final = "$cbs"
MANAGEMENT: Final = "/$management"
_REQUEST_BYTES: Final = 128 * 1024 * 1024  # the queue's own limit answers long before


class AmqpConnection(Connection):
    """One connection of a client.

    Args:
        service: the state behind it.
        connections: where it enters itself while it is open.
    """

    container_id: ClassVar[str] = "jobq-service-bus-emulator"

    def __init__(self, service: Service, connections: "set[AmqpConnection]") -> None:
        super().__init__()
        self.service = service
        self._connections = connections
        self._claims: dict[str, Claim] = {}
        self._nodes: dict[Link, str] = {}  # links to nodes that answer
        self._links = Links(self)

    # Events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; no locks or links yet."""
        super().connection_made(transport)
        self._connections.add(self)

    def on_attach(self, link: Link) -> None:
        """Open a link to a node that answers; senders and receivers are asked about elsewhere."""
        node = entity(link)
        if node == CBS or node.endswith(MANAGEMENT):
            self._nodes[link] = node
            link.open(max_message_bytes=0 if link.is_sender else _REQUEST_BYTES, credit=0 if link.is_sender else CREDIT)
        else:
            self._links.attach(link, node)

    def on_flow(self, link: Link) -> None:
        """Hand out messages that a client asks for."""
        self._links.asked(link)

    def on_room(self, link: Link) -> None:
        """Hand out messages that had no room."""
        self._links.flow(link)

    def on_message(self, delivery: Delivery) -> None:
        """Take a request, or a message."""
        link = delivery.link
        node = self._nodes.get(link)
        if node is None:
            self._links.sent(delivery)
        else:
            if delivery.is_too_large:
                raise LinkFault(MESSAGE_SIZE, f"The request has {delivery.size} bytes.")
            try:
                asked = read_request(bytes(delivery.payload))
            except Malformed as malformed:
                raise LinkFault(DECODE_ERROR, str(malformed)) from malformed
            delivery.settle(Accepted())
            if node == CBS:
                self._put_token(asked)
            else:
                self._manage(node, asked)
        if link.credit < CREDIT // 2:
            link.grant(CREDIT)

    def on_outcome(self, delivery: Delivery, outcome: object) -> None:
        """Settle a message."""
        self._links.settled(delivery, outcome)

    def on_detached(self, link: Link) -> None:
        """Forget a link."""
        self._nodes.pop(link, None)
        self._links.closed(link)

    def on_lost(self) -> None:
        """End; what becomes of locks is contested."""
        self._connections.discard(self)
        self._links.lost()

    # Requests

    def perform(
        self, operation: Operation, path: str, act: Callable[[], object], refuse: Refuse, *, messages: int = 1
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

    def _carry_out(self, request: Request, fault: Fault, act: Callable[[], object], refuse: Refuse) -> None:
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
            request.status = error.status
            refuse(error)
        if fault.drop is Drop.AFTER:
            self.drop()

    def require(self, path: str, right: Right) -> None:
        """Raise Unauthorized unless a token was put that allows this now."""
        now = self.service.clock.wall()
        if not any(claim.allows(path, right, now) for claim in self._claims.values()):
            raise Unauthorized(f"Unauthorized access. '{right}' claim(s) are required to perform this operation.")

    def _put_token(self, asked: Asked) -> None:
        audience = path_of(str(asked.properties.get("name", "")))

        def act() -> None:
            self._claims[audience.lower()] = self.service.access.verify(str(asked.body))
            self._answer(CBS, asked, {"status-code": Int(202), "status-description": "Accepted"}, None)

        def refuse(error: BrokerError) -> None:
            status = {"status-code": Int(error.status), "status-description": str(error)}
            self._answer(CBS, asked, status, None)

        self.perform(Operation.AUTHORIZE, audience, act, refuse)

    def _manage(self, node: str, asked: Asked) -> None:
        path = node.removesuffix(MANAGEMENT)

        def refuse(error: BrokerError) -> None:
            status = {
                "statusCode": Int(error.status),
                "statusDescription": str(error),
                "errorCondition": Symbol(error.condition),
            }
            self._answer(node, asked, status, {})

        name = str(asked.properties.get("operation"))
        try:
            call = management.read(name, asked.body, self.service.broker.fidelity)
        except BrokerError as error:
            refuse(error)
            return

        def act() -> None:
            self.require(path, call.right)
            self._links.used(path)
            answer = call.run(self.service.broker.queue(path))
            status = {"statusCode": Int(204), "statusDescription": "No Content"}
            if answer is not None:
                status = {"statusCode": Int(200), "statusDescription": "OK"}
            self._answer(node, asked, status, answer or {})

        self.perform(call.operation, path, act, refuse, messages=call.messages)

    def _answer(self, node: str, asked: Asked, properties: dict[str, Any], body: object) -> None:
        """Answer on the link of this connection that reads from the node."""
        for link, name in self._nodes.items():
            if name == node and link.is_sender:
                link.send_when_possible(encode_answer(asked, properties, body))
                return

    # Time and tests

    def sweep(self) -> float | None:
        """Detach what is idle or no longer allowed; return when to look again, in seconds since the epoch."""
        return self._links.sweep()

    def detach_receivers(self) -> None:
        """Detach all receivers, as the service does to idle ones."""
        self._links.detach_receivers()

    @property
    def expiry_of_claims(self) -> float | None:
        """When the first token ends, in seconds since the epoch."""
        now = self.service.clock.wall()
        return min((claim.expires for claim in self._claims.values() if claim.expires > now), default=None)
