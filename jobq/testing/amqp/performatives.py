"""What frames and messages are made of (parts 2, 3 and 5 of the standard)."""

from typing import Any, Final

from jobq.testing.amqp.composite import U8, U16, U32, U64, Composite, Name, Time

_MOST: Final = 2**32 - 1


# Frames of a connection


class Open(Composite, code=0x10, name="open"):
    """Begins a connection; times are milliseconds."""

    container_id: str
    hostname: str | None = None
    max_frame_size: U32 = _MOST
    channel_max: U16 = 65535
    idle_time_out: U32 | None = None
    outgoing_locales: Any = None
    incoming_locales: Any = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: Any = None


class Begin(Composite, code=0x11, name="begin"):
    """Begins a session."""

    remote_channel: U16 | None = None
    next_outgoing_id: U32
    incoming_window: U32
    outgoing_window: U32
    handle_max: U32 = _MOST
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: Any = None


class Attach(Composite, code=0x12, name="attach"):
    """Begins a link; role: whether who sends this receives messages."""

    name: str
    handle: U32
    role: bool
    snd_settle_mode: U8 = 2
    rcv_settle_mode: U8 = 0
    source: Any = None
    target: Any = None
    unsettled: Any = None
    incomplete_unsettled: bool = False
    initial_delivery_count: U32 | None = None
    max_message_size: U64 | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Flow(Composite, code=0x13, name="flow"):
    """Says what a session, and perhaps one of its links, may send."""

    next_incoming_id: U32 | None = None
    incoming_window: U32
    next_outgoing_id: U32
    outgoing_window: U32
    handle: U32 | None = None
    delivery_count: U32 | None = None
    link_credit: U32 | None = None
    available: U32 | None = None
    drain: bool = False
    echo: bool = False
    properties: Any = None


class Transfer(Composite, code=0x14, name="transfer"):
    """Carries a message, or a part; the payload follows it in its frame."""

    handle: U32
    delivery_id: U32 | None = None
    delivery_tag: bytes | None = None
    message_format: U32 | None = None
    settled: bool | None = None
    more: bool = False
    rcv_settle_mode: U8 | None = None
    state: Any = None
    resume: bool = False
    aborted: bool = False
    batchable: bool = False


class Disposition(Composite, code=0x15, name="disposition"):
    """Says what became of deliveries; role: whether who sends this received them."""

    role: bool
    first: U32
    last: U32 | None = None
    settled: bool = False
    state: Any = None
    batchable: bool = False


class Error(Composite, code=0x1D, name="error"):
    """Why something was ended or rejected."""

    condition: Name
    description: str | None = None
    info: dict[Any, Any] | None = None


class Detach(Composite, code=0x16, name="detach"):
    """Ends a link."""

    handle: U32
    closed: bool = False
    error: Error | None = None


class End(Composite, code=0x17, name="end"):
    """Ends a session."""

    error: Error | None = None


class Close(Composite, code=0x18, name="close"):
    """Ends a connection."""

    error: Error | None = None


# Outcomes of deliveries


class Received(Composite, code=0x23, name="received"):
    """How much came; no outcome."""

    section_number: U32
    section_offset: U64


class Accepted(Composite, code=0x24, name="accepted"):
    """It was processed."""


class Rejected(Composite, code=0x25, name="rejected"):
    """It cannot be processed."""

    error: Error | None = None


class Released(Composite, code=0x26, name="released"):
    """It was not processed."""


class Modified(Composite, code=0x27, name="modified"):
    """It was not processed, and comes back changed."""

    delivery_failed: bool = False
    undeliverable_here: bool = False
    message_annotations: Any = None


# Ends of links


class Source(Composite, code=0x28, name="source"):
    """Where a link's messages come from."""

    address: str | None = None
    durable: Any = None
    expiry_policy: Any = None
    timeout: Any = None
    dynamic: bool = False
    dynamic_node_properties: Any = None
    distribution_mode: Any = None
    filter: dict[Any, Any] | None = None
    default_outcome: Any = None
    outcomes: Any = None
    capabilities: Any = None


class Target(Composite, code=0x29, name="target"):
    """Where a link's messages go."""

    address: str | None = None
    durable: Any = None
    expiry_policy: Any = None
    timeout: Any = None
    dynamic: bool = False
    dynamic_node_properties: Any = None
    capabilities: Any = None


# SASL


class SaslMechanisms(Composite, code=0x40, name="sasl-mechanisms"):
    """What the server offers."""

    sasl_server_mechanisms: Any


class SaslInit(Composite, code=0x41, name="sasl-init"):
    """What the client chose."""

    mechanism: Name
    initial_response: bytes | None = None
    hostname: str | None = None


class SaslOutcome(Composite, code=0x44, name="sasl-outcome"):
    """Whether it was enough: 0 = yes, 1 = no."""

    outcome: U8
    additional_data: bytes | None = None


# Sections of messages


class Header(Composite, code=0x70, name="header"):
    """How a message is to be transferred; ttl: milliseconds."""

    durable: bool = False
    priority: U8 = 4
    ttl: U32 | None = None
    first_acquirer: bool = False
    delivery_count: U32 = 0


class Properties(Composite, code=0x73, name="properties"):
    """What the sender says of a message, beside its own properties."""

    message_id: Any = None
    user_id: bytes | None = None
    to: Any = None
    subject: str | None = None
    reply_to: Any = None
    correlation_id: Any = None
    content_type: Name | None = None
    content_encoding: Name | None = None
    absolute_expiry_time: Time | None = None
    creation_time: Time | None = None
    group_id: str | None = None
    group_sequence: U32 | None = None
    reply_to_group_id: str | None = None
