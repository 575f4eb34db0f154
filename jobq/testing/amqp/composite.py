"""The standard's composite types: described lists, declared as dataclasses whose fields say their type on the wire.

Decoding checks every field that says one; raises Malformed when it has another, or is missing.
"""

from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    Self,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from jobq.testing.amqp.encoding import encode
from jobq.testing.amqp.types import Described, Malformed, Symbol, Timestamp, UByte, UInt, ULong, UShort

U8 = Annotated[int, UByte]
U16 = Annotated[int, UShort]
U32 = Annotated[int, UInt]
U64 = Annotated[int, ULong]
Name = Annotated[str, Symbol]
Time = Annotated[int, Timestamp]


class _Field(NamedTuple):
    """A field of a composite: its name, its type on the wire (None = any), its value when it is left out."""

    name: str
    kind: type | None
    default: object


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclass(frozen=True, kw_only=True)
class Composite:
    """A described list with named fields."""

    code: ClassVar[int]

    def __init_subclass__(cls, *, code: int, name: str) -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        cls.code = code
        _COMPOSITES[code] = _COMPOSITES[f"amqp:{name}:list"] = cls

    @classmethod
    def of(cls, value: object) -> Self:
        """Return this composite from a decoded value; raises Malformed."""
        found = composite(value)
        if not isinstance(found, cls):
            raise Malformed(f"not {cls.__name__}")
        return found

    def encode(self) -> bytes:
        """Return the encoding; fields at the end that are not there are left out."""
        return encode(self._described())

    def _described(self) -> Described:
        values = [_outgoing(getattr(self, name), kind) for name, kind, _ in _layout(self.code)]
        while values and values[-1] is None:
            del values[-1]
        return Described(ULong(self.code), values)


_COMPOSITES: Final[dict[Any, type[Composite]]] = {}


def composite(value: object) -> Composite:
    """Return the composite that a decoded value is; raises Malformed."""
    kind = _kind(value)
    if kind is None or not isinstance(value, Described) or not isinstance(value.value, list):
        raise Malformed(f"{value!r:.100} is no composite that is known here")
    layout = _layout(kind.code)
    if len(value.value) > len(layout):
        raise Malformed(f"{kind.__name__} has {len(value.value)} fields instead of {len(layout)}")
    values = value.value + [None] * (len(layout) - len(value.value))
    return kind(**{field.name: _incoming(kind, field, one) for field, one in zip(layout, values, strict=True)})


def _kind(value: object) -> type[Composite] | None:
    if not isinstance(value, Described) or not isinstance(value.descriptor, (ULong, Symbol)):
        return None
    return _COMPOSITES.get(value.descriptor)


def _incoming(of: type[Composite], field: _Field, value: Any) -> Any:
    if value is None:
        if field.default is MISSING:
            raise Malformed(f"{of.__name__} has no {field.name}")
        return field.default
    if _kind(value) is not None:
        value = composite(value)
    if field.kind is not None and type(value) is not field.kind:
        raise Malformed(f"{field.name} of {of.__name__} is a {type(value).__name__}, no {field.kind.__name__}")
    return value


def _outgoing(value: Any, kind: type | None) -> Any:
    if isinstance(value, Composite):
        return value._described()  # noqa: SLF001 - of the same family
    return value if value is None or kind is None else kind(value)


@cache
def _layout(code: int) -> tuple[_Field, ...]:
    kind = _COMPOSITES[code]
    hints = get_type_hints(kind, include_extras=True)
    return tuple(_Field(field.name, _wire_type(hints[field.name]), field.default) for field in fields(kind))


def _wire_type(hint: Any) -> type | None:
    if isinstance(hint, UnionType) or type(hint).__name__ == "_UnionGenericAlias":
        hint = next(part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is Annotated:
        found: type = hint.__metadata__[0]
        return found
    return None if hint is Any else get_origin(hint) or hint
