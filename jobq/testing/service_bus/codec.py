"""Between AMQP's encoding and the broker's messages, by python-qpid-proton."""

import json
import uuid
from collections.abc import Iterator
from typing import Any, Final

from proton import Condition, Data, int32, symbol, timestamp
from proton import Message as AmqpMessage

from jobq.testing.service_bus.errors import BrokerError, condition_of
from jobq.testing.service_bus.message import Content, Message, State

_DATA: Final = 0x75  # descriptors of the sections of a message
_OTHER_BODIES: Final = (0x76, 0x77)
_SECTIONS: Final = range(0x70, 0x79)
_DESCRIBED: Final = b"\x00\x53"  # how each section begins
_SCHEDULED: Final = symbol("x-opt-scheduled-enqueue-time")
_UNSET: Final = "None"  # proton's text for a content type that is not there
_STATES: Final = {State.DEFERRED: 1, State.SCHEDULED: 2}


def contents_of(raw: bytes) -> list[Content]:
    """Return what was sent in one transfer: one message, or all of a batch.

    A batch has message-format 0x80013700, which proton drops, so it is known by its shape: its body is nothing but data
    sections of which each is a whole message.
    """
    bodies = [section for section in _sections(raw) if section[0] == _DATA or section[0] in _OTHER_BODIES]
    members = [value for code, value in bodies if code == _DATA and _is_message(value)]
    return [content_of(one) for one in (members if members and len(members) == len(bodies) else [raw])]


def content_of(raw: bytes) -> Content:
    """Return what one encoded message says."""
    message = AmqpMessage()
    message.decode(raw)
    when = (message.annotations or {}).get(_SCHEDULED)
    return Content(
        body=_body_bytes(message.body),
        message_id=_text(message.id),
        subject=message.subject,
        correlation_id=_text(message.correlation_id),
        content_type=_text(message.content_type if message.content_type != _UNSET else None),
        session_id=message.group_id,
        properties={str(name): value for name, value in (message.properties or {}).items()},
        time_to_live=message.ttl or None,
        scheduled_for=int(when) / 1000 if when else None,
        amqp=raw,
    )


def encode(message: Message) -> bytes:
    """Return a message of the broker as it goes to a receiver."""
    content, out = message.content, AmqpMessage()
    if content.amqp is not None:
        out.decode(content.amqp)
    else:
        out.body, out.id, out.subject = content.body, content.message_id, content.subject
        out.correlation_id, out.content_type = content.correlation_id, content.content_type
        out.group_id, out.ttl = content.session_id, content.time_to_live or 0
    if isinstance(out.body, (bytes, memoryview)):
        out.inferred = True  # as a data section, which is what the SDK expects
    annotations: dict[Any, Any] = dict(out.annotations or {})
    if message.state is not State.SCHEDULED:
        annotations.pop(_SCHEDULED, None)
    annotations[symbol("x-opt-sequence-number")] = message.number
    annotations[symbol("x-opt-enqueued-time")] = milliseconds(message.enqueued)
    annotations[symbol("x-opt-message-state")] = int32(_STATES.get(message.state, 0))
    if message.lock is not None:
        annotations[symbol("x-opt-locked-until")] = milliseconds(message.locked_until)
    out.annotations = annotations
    out.properties = message.all_properties or None
    out.delivery_count = message.delivery_count
    encoded: bytes = out.encode()
    return encoded


def milliseconds(seconds: float) -> timestamp:
    """Return an instant as AMQP has it."""
    return timestamp(int(seconds * 1000))


def condition(error: BrokerError) -> Condition:
    """Return an error as AMQP has it; without an info map the SDK's sender would wait for ever (facts 1.5, trap 2)."""
    return Condition(condition_of(error), str(error), {symbol("tracking-id"): str(uuid.uuid4())})


def _sections(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Yield descriptor and value of each section of an encoded message."""
    offset = 0
    while offset < len(raw):
        data = Data()
        length = data.decode(raw[offset:])
        data.rewind()
        data.next()
        described = data.get_py_described()
        value = described.value
        yield int(described.descriptor), bytes(value) if isinstance(value, memoryview) else value  # freed with `data`
        offset += length


def _is_message(raw: bytes) -> bool:
    return raw.startswith(_DESCRIBED) and len(raw) > len(_DESCRIBED) + 1 and raw[len(_DESCRIBED)] in _SECTIONS


def _body_bytes(body: object) -> bytes:
    if isinstance(body, (bytes, memoryview)):
        return bytes(body)
    if isinstance(body, str):
        return body.encode()
    return b"" if body is None else json.dumps(body, default=str).encode()


def _text(value: object) -> str | None:
    return None if value is None else str(value)
