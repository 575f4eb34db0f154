"""A message as it is looked at, or locked, over AMQP."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jobq_azure.service_bus.rest_client import MOST_DIGITS


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A message as it was looked at, in whatever state.

    Attributes:
        number: its sequence number.
        message_id: the sender's, or the sequence number of one that has none.
        body: its bytes.
        ended: deliveries of it that have ended.
        is_scheduled, is_deferred: that nobody can receive it.
        enqueued: seconds since the epoch.
        reason, description: why it is a dead letter.
        properties: beside the body.
        token: of the lock, if it was not only looked at.
    """

    number: int
    message_id: str
    body: bytes = field(repr=False)
    ended: int
    is_scheduled: bool
    is_deferred: bool
    enqueued: float
    reason: str
    description: str
    properties: Mapping[str, Any] = field(repr=False)
    token: uuid.UUID | None = field(default=None, repr=False)

    def text(self, name: str) -> str:
        """Return a property; empty for none."""
        value = self.properties.get(name, "")
        return (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).strip('"')

    def number_in(self, name: str, usual: int = 0) -> int:
        """Return a property that is a number."""
        text = self.text(name)
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else usual
