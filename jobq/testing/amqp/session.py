"""Sessions of a connection: their links by handle, the window for transfers, deliveries that await an outcome."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from jobq.testing.amqp.composite import Composite
from jobq.testing.amqp.faults import (
    HANDLE_IN_USE,
    INVALID_FIELD,
    NOT_ALLOWED,
    UNATTACHED_HANDLE,
    ConnectionFault,
    LinkFault,
    SessionFault,
)
from jobq.testing.amqp.link import Delivery, Link
from jobq.testing.amqp.performatives import Attach, Begin, Detach, Disposition, End, Error, Flow, Transfer

HANDLE_MAX: Final = 255
_COUNTER: Final = 2**32
# Links have credit and messages a limit, so sessions need no limit of their own.
_INCOMING_WINDOW: Final = 2**31 - 1


class Carrier(Protocol):
    """The connection of a session, and the events of its links, which a broker answers."""

    @property
    def is_writable(self) -> bool:
        """Whether messages are to be sent."""
        ...

    def send(self, channel: int, frame: Composite, payload: bytes = b"") -> None:
        """Send a frame."""

    def room_for(self, transfer: Transfer) -> int:
        """Return how many bytes of a message fit into a frame that the client takes."""
        ...

    def on_attach(self, link: Link) -> None:
        """Open or refuse a link."""

    def on_flow(self, link: Link) -> None:
        """Hear that the client said how a link's credit stands."""

    def on_room(self, link: Link) -> None:
        """Hear that there may be room for messages again: in the session's window, or on the wire."""

    def on_message(self, delivery: Delivery) -> None:
        """Take a whole message of the client."""

    def on_outcome(self, delivery: Delivery, outcome: object) -> None:
        """Hear what the client says of a message."""

    def on_detached(self, link: Link) -> None:
        """Forget a link."""


