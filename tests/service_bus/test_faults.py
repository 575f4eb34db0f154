"""What tests let befall requests: statuses, lost requests and answers, delays, detached links."""

import asyncio
import math
import time

import aiohttp
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from jobq.testing.clock import VirtualClock
from tests.emulators.service_bus.description import Description
from tests.emulators.service_bus.emulator import Emulator
from tests.emulators.service_bus.faults import Drop, Fault, Faults, Operation, Request, Via
from tests.emulators.service_bus.message import State

from .support import QUEUE, SOON, client_of, emulator_of, eventually, put, receiver_of, rest_of, sender_of, settle

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("collected")]


def test_plans_are_matched_counted_and_used_up() -> None:
    faults = Faults()
    faults.plan(Fault(503), Operation.SEND, via=Via.REST, path="Jobs", count=2)
    send = Request(Via.REST, Operation.SEND, "jobs", 0.0)
    others = (
        Request(Via.AMQP, Operation.SEND, "jobs", 0.0),
        Request(Via.REST, Operation.RENEW, "jobs", 0.0),
        Request(Via.REST, Operation.SEND, "other", 0.0),
    )
    assert all(faults.take(other) == Fault() for other in others)
    assert [faults.take(send).status for _ in range(3)] == [503, 503, 0]
    assert faults.hits == 2


def test_faults_by_chance_are_the_same_every_time() -> None:
    def hits(seed: int) -> list[bool]:
        faults = Faults(seed)
        faults.plan(Fault(503), count=math.inf, chance=0.2)
        request = Request(Via.REST, Operation.SEND, "jobs", 0.0)
        return [bool(faults.take(request).status) for _ in range(1000)]

    assert hits(1) == hits(1) != hits(2)
    assert 150 < sum(hits(1)) < 250


@pytest.mark.parametrize("status", [401, 403, 404, 413, 429, 500, 503])
async def test_rest_answers_the_status_and_does_nothing(status: int) -> None:
    async with emulator_of() as emulator, rest_of(emulator) as rest:
        emulator.faults.plan(Fault(status), Operation.SEND)
        assert await rest.send("a") == status
        assert emulator.broker.queue(QUEUE).messages() == []
        assert await rest.send("a") == 201
        assert [request.status for request in emulator.gate.requests] == [status, 201]


async def test_rest_loses_requests_and_answers() -> None:
    async with emulator_of() as emulator, rest_of(emulator) as rest:
        queue = emulator.broker.queue(QUEUE)
        for drop, taken in ((Drop.BEFORE, 0), (Drop.AFTER, 1)):
            emulator.faults.plan(Fault(drop=drop), Operation.SEND)
            with pytest.raises(aiohttp.ClientConnectionError):
                await rest.send("a")
            assert len(queue.messages()) == taken
        location = (await rest.lock()).headers["Location"]
        emulator.faults.plan(Fault(drop=Drop.AFTER), Operation.COMPLETE)
        # aiohttp repeats DELETE and PUT by itself when the connection breaks: the first was done, the second is told
        # that the lock is gone, and nobody above can tell that from a lost lock (facts 1.5).
        assert (await rest("DELETE", location)).status == 404
        asked = [request.status for request in emulator.gate.requests if request.operation is Operation.COMPLETE]
        assert asked == [200, 404]
        assert queue.messages() == []


_RAISED = {
    401: ServiceBusError,
    403: ServiceBusQuotaExceededError,
    404: MessagingEntityNotFoundError,
    413: MessageSizeExceededError,
    429: ServiceBusServerBusyError,
    500: ServiceBusError,
    503: ServiceBusServerBusyError,
}


async def test_amqp_rejects_with_the_condition_that_means_the_status() -> None:
    async with (
        emulator_of() as emulator,
        client_of(emulator, retry_total=0) as client,
        sender_of(client) as sender,
    ):
        for status, raised in _RAISED.items():
            emulator.faults.plan(Fault(status), Operation.SEND)
            with pytest.raises(raised):
                await sender.send_messages(ServiceBusMessage("a"), timeout=SOON)
            assert emulator.gate.count(Operation.SEND, via=Via.AMQP, status=status) == 1
        assert emulator.broker.queue(QUEUE).messages() == []


async def test_amqp_loses_a_send_or_its_answer_and_the_sdk_repeats() -> None:
    async with emulator_of() as emulator, client_of(emulator) as client, sender_of(client) as sender:
        for drop, messages in ((Drop.BEFORE, 1), (Drop.AFTER, 3)):  # doubled, without duplicate detection
            emulator.faults.plan(Fault(drop=drop), Operation.SEND)
            await sender.send_messages(ServiceBusMessage("a"), timeout=SOON)
            assert len(emulator.broker.queue(QUEUE).messages()) == messages
        assert emulator.gate.count(Operation.SEND) == 4


async def test_management_and_settlement_can_fail_over_amqp() -> None:
    async with emulator_of() as emulator, client_of(emulator, retry_total=0) as client, receiver_of(client) as receiver:
        put(emulator, "a")
        (got,) = await receiver.receive_messages(1)
        emulator.faults.plan(Fault(503), Operation.RENEW)
        with pytest.raises(ServiceBusServerBusyError):
            await receiver.renew_message_lock(got)
        emulator.faults.plan(Fault(410), Operation.COMPLETE)
        with pytest.raises(MessageLockLostError):
            await settle(receiver, "completed", got.lock_token)
        assert emulator.broker.queue(QUEUE).count(State.LOCKED) == 1
        await settle(receiver, "completed", got.lock_token)


