"""What the rules of copies know of each message of a Service Bus, and of each of its deliveries."""

from dataclasses import dataclass, field

from jobq.task import Task
from tests.simulation.loop import Node
from tests.simulation.rules.known import KnownTask


@dataclass(eq=False)
class Copy:
    """A message as it should be.

    Attributes:
        task: in it, in the epoch in which it was pushed or redriven.
        before: deliveries in messages before this one.
        silent: deliveries of this chain that ended without a record.
        place: queue, dead or gone.
        copies: of it, that the queue has taken.
        deliveries: that it had when it became a dead letter.
        is_redriven: whether that came back.
    """

    known: KnownTask
    task: Task
    before: int
    silent: int
    place: str = "queue"
    copies: int = 0
    deliveries: int = 0
    is_redriven: bool = False
    locks: "list[Lock]" = field(default_factory=list)


@dataclass(eq=False)
class Lock:
    """One delivery of a message.

    Attributes:
        number: of the delivery, of all of the task.
        silent: as the message's, when it was granted.
        expires: wall time of the broker's.
        granted_at: boottime of the broker's.
        node: whose it is, once the answer has arrived there.
        asked, extended: true times before the request that granted it, and the last that surely extended it.
    """

    copy: Copy
    number: int
    fencing: str
    silent: int
    expires: float
    granted_at: float
    node: Node | None = None
    asked: float = 0.0
    extended: float = 0.0
    struck: int = 0  # faults, until it was granted: what befell its answer comes after
    is_troubled: bool = False  # the clocks of its node looked wrong when it arrived
    copies: int = 0
    is_received: bool = False  # by its worker
    is_put_back: bool = False  # its copy has arrived, and was taken or dropped

    def reached(self, node: Node, sent: float, *, is_troubled: bool) -> None:
        """An answer that says so has arrived."""
        if self.node is None:
            self.node, self.asked, self.is_troubled = node, sent, is_troubled
        self.extended = max(self.extended, sent)
