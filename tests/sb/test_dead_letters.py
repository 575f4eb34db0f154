"""Dead letters in the queue's own place: by a REST lock over AMQP, looked at, put back and purged."""

import inspect
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from azure.servicebus.aio import ServiceBusReceiver

from jobq.batch_ids import IdInBatch
from jobq.errors import BackendUnavailable, ConfigurationError, PushUnknown
from jobq.settlement import MoveToDeadLetters, Requeue
from jobq.task import Task
from jobq.testing.clock import VirtualClock
from jobq_azure.service_bus import amqp_client
from jobq_azure.service_bus.delivery import ServiceBusDelivery
from jobq_azure.service_bus.message_format import EPOCH, ORIGIN, cut
from jobq_azure.service_bus.rest_client import Outgoing
from tests.emulators.service_bus.faults import Drop, Fault, Operation
from tests.emulators.service_bus.fidelity import Fidelity
from tests.sb.stage import LOCK_SECONDS, NOW, Stage, staged
from tests.service_bus.leftovers import collected

pytestmark = pytest.mark.check


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage whose locks outlast a busy machine: none of these waits for one to run out by this machine's time."""
    with collected():
        async with staged(tmp_path, lock_duration=60.0) as made:
            yield made


async def _buried(stage: Stage) -> Task:
    (task,) = await stage.pushed()
    await (await stage.take()).settle(MoveToDeadLetters("failed", "by a test"))
    return task


def test_three_functions_hold_the_private_names_of_the_sdk() -> None:
    # If this fails, the SDK has changed: dead-letter by a lock's token must be looked at anew.
    private = ServiceBusReceiver._settle_message_via_mgmt_link
    assert list(inspect.signature(private).parameters) == ["self", "settlement", "lock_tokens", "dead_letter_details"]
    assert inspect.iscoroutinefunction(private)
    private = ServiceBusReceiver._renew_locks
    assert list(inspect.signature(private).parameters) == ["self", "lock_tokens", "timeout"]
    assert inspect.iscoroutinefunction(private)
    folder = Path(amqp_client.__file__).parent
    uses = {path.name: path.read_text().count("noqa: SLF001") for path in folder.glob("*.py")}
    assert {name: count for name, count in uses.items() if count} == {"amqp_client.py": 3}


@pytest.mark.parametrize("refuses", [True, False])
async def test_a_long_story_is_cut_to_what_the_service_takes(tmp_path: Path, refuses: bool) -> None:
    story = "begin " + "ü" * 10_000 + " end"
    assert len(cut(story)) == 4096
    async with staged(tmp_path, Fidelity(refuses_long_dead_letter_text=refuses), lock_duration=60.0) as stage:
        await stage.pushed()
        await (await stage.take()).settle(MoveToDeadLetters("failed", story))
        (letter,) = await stage.backend.dead_letters(10)
        assert letter.description == cut(story)
        assert letter.description.startswith("begin ")
        assert letter.description.endswith(" end")


@pytest.mark.parametrize("how", ["detach", "drop"])
async def test_a_link_that_was_detached_loses_no_dead_letter(tmp_path: Path, how: str) -> None:
    async with staged(tmp_path, lock_duration=60.0) as stage:
        await _detach(stage, how)


async def _detach(stage: Stage, how: str) -> None:
    await _buried(stage)  # opens the link
    await stage.pushed()
    delivery = await stage.take()
    if how == "detach":
        stage.emulator.detach_receivers()
    else:
        stage.emulator.drop_connections()
    try:
        await delivery.settle(MoveToDeadLetters("failed", "after the detach"))
    except BackendUnavailable:  # told by the lock, which still stands
        await delivery.settle(MoveToDeadLetters("failed", "after the detach"))
    assert {each.description for each in await stage.backend.dead_letters(10)} == {"by a test", "after the detach"}
    assert stage.queue.messages() == []


async def test_a_lock_outlives_a_detach(stage: Stage) -> None:
    # Locks are got, renewed and settled over REST: nothing that befalls AMQP touches them.
    await _buried(stage)
    await stage.pushed()
    delivery = await stage.take()
    stage.emulator.detach_receivers()
    stage.emulator.drop_connections()
    await delivery.renew(delivery.lease)
    assert isinstance(delivery, ServiceBusDelivery)
    assert len(await stage.backend.peek(10)) == 1


