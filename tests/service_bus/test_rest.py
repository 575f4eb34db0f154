"""The REST data plane and the admin API; AMQP beside them sees the same state."""

import asyncio
import json
import uuid
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage

from jobq.testing.clock import VirtualClock
from tests.emulators.service_bus.description import Description
from tests.emulators.service_bus.emulator import Emulator
from tests.emulators.service_bus.faults import Operation
from tests.emulators.service_bus.fidelity import Fidelity
from tests.emulators.service_bus.message import State
from tests.emulators.service_bus.rest_wire import BATCH, http_date

from .support import (
    QUEUE,
    admin_of,
    broker_properties,
    client_of,
    emulator_of,
    eventually,
    receiver_of,
    rest_of,
    settle,
)


async def test_peek_lock_renew_complete() -> None:
    clock = VirtualClock()
    async with Emulator([Description(QUEUE, lock_duration=60)], clock=clock) as emulator, rest_of(emulator) as rest:
        own = {"BrokerProperties": json.dumps({"MessageId": "m1", "Label": "L"}), "Priority": '"High"', "Number": "3"}
        assert (await rest("POST", f"{QUEUE}/messages", data=b'{"a":1}', headers=own)).status == 201
        answer = await rest.lock()
        assert (answer.status, await answer.text()) == (201, '{"a":1}')
        told = broker_properties(answer)
        assert (told["MessageId"], told["Label"], told["DeliveryCount"], told["SequenceNumber"]) == ("m1", "L", 1, 1)
        assert parsedate_to_datetime(told["LockedUntilUtc"]).timestamp() == clock.wall() + 60
        assert (answer.headers["Priority"], answer.headers["Number"]) == ('"High"', '"3"')
        location = answer.headers["Location"]
        assert location == f"{emulator.rest_url}/{QUEUE}/messages/1/{told['LockToken']}"
        for _ in range(5):
            await clock.advance(59)
            renewed = await rest("POST", location)
            assert (renewed.status, "BrokerProperties" in renewed.headers) == (200, False)
        assert (await rest("DELETE", location.replace("/messages/1/", "/messages/2/"))).status == 404
        by_id = location.replace("/messages/1/", "/messages/m1/")
        assert (await rest("DELETE", by_id)).status == 200
        assert (await rest("DELETE", location)).status == 404
        assert emulator.broker.queue(QUEUE).messages() == []
        assert emulator.gate.count(Operation.RENEW, status=200) == 5


async def test_unlock_counts_and_gives_back_at_once() -> None:
    async with emulator_of() as emulator, rest_of(emulator) as rest:
        await rest.send("a")
        for count in (1, 2, 3):
            answer = await rest.lock()
            assert broker_properties(answer)["DeliveryCount"] == count
            assert (await rest("PUT", answer.headers["Location"])).status == 200


async def test_an_expired_lock_is_gone_for_all_verbs() -> None:
    clock = VirtualClock()
    async with Emulator([Description(QUEUE)], clock=clock) as emulator, rest_of(emulator) as rest:
        await rest.send("a")
        location = (await rest.lock()).headers["Location"]
        await clock.advance(60)
        for method in ("POST", "PUT", "DELETE"):
            assert (await rest(method, location)).status == 404
        assert (await rest("POST", location + "-no-token")).status == 404
        assert broker_properties(await rest.lock())["DeliveryCount"] == 2


async def test_a_long_poll_is_woken_by_a_send_an_expiry_and_its_end() -> None:
    clock = VirtualClock()
    async with Emulator([Description(QUEUE)], clock=clock) as emulator, rest_of(emulator) as rest:
        queue = emulator.broker.queue(QUEUE)

        async def waiting() -> "asyncio.Task[int]":
            async def status() -> int:
                return (await rest.lock(wait=90)).status

            task = asyncio.create_task(status())
            await eventually(lambda: queue.listeners)
            return task

        poll = await waiting()
        await rest.send("a")
        assert await poll == 201
        poll = await waiting()
        await clock.advance(60)  # the lock expires
        assert await poll == 201
        poll = await waiting()
        await rest("DELETE", f"{QUEUE}/messages/1/{queue.messages()[0].lock}")
        await clock.advance(90)
        assert await poll == 204
        assert not queue.listeners


async def test_a_poll_whose_client_has_left_takes_nothing() -> None:
    async with emulator_of() as emulator, rest_of(emulator) as rest:
        queue = emulator.broker.queue(QUEUE)
        poll = asyncio.create_task(rest.lock(wait=60))
        await eventually(lambda: queue.listeners)
        poll.cancel()
        await eventually(lambda: not queue.listeners)
        await rest.send("a")
        assert queue.count(State.ACTIVE) == 1


