"""Links and deliveries of a session: credit, messages of several frames, outcomes."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from jobq.testing.amqp.composite import Composite
from jobq.testing.amqp.faults import INVALID_FIELD, RESOURCE_LIMIT, TRANSFER_LIMIT, LinkFault
from jobq.testing.amqp.performatives import Attach, Detach, Disposition, Error, Flow, Transfer

_COUNTER: Final = 2**32  # counters begin anew here
_TAG_BYTES: Final = 32
_WAITING: Final = 1000  # messages that wait for credit; a client that asks and never listens must not fill the memory
SETTLED: Final = 1  # the settle mode of a sender that awaits no outcome


class _Session(Protocol):
    unsettled: "dict[int, Delivery]"

    @property
    def can_send(self) -> bool: ...
    def send(self, frame: Composite) -> None: ...
    def send_flow(self, handle: int | None, count: int | None, credit: int | None, *, drain: bool) -> None: ...
    def new_delivery(self, link: "Link", *, is_settled: bool) -> "Delivery": ...
    def transfer(self, first: Transfer, payload: bytes) -> None: ...
    def fail(self, link: "Link", error: Error) -> None: ...
    def forget(self, link: "Link") -> None: ...


@dataclass(eq=False)
class Delivery:
    """A message on its way, in either direction; equal to itself alone.

    Attributes:
        link: over which.
        number: the session's, by which outcomes name it.
        payload: the encoded message; nothing, if it is too large.
        size: bytes that came of it.
        message_format: 0 = one message.
        state: what the client said of it beforehand, as within a transaction.
        is_settled: whether the other side awaits no outcome.
    """

    link: "Link"
    number: int
    payload: bytearray = field(default_factory=bytearray)
    size: int = 0
    message_format: int = 0
    state: Any = None
    is_settled: bool = False

    @property
    def is_too_large(self) -> bool:
        """Whether it is over the limit of its link."""
        return self.size > self.link.max_message_bytes

    def settle(self, outcome: Any) -> None:
        """Say what became of it, unless nobody waits for that."""
        session = self.link.session
        if session.unsettled.get(self.number) is self:
            del session.unsettled[self.number]
        if not self.is_settled and not self.link.is_ended:
            self.is_settled = True
            is_receiver = not self.link.is_sender
            session.send(Disposition(role=is_receiver, first=self.number, settled=True, state=outcome))


class Link:
    """One direction between a client and a node of the server.

    Args:
        session: whose.
        remote: how the client attached it.

    Attributes:
        is_sender: whether messages go from the server to the client.
        credit: how many messages may still be sent over it.
        is_draining: whether credit that cannot be used now is to be given up.
        max_message_bytes: of a message that the client sends.
        is_ended: whether nothing is to be done with it any more.
    """

    def __init__(self, session: _Session, remote: Attach) -> None:
        self.session = session
        self.remote = remote
        self.is_sender = remote.role
        self.credit = 0
        self.is_draining = False
        self.is_ended = False
        self._is_attached = False
        self._count = 0 if self.is_sender else remote.initial_delivery_count or 0
        self.max_message_bytes = 0
        self._partial: Delivery | None = None
        self._waiting: deque[bytes] = deque()

    @property
    def awaits_outcomes(self) -> bool:
        """Whether its deliveries are settled by their receiver, not when they are sent."""
        return self.remote.snd_settle_mode != SETTLED

    def open(self, *, max_message_bytes: int = 0, credit: int = 0) -> None:
        """Attach it from this side.

        Args:
            max_message_bytes: of a message that the client sends.
            credit: how many the client may send.
        """
        self.max_message_bytes = max_message_bytes
        self._attach(self.remote.source, self.remote.target)
        if credit:
            self.grant(credit)

    def refuse(self, error: Error) -> None:
        """Attach it without a source and a target, and end it, as the standard wants it."""
        self.detach(error)

    def detach(self, error: Error | None = None, *, is_closed: bool = True) -> None:
        """End it from this side."""
        if self.is_ended:
            return
        if not self._is_attached:
            self._attach(None, None)
        self.is_ended = True
        self._partial = None
        self.session.forget(self)
        self.session.send(Detach(handle=self.remote.handle, closed=is_closed, error=error))

    def _attach(self, source: Any, target: Any) -> None:
        if self.is_ended or self._is_attached:
            return
        self._is_attached = True
        remote = self.remote
        reply = Attach(
            name=remote.name,
            handle=remote.handle,  # each side numbers its own; the client's number is free here too
            role=not remote.role,
            snd_settle_mode=remote.snd_settle_mode,
            rcv_settle_mode=remote.rcv_settle_mode,
            source=source,
            target=target,
            initial_delivery_count=0 if self.is_sender else None,
            max_message_size=self.max_message_bytes or None,
        )
        self.session.send(reply)

    # To the client

    @property
    def can_send(self) -> bool:
        """Whether a message would leave at once."""
        is_usable = self._is_attached and not self.is_ended
        return is_usable and self.credit > 0 and self.session.can_send

    def send(self, payload: bytes, tag: bytes, *, is_settled: bool) -> Delivery:
        """Send a message; it needs credit."""
        delivery = self.session.new_delivery(self, is_settled=is_settled)
        first = Transfer(
            handle=self.remote.handle,
            delivery_id=delivery.number,
            delivery_tag=tag,
            message_format=0,
            settled=is_settled,
        )
        self.credit -= 1
        self._count = (self._count + 1) % _COUNTER
        self.session.transfer(first, payload)
        return delivery

    def send_when_possible(self, payload: bytes) -> None:
        """Send a message for which nobody awaits an outcome, now or when there is credit."""
        if len(self._waiting) < _WAITING:
            self._waiting.append(payload)
            self.send_waiting()
        else:
            self.session.fail(
                self, Error(condition=RESOURCE_LIMIT, description=f"{_WAITING} messages wait for credit.")
            )

    def send_waiting(self) -> None:
        """Send what waits, as far as there is credit."""
        while self._waiting and self.can_send:
            self.send(self._waiting.popleft(), self._count.to_bytes(4), is_settled=True)

    def on_flow(self, flow: Flow) -> None:
        """Take credit from the client, or nothing on a link that it sends over."""
        if not self.is_sender or self.is_ended:
            return
        if flow.link_credit is not None:
            in_flight = (self._count - (flow.delivery_count or 0)) % _COUNTER
            self.credit = max(0, flow.link_credit - in_flight)
        self.is_draining = flow.drain

    def drained(self) -> None:
        """Give up what credit is left, if the client asked for that and nothing that it could use is held back."""
        if self.is_draining and (self.can_send or not self.credit):
            self.is_draining = False
            self._count = (self._count + self.credit) % _COUNTER
            self.credit = 0
            self.send_flow(drain=True)

    # From the client

    def grant(self, credit: int) -> None:
        """Let the client send so many messages from now on."""
        self.credit = credit
        self.send_flow()

    def send_flow(self, *, drain: bool = False) -> None:
        """Say how the link's credit stands."""
        if self._is_attached and not self.is_ended:
            self.session.send_flow(self.remote.handle, self._count, self.credit, drain=drain)

    def on_transfer(self, transfer: Transfer, payload: bytes) -> Delivery | None:
        """Take a frame of a message; return the message once it is whole.

        Raises:
            LinkFault: the client sent what it must not.
        """
        delivery = self._partial or self._begun(transfer)
        if transfer.delivery_id not in {None, delivery.number}:
            raise LinkFault(INVALID_FIELD, "A delivery began before the one before it was whole.")
        self._partial = None if transfer.aborted else delivery
        if transfer.aborted:
            return None
        delivery.is_settled = delivery.is_settled or bool(transfer.settled)
        delivery.state = transfer.state
        delivery.size += len(payload)
        if delivery.is_too_large:
            delivery.payload.clear()
        else:
            delivery.payload += payload
        if transfer.more:
            return None
        self._partial = None
        return delivery

    def _begun(self, transfer: Transfer) -> Delivery:
        if self.is_sender or not self._is_attached:
            raise LinkFault("amqp:not-allowed", "Nothing is to be sent over this link, or not yet.")
        if transfer.delivery_id is None or transfer.delivery_tag is None or len(transfer.delivery_tag) > _TAG_BYTES:
            raise LinkFault(INVALID_FIELD, "The first transfer of a delivery needs its id and its tag.")
        if not self.credit:
            raise LinkFault(TRANSFER_LIMIT, "There is no credit left.")
        self.credit -= 1
        self._count = (self._count + 1) % _COUNTER
        return Delivery(self, transfer.delivery_id, message_format=transfer.message_format or 0)