async def test_what_the_service_gave_up_is_shown_and_put_back(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with staged(tmp_path, clock=clock, max_delivery_count=2) as stage:
        (task,) = await stage.pushed()
        for _ in range(2):
            first = await stage.take()
            await clock.advance(LOCK_SECONDS + 1)
        (letter,) = await stage.backend.dead_letters(10)
        assert (letter.id, letter.reason, letter.deliveries) == (task.id, "MaxDeliveryCountExceeded", 2)
        assert await stage.backend.redrive([task.id]) == [task.id]
        again = await stage.take()
        assert again.fencing[1:] == (0, 3)
        assert again.fencing.epoch > first.fencing.epoch


@pytest.mark.parametrize("window", [0.0, 600.0], ids=["without dedup", "with dedup"])
async def test_a_redrive_inside_the_dedup_window_is_not_dropped(tmp_path: Path, window: float) -> None:
    async with staged(tmp_path, dedup_window=window, lock_duration=60.0) as stage:
        task = await _buried(stage)
        epochs = [0]
        for times in (1, 2, 3):
            assert await stage.backend.redrive([task.id]) == [task.id]
            delivery = await stage.take()
            assert delivery.fencing[1:] == (0, times + 1)
            epochs.append(delivery.fencing.epoch)
            await delivery.settle(MoveToDeadLetters("failed", "again"))
        assert epochs == sorted(set(epochs)), "also within one second"
        assert len(stage.dead.messages()) == 1


@pytest.mark.parametrize("window", [0.0, 600.0], ids=["without dedup", "with dedup"])
async def test_a_redrive_that_was_cut_off_repeats_and_loses_nothing(tmp_path: Path, window: float) -> None:
    # S6: sent, and not completed. The repeat sends the same epoch: one task with dedup, two without, none lost.
    clock = VirtualClock()
    async with staged(tmp_path, clock=clock, dedup_window=window) as stage:
        task = await _buried(stage)
        stage.emulator.faults.plan(Fault(drop=Drop.BEFORE), Operation.COMPLETE)
        stage.emulator.faults.plan(Fault(drop=Drop.BEFORE), Operation.ABANDON)
        assert await stage.backend.redrive([task.id]) == [task.id]
        await clock.advance(LOCK_SECONDS + 1)
        assert [each.id for each in await stage.backend.dead_letters(10)] == [task.id]
        assert await stage.backend.redrive([task.id]) == [task.id]
        assert len(stage.queue.messages()) == (1 if window else 2)
        assert stage.dead.messages() == []


async def test_a_redrive_whose_answer_was_lost_is_in_doubt(stage: Stage) -> None:
    task = await _buried(stage)
    stage.emulator.faults.plan(Fault(drop=Drop.AFTER), Operation.SEND)
    with pytest.raises(PushUnknown, match="still a dead letter"):
        await stage.backend.redrive([task.id])
    assert len(stage.dead.messages()) == 1


async def test_others_are_left_as_they_are(stage: Stage) -> None:
    tasks = [await _buried(stage) for _ in range(5)]
    assert await stage.backend.purge_dead([tasks[3].id]) == [tasks[3].id]
    assert await stage.backend.redrive(["unknown"]) == []
    left = await stage.backend.dead_letters(10)
    assert [each.id for each in left] == [task.id for task in tasks if task is not tasks[3]]
    assert await stage.backend.redrive([task.id for task in tasks]) == [each.id for each in left]
    assert stage.dead.messages() == []
    assert len(await stage.backend.receive(10, None, NOW)) == 4


async def test_a_task_that_died_twice_is_one_letter(tmp_path: Path) -> None:
    # The rerun of an original beside its clone: both may die, and are put back as one (S6).
    clock = VirtualClock()
    async with staged(tmp_path, clock=clock) as stage:
        await stage.pushed()
        original = await stage.take()
        stage.emulator.faults.plan(Fault(drop=Drop.BEFORE), Operation.COMPLETE)
        with pytest.raises(BackendUnavailable):
            await original.settle(Requeue(original.task.requeued(failures=1).counters, NOW))
        for _ in range(2):
            await (await stage.take()).settle(MoveToDeadLetters("failed", "each"))
            await clock.advance(LOCK_SECONDS + 1)
        assert len(stage.dead.messages()) == 2
        (letter,) = await stage.backend.dead_letters(10)
        assert Task.decode(letter.body).generation == 1
        assert await stage.backend.redrive([letter.id]) == [letter.id]
        assert stage.dead.messages() == []
        assert len(stage.queue.messages()) == 1


async def test_a_letter_that_names_anothers_origin_and_id_is_another(stage: Stage) -> None:
    """Who may send writes both: a purge of the stranger's deleted the real one, a retry sent the stranger's work."""
    task = await _buried(stage)
    (letter,) = stage.dead.messages()
    own: dict[str, str | int] = {ORIGIN: str(letter.properties[ORIGIN]), EPOCH: 2**53 - 1}
    spam = Task.new(command="echo spam", id=task.id)
    await stage.backend._wire.send(Outgoing(body=spam.encode(), message_id="spam", properties=own))
    await (await stage.take()).settle(MoveToDeadLetters("unsigned", "spam"))
    letters = {each.description: each for each in await stage.backend.dead_letters(10)}
    assert sorted(letters) == ["by a test", "spam"]
    with pytest.raises(ConfigurationError, match="different work"):
        await stage.backend.purge_dead([task.id])
    which = letters["spam"]
    assert await stage.backend.purge_dead([IdInBatch.of(which.id, None, which.work)]) == [task.id]
    assert await stage.backend.redrive([task.id]) == [task.id]
    assert (await stage.take()).task.command == task.command


async def test_amqp_that_is_refused_is_told(stage: Stage) -> None:
    stage.emulator.faults.plan(Fault(503), Operation.PEEK)
    with pytest.raises(BackendUnavailable):
        await stage.backend.peek(1)
    stage.emulator.faults.clear()
    assert await stage.backend.peek(1) == []
