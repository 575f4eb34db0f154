"""Between AMQP's encoding and the broker's messages.

A message is kept as it was sent, section by section: what the broker does not change goes out as the same bytes.
"""

import json
import uuid
from dataclasses import dataclass, field, replace
from typing import Any, Final

from jobq.testing.amqp.encoding import decode, encode, skip
from jobq.testing.amqp.performatives import Error, Header, Properties
from jobq.testing.amqp.types import Described, Int, Malformed, Symbol, Timestamp, ULong
from jobq.testing.service_bus.errors import BrokerError
from jobq.testing.service_bus.message import Content, Message, State

BATCH: Final = 0x80013700  # the message format of a transfer whose data sections are whole messages
_HEADER, _ANNOTATIONS, _PROPERTIES, _OWN, _DATA, _SEQUENCE, _VALUE, _FOOTER = (
    0x70,
    0x72,
    0x73,
    0x74,
    0x75,
    0x76,
    0x77,
    0x78,
)
_SECTIONS: Final = range(_HEADER, _FOOTER + 1)
_BODIES: Final = (_DATA, _SEQUENCE, _VALUE)
_MOST: Final = 2**32 - 1
_SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
_PARTITION: Final = "x-opt-partition-key"
_STATES: Final = {State.DEFERRED: 1, State.SCHEDULED: 2}


@dataclass
class _Sections:
    """An encoded message in its parts.

    Attributes:
        raw: each section but the body, by its code, encoded.
        bodies: code and encoding of each section of the body.
    """

    raw: dict[int, bytes] = field(default_factory=dict)
    bodies: list[tuple[int, bytes]] = field(default_factory=list)

    @classmethod
    def of(cls, encoded: bytes) -> "_Sections":
        """Return the parts of a message; raises Malformed."""
        found, at = cls(), 0
        while at < len(encoded):
            code, end = skip(encoded, at)
            section, at = encoded[at:end], end
            if not isinstance(code, ULong) or code not in _SECTIONS or code in found.raw:
                raise Malformed(f"{code!r:.100} is no section of a message, or is there twice")
            if code in _BODIES:
                found.bodies.append((code, section))
            else:
                found.raw[code] = section
        kinds = {code for code, _ in found.bodies}
        if len(kinds) > 1 or (_VALUE in kinds and len(found.bodies) > 1):
            raise Malformed("the sections of a body are of several kinds")
        return found

    def value(self, code: int, kind: type) -> Any:
        """Return what a section holds, None if it is not there; raises Malformed."""
        return _section_value(self.raw[code], kind) if code in self.raw else None

    @property
    def header(self) -> Header:
        """The header, or what it is when it is left out."""
        return Header.of(decode(self.raw[_HEADER])) if _HEADER in self.raw else Header()

    @property
    def properties(self) -> Properties:
        """What the sender said, or what that is when it is left out."""
        return Properties.of(decode(self.raw[_PROPERTIES])) if _PROPERTIES in self.raw else Properties()

    @property
    def own(self) -> dict[str, Any]:
        """The application's properties."""
        found: dict[Any, Any] = self.value(_OWN, dict) or {}
        if not all(type(name) is str for name in found):
            raise Malformed("a name of an application property is no string")
        return found

    def body(self) -> list[Any]:
        """Return what each section of the body holds; raises Malformed."""
        kinds = {_DATA: bytes, _SEQUENCE: list, _VALUE: object}
        return [_section_value(section, kinds[code]) for code, section in self.bodies]


def _section_value(section: bytes, kind: type) -> Any:
    value = decode(section).value
    if not isinstance(value, kind):
        raise Malformed(f"a section holds a {type(value).__name__}")
    return value


def contents_of(encoded: bytes, message_format: int) -> list[Content]:
    """Return what was sent in one transfer: one message, or all of a batch; raises Malformed."""
    if message_format != BATCH:
        return [content_of(encoded)]
    sections = _Sections.of(encoded)
    if any(code != _DATA for code, _ in sections.bodies):
        raise Malformed("a batch holds something else than messages")
    return [content_of(member) for member in sections.body()]


def content_of(encoded: bytes) -> Content:
    """Return what one encoded message says; raises Malformed."""
    sections = _Sections.of(encoded)
    properties, annotations = sections.properties, sections.value(_ANNOTATIONS, dict) or {}
    when = annotations.get(_SCHEDULED)
    if when is not None and type(when) is not Timestamp:
        raise Malformed(f"{_SCHEDULED} is no timestamp")
    ttl = sections.header.ttl
    return Content(
        body=_bytes_of(sections),
        message_id=_text(properties.message_id),
        subject=properties.subject,
        correlation_id=_text(properties.correlation_id),
        content_type=_text(properties.content_type),
        session_id=properties.group_id,
        to=_text(properties.to),
        reply_to=_text(properties.reply_to),
        reply_to_session_id=properties.reply_to_group_id,
        partition_key=_text(annotations.get(_PARTITION)),
        properties=sections.own,
        time_to_live=ttl / 1000 if ttl else None,
        scheduled_for=int(when) / 1000 if when else None,
        amqp=encoded,
    )


