"""AMQP's types as bytes, in both directions (part 1 of the standard).

A decoded number keeps its AMQP type (`UInt`, `Timestamp`), so it goes out as it came in. Whatever the bytes, decoding
returns a value or raises `Malformed`, in time and memory that grow with the number of bytes alone.
"""

import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from jobq.testing.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Malformed,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    Unencodable,
    UShort,
)

_DEPTH: Final = 32  # of lists in lists
_CONSTANTS: Final[dict[int, Any]] = {0x40: None, 0x41: True, 0x42: False, 0x43: UInt(0), 0x44: ULong(0)}
_EMPTY_LIST: Final = 0x45
_DECIMALS: Final = frozenset({0x74, 0x84, 0x94})
# How many bytes the content of a type has, by the first half of its code; 0xA and above say it themselves.
_WIDTHS: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_NUMBERS: Final[dict[int, tuple[struct.Struct, Callable[[Any], Any]]]] = {
    code: (struct.Struct(f">{form}"), kind)
    for code, form, kind in (
        *((0x50, "B", UByte), (0x51, "b", Byte), (0x60, "H", UShort), (0x61, "h", Short)),
        *((0x52, "B", UInt), (0x70, "I", UInt), (0x54, "b", Int), (0x71, "i", Int)),
        *((0x53, "B", ULong), (0x80, "Q", ULong), (0x55, "b", int), (0x81, "q", int)),
        *((0x72, "f", Float), (0x82, "d", float), (0x83, "q", Timestamp)),
    )
}
# The last of a kind is its widest.
_WIDE: Final[dict[Any, tuple[bytes, struct.Struct]]] = {
    kind: (bytes([code]), pack) for code, (pack, kind) in _NUMBERS.items()
}
_SMALL: Final[dict[Any, tuple[bytes, range]]] = {
    UInt: (b"\x52", range(256)),
    ULong: (b"\x53", range(256)),
    Int: (b"\x54", range(-128, 128)),
    int: (b"\x55", range(-128, 128)),
}


# Bytes to values


def decode(data: bytes) -> Any:
    """Return the one value that these bytes are; raises Malformed."""
    value, end = read(data)
    if end != len(data):
        raise Malformed(f"{len(data) - end} bytes follow the value")
    return value


def read(data: bytes, at: int = 0) -> tuple[Any, int]:
    """Return the value that begins here, and where it ends; raises Malformed."""
    return _read(data, at, len(data), _DEPTH)


def skip(data: bytes, at: int) -> tuple[Any, int]:
    """Return the descriptor of the described value that begins here, and where the value ends; raises Malformed.

    The value itself is not read.
    """
    if data[at : at + 1] != b"\x00":
        raise Malformed("no described value")
    descriptor, at = _read(data, at + 1, len(data), 0)
    if at >= len(data) or not data[at]:
        raise Malformed("a described value is cut off, or described twice")
    return descriptor, _extent(data[at], data, at + 1, len(data))[1]


