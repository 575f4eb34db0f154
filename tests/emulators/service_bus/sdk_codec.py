"""What the emulator uses of the SDK's own AMQP codec. It is private to the SDK, so all of it is named here.

`tests/service_bus/test_sdk_codec.py` holds each name to what is relied on.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from azure.servicebus._pyamqp import _decode, _encode, endpoints, message, outcomes, performatives, types
from azure.servicebus._pyamqp.error import AMQPError

# As they are when they run: the annotations of the SDK are not those of its calls.
Accepted: Any = outcomes.Accepted
Modified: Any = outcomes.Modified
Rejected: Any = outcomes.Rejected
Released: Any = outcomes.Released
Header: Any = message.Header
Properties: Any = message.Properties
_ENDS: Any = endpoints
_DECODERS: Any = _decode._DECODE_BY_CONSTRUCTOR
_INT_BITS: Final = 31


def frame(name: str, /, **fields: Any) -> Any:
    """Return a frame by its name in the standard, such as Open; what is not named of it is null."""
    kind = getattr(performatives, name if name.startswith("SASL") else f"{name}Frame")
    return kind(**dict.fromkeys(kind._fields) | fields)


def write_frame(sent: Any, channel: int = 0, kind: bytes = b"\x00") -> bytes:
    """Return an encoded frame; None is a heartbeat."""
    header, body = _encode.encode_frame(sent, kind)
    return header + channel.to_bytes(2) + bytes(body or b"")


def read_frame(body: bytes) -> tuple[int, list[Any]]:
    """Return the code of a frame and its fields, those that were left out as their defaults."""
    return _decode.decode_frame(memoryview(body))


def payload(**parts: Any) -> bytes:
    """Return an encoded message; `parts` are the SDK's: header, message_annotations, properties, data, value, ..."""
    return bytes(_encode.encode_payload(bytearray(), message.Message(**parts)))


def sections(encoded: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the sections of an encoded message: the code of each, and its own bytes."""
    left: Any = memoryview(encoded)
    while left:
        rest, _ = _DECODERS[left[3]](left[4:])  # behind a described value and its small ulong
        yield left[2], bytes(left[: len(left) - len(rest)])
        left = rest


def decoded(section: bytes) -> Any:
    """Return what a section holds; texts are bytes."""
    return _DECODERS[section[3]](memoryview(section)[4:])[1]


def ends(path: str) -> tuple[Any, Any]:
    """Return a source and a target of one address."""
    return _ENDS.Source(address=path), _ENDS.Target(address=path)


def error(condition: str, told: str) -> Any:
    """Return an error. Without its map of details the SDK's sender would wait for ever."""
    return AMQPError(condition, told, {"tracking-id": "emulator"})


def text(value: Any) -> Any:
    """Return bytes that are a text as one; the codec does not tell them apart."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def named(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a map that was decoded, with texts."""
    return {text(name): text(value) for name, value in values.items()}


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a map that can be encoded: the codec takes each number for one of 32 bits."""
    return {name: _typed(types.AMQPTypes.long, value) if _is_long(value) else value for name, value in values.items()}


def int32(value: int) -> Any:
    """Return a number with its type."""
    return _typed(types.AMQPTypes.int, value)


def symbol(value: str) -> Any:
    """Return a symbol."""
    return _typed(types.AMQPTypes.symbol, value)


def long(value: int) -> Any:
    """Return a number of 64 bits."""
    return _typed(types.AMQPTypes.long, value)


def timestamp(seconds: float) -> Any:
    """Return an instant, to the millisecond."""
    return _typed(types.AMQPTypes.timestamp, int(seconds * 1000))


def array(values: list[Any]) -> Any:
    """Return an array of values that have their type."""
    return _typed(types.AMQPTypes.array, values)


def _is_long(value: Any) -> bool:
    return isinstance(value, int) and value.bit_length() > _INT_BITS


def _typed(kind: Any, value: Any) -> dict[str, Any]:
    return {types.TYPE: kind, types.VALUE: value}
