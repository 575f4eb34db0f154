"""The unmodified SDK against the emulator's AMQP, over a real socket."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)

from tests.emulators.service_bus.description import Description
from tests.emulators.service_bus.emulator import Emulator
from tests.emulators.service_bus.faults import Operation, Via
from tests.emulators.service_bus.fidelity import Fidelity
from tests.emulators.service_bus.message import State

from .support import QUEUE, SOON, client_of, emulator_of, eventually, put, receiver_of, sender_of, settle

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("collected")]


async def test_send_receive_renew_complete() -> None:
    async with emulator_of() as emulator, client_of(emulator) as client:
        async with sender_of(client) as sender:
            message = ServiceBusMessage("one", message_id="m1", subject="s", application_properties={"k": "v", "n": 3})
            await sender.send_messages(message)
        async with receiver_of(client) as receiver:
            (got,) = await receiver.receive_messages(1)
            assert (str(got), got.message_id, got.subject, got.delivery_count or 0) == ("one", "m1", "s", 0)
            assert got.application_properties == {b"k": b"v", b"n": 3}
            assert isinstance(got.lock_token, uuid.UUID)
            before = got.locked_until_utc
            assert before is not None
            assert await receiver.renew_message_lock(got) > before
            await receiver.complete_message(got)
        assert emulator.broker.queue(QUEUE).messages() == []
        asked = [
            request.operation for request in emulator.gate.requests if request.operation is not Operation.AUTHORIZE
        ]
        assert asked == [
            *(Operation.ATTACH, Operation.SEND, Operation.ATTACH),
            *(Operation.RECEIVE, Operation.RENEW, Operation.COMPLETE),
        ]
        assert emulator.gate.count(via=Via.AMQP, status=200) == len(emulator.gate.requests)


async def test_batches_and_what_is_larger_than_a_frame() -> None:
    async with emulator_of() as emulator, client_of(emulator) as client, sender_of(client) as sender:
        queue = emulator.broker.queue(QUEUE)
        batch = await sender.create_message_batch()
        assert batch.max_size_in_bytes == 256 * 1024
        for number in range(20):
            batch.add_message(ServiceBusMessage(f"b{number}"))
        await sender.send_messages(batch)
        await sender.send_messages([ServiceBusMessage(b"x" * 100_000) for _ in range(2)])
        assert [message.content.body[:2] for message in queue.messages()][18:] == [b"b1", b"b1", b"xx", b"xx"]
        assert [request.messages for request in emulator.gate.requests if request.operation is Operation.SEND] == [
            20,
            2,
        ]
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(b"x" * 300_000), timeout=SOON)
        assert len(queue.messages()) == 22


async def test_duplicates_are_dropped() -> None:
    async with emulator_of(dedup_window=600) as emulator, client_of(emulator) as client:
        async with sender_of(client) as sender:
            for _ in range(2):
                await sender.send_messages(ServiceBusMessage("a", message_id="same"))
            await sender.send_messages([ServiceBusMessage("a", message_id=name) for name in ("same", "other")])
        assert len(emulator.broker.queue(QUEUE).messages()) == 2


async def test_schedule_and_cancel() -> None:
    async with (
        emulator_of() as emulator,
        client_of(emulator, retry_total=0) as client,
        sender_of(client) as sender,
    ):
        queue = emulator.broker.queue(QUEUE)
        now = datetime.now(UTC)
        later = await sender.schedule_messages(ServiceBusMessage("later"), now + timedelta(seconds=1))
        numbers = await sender.schedule_messages(
            [ServiceBusMessage("a"), ServiceBusMessage("b")], now + timedelta(hours=1)
        )
        assert queue.count(State.SCHEDULED) == 3
        await sender.cancel_scheduled_messages(numbers)
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages(numbers)
        async with receiver_of(client) as receiver:  # waits for it
            (got,) = await receiver.receive_messages(1)
            assert str(got) == "later"
            assert got.sequence_number not in later


async def test_peek_shows_all_states_and_locks_nothing() -> None:
    async with emulator_of() as emulator, client_of(emulator) as client:
        put(emulator, *"abc")
        async with receiver_of(client) as receiver:
            await receiver.receive_messages(1)
            assert [str(message) for message in await receiver.peek_messages(10, sequence_number=1)] == ["a", "b", "c"]
            assert [str(message) for message in await receiver.peek_messages(1, sequence_number=3)] == ["c"]
            assert await receiver.peek_messages(1, sequence_number=4) == []


async def test_abandon_defer_and_dead_letter() -> None:
    async with emulator_of() as emulator, client_of(emulator) as client:
        put(emulator, *"ab")
        async with receiver_of(client) as receiver:
            (got,) = await receiver.receive_messages(1)
            await receiver.abandon_message(got)
            (again,) = await receiver.receive_messages(1)
            assert (str(again), again.delivery_count) == ("a", 1)
            number = again.sequence_number
            assert number is not None
            await receiver.defer_message(again)
            (deferred,) = await receiver.receive_deferred_messages([number])
            await receiver.complete_message(deferred)
            (other,) = await receiver.receive_messages(1)
            await receiver.dead_letter_message(other, reason="Failed", error_description="exit 1")
        assert emulator.broker.queue(QUEUE).messages() == []
        async with receiver_of(client, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (dead,) = await receiver.receive_messages(1)
            assert (str(dead), dead.dead_letter_reason, dead.dead_letter_error_description) == ("b", "Failed", "exit 1")
            await receiver.complete_message(dead)


async def test_an_expired_lock_is_lost_and_the_message_goes_to_another() -> None:
    async with emulator_of(lock_duration=1) as emulator, client_of(emulator) as client:
        put(emulator, "a")
        async with receiver_of(client) as first, receiver_of(client) as second:
            (lost,) = await first.receive_messages(1)
            (got,) = await second.receive_messages(1)  # waits for the expiry
            assert got.delivery_count == 1
            with pytest.raises(MessageLockLostError):
                await first.renew_message_lock(lost)
            lost._expiry = datetime.now(UTC) + timedelta(hours=1)  # else the client's clock alone answers (trap 5)
            with pytest.raises(MessageLockLostError):
                await first.complete_message(lost)
        assert emulator.gate.count(Operation.COMPLETE, status=410) == 1


async def test_max_delivery_count() -> None:
    async with emulator_of(max_delivery_count=2) as emulator, client_of(emulator) as client:
        put(emulator, "a")
        async with receiver_of(client) as receiver:
            for _ in range(2):
                (got,) = await receiver.receive_messages(1)
                await receiver.abandon_message(got)
        async with receiver_of(client, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (dead,) = await receiver.receive_messages(1)
            assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"


async def test_locks_outlive_their_receiver_and_settle_by_their_token() -> None:
    async with emulator_of() as emulator, client_of(emulator) as client:
        queue = emulator.broker.queue(QUEUE)
        put(emulator, *"abc")
        async with receiver_of(client) as receiver:
            held: list[ServiceBusReceivedMessage] = []
            while len(held) < 3:
                held += await receiver.receive_messages(3)
        assert queue.count(State.LOCKED) == 3
        async with receiver_of(client) as receiver:
            await settle(receiver, "completed", held[0].lock_token)
            await settle(receiver, "suspended", held[1].lock_token, deadletter_reason="R", deadletter_description="D")
            await settle(receiver, "abandoned", held[2].lock_token, properties_to_modify={"preemptions": 1})
            for token in (held[0].lock_token, uuid.uuid4()):
                with pytest.raises(MessageLockLostError):
                    await settle(receiver, "completed", token)
        (left,) = queue.messages()
        assert (left.delivery_count, left.properties) == (1, {"preemptions": 1})
        assert queue.dead is not None
        assert [message.reason for message in queue.dead.messages()] == ["R"]


@pytest.mark.parametrize("heeds", [False, True])
async def test_properties_of_an_abandon_are_a_switch(heeds: bool) -> None:
    fidelity = Fidelity(abandon_modifies_properties=heeds)
    async with Emulator([Description(QUEUE)], fidelity=fidelity) as emulator, client_of(emulator) as client:
        put(emulator, "a", properties={"kept": 1})
        async with receiver_of(client) as receiver:
            (got,) = await receiver.receive_messages(1)
            await settle(receiver, "abandoned", got.lock_token, properties_to_modify={"preemptions": 1})
            (again,) = await receiver.receive_messages(1)
            assert again.application_properties == {b"kept": 1} | ({b"preemptions": 1} if heeds else {})


@pytest.mark.parametrize("survive", [False, True])
async def test_locks_after_a_lost_connection_are_a_switch(survive: bool) -> None:
    fidelity = Fidelity(locks_survive_disconnect=survive)
    async with Emulator([Description(QUEUE)], fidelity=fidelity) as emulator, client_of(emulator) as client:
        queue = emulator.broker.queue(QUEUE)
        put(emulator, "a")
        async with receiver_of(client) as receiver:
            (got,) = await receiver.receive_messages(1)
            emulator.drop_connections()
            await eventually(lambda: emulator.connections == 0)
            assert [message.state for message in queue.messages()] == [State.LOCKED if survive else State.ACTIVE]
            if survive:
                await receiver.complete_message(got)
                assert queue.messages() == []
            else:
                with pytest.raises(MessageLockLostError):
                    await receiver.renew_message_lock(got)


async def test_receive_and_delete() -> None:
    async with emulator_of() as emulator, client_of(emulator) as client:
        put(emulator, "a")
        async with receiver_of(client, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
            (got,) = await receiver.receive_messages(1)
            assert str(got) == "a"
        assert emulator.broker.queue(QUEUE).messages() == []


async def test_a_message_reaches_who_waits_for_it() -> None:
    async with emulator_of() as emulator, client_of(emulator) as client, receiver_of(client) as receiver:
        waiting = asyncio.create_task(receiver.receive_messages(1))
        await eventually(lambda: emulator.gate.count(Operation.ATTACH) == 1)
        async with sender_of(client) as sender:
            await sender.send_messages(ServiceBusMessage("late"))
        assert [str(message) for message in await waiting] == ["late"]


async def test_what_was_prefetched_goes_back_uncounted() -> None:
    async with emulator_of() as emulator, client_of(emulator) as client:
        queue = emulator.broker.queue(QUEUE)
        put(emulator, *map(str, range(10)))
        async with receiver_of(client, prefetch_count=8) as receiver:
            (got,) = await receiver.receive_messages(1)
            await receiver.complete_message(got)
        await eventually(lambda: queue.count(State.ACTIVE) == 9)
        assert {message.delivery_count for message in queue.messages()} == {0}


async def test_a_missing_queue() -> None:
    async with emulator_of() as emulator, client_of(emulator) as client:
        with pytest.raises(MessagingEntityNotFoundError):
            async with sender_of(client, "other") as sender:
                await sender.send_messages(ServiceBusMessage("a"), timeout=SOON)
        with pytest.raises(ServiceBusError):
            async with receiver_of(client, "other") as receiver:
                await receiver.receive_messages(1)


async def test_a_thousand_messages() -> None:
    async with emulator_of() as emulator, client_of(emulator) as client:
        async with sender_of(client) as sender:
            for start in range(0, 1000, 100):
                await sender.send_messages([ServiceBusMessage(str(start + one)) for one in range(100)])
        got: list[int] = []
        async with receiver_of(client) as receiver:
            while len(got) < 1000:
                for message in await receiver.receive_messages(100):
                    got.append(int(str(message)))
                    await receiver.complete_message(message)
        assert got == list(range(1000))
        assert emulator.broker.queue(QUEUE).messages() == []
