"""The operations of a queue's `$management` node: bodies in and out as the SDK has them.

Source: learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-request-response.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from proton import UNDESCRIBED, Array, Data

from jobq.testing.service_bus.access import Right
from jobq.testing.service_bus.codec import content_of, encode, milliseconds
from jobq.testing.service_bus.errors import Invalid, Unsupported
from jobq.testing.service_bus.faults import Operation
from jobq.testing.service_bus.fidelity import Fidelity
from jobq.testing.service_bus.queue import Queue

Body = Mapping[str, Any]
Answer = dict[str, Any] | None  # None = nothing found: 204
_VENDOR: Final = "com.microsoft:"
# The SDK's words, one of them misspelled there.
_DISPOSITIONS: Final = {
    "completed": Operation.COMPLETE,
    "abandoned": Operation.ABANDON,
    "defered": Operation.DEFER,
    "suspended": Operation.DEAD_LETTER,
}


@dataclass(frozen=True)
class Call:
    """A request to `$management`, understood.

    Attributes:
        operation: for the log.
        right: what it needs.
        messages: how many messages it is about.
        run: does it; raises BrokerError.
    """

    operation: Operation
    right: Right
    messages: int
    run: Callable[[Queue], Answer]


def read(name: str, body: Body, fidelity: Fidelity) -> Call:
    """Return the call of an operation; raises Unsupported and Invalid.

    Args:
        name: such as `com.microsoft:renew-lock`.
        body: the map that came with it.
        fidelity: where the service is contested.
    """
    try:
        return _read(name.removeprefix(_VENDOR), body, fidelity)
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(f"The body of {name} cannot be read: {error!r}") from error


def _read(name: str, body: Body, fidelity: Fidelity) -> Call:
    match name:
        case "renew-lock":
            locks = _list(body, "lock-tokens")
            return Call(Operation.RENEW, Right.LISTEN, len(locks), lambda queue: _renew(queue, locks))
        case "peek-message":
            first, most = int(body["from-sequence-number"]), int(body["message-count"])
            return Call(Operation.PEEK, Right.LISTEN, most, lambda queue: _peek(queue, first, most))
        case "update-disposition":
            return _disposition(body, fidelity)
        case "schedule-message":
            contents = [content_of(bytes(each["message"])) for each in body["messages"]]
            return Call(Operation.SCHEDULE, Right.SEND, len(contents), lambda queue: _numbers(queue.send(contents)))
        case "cancel-scheduled-message":
            numbers = [int(number) for number in _list(body, "sequence-numbers")]
            return Call(Operation.CANCEL, Right.SEND, len(numbers), lambda queue: _cancel(queue, numbers))
        case "receive-by-sequence-number":
            wanted = [int(number) for number in _list(body, "sequence-numbers")]
            return Call(Operation.RECEIVE, Right.LISTEN, len(wanted), lambda queue: _deferred(queue, wanted))
        case _:
            raise Unsupported(f"The emulator has no operation {name}.")


def _disposition(body: Body, fidelity: Fidelity) -> Call:
    locks: list[uuid.UUID] = _list(body, "lock-tokens")
    operation = _DISPOSITIONS[str(body["disposition-status"])]
    changes = {str(name): value for name, value in (body.get("properties-to-modify") or {}).items()}
    properties = changes if fidelity.abandon_modifies_properties else {}

    def run(queue: Queue) -> Answer:
        for lock in locks:  # all, before any is changed
            queue.held(lock)
        for lock in locks:
            match operation:
                case Operation.COMPLETE:
                    queue.complete(lock)
                case Operation.ABANDON:
                    queue.abandon(lock, properties=properties)
                case Operation.DEFER:
                    queue.defer(lock, properties)
                case _:
                    reason, description = body.get("deadletter-reason"), body.get("deadletter-description")
                    queue.dead_letter(lock, reason, description, properties)
        return {}

    return Call(operation, Right.LISTEN, len(locks), run)


def _renew(queue: Queue, locks: list[uuid.UUID]) -> Answer:
    for lock in locks:
        queue.held(lock)
    ends = [milliseconds(queue.renew(lock)) for lock in locks]
    return {"expirations": Array(UNDESCRIBED, Data.TIMESTAMP, *ends)}


def _peek(queue: Queue, first: int, most: int) -> Answer:
    found = queue.peek(first, most)
    return {"messages": [{"message": encode(message)} for message in found]} if found else None


def _numbers(numbers: list[int]) -> Answer:
    return {"sequence-numbers": Array(UNDESCRIBED, Data.LONG, *numbers)}


def _deferred(queue: Queue, numbers: list[int]) -> Answer:
    found = queue.receive_deferred(numbers)
    return {"messages": [{"lock-token": message.lock, "message": encode(message)} for message in found]}


def _cancel(queue: Queue, numbers: list[int]) -> Answer:
    queue.cancel_scheduled(numbers)
    return {}


def _list(body: Body, name: str) -> list[Any]:
    value = body[name]
    return list(value.elements) if isinstance(value, Array) else list(value)