async def test_batch_schedule_and_time_to_live() -> None:
    clock = VirtualClock()
    async with Emulator([Description(QUEUE, dedup_window=600)], clock=clock) as emulator, rest_of(emulator) as rest:
        due = http_date(clock.wall() + 30)
        members = [
            {"Body": "a", "BrokerProperties": {"MessageId": "a"}, "UserProperties": {"k": 1}},
            {"Body": "b", "BrokerProperties": {"MessageId": "b", "ScheduledEnqueueTimeUtc": due}},
            {"Body": "c", "BrokerProperties": {"MessageId": "c", "TimeToLive": 10}},
            {"Body": "a", "BrokerProperties": {"MessageId": "a"}},
        ]
        batch = json.dumps(members)
        sent = await rest("POST", f"{QUEUE}/messages", data=batch, headers={"Content-Type": BATCH})
        assert (sent.status, emulator.gate.requests[-1].messages) == (201, 4)
        queue = emulator.broker.queue(QUEUE)
        assert [(one.content.body, one.state) for one in queue.messages()] == [
            (b"a", State.ACTIVE),
            (b"b", State.SCHEDULED),
            (b"c", State.ACTIVE),
        ]
        await clock.advance(30)
        assert [one.content.body for one in queue.messages()] == [b"a", b"b"]
        assert (await rest.lock()).headers["k"] == "1"


async def test_a_property_whose_name_http_has_itself_is_not_shown() -> None:
    own: dict[str | bytes, Any] = {"Content-Length": "3", "location": "elsewhere", "no header": "x", "Shown": "yes"}
    async with emulator_of() as emulator, rest_of(emulator) as rest, client_of(emulator) as client:
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages(ServiceBusMessage("12345678", application_properties=own))
        answer = await rest.lock(wait=5)
        assert (answer.status, await answer.text(), answer.headers["Shown"]) == (201, "12345678", '"yes"')
        assert answer.headers["Content-Length"] == "8"
        assert answer.headers["Location"].startswith(emulator.rest_url)


async def test_what_cannot_be_read_is_a_bad_request() -> None:
    async with emulator_of() as emulator, rest_of(emulator) as rest:
        path = f"{QUEUE}/messages"
        for headers, body in (
            ({"BrokerProperties": "{"}, "x"),
            ({"BrokerProperties": '{"ScheduledEnqueueTimeUtc": "soon"}'}, "x"),
            ({"Content-Type": BATCH}, "no json"),
            ({"Content-Type": BATCH}, '[{"NoBody": 1}]'),
        ):
            assert (await rest("POST", path, data=body, headers=headers)).status == 400
        assert (await rest("POST", f"{path}/head?timeout=soon")).status == 400
        assert emulator.broker.queue(QUEUE).messages() == []


async def test_both_protocols_see_one_state() -> None:
    async with emulator_of() as emulator, rest_of(emulator) as rest, client_of(emulator) as client:
        await rest.send('{"a":1}', MessageId="r1", Label="L")
        async with receiver_of(client) as receiver:
            (got,) = await receiver.receive_messages(1)
            assert (str(got), got.message_id, got.subject) == ('{"a":1}', "r1", "L")
            location = f"{QUEUE}/messages/{got.sequence_number}/{got.lock_token}"
            assert (await rest("POST", location)).status == 200
            assert (await rest("DELETE", location)).status == 200
            async with client.get_queue_sender(QUEUE) as sender:
                await sender.send_messages(ServiceBusMessage('{"b":2}', message_id="a1", correlation_id="c"))
            answer = await rest.lock(wait=5)
            told = broker_properties(answer)
            assert (await answer.text(), told["MessageId"], told["CorrelationId"]) == ('{"b":2}', "a1", "c")
            # Dead-lettered over AMQP by the token that REST got, as there is no such verb over REST.
            token = uuid.UUID(told["LockToken"])
            await settle(receiver, "suspended", token, deadletter_reason="Failed", deadletter_description="exit 1")
        assert (await rest("DELETE", answer.headers["Location"])).status == 404
        dead = await rest.lock(f"{QUEUE}/$DeadLetterQueue")
        assert (dead.headers["DeadLetterReason"], dead.headers["DeadLetterErrorDescription"]) == (
            '"Failed"',
            '"exit 1"',
        )
        assert (await rest("DELETE", dead.headers["Location"])).status == 200


