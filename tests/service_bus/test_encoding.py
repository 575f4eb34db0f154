"""AMQP's encoding: what goes in comes out with its type, and no bytes do worse than being refused."""

import time
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq.testing.amqp.composite import composite
from jobq.testing.amqp.encoding import array, decode, encode, skip
from jobq.testing.amqp.performatives import Attach, Begin, Disposition, Error, Flow, Open, Rejected, Source, Transfer
from jobq.testing.amqp.types import (
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

_INTEGERS: dict[Any, tuple[int, bool]] = {
    UByte: (8, False),
    UShort: (16, False),
    UInt: (32, False),
    ULong: (64, False),
    Byte: (8, True),
    Short: (16, True),
    Int: (32, True),
    int: (64, True),
    Timestamp: (64, True),
}


def _integers(kind: Any, bits: int, is_signed: bool) -> st.SearchStrategy[Any]:
    lowest = -(2 ** (bits - 1)) if is_signed else 0
    return st.integers(lowest, lowest + 2**bits - 1).map(kind)


_keys = st.one_of(st.text(max_size=300), st.from_regex(r"[ -~]{0,300}", fullmatch=True).map(Symbol))
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.floats(allow_nan=False, width=32).map(Float),
    st.binary(max_size=300),
    st.uuids(),
    st.characters(exclude_categories=["Cs"]).map(Char),
    _keys,
    *(_integers(kind, *how) for kind, how in _INTEGERS.items()),
)
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(_keys, inner, max_size=5),
        st.tuples(_integers(ULong, 64, is_signed=False), inner).map(lambda pair: Described(*pair)),
    ),
    max_leaves=20,
)


def _typed(value: Any) -> Any:
    """Return a value together with all its types, which `==` does not look at."""
    match value:
        case list():
            return [_typed(one) for one in value]
        case dict():
            return {(type(name), name): _typed(one) for name, one in value.items()}
        case Described():
            return "described", _typed(value.descriptor), _typed(value.value)
    return type(value), value


@given(_values)
def test_every_value_comes_back_with_its_type(value: Any) -> None:
    encoded = encode(value)
    assert _typed(decode(encoded)) == _typed(value)
    with pytest.raises(Malformed):
        decode(encoded + b"\x40")
    with pytest.raises(Malformed):
        decode(encoded[:-1])


@given(_values, st.data())
def test_no_bytes_do_worse_than_being_refused(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode(value))
    for _ in range(data.draw(st.integers(0, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    for reading in (decode, lambda raw: composite(decode(raw)), lambda raw: skip(raw, 0)):
        try:
            reading(bytes(encoded))
        except Malformed:
            continue


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_do_neither(raw: bytes) -> None:
    try:
        value = decode(raw)
    except Malformed:
        return
    assert _repeatable(decode(encode(value))) == _repeatable(value)  # what can be read can be said


def _repeatable(value: Any) -> str:
    return repr(value)  # not a number equals nothing


@pytest.mark.parametrize("raw", [
    b"\xc0\xff\xff" + b"\x40" * 254,
    b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x41",
    b"\xe0\x03\x03\xe0\x40" + b"\x40" * 9,
    b"\xc1\x03\x03\x40\x40\x40",
    b"\xc1\x05\x04\x40\x40\x40\x40",
    b"\xc1\x03\x02\x45\x40",
    b"\x56\x02",
    b"\x73\x00\x11\x00\x00",
    b"\xa3\x01\x80",
    b"\x00",
    b"",
])  # fmt: skip
def test_what_breaks_the_encoding_is_refused(raw: bytes) -> None:
    with pytest.raises(Malformed):
        decode(raw)


def test_a_megabyte_of_the_worst_takes_little_time() -> None:
    inner = b"\xe0\xfe\xfd\x40" + b"\x00" * 252
    worst = b"\xd0" + (len(inner) * 4000 + 4).to_bytes(4) + (4000).to_bytes(4) + inner * 4000
    began = time.process_time()
    for raw in (
        worst,
        b"\x00" * 1_000_000,
        b"\xc0\xff\x01" * 300_000,
        b"\xd1\x00\x0f\xff\xff\x00\x0f\xff\xfa" + b"\x40" * 10**6,
    ):
        with pytest.raises(Malformed):
            decode(raw)
    assert time.process_time() - began < 5


def test_arrays_and_decimals_go_out_as_they_came() -> None:
    for kind, values in ((Timestamp, [1, 2]), (int, [-5]), (Symbol, ["a", "b"]), (int, [])):
        assert list(decode(encode(array(kind, values)))) == values
    numbers = uuid.uuid4().bytes
    for raw in (b"\x74" + numbers[:4], b"\x84" + numbers[:8], b"\x94" + numbers):
        assert decode(raw) == Decimal(raw)
        assert encode(decode(raw)) == raw
    described = b"\xe0\x09\x02\x00\x53\x24\xc0\x01\x00\x01\x00"
    assert decode(encode(decode(described))) == [Described(ULong(0x24), [])] * 2


@pytest.mark.parametrize("value", [2**63, UInt(2**32), UByte(-1), Symbol("é"), object(), {"k": object()}, "\ud800"])
def test_what_amqp_has_no_type_for_is_told(value: object) -> None:
    with pytest.raises(Unencodable):
        encode(value)


def test_subclasses_go_as_what_they_are_made_of() -> None:
    class Name(str):
        __slots__ = ()

    assert decode(encode({Name("a"): Name("b")})) == {"a": "b"}


def test_composites_come_back_and_have_their_defaults() -> None:
    flow = Flow(incoming_window=1, next_outgoing_id=2, outgoing_window=3, drain=True)
    rejected = Disposition(role=True, first=0, state=Rejected(error=Error(condition="a:b", info={Symbol("k"): 1})))
    attach = Attach(name="n", handle=1, role=False, source=Source(address="a"))
    for each in (flow, rejected, attach, Open(container_id="é"), Transfer(handle=2**32 - 1)):
        assert composite(decode(each.encode())) == each
    by_name = Described(Symbol("amqp:begin:list"), [None, UInt(1), UInt(2), UInt(3), None])
    assert composite(by_name) == Begin(next_outgoing_id=1, incoming_window=2, outgoing_window=3)
