"""Messages of strangers on a queue with a journal: they say what they like of their id, origin, time and numbers."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobq.settlement import Complete, MoveToDeadLetters, Release
from jobq.submit import batch_end
from jobq.task import Task, new_id
from jobq.testing.harness import DONE
from jobq_azure.service_bus.letter_walk import token
from jobq_azure.service_bus.message_format import EPOCH, ORIGIN
from jobq_azure.service_bus.rest_client import Outgoing
from jobq_azure.service_bus.seen import Seen
from tests.azure.emulator import Azurite
from tests.azure.journal.journal_stage import written
from tests.azure.ledger.ledger_stage import NAME, drained, finished, pushed
from tests.azure.ledger.sites import BusSite, sited
from tests.azure.stage import LEASE
from tests.sb.stage import NOW, Stage
from tests.sb.test_journal import _journaled


@pytest.mark.parametrize("saves", [False, True])
async def test_s1_a_task_is_not_taken_for_replaced_by_other_work(stage: Stage, azurite: Azurite, saves: bool) -> None:
    """The journal had the stranger's number under the same id, time and origin: the real task was completed unrun."""
    queue, _ = await _journaled(stage, azurite)
    task = Task.new(command="echo real")
    await queue.push([task])
    (first,) = await queue.receive(1, None, NOW)
    if saves:
        await first.checkpoint("step 7")
    await first.settle(Release())  # by a copy, which says whose
    (copy,) = stage.queue.messages()
    spam = task.copied({"command": "echo spam", "generation": 9, "epoch": 2**53 - 1})
    own: dict[str, str | int] = {ORIGIN: str(copy.properties[ORIGIN]), EPOCH: 2**53 - 1}
    await stage.backend._wire.send(Outgoing(body=spam.encode(), message_id="spam", properties=own))
    real, stranger = sorted(
        await queue.receive(1, None, NOW) + await queue.receive(1, None, NOW), key=lambda each: str(each.task.command)
    )
    await stranger.settle(MoveToDeadLetters("unsigned", "spam"))
    await written(queue)
    await real.settle(Release())
    (again,) = await queue.receive(1, None, NOW)
    assert (again.task.command, again.checkpoint_value) == ("echo real", "step 7" if saves else None)
    await again.settle(Complete(DONE))
    await written(queue)


@pytest.fixture
async def site(azurite: Azurite, tmp_path: Path) -> AsyncIterator[BusSite]:
    async with sited("service-bus", azurite, tmp_path) as found:
        assert isinstance(found, BusSite)
        yield found


async def _sent_again(site: BusSite, message: Seen, body: bytes) -> None:
    """As Service Bus Explorer sends a dead letter again: its body and properties, in a new message."""
    own = {name: value for name, value in message.properties.items() if isinstance(value, str | int)}
    await site.stage.backend._wire.send(Outgoing(body=body, message_id=new_id(), properties=own))


async def test_a_message_of_other_work_is_no_task_of_the_batch(site: BusSite) -> None:
    queue = await site.ledgered(behind=True)
    (task,) = await pushed(queue)
    await queue.batches.seal(NAME)
    (message,) = await site.stage.backend._amqp().peek(1)
    work = Task.decode(message.body).work
    assert work is not None
    spam = Task.new(id=task.id, command="echo spam").in_ledger(str(work.ledger))
    await _sent_again(site, message, spam.encode())
    assert await drained(queue) == [task.id]
    (letter,) = await queue.dead_letters(9)
    assert (letter.reason, "other work" in letter.description) == ("unknown", True)
    assert await batch_end.put_back(queue, NAME) == 0, "of the batch nothing is dead"
    assert (await finished(queue)).counts["succeeded"] == 1


async def test_a_letter_that_is_sent_again_by_hand_is_a_letter_again(site: BusSite) -> None:
    """It was taken for left over, and deleted: the batch had it as dead, and nothing put it back."""
    queue = await site.ledgered(behind=True)
    (task,) = await pushed(queue)
    await queue.batches.seal(NAME)
    (delivery,) = await queue.receive(1, LEASE, NOW)
    await delivery.settle(MoveToDeadLetters("failed", "by a test"))
    (letter,) = await site.stage.backend._amqp().lock_dead(1)
    await site.stage.backend._amqp().settle_dead("completed", [token(letter)])
    await _sent_again(site, letter, letter.body)
    assert await drained(queue) == []
    assert [each.description for each in await queue.dead_letters(9)] == ["by a test"]
    assert await batch_end.put_back(queue, NAME) == 1
    assert await drained(queue) == [task.id]
    assert (await finished(queue)).counts["succeeded"] == 1
