"""What the emulator has not is refused as the service refuses what an entity or a tier has not; nothing is ignored."""

from collections import deque
from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus._common.mgmt_handlers import default
from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusError
from azure.servicebus.management import AuthorizationRule

from jobq.testing.clock import VirtualClock
from tests.emulators.service_bus.faults import LOG_LENGTH, Faults, Gate, Operation, Via
from tests.emulators.service_bus.rest_wire import BATCH

from .support import QUEUE, SOON, admin_of, client_of, emulator_of, receiver_of, rest_of, sender_of

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("collected")]


@pytest.mark.parametrize("session", ["s", NEXT_AVAILABLE_SESSION])
async def test_a_receiver_of_a_session_is_refused(session: Any) -> None:
    async with emulator_of() as emulator, client_of(emulator, retry_total=0) as client:
        async with sender_of(client) as sender:
            await sender.send_messages(ServiceBusMessage("a", session_id="s"), timeout=SOON)
        with pytest.raises(ServiceBusError, match=r"does not require sessions.*not emulated") as raised:
            async with receiver_of(client, session_id=session) as receiver:
                await receiver.receive_messages(1)
        assert "amqp:not-allowed" in str(raised.value)
        async with receiver_of(client) as receiver:  # a queue without sessions carries their ids
            (got,) = await receiver.receive_messages(1)
            assert got.session_id == "s"


async def test_operations_on_sessions_are_refused() -> None:
    async with emulator_of() as emulator, client_of(emulator, retry_total=0) as client, receiver_of(client) as receiver:
        private: Any = receiver
        for name, body in (("renew-session-lock", {"session-id": "s"}), ("get-message-sessions", {"skip": 0})):
            with pytest.raises(ServiceBusError, match="not emulated"):
                await private._mgmt_request_response_with_retry(f"com.microsoft:{name}".encode(), body, default)


_OPTIONS: dict[str, Any] = {
    "requires_session": True,
    "enable_partitioning": True,
    "enable_express": True,
    "forward_to": "other",
    "forward_dead_lettered_messages_to": "other",
    "auto_delete_on_idle": timedelta(minutes=5),
    "authorization_rules": [AuthorizationRule(claim_type="SharedAccessKey", rights=["Send"], key_name="k")],
}


@pytest.mark.parametrize("option", _OPTIONS)
async def test_options_that_are_not_emulated_are_refused_with_their_name(option: str) -> None:
    async with emulator_of() as emulator, admin_of(emulator) as admin:
        name = "".join(word.capitalize() for word in option.split("_"))
        text = rf"SubCode=40000\. The property '{name}' cannot be set"
        with pytest.raises(HttpResponseError, match=text) as raised:
            await admin.create_queue("new", **{option: _OPTIONS[option]})
        assert raised.value.status_code == 400
        assert list(emulator.broker.queues) == [QUEUE]
        shown = await admin.get_queue(QUEUE)
        setattr(shown, option, _OPTIONS[option])
        if option not in {"requires_session", "enable_partitioning"}:  # which the SDK itself does not send again
            with pytest.raises(HttpResponseError, match=text):
                await admin.update_queue(shown)


async def test_what_is_off_may_be_said() -> None:
    async with emulator_of() as emulator, admin_of(emulator) as admin:
        off: dict[str, Any] = {name: False for name, value in _OPTIONS.items() if value is True}
        off |= {"auto_delete_on_idle": "P10675199DT2H48M5.4775807S", "authorization_rules": []}
        made = await admin.create_queue("new", **off)
        assert made.requires_session is False
        await admin.update_queue(made)


async def test_topics_subscriptions_and_the_namespace() -> None:
    async with emulator_of() as emulator, admin_of(emulator) as admin:
        with pytest.raises(HttpResponseError, match=r"SubCode=40000.*Topic is not emulated"):
            await admin.create_topic("t")
        with pytest.raises(HttpResponseError, match="Subscription is not emulated"):
            await admin.create_subscription("t", "s")
        assert [topic async for topic in admin.list_topics()] == []
        with pytest.raises(ResourceNotFoundError):
            await admin.get_topic("t")
        with pytest.raises(HttpResponseError, match="namespace are not emulated"):
            await admin.get_namespace_properties()
        assert list(emulator.broker.queues) == [QUEUE]
        async with client_of(emulator, retry_total=0) as client:
            with pytest.raises(MessagingEntityNotFoundError):
                async with client.get_subscription_receiver("t", "s", max_wait_time=SOON) as receiver:
                    await receiver.receive_messages(1)


async def test_queues_in_folders_and_transfer_dead_letters() -> None:
    async with emulator_of() as emulator, admin_of(emulator) as admin, rest_of(emulator) as rest:
        await admin.create_queue("a/b")
        assert await rest.send("x", queue="A/B") == 201
        assert (await rest.lock("a/b")).status == 201
        assert (await rest.lock("a/b/$DeadLetterQueue")).status == 204
        assert (await rest.lock("a/b/$Transfer/$DeadLetterQueue")).status == 501


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
