"""Whatever a client sends ends its own connection, session or link, with the standard's error, and nothing else."""

import asyncio
import random
from typing import Final

import pytest
from azure.servicebus import ServiceBusMessage

from jobq.testing.amqp.composite import Composite
from jobq.testing.amqp.connection import CHANNEL_MAX, FRAME_BYTES
from jobq.testing.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Rejected,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from jobq.testing.amqp.session import HANDLE_MAX
from jobq.testing.service_bus.emulator import Emulator
from jobq.testing.service_bus.message import State

from .support import QUEUE, SOON, client_of, emulator_of, eventually, put, receiver_of, sender_of
from .wire import AMQP, SASL, flow_of, frame_of, message_of, wire_to

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("collected")]
_BEGIN: Final = Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)


async def serves(emulator: Emulator) -> None:
    """Fail unless another client is still served, and nothing is left of those who went."""
    async with client_of(emulator, retry_total=0) as client, sender_of(client) as sender:
        await sender.send_messages(ServiceBusMessage("alive"), timeout=SOON)
    queue = emulator.broker.queue(QUEUE)
    assert [message.content.body for message in queue.messages()] == [b"alive"]
    await eventually(lambda: emulator.connections == 0)
    assert not queue.listeners


_HEADERS = {
    "of HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    "of AMQP 0.9": b"AMQP\x00\x00\x09\x01",
    "of AMQP over TLS": b"AMQP\x02\x01\x00\x00",
}


@pytest.mark.parametrize("header", _HEADERS.values(), ids=_HEADERS)
async def test_another_protocol_is_answered_with_ours(header: bytes) -> None:
    async with emulator_of() as emulator, wire_to(emulator) as wire:
        wire.put(header)
        assert await wire.header() == SASL
        assert await wire.end() == []
        await serves(emulator)


async def test_sasl_offers_anonymous_alone() -> None:
    async with emulator_of() as emulator:
        for mechanism, outcome in (("ANONYMOUS", 0), ("PLAIN", 1)):
            async with wire_to(emulator) as wire:
                wire.put(SASL)
                assert await wire.header() == SASL
                assert (await wire.until(SaslMechanisms)).sasl_server_mechanisms == ["ANONYMOUS"]
                wire.put(frame_of(SaslInit(mechanism=mechanism).encode(), kind=1))
                assert (await wire.until(SaslOutcome)).outcome == outcome
                if outcome:
                    assert await wire.end() == []
                else:
                    await wire.open()
        await eventually(lambda: emulator.connections == 0)


