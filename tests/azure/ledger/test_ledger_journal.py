"""What a ledger says of an end, the journal says, too: also where nobody ran the task, or who did has died."""

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from jobq.settlement import Requeue
from jobq.task import Counters
from jobq_azure.ledger.delivery import LedgerDelivery
from jobq_azure.ledger.queue import LedgerQueue
from tests.azure.journal.journal_stage import state, written
from tests.azure.ledger.ledger_stage import NAME, ledgered, pushed
from tests.azure.stage import LEASE, Stage

if TYPE_CHECKING:
    from jobq_azure.table_journal.note import Note

pytestmark = [pytest.mark.check, pytest.mark.timeout(120)]


async def _taken(queue: LedgerQueue, lease: timedelta = LEASE) -> LedgerDelivery:
    (delivery,) = await queue.receive(1, lease, timedelta(seconds=10))
    assert isinstance(delivery, LedgerDelivery)
    return delivery


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
        await delivery.settle(Requeue(Counters(failures=1, ends=1), timedelta(minutes=10)))
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
