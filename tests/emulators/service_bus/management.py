"""The operations of a queue's `$management` node: bodies in and out as the SDK has them.

Source: learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-request-response.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.emulators.service_bus import sdk_codec
from tests.emulators.service_bus.access import Right
from tests.emulators.service_bus.codec import content_of, encode_message
from tests.emulators.service_bus.errors import Invalid, Unsupported
from tests.emulators.service_bus.faults import Operation
from tests.emulators.service_bus.fidelity import Fidelity
from tests.emulators.service_bus.queue import Queue
from tests.emulators.service_bus.sdk_codec import named, text

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


def read(name: str, body: object, fidelity: Fidelity) -> Call:
    """Return the call of an operation; raises BrokerError.

    Args:
        name: such as `com.microsoft:renew-lock`.
        body: the map that came with it.
        fidelity: where the service is contested.
    """
    if not isinstance(body, dict):
        raise Invalid(f"The body of {name} is no map.")
    body = {text(key): value for key, value in body.items()}
    try:
        return _read(name.removeprefix(_VENDOR), body, fidelity)
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(f"The body of {name} cannot be read: {error!r}") from error


def _read(name: str, body: Body, fidelity: Fidelity) -> Call:
    match name:
        case "renew-lock":
            locks = _locks(body)
            return Call(Operation.RENEW, Right.LISTEN, len(locks), lambda queue: _renew(queue, locks))
        case "peek-message":
            first, most = int(body["from-sequence-number"]), max(int(body["message-count"]), 0)
            return Call(Operation.PEEK, Right.LISTEN, most, lambda queue: _peek(queue, first, most))
        case "update-disposition":
            return _disposition(body, fidelity)
        case "schedule-message":
            contents = [content_of(each[b"message"]) for each in body["messages"]]
            return Call(Operation.SCHEDULE, Right.SEND, len(contents), lambda queue: _numbers(queue.send(contents)))
        case "cancel-scheduled-message":
            numbers = list(body["sequence-numbers"])
            return Call(Operation.CANCEL, Right.SEND, len(numbers), lambda queue: _cancel(queue, numbers))
        case "receive-by-sequence-number":
            wanted = list(body["sequence-numbers"])
            return Call(Operation.RECEIVE, Right.LISTEN, len(wanted), lambda queue: _deferred(queue, wanted))
        case _:
            raise Unsupported(f"The operation {name} is not emulated.")


def _disposition(body: Body, fidelity: Fidelity) -> Call:
    locks = _locks(body)
    operation = _DISPOSITIONS[text(body["disposition-status"])]
    reason, description = (text(body.get(f"deadletter-{name}")) for name in ("reason", "description"))
    properties = named(body.get("properties-to-modify") or {}) if fidelity.abandon_modifies_properties else {}

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
                    queue.dead_letter(lock, reason, description, properties)
        return {}

    return Call(operation, Right.LISTEN, len(locks), run)


def _renew(queue: Queue, locks: list[uuid.UUID]) -> Answer:
    for lock in locks:
        queue.held(lock)
    return {"expirations": sdk_codec.array([sdk_codec.timestamp(queue.renew(lock)) for lock in locks])}


def _peek(queue: Queue, first: int, most: int) -> Answer:
    found = queue.peek(first, most)
    return {"messages": [{"message": encode_message(message)} for message in found]} if found else None


def _numbers(numbers: list[int]) -> Answer:
    return {"sequence-numbers": sdk_codec.array([sdk_codec.long(number) for number in numbers])}


def _deferred(queue: Queue, numbers: list[int]) -> Answer:
    found = queue.receive_deferred(numbers)
    return {"messages": [{"lock-token": message.lock, "message": encode_message(message)} for message in found]}


def _cancel(queue: Queue, numbers: list[int]) -> Answer:
    queue.cancel_scheduled(numbers)
    return {}


def _locks(body: Body) -> list[uuid.UUID]:
    return list(body["lock-tokens"])
