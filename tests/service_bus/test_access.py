"""Shared access signatures are really verified, on both protocols, with the rights of their policy."""

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from jobq.testing.clock import VirtualClock
from tests.emulators.service_bus.access import ALL_RIGHTS, Access, Claim, Policy, Right, sign
from tests.emulators.service_bus.description import Description
from tests.emulators.service_bus.emulator import ROOT_KEY, ROOT_POLICY, Emulator
from tests.emulators.service_bus.errors import Unauthorized
from tests.emulators.service_bus.faults import Operation

from .support import QUEUE, SOON, admin_of, client_of, eventually, put, receiver_of, rest_of, sender_of

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("collected")]
ROLES = {
    ROOT_POLICY: Policy(ROOT_KEY),
    "sender": Policy("s+/=", frozenset({Right.SEND})),
    "receiver": Policy("r", frozenset({Right.LISTEN})),
}


def test_a_signature_is_checked_in_all_its_parts() -> None:
    clock = VirtualClock()
    access = Access(clock, ROLES)
    until = clock.wall() + 60
    good = sign("http://127.0.0.1:5/jobs", "sender", "s+/=", until)
    claim = access.verify(good)
    assert claim == Claim("jobs", frozenset({Right.SEND}), float(int(until)))
    later = good.replace(f"se={int(until)}", f"se={int(until) + 3600}")
    for bad in (
        later,
        good.replace("jobs", "other"),
        good.replace("skn=sender", "skn=receiver"),
        good.replace("skn=sender", "skn=nobody"),
        good.replace("sig=", "sig=x"),
        sign("http://127.0.0.1:5/jobs", "sender", "another key", until),
        sign("http://other.servicebus.windows.net/jobs", "sender", "s+/=", until),
        sign("http://127.0.0.1:5/jobs", "sender", "s+/=", clock.wall() - 1),
        "SharedAccessSignature sr=x",
        "Bearer unknown",
        "",
    ):
        with pytest.raises(Unauthorized):
            access.verify(bad)


def test_a_claim_covers_what_is_below_it() -> None:
    claim = Claim("jobs", frozenset({Right.LISTEN}), 10.0)
    assert claim.allows("Jobs/$DeadLetterQueue", Right.LISTEN, 9)
    assert not claim.allows("jobs", Right.LISTEN, 10)
    assert not claim.allows("jobs", Right.SEND, 9)
    assert not claim.allows("jobs2", Right.LISTEN, 9)
    assert Claim("", ALL_RIGHTS, 10).allows("any", Right.SEND, 9)


async def test_rest_asks_for_the_right_of_each_verb() -> None:
    clock = VirtualClock()
    async with Emulator([Description(QUEUE)], policies=ROLES, clock=clock) as emulator, rest_of(emulator) as rest:

        async def status(method: str, path: str, policy: str, token: str | None = None) -> int:
            own = {"Authorization": token if token is not None else emulator.authorization(QUEUE, policy)}
            return (await rest(method, path, headers=own)).status

        send, head = f"{QUEUE}/messages", f"{QUEUE}/messages/head?timeout=0"
        assert await status("POST", send, "sender") == 201
        assert await status("POST", send, "receiver") == 401
        assert await status("POST", head, "sender") == 401
        assert await status("POST", head, "receiver") == 201
        assert await status("POST", "other/messages", "sender") == 401  # the token is for one queue
        assert await status("GET", QUEUE, "receiver") == 401
        assert await status("GET", QUEUE, ROOT_POLICY) == 200
        assert await status("POST", send, "", token="") == 401
        short = emulator.authorization(QUEUE, "sender", seconds=60)
        await clock.advance(59)
        assert await status("POST", send, "", token=short) == 201
        await clock.advance(1)
        assert await status("POST", send, "", token=short) == 401
        emulator.access.bearers["entra"] = Claim("", frozenset({Right.SEND}), clock.wall() + 60)
        assert await status("POST", send, "", token="Bearer entra") == 201
        assert await status("POST", head, "", token="Bearer entra") == 401


async def test_amqp_asks_for_the_right_of_each_link() -> None:
    async with Emulator([Description(QUEUE)], policies=ROLES) as emulator:
        async with (
            client_of(emulator, "sender", retry_total=0) as client,
            sender_of(client) as sender,
        ):
            await sender.send_messages(ServiceBusMessage("a"), timeout=SOON)
            with pytest.raises(ServiceBusError, match="Listen"):
                async with receiver_of(client) as receiver:
                    await receiver.receive_messages(1)
        async with client_of(emulator, "receiver", retry_total=0) as client:
            with pytest.raises(ServiceBusError, match="Send"):
                async with sender_of(client) as sender:
                    await sender.send_messages(ServiceBusMessage("a"), timeout=SOON)
        assert emulator.gate.count(Operation.ATTACH, status=401) == 2
        assert len(emulator.broker.queue(QUEUE).messages()) == 1


async def test_amqp_refuses_a_forged_signature() -> None:
    async with Emulator([Description(QUEUE)]) as emulator:
        forged = emulator.connection_string.replace(ROOT_KEY, "another")
        async with ServiceBusClient.from_connection_string(forged, retry_total=0) as client:
            with pytest.raises(ServiceBusError):
                async with receiver_of(client) as receiver:
                    await receiver.receive_messages(1)
        assert emulator.gate.count(Operation.AUTHORIZE, status=401) == 1
        assert emulator.gate.count(Operation.ATTACH) == 0


async def test_a_token_that_ends_detaches_the_receiver() -> None:
    clock = VirtualClock(wall=2_000_000_000.0)  # the SDK's tokens, by its own clock, are from the past: expired
    async with Emulator([Description(QUEUE)], clock=clock) as emulator:
        async with client_of(emulator, retry_total=0) as client:
            with pytest.raises(ServiceBusError):
                async with receiver_of(client) as receiver:
                    await receiver.receive_messages(1)
        clock.jump_wall(-2_000_000_000.0)  # now they are good for longer than the test
        put(emulator, "a", "b")
        async with client_of(emulator) as client, receiver_of(client) as receiver:
            await receiver.receive_messages(1)
            clock.jump_wall(2_000_000_000.0)
            await clock.advance(3600)
            await eventually(lambda: not emulator.broker.queue(QUEUE).listeners)


async def test_admin_needs_manage() -> None:
    async with Emulator(policies=ROLES) as emulator, admin_of(emulator, "receiver") as admin:
        with pytest.raises(ClientAuthenticationError):
            await admin.create_queue(QUEUE)
        assert emulator.broker.queues == {}