class Session:
    """One session of a client.

    Args:
        connection: whose.
        channel: its number, in both directions.
        begin: how the client began it.

    Attributes:
        links: by handle.
        unsettled: what was sent and awaits an outcome, by number, oldest first.
    """

    def __init__(self, connection: Carrier, channel: int, begin: Begin) -> None:
        self.links: dict[int, Link] = {}
        self.unsettled: dict[int, Delivery] = {}
        self.is_ended = False
        self._connection = connection
        self._channel = channel
        self._next_incoming = begin.next_outgoing_id
        self._next_outgoing = 0  # transfers: frames
        self._next_delivery = 0
        self._window = begin.incoming_window
        self._outbox: deque[tuple[Transfer, bytes]] = deque()  # what waits for the window
        self.send(
            Begin(
                remote_channel=channel,
                next_outgoing_id=0,
                incoming_window=_INCOMING_WINDOW,
                outgoing_window=_INCOMING_WINDOW,
                handle_max=HANDLE_MAX,
            )
        )

    def handle(self, frame: Composite, payload: bytes) -> None:
        """Do what a frame says; what a session or a link cannot stand ends it."""
        if self.is_ended:
            return
        try:
            self._handle(frame, payload)
        except SessionFault as fault:
            self.end(fault.error)

    def _handle(self, frame: Composite, payload: bytes) -> None:
        match frame:
            case Attach():
                self._attach(frame)
            case Flow():
                self._flow(frame)
            case Transfer():
                self._transfer(frame, payload)
            case Disposition():
                self._disposition(frame)
            case Detach():
                self._detach(frame)
            case _:
                raise SessionFault(NOT_ALLOWED, f"{type(frame).__name__} does not belong into a session.")

    def end(self, error: Error | None = None) -> None:
        """End the session from this side, with all its links."""
        if self.is_ended:
            return
        self.send(End(error=error))
        self.is_ended = True
        for link in self.links.values():
            if not link.is_ended:
                link.is_ended = True
                self._connection.on_detached(link)
        self.links, self.unsettled = {}, {}
        self._outbox.clear()

    # Links

    def _attach(self, attach: Attach) -> None:
        if attach.handle > HANDLE_MAX:
            raise ConnectionFault("amqp:connection:framing-error", f"Handles end with {HANDLE_MAX}.")
        if attach.handle in self.links:
            raise SessionFault(HANDLE_IN_USE, f"The handle {attach.handle} is in use.")
        if not attach.role and attach.initial_delivery_count is None:
            raise SessionFault(INVALID_FIELD, "A sender has to say its initial delivery count.")
        link = Link(self, attach)
        self.links[attach.handle] = link
        self._about(link, lambda: self._connection.on_attach(link))

    def _detach(self, detach: Detach) -> None:
        link = self._link(detach.handle)
        del self.links[detach.handle]
        if not link.is_ended:
            link.detach(is_closed=detach.closed)
            self._connection.on_detached(link)

    def _link(self, handle: int) -> Link:
        link = self.links.get(handle)
        if link is None:
            raise SessionFault(UNATTACHED_HANDLE, f"No link has the handle {handle}.")
        return link

    def _about(self, link: Link, act: Callable[[], None]) -> None:
        """Do something for a link; what it cannot stand ends it alone."""
        try:
            act()
        except LinkFault as fault:
            self.fail(link, fault.error)

    def fail(self, link: Link, error: Error) -> None:
        """End a link with an error."""
        link.detach(error)
        self._connection.on_detached(link)

    def forget(self, link: Link) -> None:
        """Drop what was to be sent over a link, and who waits for outcomes."""
        self._outbox = deque(one for one in self._outbox if one[0].handle != link.remote.handle)
        for delivery in [one for one in self.unsettled.values() if one.link is link]:
            del self.unsettled[delivery.number]

    # Transfers

    @property
    def can_send(self) -> bool:
        """Whether a message would leave at once."""
        return not self._outbox and self._window > 0 and self._connection.is_writable

    def send(self, frame: Composite, payload: bytes = b"") -> None:
        """Send a frame on this session's channel."""
        if not self.is_ended:
            self._connection.send(self._channel, frame, payload)

    def new_delivery(self, link: Link, *, is_settled: bool) -> Delivery:
        """Return a delivery with the next number."""
        delivery = Delivery(link, self._next_delivery, is_settled=is_settled)
        self._next_delivery = (self._next_delivery + 1) % _COUNTER
        if not is_settled:
            self.unsettled[delivery.number] = delivery
        return delivery

    def transfer(self, first: Transfer, payload: bytes) -> None:
        """Send a message in as many frames as it needs, as far as the window lets it."""
        room = self._connection.room_for(first)
        parts = [payload[start : start + room] for start in range(0, len(payload), room)] or [b""]
        for index, part in enumerate(parts):
            more = index < len(parts) - 1
            frame = Transfer(handle=first.handle, more=more) if index else replace(first, more=more)
            self._outbox.append((frame, part))
        self._empty_outbox()

    def _empty_outbox(self) -> None:
        while self._outbox and self._window > 0:
            frame, part = self._outbox.popleft()
            self._window -= 1
            self._next_outgoing = (self._next_outgoing + 1) % _COUNTER
            self.send(frame, part)

    def _transfer(self, transfer: Transfer, payload: bytes) -> None:
        self._next_incoming = (self._next_incoming + 1) % _COUNTER
        link = self._link(transfer.handle)
        if link.is_ended:
            return

        def take() -> None:
            delivery = link.on_transfer(transfer, payload)
            if delivery is not None:
                self._connection.on_message(delivery)

        self._about(link, take)

    def _disposition(self, disposition: Disposition) -> None:
        if not disposition.role:  # of what the client sent, which was settled when it was answered
            return
        last = disposition.first if disposition.last is None else disposition.last
        # Walk what awaits an outcome, not the range, which is the client's word.
        for delivery in [one for number, one in self.unsettled.items() if disposition.first <= number <= last]:
            if disposition.settled:
                delivery.is_settled = True
                self.unsettled.pop(delivery.number, None)
            self._connection.on_outcome(delivery, disposition.state)

    # Flow

    def _flow(self, flow: Flow) -> None:
        in_flight = (self._next_outgoing - (flow.next_incoming_id or 0)) % _COUNTER
        self._window = max(0, flow.incoming_window - (in_flight if in_flight < _COUNTER // 2 else 0))
        link = None if flow.handle is None else self._link(flow.handle)
        if link is not None:
            link.on_flow(flow)
        self._empty_outbox()
        self.resume()
        if link is not None and not link.is_ended:
            self._connection.on_flow(link)
        if flow.echo and link is not None:
            link.send_flow()
        elif flow.echo:
            self.send_flow(None, None, None)

    def resume(self) -> None:
        """Send what has waited for credit, for the window, or for the client to read."""
        for link in [link for link in self.links.values() if not link.is_ended]:
            link.send_waiting()
            self._connection.on_room(link)

    def send_flow(self, handle: int | None, count: int | None, credit: int | None, *, drain: bool = False) -> None:
        """Say how the session stands, and one of its links."""
        self.send(
            Flow(
                next_incoming_id=self._next_incoming,
                incoming_window=_INCOMING_WINDOW,
                next_outgoing_id=self._next_outgoing,
                outgoing_window=_INCOMING_WINDOW,
                handle=handle,
                delivery_count=count,
                link_credit=credit,
                drain=drain,
            )
        )
