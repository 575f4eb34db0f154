"""What a receiver says of a message over AMQP, and what that does to it.

Source: learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-protocol-guide.
"""

import uuid
from typing import Any, Final

from jobq.testing.amqp.performatives import Accepted, Modified, Rejected, Released
from jobq.testing.service_bus.errors import Invalid, Unsupported
from jobq.testing.service_bus.faults import Operation
from jobq.testing.service_bus.queue import Queue

NO_TRANSACTIONS: Final = "Transactions are not emulated."
_OPERATIONS: Final[dict[type, Operation]] = {
    Accepted: Operation.COMPLETE,
    Rejected: Operation.DEAD_LETTER,
    Released: Operation.ABANDON,
    Modified: Operation.ABANDON,
}


def operation_of(outcome: object) -> Operation:
    """Return what an outcome asks for, for the log."""
    if isinstance(outcome, Modified) and outcome.undeliverable_here:
        return Operation.DEFER
    return _OPERATIONS.get(type(outcome), Operation.OTHER)


def settle(queue: Queue, lock: uuid.UUID, outcome: object) -> None:
    """Do to a locked message what its receiver said of it; raises BrokerError."""
    match outcome:
        case Accepted():
            queue.complete(lock)
        case Rejected():
            info = _named((outcome.error and outcome.error.info) or {})
            reason, description = (info.pop(name, None) for name in ("DeadLetterReason", "DeadLetterErrorDescription"))
            queue.dead_letter(lock, _text(reason), _text(description), info)
        case Released():
            queue.abandon(lock, counts=False)
        case Modified(undeliverable_here=True):
            queue.defer(lock, _named(outcome.message_annotations or {}))
        case Modified():
            queue.abandon(lock, properties=_named(outcome.message_annotations or {}))
        case _:
            raise Unsupported(NO_TRANSACTIONS)


def _named(values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise Invalid("An outcome has something else than a map.")
    return {str(name): value for name, value in values.items()}


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise Invalid("A dead-letter reason or description is no text.")
    return value