@pytest.mark.parametrize("missing", [404, 410])
@pytest.mark.parametrize("lost", [404, 409, 410])
async def test_statuses_are_switches(missing: int, lost: int) -> None:
    fidelity = Fidelity(rest_missing_entity_status=missing, rest_lost_lock_status=lost)
    async with Emulator([Description(QUEUE)], fidelity=fidelity) as emulator, rest_of(emulator) as rest:
        assert await rest.send(queue="other") == missing
        assert (await rest.lock("other")).status == missing
        token = "0" * 32
        assert (await rest("POST", f"{QUEUE}/messages/1/{token}")).status == lost
        assert (await rest("POST", f"other/messages/1/{token}")).status == missing


@pytest.mark.parametrize("promised", [False, True])
async def test_headers_of_a_renewal_and_the_first_count_are_switches(promised: bool) -> None:
    fidelity = Fidelity(rest_renew_returns_properties=promised, rest_first_delivery_count=int(not promised))
    clock = VirtualClock()
    async with (
        Emulator([Description(QUEUE)], fidelity=fidelity, clock=clock) as emulator,
        rest_of(emulator) as rest,
    ):
        await rest.send("a")
        answer = await rest.lock()
        assert broker_properties(answer)["DeliveryCount"] == int(not promised)
        renewed = await rest("POST", answer.headers["Location"])
        assert ("BrokerProperties" in renewed.headers) == promised
        if promised:
            until = parsedate_to_datetime(broker_properties(renewed)["LockedUntilUtc"]).timestamp()
            assert until == clock.wall() + 60


@pytest.mark.parametrize("status", [403, 413])
async def test_the_status_of_a_message_too_large_is_a_switch(status: int) -> None:
    fidelity = Fidelity(rest_too_large_status=status)
    async with (
        Emulator([Description(QUEUE, max_message_bytes=100)], fidelity=fidelity) as emulator,
        rest_of(emulator) as rest,
    ):
        assert await rest.send("x" * 101) == status
        assert await rest.send("x" * 100) == 201


async def test_admin_makes_shows_changes_and_deletes_queues() -> None:
    async with Emulator() as emulator, admin_of(emulator) as admin, rest_of(emulator) as rest:
        with pytest.raises(ResourceNotFoundError):
            await admin.get_queue(QUEUE)
        made = await admin.create_queue(
            QUEUE,
            lock_duration=timedelta(seconds=5),
            max_delivery_count=300,
            requires_duplicate_detection=True,
            duplicate_detection_history_time_window=timedelta(minutes=20),
            default_message_time_to_live=timedelta(days=3),
            dead_lettering_on_message_expiration=True,
        )
        assert made.lock_duration == timedelta(seconds=5)
        assert emulator.broker.queue(QUEUE).description == Description(
            QUEUE, 5.0, 300, dedup_window=1200.0, time_to_live=259200.0, dead_letters_expired=True
        )
        with pytest.raises(ResourceExistsError):
            await admin.create_queue(QUEUE)
        shown = await admin.get_queue(QUEUE)
        assert (shown.max_delivery_count, shown.requires_duplicate_detection) == (300, True)
        assert shown.default_message_time_to_live == timedelta(days=3)
        shown.max_delivery_count = 7
        await admin.update_queue(shown)
        assert emulator.broker.queue(QUEUE).description.max_delivery_count == 7
        for _ in range(3):
            await rest.send("a")
        answer = await rest.lock()
        emulator.broker.queue(QUEUE).dead_letter(emulator.broker.queue(QUEUE).messages()[0].lock)  # type: ignore[arg-type] # locked just now
        await rest.send("b", ScheduledEnqueueTimeUtc=http_date(emulator.clock.wall() + 60))
        runtime = await admin.get_queue_runtime_properties(QUEUE)
        counts = (runtime.active_message_count, runtime.dead_letter_message_count, runtime.scheduled_message_count)
        assert (counts, runtime.total_message_count, answer.status) == ((2, 1, 1), 4, 201)
        assert [queue.name async for queue in admin.list_queues()] == [QUEUE]
        await admin.delete_queue(QUEUE)
        with pytest.raises(ResourceNotFoundError):
            await admin.delete_queue(QUEUE)


async def test_a_queue_without_time_to_live_keeps_none() -> None:
    async with Emulator() as emulator, admin_of(emulator) as admin:
        await admin.create_queue(QUEUE)
        assert emulator.broker.queue(QUEUE).description == Description(QUEUE)
        assert (await admin.get_queue(QUEUE)).default_message_time_to_live == timedelta(
            days=10675199, hours=2, minutes=48, seconds=5, microseconds=477581
        )