_FRAMING = "amqp:connection:framing-error"
_BROKEN: dict[str, tuple[bytes, str]] = {
    "a frame shorter than its head": (b"\x00\x00\x00\x07\x02\x00\x00\x00", _FRAMING),
    "a frame over the limit": ((FRAME_BYTES + 1).to_bytes(4) + b"\x02\x00\x00\x00", _FRAMING),
    "a frame of 4 GiB": (b"\xff\xff\xff\xff\x02\x00\x00\x00", _FRAMING),
    "a body that begins in the head": (frame_of(b"\x40", offset=1), _FRAMING),
    "a body that begins behind the frame": (frame_of(b"\x40", offset=9), _FRAMING),
    "a frame of SASL": (frame_of(SaslInit(mechanism="ANONYMOUS").encode(), kind=1), _FRAMING),
    "a frame of an unknown type": (frame_of(b"\x40", kind=7), _FRAMING),
    "bytes behind a performative": (frame_of(_BEGIN.encode() + b"\x40"), _FRAMING),
    "no performative": (frame_of(b"\x40"), "amqp:decode-error"),
    "an unknown performative": (frame_of(b"\x00\x53\x99\x45"), "amqp:decode-error"),
    "an unknown type": (frame_of(b"\x00\x53\x10\x3f"), "amqp:decode-error"),
    "a list that is cut off": (frame_of(_BEGIN.encode()[:-1]), "amqp:decode-error"),
    "a field of another type": (frame_of(b"\x00\x53\x12\xc0\x07\x03\xa1\x01n\x43\x43"), "amqp:decode-error"),
    "a field that is missing": (frame_of(b"\x00\x53\x11\x45"), "amqp:decode-error"),
    "too many fields": (frame_of(b"\x00\x53\x18\xc0\x03\x02\x40\x40"), "amqp:decode-error"),
    "text that is no UTF-8": (frame_of(b"\x00\x53\x10\xc0\x04\x01\xa1\x01\xff"), "amqp:decode-error"),
    "lists in lists": (frame_of(b"\x00\x53\x10" + b"\xc0\xff\x01" * 200), "amqp:decode-error"),
    "descriptors of descriptors": (frame_of(b"\x00" * 60_000), "amqp:decode-error"),
    "many values in few bytes": (
        frame_of(b"\x00\x53\x10\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40"),
        "amqp:decode-error",
    ),
    "open again": (frame_of(Open(container_id="x").encode()), "amqp:illegal-state"),
    "a channel that was not begun": (frame_of(End().encode(), 3), "amqp:not-allowed"),
    "a channel begun twice": (frame_of(_BEGIN.encode(), 2) * 2, "amqp:not-allowed"),
    "a channel over the limit": (frame_of(_BEGIN.encode(), CHANNEL_MAX + 1), _FRAMING),
    "a handle over the limit": (
        frame_of(_BEGIN.encode()) + frame_of(Attach(name="x", handle=HANDLE_MAX + 1, role=True).encode()),
        _FRAMING,
    ),
}


@pytest.mark.parametrize(("sent", "condition"), _BROKEN.values(), ids=_BROKEN)
async def test_what_breaks_the_protocol_closes_the_connection_with_its_error(sent: bytes, condition: str) -> None:
    async with emulator_of() as emulator, wire_to(emulator) as wire:
        await wire.open()
        wire.put(sent, b"and on and on" * 1000)
        assert await wire.closed_with() == condition
        assert emulator.connections == 0


@pytest.mark.parametrize(("sent", "condition"), [
    (_BEGIN, "amqp:illegal-state"),
    (Open(container_id="x", max_frame_size=511), "amqp:invalid-field"),
    (b"\x00\x00\x00\x09\x02\x00\x00\x00\x01", "amqp:decode-error"),
])  # fmt: skip
async def test_what_breaks_it_before_it_is_open_is_answered_too(sent: Composite | bytes, condition: str) -> None:
    async with emulator_of() as emulator, wire_to(emulator) as wire:
        wire.put(AMQP, sent)
        assert await wire.header() == AMQP
        assert await wire.closed_with() == condition
        assert isinstance(wire.answers[0], Open)
        await serves(emulator)


@pytest.mark.parametrize(("sent", "condition"), [
    (Detach(handle=7), "amqp:session:unattached-handle"),
    (flow_of(7, 1), "amqp:session:unattached-handle"),
    (Transfer(handle=7, delivery_id=0, delivery_tag=b"x"), "amqp:session:unattached-handle"),
    (Attach(name="again", handle=200, role=True, source=Source(address="$cbs")), "amqp:session:handle-in-use"),
    (Attach(name="x", handle=9, role=False, target=Target(address=QUEUE)), "amqp:invalid-field"),
])  # fmt: skip
async def test_what_breaks_a_session_ends_it_and_the_connection_goes_on(sent: Composite, condition: str) -> None:
    async with emulator_of() as emulator:
        async with wire_to(emulator) as wire:
            await wire.begin()
            await wire.authorize(emulator)
            wire.put(sent, flow_of(200, 1), End())
            assert (await wire.until(End)).error.condition == condition
            wire.put(_BEGIN)
            assert (await wire.until(Begin)).remote_channel == 0
            wire.put(Close())
            assert (await wire.until(Close)).error is None
            assert await wire.end() == []
        await serves(emulator)


