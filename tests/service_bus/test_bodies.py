"""What goes through the emulator comes out as it went in: bodies of every kind, properties with their types."""

import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusSubQueue
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)

from jobq.testing.clock import VirtualClock
from tests.emulators.service_bus.description import Description
from tests.emulators.service_bus.emulator import Emulator

from .support import QUEUE, broker_properties, client_of, emulator_of, receiver_of, rest_of, sender_of, settle

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("collected")]


async def through(emulator: Emulator, sent: Any) -> ServiceBusReceivedMessage:
    """Send a message, receive it, abandon it, and return what comes then."""
    async with client_of(emulator) as client, sender_of(client) as sender, receiver_of(client) as receiver:
        await sender.send_messages(sent)
        (first,) = await receiver.receive_messages(1)
        await receiver.abandon_message(first)
        (again,) = await receiver.receive_messages(1)
        return again


@pytest.mark.parametrize("data", [[b"a", b"b"], [b"", b"x" * 70_000, b""], [b"\x00\x53\x75\xa0\x01a"]])
async def test_data_sections_are_kept_one_by_one(data: list[bytes]) -> None:
    async with emulator_of() as emulator, rest_of(emulator) as rest:
        got = await through(emulator, AmqpAnnotatedMessage(data_body=data))
        assert got.body_type is AmqpMessageBodyType.DATA
        assert list(got.body) == data
        location = f"{QUEUE}/messages/{got.sequence_number}/{got.lock_token}"
        assert (await rest("PUT", location)).status == 200
        assert await (await rest.lock()).read() == b"".join(data)


@pytest.mark.parametrize("value", [
    "text", b"bytes", 7, -(2**31), 1.5, True, [1, "a", None], {b"k": [1, {b"n": b"v"}]},
    uuid.UUID("12345678-1234-5678-1234-567812345678"),
])  # fmt: skip
async def test_a_value_stays_one(value: Any) -> None:
    async with emulator_of() as emulator:
        got = await through(emulator, AmqpAnnotatedMessage(value_body=value))
        assert got.body_type is AmqpMessageBodyType.VALUE
        assert got.body == (value.encode() if isinstance(value, str) else _bytes_for_texts(value))


async def test_sequences_stay_sequences() -> None:
    async with emulator_of() as emulator:
        got = await through(emulator, AmqpAnnotatedMessage(sequence_body=[[1, b"a"], [], [None, True]]))
        assert got.body_type is AmqpMessageBodyType.SEQUENCE
        assert list(got.body) == [[1, b"a"], [], [None, True]]


async def test_what_stands_around_a_body_is_kept_too() -> None:
    when = datetime(2030, 1, 2, tzinfo=UTC)
    sent = AmqpAnnotatedMessage(
        data_body=b"x",
        header=AmqpMessageHeader(durable=True, priority=9, time_to_live=60_000),
        properties=AmqpMessageProperties(message_id="m", to="t", reply_to="r", group_id="s", content_type="a/b"),
        annotations={"x-own": 5},
        footer={"f": b"g"},
        application_properties={
            "i": 2**31 - 1,
            "d": 1.5,
            "b": True,
            "t": when,
            "u": uuid.UUID(int=5),
            "n": None,
            "s": "é",
        },
    )
    async with emulator_of() as emulator:
        got = (await through(emulator, sent)).raw_amqp_message
        assert got.header is not None
        assert got.properties is not None
        assert (got.header.durable, got.header.priority, got.header.time_to_live) == (True, 9, 60_000)
        assert got.header.delivery_count == 1
        assert (got.properties.message_id, got.properties.to, got.properties.reply_to) == (b"m", b"t", b"r")
        assert (got.properties.group_id, got.properties.content_type) == (b"s", b"a/b")
        assert got.annotations is not None
        assert got.annotations[b"x-own"] == 5
        assert got.footer == {b"f": b"g"}
        assert got.application_properties == {
            b"i": 2**31 - 1,
            b"d": 1.5,
            b"b": True,
            b"t": int(when.timestamp() * 1000),
            b"u": uuid.UUID(int=5),
            b"n": None,
            b"s": "é".encode(),
        }


