"""A message as it was sent, and as the broker holds it; neither knows AMQP or HTTP."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """Where a message is in its life; GONE = completed, cancelled, expired or moved to the dead-letter sub-queue."""

    ACTIVE = "active"
    LOCKED = "locked"
    DEFERRED = "deferred"
    SCHEDULED = "scheduled"
    GONE = "gone"


@dataclass(frozen=True)
class Content:
    """What a sender gave.

    Attributes:
        body: the payload.
        message_id: what duplicates are recognised by; None = never one.
        subject: called Label over REST.
        correlation_id: passed on.
        content_type: passed on.
        session_id: passed on, as to every queue that does not require sessions.
        to: passed on.
        reply_to: passed on.
        reply_to_session_id: passed on.
        partition_key: passed on, as by every queue that is not partitioned.
        properties: the application's own.
        time_to_live: seconds; None = the queue's default.
        scheduled_for: seconds since the epoch before which nobody receives it; None = at once.
        amqp: the encoded message if it came over AMQP, so that it goes out as it came in.
    """

    body: bytes
    message_id: str | None = None
    subject: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    session_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    partition_key: str | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)
    time_to_live: float | None = None
    scheduled_for: float | None = None
    amqp: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes that count against the queue's limit."""
        own = sum(len(str(name)) + len(str(value)) for name, value in self.properties.items())
        return len(self.amqp) if self.amqp is not None else len(self.body) + own


@dataclass(eq=False)
class Message:
    """What a queue holds; equal to itself alone.

    Attributes:
        number: the sequence number.
        content: what was sent.
        enqueued: when it came into this queue, in seconds since the epoch.
        properties: the application's, with what an abandon has modified.
        is_deferred: whether it is received by its number alone, also while it is locked.
        delivery_count: deliveries that ended in an abandon or in an expired lock.
        lock: the token of who holds it.
        locked_until: when that ends, in seconds since the epoch.
        expires: when its time to live ends; None = never.
        reason: why it is a dead letter.
        description: as above, at length.
    """

    number: int
    content: Content
    enqueued: float
    properties: dict[str, Any]
    state: State = State.ACTIVE
    is_deferred: bool = False
    delivery_count: int = 0
    lock: uuid.UUID | None = None
    locked_until: float = 0.0
    expires: float | None = None
    reason: str | None = None
    description: str | None = None

    @property
    def all_properties(self) -> dict[str, Any]:
        """The application's properties, with those that the service adds to a dead letter."""
        added = {"DeadLetterReason": self.reason, "DeadLetterErrorDescription": self.description}
        return self.properties | {name: text for name, text in added.items() if text is not None}
