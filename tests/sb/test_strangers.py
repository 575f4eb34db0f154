"""Messages of strangers on a queue with a journal: they say what they like of their id, origin, time and numbers."""

import pytest

from jobq.settlement import Complete, MoveToDeadLetters, Release
from jobq.task import Task
from jobq.testing.harness import DONE
from jobq_azure.service_bus.message_format import EPOCH, ORIGIN
from jobq_azure.service_bus.rest_client import Outgoing
from tests.azure.emulator import Azurite
from tests.azure.journal.journal_stage import written
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
