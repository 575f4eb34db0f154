"""What the emulator relies on in the SDK's private codec; when one of these fails, the emulator is to be looked at."""

import uuid
from importlib.metadata import version
from typing import Any, Final

import pytest
from azure.servicebus._pyamqp import endpoints, performatives
from azure.servicebus._pyamqp.message import Header, Properties

from tests.emulators.service_bus import outcomes, sdk_codec

_MINOR: Final = "7.15"
_ERROR: Final = sdk_codec.error("c", "d")
_DETAILS: Final = {b"tracking-id": b"emulator"}
# In this order they come when a frame is read.
_FIELDS: Final[dict[Any, str]] = {
    performatives.OpenFrame: "container_id hostname max_frame_size channel_max idle_timeout",
    performatives.AttachFrame: "name handle role send_settle_mode rcv_settle_mode source target unsettled"
    " incomplete_unsettled initial_delivery_count max_message_size",
    performatives.FlowFrame: "next_incoming_id incoming_window next_outgoing_id outgoing_window handle delivery_count"
    " link_credit available drain",
    performatives.TransferFrame: "handle delivery_id delivery_tag message_format settled more",
    performatives.DispositionFrame: "role first last settled state",
    performatives.DetachFrame: "handle closed error",
    endpoints.Source: "address durable expiry_policy timeout dynamic dynamic_node_properties distribution_mode filters",
    endpoints.Target: "address",
    Header: "durable priority ttl first_acquirer delivery_count",
    Properties: "message_id",
}


def test_the_sdk_is_the_one_that_was_looked_at() -> None:
    found = version("azure-servicebus")
    assert found.startswith(f"{_MINOR}."), (
        f"azure-servicebus is {found}; the emulator was written for {_MINOR}. If all tests here and in"
        " tests/service_bus pass with it, write its number into _MINOR."
    )


@pytest.mark.parametrize("frame", _FIELDS, ids=lambda frame: frame.__name__)
def test_fields_are_where_they_are_looked_for(frame: Any) -> None:
    wanted = tuple(_FIELDS[frame].split())
    told = f"the SDK's {frame.__name__} has other fields, or in another order: the emulator reads them by their places"
    assert frame._fields[: len(wanted)] == wanted, told


def test_a_frame_comes_back_with_defaults_for_what_was_left_out() -> None:
    sent = sdk_codec.frame("Flow", incoming_window=5, outgoing_window=6, next_outgoing_id=7, handle=1, link_credit=9)
    encoded = sdk_codec.write_frame(sent, channel=3)
    assert (int.from_bytes(encoded[:4]), encoded[6:8]) == (len(encoded), b"\x00\x03"), "the head of a frame has changed"
    assert sdk_codec.read_frame(encoded[8:])[1][:9] == [None, 5, 7, 6, 1, None, 9, None, False]
    assert sdk_codec.write_frame(None) == b"\x00\x00\x00\x08\x02\x00\x00\x00", "a heartbeat is another frame now"


def test_a_transfer_carries_its_payload_behind_its_fields() -> None:
    sent = sdk_codec.frame("Transfer", handle=1, delivery_id=2, delivery_tag=b"t", more=True, payload=b"rest")
    code, fields = sdk_codec.read_frame(sdk_codec.write_frame(sent)[8:])
    assert (code, fields[:6], bytes(fields[11])) == (0x14, [1, 2, b"t", 0, None, True], b"rest")


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (sdk_codec.Accepted(), ("accepted", [])),
        (sdk_codec.Released(), ("released", [])),
        (sdk_codec.Rejected(error=_ERROR), ("rejected", [[b"c", b"d", _DETAILS]])),
        (sdk_codec.Modified(True, False, None), ("modified", [True, False])),
    ],
)
def test_an_outcome_comes_as_its_name_and_fields(sent: Any, read: tuple[str, list[Any]]) -> None:
    frame = sdk_codec.frame("Disposition", role=True, first=1, settled=True, state=sent)
    found = outcomes.read(sdk_codec.read_frame(sdk_codec.write_frame(frame)[8:])[1][4])
    assert found is not None, "the SDK reads an outcome as something else than its name and fields"
    assert (found[0], found[1][: len(read[1])]) == read


def test_a_message_can_be_taken_apart_and_put_together() -> None:
    own = sdk_codec.plain({"text": "é", "small": 1, "large": 2**40, "none": None, "id": uuid.UUID(int=5)})
    parts = {
        "header": sdk_codec.Header(ttl=5),
        "message_annotations": {"x-opt-partition-key": "k", "x": sdk_codec.timestamp(1.5)},
        "properties": sdk_codec.Properties(message_id="m"),
        "application_properties": own,
        "data": [b"one", b"two"],
    }
    encoded = sdk_codec.payload(**parts)
    found = list(sdk_codec.sections(encoded))
    assert [code for code, _ in found] == [0x70, 0x72, 0x73, 0x74, 0x75, 0x75], "the codes of sections have changed"
    assert b"".join(section for _, section in found) == encoded
    values = [sdk_codec.decoded(section) for _, section in found]
    assert sdk_codec.Header(*values[0]).ttl == 5
    assert sdk_codec.named(values[1]) == {"x-opt-partition-key": "k", "x": 1500}
    assert sdk_codec.Properties(*values[2]).message_id == b"m"
    assert sdk_codec.named(values[3]) == {"text": "é", "small": 1, "large": 2**40, "none": None, "id": uuid.UUID(int=5)}
    assert values[4:] == [b"one", b"two"]


def test_values_keep_the_types_that_the_client_looks_for() -> None:
    answer = {"status": sdk_codec.int32(200), "condition": sdk_codec.symbol("amqp:not-found")}
    body = {"expirations": sdk_codec.array([sdk_codec.timestamp(1), sdk_codec.timestamp(2)]), "n": sdk_codec.long(7)}
    encoded = sdk_codec.payload(application_properties=answer, value=body)
    said, told = (sdk_codec.decoded(section) for _, section in sdk_codec.sections(encoded))
    assert said == {b"status": 200, b"condition": b"amqp:not-found"}
    assert told == {b"expirations": [1000, 2000], b"n": 7}
