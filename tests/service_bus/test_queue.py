"""The queue as a state machine, on a virtual clock."""

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from jobq.testing.clock import VirtualClock
from tests.emulators.service_bus.broker import Broker
from tests.emulators.service_bus.description import Description
from tests.emulators.service_bus.errors import EntityExists, EntityMissing, Invalid, LockLost, MessageMissing, TooLarge
from tests.emulators.service_bus.fidelity import Fidelity
from tests.emulators.service_bus.message import Content, Message, State

if TYPE_CHECKING:
    from tests.emulators.service_bus.queue import Queue


class Bench:
    """A queue and its clock."""

    def __init__(self, fidelity: Fidelity | None = None, **description: Any) -> None:
        self.clock = VirtualClock()
        self.broker = Broker(self.clock, fidelity or Fidelity())
        self.queue: Queue = self.broker.create(Description("jobs", **description))

    def send(self, *names: str, **content: Any) -> list[int]:
        return self.queue.send([Content(name.encode(), message_id=name, **content) for name in names])

    def take(self) -> tuple[Message, uuid.UUID]:
        message = self.queue.receive()
        assert message is not None
        assert message.lock is not None
        return message, message.lock

    @property
    def dead(self) -> list[Message]:
        self.queue.sweep()
        assert self.queue.dead is not None
        return self.queue.dead.messages()

    def names(self, *states: State) -> list[str]:
        return [message.content.body.decode() for message in self.queue.messages() if message.state in states]


async def test_a_message_is_received_once_and_gone_once_completed() -> None:
    bench = Bench()
    bench.send("a")
    message, lock = bench.take()
    assert (message.content.body, message.delivery_count, message.state) == (b"a", 0, State.LOCKED)
    assert bench.queue.receive() is None
    bench.queue.complete(lock)
    assert bench.queue.messages() == []
    with pytest.raises(LockLost):
        bench.queue.complete(lock)


async def test_an_expired_lock_is_lost_for_every_verb_and_the_message_comes_first_again() -> None:
    bench = Bench(lock_duration=30)
    bench.send("a", "b")
    first, lock = bench.take()
    await bench.clock.advance(29.9)
    assert bench.names(State.LOCKED) == ["a"]
    await bench.clock.advance(0.1)
    for verb in (
        bench.queue.renew,
        bench.queue.complete,
        bench.queue.abandon,
        bench.queue.defer,
        bench.queue.dead_letter,
    ):
        with pytest.raises(LockLost):
            verb(lock)
    again, other = bench.take()
    assert again is first
    assert other != lock
    assert again.delivery_count == 1


async def test_a_renewed_lock_lasts_from_the_renewal() -> None:
    bench = Bench(lock_duration=30)
    bench.send("a")
    _, lock = bench.take()
    for _ in range(100):
        await bench.clock.advance(29)
        assert bench.queue.renew(lock) == bench.clock.wall() + 30
    await bench.clock.advance(30)
    with pytest.raises(LockLost):
        bench.queue.renew(lock)


@pytest.mark.parametrize("settles", [False, True])
async def test_whether_an_expired_lock_settles_is_a_switch(settles: bool) -> None:
    bench = Bench(Fidelity(expired_lock_settles=settles), lock_duration=30)
    bench.send("a")
    _, lock = bench.take()
    await bench.clock.advance(31)
    if not settles:
        with pytest.raises(LockLost):
            bench.queue.renew(lock)
        return
    assert bench.queue.renew(lock) == bench.clock.wall() + 30
    assert bench.queue.receive() is None
    await bench.clock.advance(31)
    bench.take()
    with pytest.raises(LockLost):  # somebody else has it now
        bench.queue.complete(lock)


async def test_deliveries_count_at_abandon_and_expiry_and_not_at_release() -> None:
    bench = Bench(lock_duration=30, max_delivery_count=3)
    bench.send("a")
    message, lock = bench.take()
    bench.queue.abandon(lock, counts=False)
    assert message.delivery_count == 0
    _, lock = bench.take()
    bench.queue.abandon(lock, properties={"why": "preempted"})
    assert (message.delivery_count, message.properties) == (1, {"why": "preempted"})
    bench.take()
    await bench.clock.advance(30)
    assert bench.queue.count(State.ACTIVE) == 1
    assert message.delivery_count == 2


