"""AMQP's types as values, where Python has none of its own (part 1 of the standard)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class Malformed(Exception):
    """Bytes that break the encoding, or a value that is not of the type that is asked for."""


class Unencodable(ValueError):
    """A value that AMQP has no type for, such as an integer of more than 64 bits."""


class Symbol(str):
    """A name from a fixed set of names; ASCII."""

    __slots__ = ()


class Char(str):
    """One character."""

    __slots__ = ()


class UByte(int):
    """8 bits without sign."""


class UShort(int):
    """16 bits without sign."""


class UInt(int):
    """32 bits without sign."""


class ULong(int):
    """64 bits without sign."""


class Byte(int):
    """8 bits with sign."""


class Short(int):
    """16 bits with sign."""


class Int(int):
    """32 bits with sign; a plain `int` is a long, of 64."""


class Timestamp(int):
    """Milliseconds since the epoch."""


class Float(float):
    """32 bits; a plain `float` is a double, of 64."""


class Array(list[Any]):
    """Values of one type, with their encoding."""

    def __init__(self, values: Iterable[Any], encoded: bytes) -> None:
        super().__init__(values)
        self.encoded = encoded


@dataclass(frozen=True)
class Described:
    """A value with what it stands for.

    Attributes:
        descriptor: a `ULong` or a `Symbol` that says what.
        value: of a type of AMQP's own.
    """

    descriptor: Any
    value: Any


@dataclass(frozen=True)
class Decimal:
    """A decimal number, which is passed on and not read.

    Attributes:
        encoded: with its type.
    """

    encoded: bytes