def _bytes_of(sections: _Sections) -> bytes:
    """Return a body as REST shows it: values that are no bytes and no text as JSON."""
    values = sections.body()
    code = sections.bodies[0][0] if sections.bodies else _DATA
    if code == _DATA:
        return b"".join(values)
    value = values[0] if code == _VALUE else [one for value in values for one in value]
    if isinstance(value, (bytes, str)):
        return value if isinstance(value, bytes) else value.encode()
    return b"" if value is None else json.dumps(_plain(value)).encode()


def _plain(value: Any) -> Any:
    """Return a value as JSON can say it."""
    match value:
        case dict():
            return {str(name): _plain(one) for name, one in value.items()}
        case list():
            return [_plain(one) for one in value]
        case Described():
            return _plain(value.value)
        case None | bool() | int() | float() | str():
            return value
    return str(value)


def encode_message(message: Message) -> bytes:
    """Return a message of the broker as it goes to a receiver."""
    content = message.content
    sections = _Sections.of(_encode_content(content) if content.amqp is None else content.amqp)
    annotations = dict(sections.value(_ANNOTATIONS, dict) or {})
    if message.state is not State.SCHEDULED:
        annotations.pop(_SCHEDULED, None)
    annotations |= {
        Symbol("x-opt-sequence-number"): message.number,
        Symbol("x-opt-enqueued-time"): milliseconds(message.enqueued),
        Symbol("x-opt-message-state"): Int(1 if message.is_deferred else _STATES.get(message.state, 0)),
    }
    if message.lock is not None:
        annotations[Symbol("x-opt-locked-until")] = milliseconds(message.locked_until)
    own = message.all_properties
    return b"".join(
        (
            replace(sections.header, delivery_count=message.delivery_count).encode(),
            _section(_ANNOTATIONS, annotations),
            sections.raw.get(_PROPERTIES, b""),
            _section(_OWN, own) if own else b"",
            *(section for _, section in sections.bodies),
            sections.raw.get(_FOOTER, b""),
        )
    )


def _encode_content(content: Content) -> bytes:
    """Return what came over REST as a message."""
    lives = None if content.time_to_live is None else min(int(content.time_to_live * 1000), _MOST)
    kind = content.content_type
    properties = Properties(
        message_id=content.message_id,
        subject=content.subject,
        correlation_id=content.correlation_id,
        content_type=None if kind is None else kind.encode("ascii", "replace").decode(),
        group_id=content.session_id,
        to=content.to,
        reply_to=content.reply_to,
        reply_to_group_id=content.reply_to_session_id,
    )
    annotations = {} if content.partition_key is None else {Symbol(_PARTITION): content.partition_key}
    return b"".join(
        (
            Header(ttl=lives).encode(),
            _section(_ANNOTATIONS, annotations),
            properties.encode(),
            _section(_DATA, content.body),
        )
    )


def _section(code: int, value: Any) -> bytes:
    return encode(Described(ULong(code), value))


@dataclass(frozen=True)
class Asked:
    """A request to a node that answers.

    Attributes:
        message_id: what the answer refers to.
        properties: what is asked.
        body: what comes with it.
    """

    message_id: Any
    properties: dict[str, Any]
    body: Any


def read_request(encoded: bytes) -> Asked:
    """Return what a message to a node asks; raises Malformed."""
    sections = _Sections.of(encoded)
    body = sections.body()
    is_value = [code for code, _ in sections.bodies] == [_VALUE]
    return Asked(sections.properties.message_id, sections.own, body[0] if is_value else None)


def encode_answer(asked: Asked, properties: dict[str, Any], body: Any) -> bytes:
    """Return an answer to a request."""
    own, value = _section(_OWN, properties), _section(_VALUE, body)
    return Properties(correlation_id=asked.message_id).encode() + own + value


def milliseconds(seconds: float) -> Timestamp:
    """Return an instant as AMQP has it."""
    return Timestamp(seconds * 1000)


def error_of(error: BrokerError) -> Error:
    """Return an error as AMQP has it; without an info map the SDK's sender would wait for ever (facts 1.5, trap 2)."""
    info = {Symbol("tracking-id"): str(uuid.uuid4())}
    return Error(condition=error.condition, description=str(error), info=info)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