async def test_what_breaks_a_link_ends_it_and_the_session_goes_on() -> None:
    async with emulator_of() as emulator, wire_to(emulator) as wire:
        await wire.sender(emulator)
        cases: tuple[tuple[Transfer, str], ...] = (
            (Transfer(handle=0), "amqp:invalid-field"),  # no id
            (Transfer(handle=0, delivery_id=1, delivery_tag=b"x" * 33), "amqp:invalid-field"),
        )
        for transfer, condition in cases:
            wire.put(transfer)
            assert (await wire.until(Detach)).error.condition == condition
            wire.put(Transfer(handle=0, delivery_id=2, delivery_tag=b"x"))  # passed over until the client has heard
            wire.put(Detach(handle=0, closed=True))
            await wire.attach(QUEUE, 0, receives=False)
        wire.transfer(1, b"half a mess", more=True)
        wire.transfer(2, b"age")
        assert (await wire.until(Detach)).error.condition == "amqp:invalid-field"
        wire.put(Detach(handle=0))
        await wire.attach(QUEUE, 0, receives=False)
        wire.transfer(3, message_of(b"a"))
        assert isinstance((await wire.until(Disposition)).state, Accepted)
        wire.put(
            *[Transfer(handle=0, delivery_id=4 + number, delivery_tag=b"", settled=True) for number in range(3000)]
        )
        await asyncio.sleep(0)
        wire.put(Close())
        assert [each for each in await wire.end() if isinstance(each, Detach)] == []  # credit is renewed in time


async def test_a_client_without_credit_is_told() -> None:
    async with emulator_of() as emulator, wire_to(emulator) as wire:
        await wire.begin()
        await wire.authorize(emulator)
        await wire.attach("$cbs", 5, receives=True)
        wire.put(Transfer(handle=5, delivery_id=1, delivery_tag=b"x"))  # over a link on which only the server sends
        assert (await wire.until(Detach)).error.condition == "amqp:not-allowed"


@pytest.mark.parametrize("message", [
    b"",
    b"\x00", b"\x00\x53\x75\xb0\xff\xff\xff\xff", b"\x00\x53\x77\x40" * 2, b"\x00\x53\x75\xa0\x01a\x00\x53\x77\x40",
    b"\x00\x53\x79\x40", b"\x00\x53\x75\xa1\x01a", b"\x00\x53\x74\xc1\x04\x02\x43\x40", b"\x00\x53\x72\x45",
    b"\x00\x53\x73\xc0\x05\x04\x40\x40\x40\x43",
])  # fmt: skip
async def test_a_message_that_cannot_be_read_is_rejected_and_the_link_goes_on(message: bytes) -> None:
    async with emulator_of() as emulator, wire_to(emulator) as wire:
        await wire.sender(emulator)
        wire.transfer(1, message)
        first = await wire.until(Disposition)
        if message:
            assert first.state.error.condition == "amqp:decode-error"
        wire.transfer(2, message_of(b"a"))
        assert isinstance((await wire.until(Disposition)).state, Accepted)
        assert len(emulator.broker.queue(QUEUE).messages()) == (1 if message else 2)


async def test_a_batch_is_taken_whole_or_not_at_all() -> None:
    async with emulator_of() as emulator, wire_to(emulator) as wire:
        await wire.sender(emulator)
        one = message_of(b"a")
        member = b"\x00\x53\x75\xb0" + len(one).to_bytes(4) + one
        wire.transfer(1, member + b"\x00\x53\x75\xa0\x01x", message_format=0x80013700)
        assert isinstance((await wire.until(Disposition)).state, Rejected)
        assert emulator.broker.queue(QUEUE).messages() == []
        wire.transfer(2, member, message_format=0)  # a message whose body looks like one is no batch
        assert isinstance((await wire.until(Disposition)).state, Accepted)
        assert [message.content.body for message in emulator.broker.queue(QUEUE).messages()] == [one]


