"""What the emulator has not is refused as the service refuses what an entity or a tier has not; nothing is ignored."""

from collections import deque
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from jobq.testing.clock import VirtualClock
from tests.emulators.service_bus.faults import LOG_LENGTH, Faults, Gate, Operation, Via
from tests.emulators.service_bus.rest_wire import BATCH

from .support import QUEUE, SOON, admin_of, client_of, emulator_of, receiver_of, rest_of, sender_of

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("collected")]


async def test_a_receiver_of_a_session_is_refused() -> None:
    async with emulator_of() as emulator, client_of(emulator, retry_total=0) as client:
        async with sender_of(client) as sender:
            await sender.send_messages(ServiceBusMessage("a", session_id="s"), timeout=SOON)
        with pytest.raises(ServiceBusError, match=r"does not require sessions.*not emulated") as raised:
            async with receiver_of(client, session_id=NEXT_AVAILABLE_SESSION) as receiver:
                await receiver.receive_messages(1)
        assert "amqp:not-allowed" in str(raised.value)
        async with receiver_of(client) as receiver:  # a queue without sessions carries their ids
            (got,) = await receiver.receive_messages(1)
            assert got.session_id == "s"


async def test_what_a_queue_cannot_be_made_with_is_named() -> None:
    async with emulator_of() as emulator, admin_of(emulator) as admin:
        options: dict[str, Any] = {"requires_session": True, "forward_to": "other", "auto_delete_on_idle": "PT5M"}
        for option, value in options.items():
            name = "".join(word.capitalize() for word in option.split("_"))
            with pytest.raises(HttpResponseError, match=rf"SubCode=40000\. The property '{name}' cannot be set"):
                await admin.create_queue("new", **{option: value})
        with pytest.raises(HttpResponseError, match="only queues are emulated"):
            await admin.create_topic("new")
        assert list(emulator.broker.queues) == [QUEUE]
        off = await admin.create_queue("new", requires_session=False, forward_to=None)
        await admin.update_queue(off)


async def test_queues_in_folders() -> None:
    async with emulator_of() as emulator, admin_of(emulator) as admin, rest_of(emulator) as rest:
        await admin.create_queue("a/b")
        assert await rest.send("x", queue="A/B") == 201
        assert (await rest.lock("a/b")).status == 201
        assert (await rest.lock("a/b/$DeadLetterQueue")).status == 204


async def test_rest_refuses_what_could_not_be_received_over_amqp() -> None:
    async with emulator_of() as emulator, rest_of(emulator) as rest:
        for broker in ({"TimeToLive": -1}, {"Label": 7}, {"SessionId": ["s"]}):
            assert await rest.send("x", **broker) == 400
        assert await rest.send("x", ViaPartitionKey="k") == 501
        for value in ("[1]", '{"a": 1}'):
            batch = f'[{{"Body": "x", "UserProperties": {{"k": {value}}}}}]'
            sent = await rest("POST", f"{QUEUE}/messages", data=batch, headers={"Content-Type": BATCH})
            assert sent.status == 400
        assert emulator.broker.queue(QUEUE).messages() == []


def test_the_log_is_bounded() -> None:
    clock = VirtualClock()
    gate = Gate(clock, Faults())
    assert gate.requests.maxlen == LOG_LENGTH
    gate.requests = deque(maxlen=3)
    for number in range(5):
        gate.admit(Via.REST, Operation.SEND, str(number))
    assert [request.path for request in gate.requests] == ["2", "3", "4"]
    assert gate.count(Operation.SEND) == 3