async def test_bodies_go_through_schedules_batches_deferral_and_dead_letters() -> None:
    async with emulator_of() as emulator, client_of(emulator) as client:
        async with sender_of(client) as sender, receiver_of(client) as receiver:
            await sender.schedule_messages(AmqpAnnotatedMessage(data_body=[b"a", b"b"]), datetime.now(UTC))
            batch = await sender.create_message_batch()
            batch.add_message(AmqpAnnotatedMessage(sequence_body=[[1], [2]]))
            batch.add_message(AmqpAnnotatedMessage(value_body=b"v"))
            await sender.send_messages(batch)
            assert [_body(message) for message in await receiver.peek_messages(3, sequence_number=1)] == [
                [b"a", b"b"],
                [[1], [2]],
                b"v",
            ]
            (first,) = await receiver.receive_messages(1)
            assert first.sequence_number is not None
            await receiver.defer_message(first)
            (deferred,) = await receiver.receive_deferred_messages([first.sequence_number])
            assert _body(deferred) == [b"a", b"b"]
            await receiver.dead_letter_message(deferred, reason="R")
        async with receiver_of(client, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (dead,) = await receiver.receive_messages(1)
            assert (_body(dead), dead.dead_letter_reason) == ([b"a", b"b"], "R")


async def test_a_deferred_message_stays_deferred_whoever_gives_it_back() -> None:
    clock = VirtualClock(wall=time.time())
    description = Description(QUEUE, max_delivery_count=4)
    async with Emulator([description], clock=clock) as emulator, client_of(emulator) as client:
        async with sender_of(client) as sender:
            await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        async with receiver_of(client) as receiver:
            (first,) = await receiver.receive_messages(1)
            number = first.sequence_number
            assert number is not None
            await receiver.defer_message(first)

            async def again() -> ServiceBusReceivedMessage:
                (got,) = await receiver.receive_deferred_messages([number])
                assert got.state.name == "DEFERRED"
                return got

            await settle(receiver, "abandoned", (await again()).lock_token)
            queue = emulator.broker.queue(QUEUE)
            await settle(receiver, "abandoned", (await again()).lock_token, properties_to_modify={"k": 1})
            got = await again()
            assert (got.delivery_count, got.application_properties) == (2, {b"k": 1})
            (other,) = await receiver.receive_messages(1)
            assert str(other) == "b"  # a deferred one never comes by itself, also when its lock has expired:
            await receiver.complete_message(other)
            await clock.advance(60)
            assert await receiver.receive_messages(1, max_wait_time=1) == []
            (peeked,) = await receiver.peek_messages(1, sequence_number=1)
            assert (peeked.state.name, peeked.delivery_count) == ("DEFERRED", 3)
            await settle(receiver, "abandoned", (await again()).lock_token)  # the fourth
        assert queue.messages() == []
        assert queue.dead is not None
        assert [message.reason for message in queue.dead.messages()] == ["MaxDeliveryCountExceeded"]


async def test_what_rest_carries_comes_out_of_both_ends() -> None:
    own = {"SessionId": "s", "PartitionKey": "s", "To": "t", "ReplyTo": "r", "ReplyToSessionId": "rs"}
    async with emulator_of() as emulator, rest_of(emulator) as rest, client_of(emulator) as client:
        assert await rest.send("x", **own) == 201
        told = broker_properties(await rest.lock())
        assert {name: told[name] for name in own} == own
        emulator.broker.queue(QUEUE).abandon(uuid.UUID(told["LockToken"]))
        async with receiver_of(client) as receiver:
            (got,) = await receiver.receive_messages(1)
            assert (got.session_id, got.partition_key, got.to) == ("s", "s", "t")
            assert (got.reply_to, got.reply_to_session_id) == ("r", "rs")
            again = ServiceBusMessage("y", session_id="q", to="tt", time_to_live=timedelta(minutes=1))
            async with sender_of(client) as sender:
                await sender.send_messages(again)
            told = broker_properties(await rest.lock())
            assert (told["SessionId"], told["To"], told["TimeToLive"]) == ("q", "tt", 60)


def _body(message: ServiceBusReceivedMessage) -> object:
    return message.body if message.body_type is AmqpMessageBodyType.VALUE else list(message.body)


def _bytes_for_texts(value: Any) -> Any:
    """The SDK shows texts as bytes."""
    if isinstance(value, list):
        return [_bytes_for_texts(one) for one in value]
    return value.encode() if isinstance(value, str) else value
