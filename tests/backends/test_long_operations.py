"""A clear takes many short transactions: what comes meanwhile stays, with all that is known of it (S1)."""

import pytest

from jobq.clearing import Cleared
from jobq.errors import LockLost
from jobq.journal.records import Attempt
from jobq.journal.store import journal_of
from jobq.settlement import Complete, MoveToDeadLetters, Record
from tests.backends.places import DONE, LEASE, NOW, Place, Table, tasks

_ROWS = 1500  # more than one step takes


async def _rest(queue: Table, step: Cleared) -> int:
    """Go on with a clear to its end; return how many that has deleted."""
    count = 0
    while step.cursor is not None:
        step = await queue.clear_some(step.cursor)
        count += step.deleted
    return count


async def test_a_clear_leaves_what_is_pushed_while_it_runs_and_other_queues_alone(place: Place, queue: Table) -> None:
    async with place.handle("other") as other:
        await other.create()
        await other.push(tasks(3, "other"))
        await queue.push([*tasks(_ROWS), *tasks(_ROWS, "later", not_before=4e9)])
        await queue.receive(100, LEASE, NOW)
        step = await queue.clear_some("")
        assert 0 < step.deleted < _ROWS
        await queue.push(tasks(5, "late"))
        assert step.deleted + await _rest(queue, step) == 2 * _ROWS
        assert (await queue.stats()).unfinished == 5, "what was acknowledged after the beginning is still there"
        assert (await other.stats()).unfinished == 3


async def test_a_clear_leaves_what_is_pushed_after_another_has_cleared_all(queue: Table) -> None:
    """The numbers of deleted rows went to new tasks: the clear that went on took them for its own."""
    await queue.push(tasks(_ROWS))
    step = await queue.clear_some("")
    await queue.clear()
    late = await queue.push(tasks(_ROWS, "late"))
    await _rest(queue, step)
    assert (await queue.stats()).unfinished == len(late), "what was acknowledged after the beginning is there"


async def test_a_clear_leaves_what_is_put_back_while_it_runs_with_all_that_is_known_of_it(queue: Table) -> None:
    """A dead letter kept its place in the order: the clear took it for one that had waited from the beginning."""
    letter = MoveToDeadLetters(
        "failures", "", record=Record(Attempt(attempt=1, outcome="failed", then="dead", ended=1.0), "its output")
    )
    await queue.push(tasks(_ROWS))
    ids = await queue.push(tasks(3, "precious", priority=9))
    deliveries = await queue.receive(3, LEASE, NOW)
    for delivery in deliveries:
        await delivery.settle(letter)
    step = await queue.clear_some("")
    assert await queue.redrive(ids) == ids
    await _rest(queue, step)
    assert [each.id for each in await queue.peek(9)] == ids
    first = next(each for each in deliveries if each.id == ids[0])
    await first.settle(letter)  # the answer to the first may have been lost (S5)
    with pytest.raises(LockLost):
        await first.settle(Complete(DONE))
    assert await journal_of(queue).output(ids[0]) == (1, "its output")
    (again, *_) = await queue.receive(3, LEASE, NOW)
    await again.settle(Complete(DONE, record=Record(Attempt(attempt=2, outcome="succeeded", then="done", ended=2.0))))
    assert [each.attempt for each in await journal_of(queue).attempts(ids[0])] == [1, 2]


async def test_an_interrupted_clear_goes_on_with_the_next(queue: Table) -> None:
    await queue.push(tasks(_ROWS))
    first = await queue.clear_some("")
    assert await queue.clear() == _ROWS - first.deleted
