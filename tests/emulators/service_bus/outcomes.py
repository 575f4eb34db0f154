"""What a receiver says of a message over AMQP, and what that does to it.

Source: learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-protocol-guide.
"""

import uuid
from typing import Any, Final

from tests.emulators.service_bus.faults import Operation
from tests.emulators.service_bus.queue import Queue
from tests.emulators.service_bus.sdk_codec import Accepted, Modified, Rejected, Released, named

# The codec has an outcome as its name and its fields, of which the last may be left out.
_OPERATIONS: Final = {
    "accepted": Operation.COMPLETE,
    "rejected": Operation.DEAD_LETTER,
    "released": Operation.ABANDON,
    "modified": Operation.ABANDON,
}


def read(state: Any) -> tuple[str, list[Any]] | None:
    """Return the name and the fields of an outcome; None: it is none yet."""
    ((name, fields),) = state.items() if isinstance(state, dict) else [("", [])]
    return (name, [*fields, None, None, None]) if name in _OPERATIONS else None


def operation_of(name: str, fields: list[Any]) -> Operation:
    """Return what an outcome asks for, for the log."""
    return Operation.DEFER if name == "modified" and fields[1] else _OPERATIONS[name]


def settle(queue: Queue, lock: uuid.UUID, name: str, fields: list[Any]) -> Any:
    """Do to a locked message what its receiver said of it, and return that to be echoed; raises BrokerError."""
    if name == "accepted":
        queue.complete(lock)
        return Accepted()
    if name == "released":
        queue.abandon(lock, counts=False)
        return Released()
    if name == "modified":
        move = queue.defer if fields[1] else queue.abandon
        move(lock, properties=named(fields[2] or {}))
        return Modified(delivery_failed=fields[0], undeliverable_here=fields[1], message_annotations=None)
    info = named(((fields[0] or [None]) + [None, None])[2] or {})
    queue.dead_letter(lock, info.pop("DeadLetterReason", None), info.pop("DeadLetterErrorDescription", None), info)
    return Rejected(error=None)
