"""One AMQP connection of a client: its tokens, its requests to nodes, its senders and receivers."""

import asyncio
import uuid
from typing import Any, Final

from tests.emulators.service_bus import frames, management, outcomes, sdk_codec
from tests.emulators.service_bus.access import Right
from tests.emulators.service_bus.codec import Asked, contents_of, encode_answer, encode_message, error_of, read_request
from tests.emulators.service_bus.errors import BrokerError, LockLost, NotAllowed, Unauthorized
from tests.emulators.service_bus.faults import Operation, Via
from tests.emulators.service_bus.link import Link, path_of
from tests.emulators.service_bus.requests import Requests
from tests.emulators.service_bus.sdk_codec import Accepted, Rejected, int32, symbol, text
from tests.emulators.service_bus.service import Service

CBS: Final = "$cbs"
MANAGEMENT: Final = "/$management"
_REQUEST_BYTES: Final = 128 * 1024 * 1024  # the queue's own limit answers long before
_DETACHED: Final = "amqp:link:detach-forced"
_CLOSED: Final = "amqp:connection:forced"
# Source of both: learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-troubleshoot.
_FIRST_LINK_SECONDS: Final = 60.0  # in which a new connection has to get a link
_NEXT_LINK_SECONDS: Final = 300.0  # after its last link has gone
_SESSION_FILTER: Final = b"com.microsoft:session-filter"


