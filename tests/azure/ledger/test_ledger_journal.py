"""What a ledger says of an end, the journal says, too: also where nobody ran the task, or who did has died."""

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from jobq.settlement import MoveToDeadLetters, Release, Requeue, Settlement
from jobq.task import Counters
from jobq_azure.ledger.delivery import LedgerDelivery
from jobq_azure.ledger.queue import LedgerQueue
from tests.azure.journal.journal_stage import state, written
from tests.azure.ledger.ledger_stage import NAME, finished, ledgered, pushed
from tests.azure.stage import LEASE, NOW, Stage

if TYPE_CHECKING:
    from jobq_azure.table_journal.note import Note

pytestmark = [pytest.mark.check, pytest.mark.timeout(120)]
LATER = timedelta(minutes=10)
BACK: list[Settlement] = [Requeue(Counters(failures=1, ends=1), LATER), Release(LATER)]


async def _taken(queue: LedgerQueue, lease: timedelta = LEASE) -> LedgerDelivery:
    (delivery,) = await queue.receive(1, lease, timedelta(seconds=10))
    assert isinstance(delivery, LedgerDelivery)
    return delivery


@pytest.mark.parametrize("back", BACK, ids=["requeued", "released"])
async def test_what_waits_after_it_was_held_and_is_canceled_has_ended(stage: Stage, back: Settlement) -> None:
    queue, other = await ledgered(stage), await ledgered(stage, behind=True)
    (task,) = await pushed(queue)
    await (await _taken(queue)).settle(back)
    await written(queue)
    await other.batches.cancel(NAME)
    assert (await finished(other)).counts["canceled"] == 1
    assert await state(other, task.id) == "canceled"
    await written(queue)
    assert await state(other, task.id) == "canceled"


async def test_a_late_word_of_who_put_it_back_does_not_undo_its_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = await ledgered(stage), await ledgered(stage, behind=True)
    (task,) = await pushed(queue)
    delivery = await _taken(queue)
    await written(queue)
    late: list[Note] = []
    with monkeypatch.context() as patch:
        patch.setattr(queue.writer, "add", lambda notes, *_: late.extend(notes))
        await delivery.settle(BACK[0])
    await other.batches.cancel(NAME)
    await written(other)
    assert late
    queue.writer.add(late)
    await written(queue)
    assert await state(other, task.id) == "canceled"


@pytest.mark.parametrize(("then", "shown"), [("done", "succeeded"), ("dead", "dead"), ("canceled", "canceled")])
async def test_who_meets_what_is_left_over_records_the_end_of_who_died(stage: Stage, then: str, shown: str) -> None:
    """A worker that is gone once the ledger has the end has told neither queue nor journal."""
    queue, other = await ledgered(stage), await ledgered(stage, behind=True)
    (task,) = await pushed(queue)
    await queue.batches.seal(NAME)
    delivery = await _taken(queue, timedelta(seconds=1))
    await written(queue)
    await delivery._hold.end(then, **({"reason": "failed", "description": "by the test"} if then == "dead" else {}))
    assert await other.receive(1, LEASE, timedelta(seconds=3)) == []
    assert await state(other, task.id) == shown
    assert [each.id for each in await other.dead_letters(9)] == [task.id] * (then == "dead")


async def test_what_is_put_back_into_a_canceled_batch_is_canceled(stage: Stage) -> None:
    queue = await ledgered(stage, behind=True)
    dead, _ = await pushed(queue, 2)
    for delivery in await queue.receive(2, LEASE, NOW):
        if delivery.id == dead.id:
            await delivery.settle(MoveToDeadLetters("failed", "by the test"))
    await queue.batches.cancel(NAME)  # which the other one outlives
    assert await state(queue, dead.id) == "dead"
    assert await queue.redrive([dead.id]) == [dead.id]
    assert await state(queue, dead.id) == "canceled"
    assert (await queue.batches.find(NAME)).counts["canceled"] == 1
