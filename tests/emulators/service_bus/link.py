"""One link of a client: credit in both directions, and messages of several frames."""

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from tests.emulators.service_bus import sdk_codec
from tests.emulators.service_bus.frames import WINDOW, Frames

if TYPE_CHECKING:
    from tests.emulators.service_bus.queue import Queue

_CREDIT: Final = 1000  # messages that a client may send before it hears more
_FRAME_OVERHEAD: Final = 128  # bytes of a transfer, beside its part of the message
_SETTLED: Final = 1  # the settle mode of who awaits no outcome


class Link:
    """A link between a client and a node.

    Args:
        connection: whose.
        channel: of its session.
        attach: the fields of the frame by which the client attached it.

    Attributes:
        gives: whether messages go from here to the client.
        path: of the node.
        is_settled: whether what is given is gone at once, and awaits no outcome.
        filters: what a receiver wants of the messages.
        credit: how many messages may still go over it.
        queue: of a sender or receiver of messages.
        used: when the client last did something with it, in seconds since the epoch.
        is_ended: whether nothing is to be done with it any more.
    """

    def __init__(self, connection: Frames, channel: int, attach: list[Any]) -> None:
        self._connection, self._channel, self._attach = connection, channel, attach
        self.handle: int = attach[1]
        self.gives = bool(attach[2])
        end = attach[5 if self.gives else 6] or [None]
        self.path = path_of(sdk_codec.text(end[0]) or "")
        self.filters: dict[Any, Any] = (end[7] if self.gives and len(end) > 7 else None) or {}
        self.is_settled = attach[3] == _SETTLED
        self.credit = 0
        self.queue: Queue | None = None
        self.used = 0.0
        self.is_ended = self._is_attached = False
        self._count = 0 if self.gives else attach[9] or 0
        self._begun: list[Any] = []  # the first frame of a message that is not whole yet
        self._partial = bytearray()
        self._answers: deque[bytes] = deque()  # to requests; each goes when there is credit

    def open(self, max_bytes: int) -> None:
        """Attach it from this side, and let the client send messages of at most so many bytes."""
        self._reply(*sdk_codec.ends(self.path), max_bytes=max_bytes)
        if not self.gives:
            self._grant()

    def detach(self, error: Any = None) -> None:
        """End it from this side; one that was never attached is refused so."""
        if self.is_ended:
            return
        if not self._is_attached:
            self._reply(None, None, max_bytes=None)
        self.is_ended = True
        self._send(sdk_codec.frame("Detach", handle=self.handle, closed=True, error=error))

    def _reply(self, source: Any, target: Any, *, max_bytes: int | None) -> None:
        self._is_attached = True
        name, _, _, sender_settles, receiver_settles = self._attach[:5]
        reply = sdk_codec.frame(
            "Attach",
            name=sdk_codec.text(name),
            handle=self.handle,
            role=not self.gives,
            send_settle_mode=sender_settles,
            rcv_settle_mode=receiver_settles,
            source=source,
            target=target,
            initial_delivery_count=0 if self.gives else None,
            max_message_size=max_bytes,
        )
        self._send(reply)

    # To the client

    def on_flow(self, fields: list[Any]) -> bool:
        """Take credit from the client; return whether it wants what cannot be used now to be given up."""
        if fields[6] is not None:
            self.credit = max(0, fields[6] + (fields[5] or 0) - self._count)
        self._send_answers()
        return bool(fields[8])

    def give(self, payload: bytes, tag: bytes, *, is_settled: bool) -> int:
        """Send a message, which needs credit; return the number of its delivery."""
        self.credit, self._count = self.credit - 1, self._count + 1
        number = next(self._connection.deliveries)
        most = self._connection.frame_bytes - _FRAME_OVERHEAD
        for at in range(0, len(payload), most):
            part, more = payload[at : at + most], at + most < len(payload)
            self._send(
                sdk_codec.frame(
                    "Transfer",
                    handle=self.handle,
                    delivery_id=number,
                    delivery_tag=tag,
                    message_format=0,
                    settled=is_settled,
                    more=more,
                    payload=part,
                )
            )
        return number

    def answer(self, payload: bytes) -> None:
        """Send an answer, now or when there is credit."""
        self._answers.append(payload)
        self._send_answers()

    def _send_answers(self) -> None:
        while self._answers and self.credit:
            self.give(self._answers.popleft(), b"answer", is_settled=True)

    def drained(self) -> None:
        """Give up what credit is left."""
        self._count, self.credit = self._count + self.credit, 0
        self._flow(drain=True)

    # From the client

    def on_transfer(self, fields: list[Any]) -> tuple[list[Any], bytes] | None:
        """Take a frame of a message; return the first of them and the message once it is whole."""
        self._begun = self._begun or fields
        self._partial += fields[11]
        if fields[5]:
            return None
        whole = self._begun, bytes(self._partial)
        self._begun, self._partial = [], bytearray()
        self._count, self.credit = self._count + 1, self.credit - 1
        if self.credit < _CREDIT // 2:
            self._grant()
        return whole

    def settle(self, number: int, outcome: Any) -> None:
        """Say what became of a delivery, of either side."""
        if not self.is_ended:
            done = sdk_codec.frame(
                "Disposition",
                role=not self.gives,
                first=number,
                last=number,
                settled=True,
                state=outcome,
                batchable=False,
            )
            self._send(done)

    def _grant(self) -> None:
        self.credit = _CREDIT
        self._flow(drain=False)

    def _flow(self, *, drain: bool) -> None:
        flow = sdk_codec.frame(
            "Flow",
            next_incoming_id=0,  # the SDK takes that for its own
            incoming_window=WINDOW,
            next_outgoing_id=0,
            outgoing_window=WINDOW,
            handle=self.handle,
            delivery_count=self._count,
            link_credit=self.credit,
            drain=drain,
        )
        self._send(flow)

    def _send(self, frame: Any) -> None:
        self._connection.send(frame, self._channel)


def path_of(address: str) -> str:
    """Return the path of an address, which may be a whole URL (`amqps://host:port/queue`)."""
    return (address.partition("://")[2].partition("/")[2] if "://" in address else address).strip("/")