@pytest.mark.parametrize("by_expiry", [False, True])
async def test_the_last_delivery_ends_in_the_dead_letter_sub_queue(by_expiry: bool) -> None:
    bench = Bench(lock_duration=30, max_delivery_count=3)
    bench.send("a")
    for _ in range(3):
        assert bench.dead == []
        _, lock = bench.take()
        if by_expiry:
            await bench.clock.advance(30)
        else:
            bench.queue.abandon(lock)
    assert bench.queue.messages() == []
    (dead,) = bench.dead
    assert (dead.reason, dead.delivery_count) == ("MaxDeliveryCountExceeded", 3)


async def test_a_dead_letter_keeps_its_content_and_is_never_buried_deeper() -> None:
    bench = Bench(max_delivery_count=1)
    bench.send("a", properties={"k": 1})
    _, lock = bench.take()
    bench.queue.dead_letter(lock, "Failed", "exit 1", {"tail": "x"})
    below = bench.broker.queue("JOBS/$deadletterqueue")
    (dead,) = bench.dead
    for count in range(5):
        assert below.receive() is dead
        assert dead.lock is not None
        assert dead.delivery_count == count
        below.abandon(dead.lock)
    assert dead.all_properties == {
        "k": 1,
        "tail": "x",
        "DeadLetterReason": "Failed",
        "DeadLetterErrorDescription": "exit 1",
    }
    assert dead.content.message_id == "a"


@pytest.mark.parametrize("refuses", [False, True])
def test_long_dead_letter_texts_are_a_switch(refuses: bool) -> None:
    bench = Bench(Fidelity(refuses_long_dead_letter_text=refuses))
    bench.send("a")
    _, lock = bench.take()
    if refuses:
        with pytest.raises(Invalid, match="4097"):
            bench.queue.dead_letter(lock, "r", "d" * 4097)
        assert bench.names(State.LOCKED) == ["a"]
    bench.queue.dead_letter(lock, "r" * 4096, "d" * (4096 if refuses else 5000))
    assert len(bench.dead) == 1


async def test_duplicates_are_taken_and_dropped_while_the_window_lasts() -> None:
    bench = Bench(dedup_window=60)
    assert bench.send("a") == [1]
    assert bench.send("a", "b") == [0, 2]
    _, lock = bench.take()
    bench.queue.complete(lock)
    await bench.clock.advance(59.9)
    assert bench.send("a") == [0]  # completed or not, and the window does not start anew
    await bench.clock.advance(0.1)
    assert bench.send("a") == [3]
    assert bench.queue.send([Content(b"no id"), Content(b"no id")]) == [4, 5]


async def test_without_a_window_nothing_is_a_duplicate() -> None:
    bench = Bench()
    assert bench.send("a", "a") == [1, 2]


async def test_a_scheduled_message_counts_as_a_duplicate_and_waits_for_its_time() -> None:
    bench = Bench(dedup_window=60)
    due = bench.clock.wall() + 20
    (number,) = bench.send("a", scheduled_for=due)
    assert bench.send("a") == [0]
    assert bench.queue.receive() is None
    assert [message.number for message in bench.queue.peek(0, 10)] == [number]
    await bench.clock.advance(20)
    message, _ = bench.take()
    assert message.enqueued == due
    with pytest.raises(MessageMissing):
        bench.queue.cancel_scheduled([number])


@pytest.mark.parametrize("renumbers", [False, True])
async def test_the_number_of_an_activated_message_is_a_switch(renumbers: bool) -> None:
    bench = Bench(Fidelity(activation_renumbers=renumbers))
    bench.send("a", scheduled_for=bench.clock.wall() + 5)
    bench.send("b")
    await bench.clock.advance(5)
    assert [message.number for message in bench.queue.messages()] == ([2, 3] if renumbers else [1, 2])
    assert bench.take()[0].content.body == (b"b" if renumbers else b"a")


