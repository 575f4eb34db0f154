"""Between AMQP's encoding and the broker's messages.

A message is kept as it was sent, section by section: what the broker does not change goes out as the same bytes.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from tests.emulators.service_bus import sdk_codec
from tests.emulators.service_bus.errors import BrokerError
from tests.emulators.service_bus.message import Content, Message, State
from tests.emulators.service_bus.sdk_codec import Header, Properties, text

BATCH: Final = 0x80013700  # the message format of a transfer whose data sections are whole messages
_HEADER, _ANNOTATIONS, _PROPERTIES, _OWN, _DATA, _SEQUENCE, _VALUE, _FOOTER = 0x70, *range(0x72, 0x79)
_MOST_MILLISECONDS: Final = 2**32 - 1
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
        """Return the parts of a message."""
        found = cls()
        for code, section in sdk_codec.sections(encoded):
            if code in {_DATA, _SEQUENCE, _VALUE}:
                found.bodies.append((code, section))
            else:
                found.raw[code] = section
        return found

    def map_of(self, code: int) -> dict[str, Any]:
        """Return what a section holds that is a map."""
        return sdk_codec.named(sdk_codec.decoded(self.raw[code]) or {}) if code in self.raw else {}

    @property
    def header(self) -> Any:
        """The header, or what it is when it is left out."""
        return Header(*sdk_codec.decoded(self.raw[_HEADER])) if _HEADER in self.raw else Header()

    @property
    def properties(self) -> Any:
        """What the sender said, or what that is when it is left out."""
        return Properties(*sdk_codec.decoded(self.raw[_PROPERTIES])) if _PROPERTIES in self.raw else Properties()

    def body(self) -> list[Any]:
        """Return what each section of the body holds."""
        return [sdk_codec.decoded(section) for _, section in self.bodies]


def contents_of(encoded: bytes, message_format: int) -> list[Content]:
    """Return what was sent in one transfer: one message, or all of a batch."""
    if message_format != BATCH:
        return [content_of(encoded)]
    return [content_of(member) for member in _Sections.of(encoded).body()]


def content_of(encoded: bytes) -> Content:
    """Return what one encoded message says."""
    sections = _Sections.of(encoded)
    said, annotations = sections.properties, sections.map_of(_ANNOTATIONS)
    when, lives = annotations.get(_SCHEDULED), sections.header.ttl
    return Content(
        body=_bytes_of(sections),
        message_id=_text(said.message_id),
        subject=_text(said.subject),
        correlation_id=_text(said.correlation_id),
        content_type=_text(said.content_type),
        session_id=_text(said.group_id),
        to=_text(said.to),
        reply_to=_text(said.reply_to),
        reply_to_session_id=_text(said.reply_to_group_id),
        partition_key=_text(annotations.get(_PARTITION)),
        properties=sections.map_of(_OWN),
        time_to_live=lives / 1000 if lives else None,
        scheduled_for=when / 1000 if when else None,
        amqp=encoded,
    )


def _bytes_of(sections: _Sections) -> bytes:
    """Return a body as REST shows it; how it shows what is no data is not documented."""
    values = sections.body()
    if all(code == _DATA for code, _ in sections.bodies):
        return b"".join(values)
    return "".join(str(text(value)) for value in values).encode()


def encode_message(message: Message) -> bytes:
    """Return a message of the broker as it goes to a receiver."""
    content = message.content
    sections = _Sections.of(_encode_content(content) if content.amqp is None else content.amqp)
    kept = {
        name: value
        for name, value in sections.map_of(_ANNOTATIONS).items()
        if name != _SCHEDULED or message.state is State.SCHEDULED
    }
    annotations = sdk_codec.plain(kept) | {
        "x-opt-sequence-number": sdk_codec.long(message.number),
        "x-opt-enqueued-time": sdk_codec.timestamp(message.enqueued),
        "x-opt-message-state": sdk_codec.int32(1 if message.is_deferred else _STATES.get(message.state, 0)),
    }
    if _SCHEDULED in kept:
        annotations[_SCHEDULED] = sdk_codec.timestamp(kept[_SCHEDULED] / 1000)
    if message.lock is not None:
        annotations["x-opt-locked-until"] = sdk_codec.timestamp(message.locked_until)
    own = message.all_properties
    encoded_own = sections.raw.get(_OWN, b"")
    if own != content.properties or content.amqp is None:
        encoded_own = sdk_codec.payload(application_properties=sdk_codec.plain(own))
    head = sections.header._replace(delivery_count=message.delivery_count)
    return b"".join(
        (
            sdk_codec.payload(header=head, message_annotations=annotations),
            sections.raw.get(_PROPERTIES, b""),
            encoded_own,
            *(section for _, section in sections.bodies),
            sections.raw.get(_FOOTER, b""),
        )
    )


def _encode_content(content: Content) -> bytes:
    """Return what came over REST as a message."""
    lives = None if content.time_to_live is None else min(int(content.time_to_live * 1000), _MOST_MILLISECONDS)
    properties = Properties(
        message_id=content.message_id,
        subject=content.subject,
        correlation_id=content.correlation_id,
        content_type=content.content_type,
        group_id=content.session_id,
        to=content.to,
        reply_to=content.reply_to,
        reply_to_group_id=content.reply_to_session_id,
    )
    annotations = None if content.partition_key is None else {_PARTITION: content.partition_key}
    head = Header(ttl=lives)
    return sdk_codec.payload(header=head, message_annotations=annotations, properties=properties, data=[content.body])


@dataclass(frozen=True)
class Asked:
    """A request to a node that answers.

    Attributes:
        message_id: what the answer refers to.
        properties: what is asked.
        body: what comes with it; its names and texts are bytes.
    """

    message_id: Any
    properties: dict[str, Any]
    body: Any


def read_request(encoded: bytes) -> Asked:
    """Return what a message to a node asks."""
    sections = _Sections.of(encoded)
    body = sections.body()
    return Asked(sections.properties.message_id, sections.map_of(_OWN), body[0] if body else None)


def encode_answer(asked: Asked, properties: dict[str, Any], body: Any) -> bytes:
    """Return an answer to a request."""
    about = Properties(correlation_id=asked.message_id)
    return sdk_codec.payload(properties=about, application_properties=properties, value=body)


def error_of(error: BrokerError) -> Any:
    """Return an error as AMQP has it."""
    return sdk_codec.error(error.condition, str(error))


def _text(value: Any) -> str | None:
    return None if value is None else str(text(value))