class AmqpConnection(Requests):
    """One connection of a client.

    Args:
        service: the state behind it.
        connections: where it enters itself while it is open.
    """

    def __init__(self, service: Service, connections: "set[AmqpConnection]") -> None:
        super().__init__(service)
        self._connections = connections
        self._links: dict[tuple[int, int], Link] = {}  # by channel and handle
        self._given: dict[tuple[int, int], tuple[Link, uuid.UUID]] = {}  # by channel and delivery: not settled yet
        self._ends_without_link = self.now + _FIRST_LINK_SECONDS
        self._is_woken = False

    @property
    def _now(self) -> float:
        return self.service.clock.wall()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; no locks or links yet."""
        super().connection_made(transport)
        self._connections.add(self)
        self.service.broker.on_timer()

    def on_lost(self) -> None:
        """End; what becomes of locks is contested."""
        self._connections.discard(self)
        given = list(self._given.values())
        for key in list(self._links):
            self._forget(key)
        if not self.service.broker.fidelity.locks_survive_disconnect:
            for link, lock in given:
                _give_up(link, lock)

    def on_frame(self, channel: int, code: int, fields: list[Any]) -> None:
        """Take a frame of a session."""
        if code == frames.ATTACH:
            self._attach(channel, Link(self, channel, fields))
        elif code == frames.DISPOSITION:
            for number in range(fields[1], (fields[1] if fields[2] is None else fields[2]) + 1):
                self._settle(channel, number, fields[4])
        elif (key := (channel, fields[4 if code == frames.FLOW else 0])) in self._links:  # else it has just ended
            link = self._links[key]
            if code == frames.FLOW:
                self._flow(channel, link, fields)
            elif code == frames.DETACH:
                self._forget(key)
                link.detach()
            elif (whole := link.on_transfer(fields)) is not None:
                self._take(link, *whole)

    # Links

    def _attach(self, channel: int, link: Link) -> None:
        key = (channel, link.handle)
        self._links[key] = link
        if _is_node(link):
            link.open(_REQUEST_BYTES)
            return

        def act() -> None:
            self.require(link.path, Right.LISTEN if link.gives else Right.SEND)
            queue = self.service.broker.queue(link.path)
            if _SESSION_FILTER in link.filters:
                raise NotAllowed(
                    "A sessionful message receiver cannot be created on an entity that does not require"
                    " sessions. Sessions are not emulated."
                )
            if self._links.get(key) is not link:  # the client has left while this was delayed
                return
            link.queue, link.used = queue, self.now
            link.open(queue.description.max_message_bytes)
            if link.gives:
                queue.listeners.add(self._wake)
            self.service.broker.on_timer()

        def refuse(error: BrokerError) -> None:
            self._links.pop(key, None)
            link.detach(error_of(error))

        self.perform(Operation.ATTACH, link.path, act, refuse)

    def _forget(self, key: tuple[int, int]) -> None:
        """Forget a link; locks that were got over it go on."""
        link = self._links.pop(key)
        self._given = {delivery: given for delivery, given in self._given.items() if given[0] is not link}
        used = self._used_links()
        if link.queue is not None and all(other.queue is not link.queue for _, other in used if other.gives):
            link.queue.listeners.discard(self._wake)
        if link.queue is not None and not used:
            self._ends_without_link = self.now + _NEXT_LINK_SECONDS
            self.service.broker.on_timer()

    def _used_links(self) -> list[tuple[tuple[int, int], Link]]:
        return [(key, link) for key, link in self._links.items() if link.queue is not None]

    # Messages out

    def _flow(self, channel: int, link: Link, fields: list[Any]) -> None:
        is_draining = link.on_flow(fields)
        if link.queue is not None and link.gives:
            link.used = self.now
            self._hand_out(channel, link)
        if is_draining:
            link.drained()

    def _hand_out(self, channel: int, link: Link) -> None:
        while link.credit and link.queue and (message := link.queue.receive(destructive=link.is_settled)) is not None:
            link.used = self.now
            request, _ = self.service.gate.admit(Via.AMQP, Operation.RECEIVE, link.path)
            request.status = 200
            tag = (message.lock or uuid.uuid4()).bytes_le  # the tag is the token, as a .NET Guid
            number = link.give(encode_message(message), tag, is_settled=link.is_settled)
            if message.lock is not None:
                self._given[channel, number] = link, message.lock

    def _wake(self) -> None:
        """Look for messages soon, once for however many came."""
        if not self._is_woken and self.is_open:
            self._is_woken = True
            self.loop.call_soon(self._look)

    def _look(self) -> None:
        self._is_woken = False
        for (channel, _), link in self._used_links():
            if link.gives:
                self._hand_out(channel, link)

    def _settle(self, channel: int, number: int, state: Any) -> None:
        """Do to a message what the receiver said of it, and answer with the same outcome, which the SDK awaits."""
        outcome = outcomes.read(state)
        if outcome is None or (channel, number) not in self._given:
            return
        link, lock = self._given.pop((channel, number))
        queue = link.queue
        assert queue is not None
        link.used = self.now

        def act() -> None:
            self.require(link.path, Right.LISTEN)
            link.settle(number, outcomes.settle(queue, lock, *outcome))

        def refuse(error: BrokerError) -> None:
            link.settle(number, Rejected(error=error_of(error)))

        self.perform(outcomes.operation_of(*outcome), link.path, act, refuse)

    # Messages in

    def _take(self, link: Link, first: list[Any], payload: bytes) -> None:
        """Take a message or a batch, or a request."""
        number = first[1]
        if _is_node(link):
            link.settle(number, Accepted())
            asked = read_request(payload)
            if link.path == CBS:
                self._put_token(asked)
            else:
                self._manage(link.path, asked)
            return
        link.used = self.now
        contents = contents_of(payload, first[3])

        def act() -> None:
            self.require(link.path, Right.SEND)
            self.service.broker.queue(link.path).send(contents)
            link.settle(number, Accepted())

        def refuse(error: BrokerError) -> None:
            link.settle(number, Rejected(error=error_of(error)))

        self.perform(Operation.SEND, link.path, act, refuse, messages=len(contents))

    # Requests

    def _put_token(self, asked: Asked) -> None:
        audience = path_of(str(asked.properties.get("name", "")))

        def act() -> None:
            self.claims[audience.lower()] = self.service.access.verify(text(asked.body))
            self._answer(CBS, asked, {"status-code": int32(202), "status-description": "Accepted"}, None)

        def refuse(error: BrokerError) -> None:
            self._answer(CBS, asked, {"status-code": int32(error.status), "status-description": str(error)}, None)

        self.perform(Operation.AUTHORIZE, audience, act, refuse)

    def _manage(self, node: str, asked: Asked) -> None:
        path = node.removesuffix(MANAGEMENT)

        def refuse(error: BrokerError) -> None:
            status = {
                "statusCode": int32(error.status),
                "statusDescription": str(error),
                "errorCondition": symbol(error.condition),
            }
            self._answer(node, asked, status, None)

        name = str(asked.properties.get("operation"))
        try:
            call = management.read(name, asked.body, self.service.broker.fidelity)
        except BrokerError as error:
            refuse(error)
            return

        def act() -> None:
            self.require(path, call.right)
            for _, link in self._used_links():  # of this queue: `$management` counts
                link.used = self.now if link.path == path else link.used
            answer = call.run(self.service.broker.queue(path))
            status = {"statusCode": int32(204), "statusDescription": "No Content"}
            if answer is not None:
                status = {"statusCode": int32(200), "statusDescription": "OK"}
            self._answer(node, asked, status, answer)

        self.perform(call.operation, path, act, refuse, messages=call.messages)

    def _answer(self, node: str, asked: Asked, properties: dict[str, Any], body: object) -> None:
        """Answer on the link of this connection that reads from the node."""
        for link in self._links.values():
            if link.path == node and link.gives:
                link.answer(encode_answer(asked, properties, body))
                return

    # Time and tests

    def sweep(self) -> float | None:
        """Detach links whose token has ended; end what is idle; return when to look again, since the epoch."""
        now = self.now
        due = [claim.expires for claim in self.claims.values() if claim.expires > now]
        for key, link in self._used_links():
            try:
                self.require(link.path, Right.LISTEN if link.gives else Right.SEND)
            except Unauthorized as error:
                self._detach(key, error_of(error))
        idle = self.service.idle_detach
        if idle is None:
            return min(due, default=None)
        for key, link in self._used_links():
            if link.used + idle <= now:
                self._detach(key, sdk_codec.error(_DETACHED, f"The link is force detached: idle for {idle:g} s."))
            else:
                due.append(link.used + idle)
        if not self._used_links():
            if self._ends_without_link <= now:
                self.close(sdk_codec.error(_CLOSED, "The connection was inactive, without a link, for too long."))
            else:
                due.append(self._ends_without_link)
        return min(due, default=None)

    def detach_receivers(self) -> None:
        """Detach all receivers, as the service does to idle ones."""
        for key, link in self._used_links():
            if link.gives:
                self._detach(key, sdk_codec.error(_DETACHED, "The link is force detached."))

    def _detach(self, key: tuple[int, int], why: Any) -> None:
        self._links[key].detach(why)
        self._forget(key)


def _is_node(link: Link) -> bool:
    return link.path == CBS or link.path.endswith(MANAGEMENT)


def _give_up(link: Link, lock: uuid.UUID) -> None:
    try:
        if link.queue is not None:
            link.queue.abandon(lock)
    except LockLost:
        return  # settled over another way