async def test_a_delay_is_one_over_both() -> None:
    async with (
        emulator_of() as emulator,
        rest_of(emulator) as rest,
        client_of(emulator) as client,
        receiver_of(client) as receiver,
    ):
        put(emulator, "a")
        (got,) = await receiver.receive_messages(1)
        emulator.faults.plan(Fault(delay=0.3), count=2)
        start = time.monotonic()
        await rest.send("b")
        await receiver.renew_message_lock(got)
        assert time.monotonic() - start >= 0.6


async def test_an_idle_receiver_is_detached_and_its_lock_goes_on() -> None:
    clock = VirtualClock(wall=time.time())
    async with (
        Emulator([Description(QUEUE, lock_duration=3600)], clock=clock) as emulator,
        client_of(emulator) as client,
        receiver_of(client) as receiver,
    ):
        queue = emulator.broker.queue(QUEUE)
        put(emulator, "a")
        (got,) = await receiver.receive_messages(1)
        await clock.advance(590)
        await receiver.renew_message_lock(got)  # $management is use
        await clock.advance(590)
        assert queue.listeners
        await clock.advance(10)
        await eventually(lambda: not queue.listeners)
        assert queue.count(State.LOCKED) == 1
        await settle(receiver, "completed", got.lock_token)
        assert queue.messages() == []


async def test_an_idle_sender_is_detached_and_attaches_anew() -> None:
    clock = VirtualClock(wall=time.time())
    async with (
        Emulator([Description(QUEUE)], clock=clock) as emulator,
        client_of(emulator) as client,
        sender_of(client) as sender,
    ):
        await sender.send_messages(ServiceBusMessage("a"), timeout=SOON)
        await clock.advance(590)
        await sender.send_messages(ServiceBusMessage("b"), timeout=SOON)
        await clock.advance(590)
        await sender.send_messages(ServiceBusMessage("c"), timeout=SOON)
        assert emulator.gate.count(Operation.ATTACH) == 1
        await clock.advance(600)
        await sender.send_messages(ServiceBusMessage("d"), timeout=SOON)
        assert emulator.gate.count(Operation.ATTACH) == 2
        assert len(emulator.broker.queue(QUEUE).messages()) == 4


async def test_a_connection_without_links_is_closed() -> None:
    """Five minutes after the last link has gone, and a minute after its start when it never had one."""
    clock = VirtualClock(wall=time.time())
    async with (
        Emulator([Description(QUEUE)], clock=clock) as emulator,
        client_of(emulator) as client,
        receiver_of(client) as receiver,
    ):
        put(emulator, "a")
        (got,) = await receiver.receive_messages(1)
        await clock.advance(600)
        await eventually(lambda: not emulator.broker.queue(QUEUE).listeners)
        await clock.advance(299)
        assert emulator.connections == 1
        await clock.advance(1)
        await eventually(lambda: emulator.connections == 0)
        await receiver.peek_messages(1)  # the SDK connects anew
        reader, writer = await asyncio.open_connection("127.0.0.1", emulator.amqp_port)
        await eventually(lambda: emulator.connections == 2)
        await clock.advance(60)
        await eventually(lambda: emulator.connections == 1)
        assert await reader.read()
        writer.close()
        await writer.wait_closed()
        assert got.lock_token is not None


async def test_detached_receivers_keep_their_connection() -> None:
    async with (
        Emulator([Description(QUEUE)], idle_detach=None) as emulator,
        client_of(emulator) as client,
        receiver_of(client) as receiver,
    ):
        queue = emulator.broker.queue(QUEUE)
        assert emulator.connections == 1
        emulator.detach_receivers()
        assert (emulator.connections, len(queue.listeners)) == (1, 0)
        put(emulator, "a")
        (got,) = await receiver.receive_messages(1)  # the SDK attaches anew
        await receiver.complete_message(got)


async def test_two_hundred_messages_through_connections_that_break_at_random() -> None:
    """None is lost; over REST, whose verbs are repeated until an answer tells what is the case."""
    async with emulator_of(dedup_window=600) as emulator, rest_of(emulator) as rest:
        emulator.faults.plan(Fault(drop=Drop.BEFORE), count=math.inf, chance=0.1)
        emulator.faults.plan(Fault(drop=Drop.AFTER), Operation.SEND, count=math.inf, chance=0.1)
        emulator.faults.plan(Fault(503), count=math.inf, chance=0.1)
        queue = emulator.broker.queue(QUEUE)

        async def push(name: str) -> None:
            while True:
                try:
                    if await rest.send(name, MessageId=name) == 201:
                        return
                except aiohttp.ClientConnectionError:
                    continue

        await asyncio.gather(*(push(str(number)) for number in range(200)))
        assert sorted(int(message.content.body) for message in queue.messages()) == list(range(200))
        assert emulator.faults.hits > 20


async def test_a_fault_of_the_emulator_itself_ends_the_test() -> None:
    def broken() -> float | None:
        raise RuntimeError("broken")

    async def served() -> None:
        async with emulator_of() as emulator:
            emulator.broker.sweep = broken  # type: ignore[method-assign] # what cannot happen
            put(emulator, "a", time_to_live=60)  # wakes the alarm
            await asyncio.sleep(SOON)

    with pytest.raises(ExceptionGroup) as raised:
        await served()
    assert str(raised.value.exceptions[0]) == "broken"