async def test_a_message_over_the_limit_is_rejected_without_being_kept() -> None:
    async with emulator_of(max_message_bytes=1000) as emulator, wire_to(emulator) as wire:
        await wire.sender(emulator)
        wire.transfer(1, b"x" * 60_000, more=True)
        for _ in range(20):
            wire.put(frame_of(Transfer(handle=0, more=True).encode() + b"x" * 60_000))
        wire.put(Transfer(handle=0))
        assert (await wire.until(Disposition)).state.error.condition == "amqp:link:message-size-exceeded"
        wire.transfer(2, message_of(b"a"))
        assert isinstance((await wire.until(Disposition)).state, Accepted)


async def test_an_aborted_message_is_none() -> None:
    async with emulator_of() as emulator, wire_to(emulator) as wire:
        await wire.sender(emulator)
        wire.transfer(1, message_of(b"a")[:10], more=True)
        wire.put(Transfer(handle=0, aborted=True))
        wire.transfer(2, message_of(b"b"))
        assert (await wire.until(Disposition)).first == 2
        assert [message.content.body for message in emulator.broker.queue(QUEUE).messages()] == [b"b"]


async def test_a_client_that_leaves_in_mid_transfer_leaves_nothing() -> None:
    async with emulator_of() as emulator:
        async with wire_to(emulator) as wire:
            await wire.sender(emulator)
            wire.transfer(1, message_of(b"a")[:10], more=True)
            await wire.writer.drain()
            wire.writer.transport.abort()
        await eventually(lambda: emulator.connections == 0)
        await serves(emulator)


async def test_outcomes_of_what_was_never_sent_are_passed_over() -> None:
    async with emulator_of() as emulator, wire_to(emulator) as wire:
        put(emulator, "a")
        await wire.begin()
        await wire.authorize(emulator)
        await wire.attach(QUEUE, 1, receives=True)
        wire.put(flow_of(1, 1))
        delivery = await wire.until(Transfer)
        every = Disposition(role=True, first=0, last=2**32 - 1, settled=False, state=Accepted())
        wire.put(Disposition(role=True, first=90, last=80, settled=True, state=Accepted()), every, every)
        answer = await wire.until(Disposition)
        assert (answer.first, answer.settled, answer.role) == (delivery.delivery_id, True, False)
        assert emulator.broker.queue(QUEUE).messages() == []


async def test_a_client_that_reads_nothing_is_handed_only_what_fits() -> None:
    async with emulator_of() as emulator, wire_to(emulator) as wire:
        queue = emulator.broker.queue(QUEUE)
        for _ in range(100):
            put(emulator, "x" * 100_000)
        await wire.begin(max_frame_size=512)
        await wire.authorize(emulator)
        await wire.attach(QUEUE, 1, receives=True)
        wire.put(flow_of(1, 1000))
        await eventually(lambda: queue.count(State.LOCKED) > 0)
        async with client_of(emulator) as client, receiver_of(client) as receiver:
            assert await receiver.receive_messages(1)  # there is enough for others
        count = 0
        while count < 100 - 1:
            found, _ = await wire.frame()
            count += isinstance(found, Transfer) and not found.more


async def test_the_window_of_a_session_holds_messages_back() -> None:
    async with emulator_of() as emulator, wire_to(emulator) as wire:
        queue = emulator.broker.queue(QUEUE)
        put(emulator, "a", "b", "x" * 2000, "d")
        await wire.begin(max_frame_size=1000)
        await wire.authorize(emulator)
        await wire.attach(QUEUE, 1, receives=True)
        seen = Flow(next_incoming_id=1, incoming_window=3, next_outgoing_id=1, outgoing_window=9)
        wire.put(seen, flow_of(1, 10, next_incoming_id=1, incoming_window=3))
        parts = [await wire.until(Transfer) for _ in range(3)]
        assert [part.more for part in parts] == [False, False, True]
        assert queue.count(State.LOCKED) == 3
        wire.put(flow_of(1, 10, next_incoming_id=4, incoming_window=99, delivery_count=2))
        rest = [await wire.until(Transfer)]
        while sum(not part.more for part in rest) < 2:
            rest.append(await wire.until(Transfer))
        assert [part.delivery_id for part in (*parts, *rest) if part.delivery_id is not None] == [1, 2, 3, 4]
        assert queue.count(State.LOCKED) == 4