def _read(data: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
    if at >= end:
        raise Malformed("the value is cut off")
    if data[at]:
        return _content(data[at], data, at + 1, end, depth)
    descriptor, at = _read(data, at + 1, end, _deeper(depth))
    value, at = _read(data, at, end, _deeper(depth))
    return Described(descriptor, value), at


def _deeper(depth: int) -> int:
    if not depth:
        raise Malformed("nested too deep")
    return depth - 1


def _extent(code: int, data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return where the content of a value of this type begins and ends; `at` is behind the type's code."""
    width = _WIDTHS.get(code >> 4)
    if width is None:
        sizes = 4 if code & 0x10 else 1  # bytes that say the size
        width = int.from_bytes(data[at : at + sizes])
        at += sizes
    if code < 0x40 or at + width > end:
        raise Malformed(f"a value of type {code:#04x} is cut off, or there is no such type")
    return at, at + width


def _content(code: int, data: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
    """Return the value whose type has this code and whose content begins here, and where it ends."""
    start, stop = _extent(code, data, at, end)
    if code in _NUMBERS:
        pack, kind = _NUMBERS[code]
        return kind(pack.unpack_from(data, start)[0]), stop
    if code in _CONSTANTS:
        return _CONSTANTS[code], stop
    if code in _SCALARS:
        try:
            return _SCALARS[code](data[start:stop]), stop
        except ValueError as error:
            raise Malformed(f"a value of type {code:#04x} cannot be read: {error}") from error
    if code in _DECIMALS:
        return Decimal(bytes([code]) + data[start:stop]), stop
    if code == _EMPTY_LIST:
        return [], stop
    if code in _COMPOUNDS:
        counts = 4 if code & 0x10 else 1  # bytes that say how many
        count, first = int.from_bytes(data[start : start + counts]), start + counts
        # Each element has a byte or more; so few bytes never become many values. That refuses arrays of values that
        # have none (a hundred times `true`), which nobody sends.
        if first > stop or count > stop - first:
            raise Malformed(f"{stop - start} bytes cannot hold {count} elements")
        return _COMPOUNDS[code](data, first, stop, count, _deeper(depth)), stop
    raise Malformed(f"there is no type {code:#04x}")


def _read_list(data: bytes, at: int, stop: int, count: int, depth: int) -> list[Any]:
    values = []
    for _ in range(count):
        value, at = _read(data, at, stop, depth)
        values.append(value)
    _require_end(at, stop)
    return values


def _read_map(data: bytes, at: int, stop: int, count: int, depth: int) -> dict[Any, Any]:
    values = _read_list(data, at, stop, count, depth)
    try:
        pairs = dict(zip(values[::2], values[1::2], strict=True))
    except (TypeError, ValueError) as error:  # a list as a key; a key without a value
        raise Malformed(f"no map: {error}") from error
    if len(pairs) * 2 != count:
        raise Malformed("a map has a key twice")
    return pairs


def _read_array(data: bytes, at: int, stop: int, count: int, depth: int) -> Array:
    whole = bytes([0xF0]) + (stop - at + 4).to_bytes(4) + count.to_bytes(4) + data[at:stop]
    values: list[Any] = []
    descriptor, is_described = None, data[at : at + 1] == b"\x00"
    if is_described:
        descriptor, at = _read(data, at + 1, stop, depth)
    if count and at >= stop:
        raise Malformed("an array is cut off")
    code, at = data[at] if count else 0, at + 1
    for _ in range(count):
        value, at = _content(code, data, at, stop, depth)
        values.append(Described(descriptor, value) if is_described else value)
    if count:
        _require_end(at, stop)
    return Array(values, whole)


def _require_end(at: int, stop: int) -> None:
    if at != stop:
        raise Malformed("the size of a list, map or array is not that of its elements")


def _read_boolean(raw: bytes) -> bool:
    if raw not in {b"\x00", b"\x01"}:
        raise ValueError("neither 0 nor 1")
    return raw == b"\x01"


def _read_symbol(raw: bytes) -> Symbol:
    return Symbol(raw.decode("ascii"))


_SCALARS: Final[dict[int, Callable[[bytes], Any]]] = {
    0x56: _read_boolean,
    0x73: lambda raw: Char(raw.decode("utf-32-be")),
    0x98: lambda raw: uuid.UUID(bytes=raw),
    **dict.fromkeys((0xA0, 0xB0), bytes),
    **dict.fromkeys((0xA1, 0xB1), lambda raw: raw.decode()),
    **dict.fromkeys((0xA3, 0xB3), _read_symbol),
}
_COMPOUNDS: Final[dict[int, Callable[[bytes, int, int, int, int], Any]]] = {
    **dict.fromkeys((0xC0, 0xD0), _read_list),
    **dict.fromkeys((0xC1, 0xD1), _read_map),
    **dict.fromkeys((0xE0, 0xF0), _read_array),
}


# Values to bytes


def encode(value: Any) -> bytes:
    """Return the encoding of a value; raises Unencodable."""
    kind: Any = next((kind for kind in type(value).__mro__ if kind in _ENCODERS), None)
    if kind is None:
        raise Unencodable(f"AMQP has no type for {type(value).__name__}")
    try:
        return _ENCODERS[kind](value if kind is type(value) else kind(value))
    except (struct.error, ValueError) as error:
        raise Unencodable(f"AMQP cannot say {value!r:.100}: {error}") from error


def array(kind: type, values: Iterable[Any]) -> Array:
    """Return an array of numbers or symbols, for sending."""
    values = list(values)
    if kind is Symbol:
        code, contents = b"\xb3", [len(value).to_bytes(4) + value.encode("ascii") for value in values]
    else:
        code, pack = _WIDE[kind]
        contents = [pack.pack(value) for value in values]
    inner = len(values).to_bytes(4) + code + b"".join(contents)
    return Array(values, b"\xf0" + len(inner).to_bytes(4) + inner)


def _number(value: Any) -> bytes:
    kind = type(value)
    small = _SMALL.get(kind)
    if small is not None and value in small[1]:
        return small[0] + bytes([value & 0xFF])
    code, pack = _WIDE[kind]
    return code + pack.pack(value)


def _variable(code: int, raw: bytes) -> bytes:
    """Return bytes with their size before them; the code is that of the small form."""
    if len(raw) < 256:
        return bytes([code, len(raw)]) + raw
    return bytes([code | 0x10]) + len(raw).to_bytes(4) + raw


def _sequence(code: int, values: Sequence[Any]) -> bytes:
    inner = len(values).to_bytes(4) + b"".join(map(encode, values))
    return bytes([code]) + len(inner).to_bytes(4) + inner


def _map(pairs: Mapping[Any, Any]) -> bytes:
    return _sequence(0xD1, [part for pair in pairs.items() for part in pair])


_ENCODERS: Final[dict[type, Callable[[Any], bytes]]] = {
    **dict.fromkeys((UByte, UShort, UInt, ULong, Byte, Short, Int, int, Timestamp, Float, float), _number),
    type(None): lambda _: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    Char: lambda value: b"\x73" + value.encode("utf-32-be"),
    Decimal: lambda value: value.encoded,
    uuid.UUID: lambda value: b"\x98" + value.bytes,
    bytes: lambda value: _variable(0xA0, value),
    str: lambda value: _variable(0xA1, value.encode()),
    Symbol: lambda value: _variable(0xA3, value.encode("ascii")),
    list: lambda value: _sequence(0xD0, value) if value else b"\x45",
    dict: _map,
    Array: lambda value: value.encoded,
    Described: lambda value: b"\x00" + encode(value.descriptor) + encode(value.value),
}
