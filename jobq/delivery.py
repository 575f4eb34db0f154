"""What the deliveries of different backends have in common; a base class that no backend needs."""

from datetime import timedelta
from functools import cached_property

from jobq.errors import MalformedTask
from jobq.fencing import FencingNumber
from jobq.settlement import Release, Requeue, Settlement
from jobq.task import Task


class BaseDelivery:
    """The properties of a delivery, as `jobq.backend.Delivery` has them; the verbs are its backend's.

    Args:
        id: the task's id.
        body: the message as stored.
        deliveries: how often it was handed out, this time included.
        lease: the length that was granted.
        checkpoint: what was saved last.
        journaled: whether the queue keeps a journal.
        cancel_requested: whether somebody wants the task to end.
    """

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - as the property is called
        body: bytes,
        deliveries: int,
        lease: timedelta,
        checkpoint: str | None = None,
        journaled: bool = False,
        cancel_requested: bool = False,
    ) -> None:
        self.id = id
        self.body = body
        self.deliveries = deliveries
        self.lease = lease
        self.checkpoint_value = checkpoint
        self.journaled = journaled
        self.cancel_requested = cancel_requested

    @cached_property
    def task(self) -> Task:
        """The task in the body; raises MalformedTask, each time."""
        return self._decoded()

    def _decoded(self) -> Task:
        return Task.decode(self.body)

    @property
    def fencing(self) -> FencingNumber:
        """The number that the task may show to others."""
        try:
            return FencingNumber(self.task.epoch, self.task.generation, self.deliveries)
        except MalformedTask:
            return FencingNumber(0, 0, self.deliveries)

    def body_after(self, settlement: Settlement) -> bytes:
        """Return the body as it is stored once this is settled; raises MalformedTask when it cannot be counted."""
        if isinstance(settlement, Requeue):
            return self.task.counted(settlement.counters).encode()
        return released_body(self.body, settlement) if isinstance(settlement, Release) else self.body


def released_body(body: bytes, release: Release) -> bytes:
    """Return the body of a task that was never started, with that recorded (S7); of what is no task, as it is."""
    try:
        return Task.decode(body).released(misfits=release.misfits).encode()
    except MalformedTask:
        return body
