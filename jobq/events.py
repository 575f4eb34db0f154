"""Lifecycle events: each step of a worker's work, published once; the log, progress and metrics subscribe."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Event:
    """One transition.

    Attributes:
        name: stable, such as `task.started`.
        fields: what is known of it; plain values only, never a command's arguments or environment (A5).
        level: as in `logging`.
        at: wall time in seconds since the epoch.
    """

    name: str
    fields: Mapping[str, Any]
    level: int = logging.INFO
    at: float = field(default_factory=time.time)


Subscriber = Callable[[Event], None]
# Returns more fields for an event, by its name and its fields; they win over the event's own.
Annotator = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


class Events:
    """Passes each event on to all subscribers, in order; a subscriber that fails is logged and harms nobody."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = list(subscribers)
        self._annotators: list[Annotator] = []

    def subscribe(self, subscriber: Subscriber) -> None:
        """Add a subscriber; it is called on the event loop and must not block."""
        self._subscribers.append(subscriber)

    def annotate(self, annotator: Annotator) -> None:
        """Add what knows more of some events than who emits them, such as the span of an attempt."""
        self._annotators.append(annotator)

    def emit(self, name: str, level: int = logging.INFO, **fields: Any) -> None:
        """Call all subscribers; fields that are None are left out."""
        for annotator in self._annotators:
            try:
                fields.update(annotator(name, fields))
            except Exception:  # noqa: BLE001 - as below
                _log.exception("what is to be added to %s is not known", name)
        event = Event(name=name, level=level, fields={key: value for key, value in fields.items() if value is not None})
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:  # noqa: BLE001 - whatever it is, the work goes on (S11)
                _log.exception("a subscriber failed on %s", name)
