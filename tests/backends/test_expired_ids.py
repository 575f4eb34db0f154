"""S1, S8: the id of a task that ended longer ago than ids are kept is no id: what is pushed under it is queued."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from jobq.batch_plan import Plan
from jobq.batches import counts_of
from jobq.errors import BatchSealed, DuplicateTask
from jobq.journal.records import Attempt
from jobq.journal.store import journal_of
from jobq.settlement import Complete, MoveToDeadLetters, Record
from jobq.task import Task
from tests.backends.places import DONE, LEASE, NOW, Place, Table, take, tasks


async def _done(queue: Table, count: int, prefix: str = "t", **fields: Any) -> list[Task]:
    made = tasks(count, prefix, **fields)
    await queue.push(made)
    for delivery in await queue.receive(count, LEASE, NOW):
        await delivery.settle(Complete(DONE))
    return made


@pytest.mark.parametrize(
    ("count", "others"),  # others are forgotten, too: more than one push gets to
    [(1, 1), (3, 300), (300, 1)],
)
async def test_what_is_pushed_again_is_queued_with_higher_tokens(
    place: Place, queue: Table, count: int, others: int
) -> None:
    """It was acknowledged and nothing was queued; or it was forgotten in the same transaction."""
    await _done(queue, others, "other")
    again = await _done(queue, count)
    place.pass_days(29)
    await queue.push(again)
    assert (await queue.stats()).visible == 0, "not yet"
    place.pass_days(2)
    await queue.push([*tasks(1, "new"), *again, *again])
    assert (await queue.stats()).visible == count + 1
    found = {each.id: each.fencing for each in await queue.receive(count + 1, LEASE, NOW)}
    assert [found[each.id] for each in again] == [(1, 0, 1)] * count


async def test_another_payload_is_taken_and_what_it_comes_to_is_recorded(place: Place, queue: Table) -> None:
    (task,) = tasks(1)
    journal = journal_of(queue)
    for command in ("true", "other"):
        await queue.push([Task.new(command=command, id=task.id)])
        delivery = await take(queue)
        assert delivery.task.command == command
        ended = Attempt(attempt=0, outcome="succeeded", then="done", ended=float(len(command)))
        await delivery.settle(Complete(DONE, record=Record(ended)))
        assert [each.ended for each in await journal.attempts(task.id)] == [len(command)]
        place.pass_days(31)
    with pytest.raises(DuplicateTask):
        await queue.push([task, Task.new(command="third", id=task.id)])


async def test_a_dead_letter_is_known_for_as_long_as_it_is_there(place: Place, queue: Table) -> None:
    await queue.push(tasks(1))
    await (await take(queue)).settle(MoveToDeadLetters("failures", ""))
    place.pass_days(31)
    await queue.push(tasks(1))
    stats = await queue.stats()
    assert (stats.visible, stats.dead) == (0, 1)


async def test_ids_are_known_for_as_long_as_the_journal_keeps_them(place: Place) -> None:
    async with place.handle(keep=timedelta(days=90)) as queue:
        await queue.create()
        again = await _done(queue, 1)
        for days, visible in ((31, 0), (60, 1)):
            place.pass_days(days)
            await queue.push(again)
            assert (await queue.stats()).visible == visible


async def test_it_is_gone_from_its_batch_and_new_to_one_that_is_sealed(place: Place, queue: Table) -> None:
    for name in ("open", "sealed"):
        await queue.batches.begin(name, Plan())
    again = await _done(queue, 1, prefix="o", batch="open")
    late = await _done(queue, 2, prefix="s", batch="sealed")
    await queue.batches.seal("sealed")
    await queue.push(late)
    place.pass_days(31)
    with pytest.raises(BatchSealed):
        await queue.push(late)
    await queue.push(again)
    assert dict((await queue.batches.find("open")).counts) == counts_of({"ready": 1, "gone": 1})


async def test_many_push_them_at_once_and_one_is_queued(place: Place, queue: Table) -> None:
    """In any order, and while they are forgotten."""
    again = await _done(queue, 30)
    place.pass_days(31)
    others = [place.handle() for _ in range(6)]
    async with AsyncExitStack() as stack:
        for each in others:
            await stack.enter_async_context(each)
        pushes = [each.push(again[:: 1 - 2 * (number % 2)]) for number, each in enumerate(others)]
        await asyncio.gather(*pushes, queue.receive(1, LEASE, NOW))
    assert (await queue.stats()).unfinished == 30