async def test_who_asks_and_never_reads_is_not_read_either() -> None:
    async with emulator_of() as emulator, wire_to(emulator) as wire:
        await wire.begin()
        (connection,) = emulator._connections
        echo = frame_of(Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True).encode())
        for _ in range(2000):
            wire.put(echo * 1000)
            await asyncio.sleep(0)
            if not connection._socket.is_reading():
                break
        assert not connection._socket.is_reading()
        assert connection._socket.get_write_buffer_size() < 2**23
        while not connection._socket.is_reading():
            async with asyncio.timeout(SOON):
                assert await wire.reader.read(2**20)


async def test_drained_credit_is_given_up() -> None:
    async with emulator_of() as emulator, wire_to(emulator) as wire:
        put(emulator, "a")
        await wire.begin()
        await wire.authorize(emulator)
        await wire.attach(QUEUE, 1, receives=True)
        wire.put(flow_of(1, 5, drain=True))
        await wire.until(Transfer)
        told = await wire.until(Flow)
        assert (told.handle, told.delivery_count, told.link_credit, told.drain) == (1, 5, 0, True)
        wire.put(flow_of(1, 0, delivery_count=5, echo=True))
        assert (await wire.until(Flow)).link_credit == 0


async def test_who_asks_and_never_listens_loses_the_link() -> None:
    async with emulator_of() as emulator, wire_to(emulator) as wire:
        await wire.begin()
        await wire.attach("$cbs", 1, receives=True)  # and no credit
        await wire.attach("$cbs", 0, receives=False)
        await wire.until(Flow)
        for number in range(1001):
            wire.transfer(number, message_of(b""), settled=True)
        detached = await wire.until(Detach)
        assert (detached.handle, detached.error.condition) == (1, "amqp:resource-limit-exceeded")


async def test_heartbeats_keep_a_connection_and_silence_ends_it() -> None:
    async with emulator_of() as emulator, wire_to(emulator) as wire:
        await wire.open(idle_time_out=200)
        assert (await wire.frame())[0] is None  # the server's
        (connection,) = emulator._connections
        connection.idle_seconds = 0.3
        for _ in range(4):
            wire.put(frame_of(b""))
            await asyncio.sleep(0.1)
        assert emulator.connections == 1
        assert await wire.closed_with() == "amqp:resource-limit-exceeded"


async def test_who_says_nothing_at_all_is_given_up() -> None:
    async with emulator_of() as emulator, wire_to(emulator) as wire:
        await eventually(lambda: emulator.connections)
        (connection,) = emulator._connections
        connection.idle_seconds = 0.1
        connection._tick()
        assert await wire.end() == []


@pytest.mark.parametrize("seed", range(8))
async def test_bytes_that_are_changed_at_random_end_at_most_their_connection(seed: int) -> None:
    chance = random.Random(seed)
    sent = b"".join(
        frame_of(each.encode() if isinstance(each, Composite) else each)
        for each in (
            Open(container_id="x", properties={"a": [1, {"b": None}]}),
            _BEGIN,
            Attach(name="s", handle=0, role=False, initial_delivery_count=0, target=Target(address=QUEUE)),
            Attach(name="r", handle=1, role=True, source=Source(address=QUEUE)),
            flow_of(1, 10),
            Transfer(handle=0, delivery_id=0, delivery_tag=b"t").encode() + message_of(b"a"),
            Disposition(role=True, first=0, last=3, settled=True, state=Accepted()),
            Detach(handle=1, closed=True),
            End(),
        )
    )
    async with emulator_of() as emulator:
        for _ in range(40):
            broken = bytearray(sent)
            for _ in range(chance.randint(1, 4)):
                broken[chance.randrange(len(broken))] = chance.randrange(256)
            async with wire_to(emulator) as wire:
                wire.put(AMQP, bytes(broken[: chance.randint(1, len(broken))]))
                wire.writer.write_eof()
                assert await wire.header() == AMQP
                await wire.end()
        await serves(emulator)