async def test_cancelling_takes_all_or_none() -> None:
    bench = Bench()
    numbers = bench.send("a", "b", scheduled_for=bench.clock.wall() + 5)
    with pytest.raises(MessageMissing):
        bench.queue.cancel_scheduled([*numbers, 99])
    assert bench.names(State.SCHEDULED) == ["a", "b"]
    bench.queue.cancel_scheduled(numbers)
    assert bench.queue.messages() == []


@pytest.mark.parametrize("buries", [False, True])
async def test_what_expires_vanishes_or_is_buried_and_never_while_it_is_locked(buries: bool) -> None:
    bench = Bench(time_to_live=50, lock_duration=30, dead_letters_expired=buries)
    bench.send("longer than the queue's", time_to_live=200)
    bench.send("short", time_to_live=10)
    bench.send("default")
    await bench.clock.advance(10)
    assert bench.names(State.ACTIVE) == ["longer than the queue's", "default"]
    await bench.clock.advance(39)
    bench.take()
    _, lock = bench.take()
    await bench.clock.advance(25)  # their time to live is over since 24 s
    assert bench.names(State.LOCKED) == ["longer than the queue's", "default"]
    bench.queue.renew(lock)
    await bench.clock.advance(5)  # the other lock is over
    assert bench.names(State.LOCKED, State.ACTIVE) == ["default"]
    await bench.clock.advance(25)
    assert bench.names(State.LOCKED, State.ACTIVE) == []
    await bench.clock.advance(1000)  # a dead letter never expires
    reasons = [message.reason for message in bench.dead]
    assert reasons == (["TTLExpiredException"] * 3 if buries else [])


async def test_a_deferred_message_is_received_by_its_number_alone() -> None:
    bench = Bench(lock_duration=30)
    (number,) = bench.send("a")
    _, lock = bench.take()
    bench.queue.defer(lock)
    assert bench.queue.receive() is None
    (message,) = bench.queue.receive_deferred([number])
    assert message.state is State.LOCKED
    with pytest.raises(MessageMissing):
        bench.queue.receive_deferred([number])


def test_a_batch_over_the_limit_leaves_nothing() -> None:
    bench = Bench(max_message_bytes=10)
    with pytest.raises(TooLarge):
        bench.send("aaaaaa", "bbbbbb")
    assert bench.queue.messages() == []
    bench.send("aaaaaaaaaa")


def test_receive_and_delete_leaves_nothing() -> None:
    bench = Bench()
    bench.send("a")
    assert bench.queue.receive(destructive=True) is not None
    assert bench.queue.messages() == []
    assert bench.queue.receive() is None


def test_rest_names_a_message_by_id_or_number() -> None:
    bench = Bench()
    bench.send("a")
    message, lock = bench.take()
    assert bench.queue.held(lock, "a") is bench.queue.held(lock, "1") is message
    with pytest.raises(LockLost):
        bench.queue.held(lock, "b")


async def test_those_who_wait_are_told_and_the_next_instant_is_known() -> None:
    bench = Bench(lock_duration=30)
    told: list[float] = []
    bench.queue.listeners.add(lambda: told.append(bench.clock.boottime()))
    bench.send("a")
    bench.take()
    start = bench.clock.wall()
    assert bench.broker.sweep() == start + 30
    await bench.clock.advance(30)
    bench.broker.sweep()
    assert told == [1000.0, 1030.0]


def test_names_of_queues() -> None:
    bench = Bench()
    assert bench.broker.queue("/Jobs/") is bench.queue
    with pytest.raises(EntityExists):
        bench.broker.create(Description("JOBS"))
    for path in ("other", "jobs/else", "other/$DeadLetterQueue", "jobs/$DeadLetterQueue/$DeadLetterQueue"):
        with pytest.raises(EntityMissing):
            bench.broker.queue(path)
    bench.broker.delete("JOBS")
    with pytest.raises(EntityMissing):
        bench.broker.queue("jobs")
