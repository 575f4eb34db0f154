"""S1, S8: the id of a task that ended longer ago than ids are kept is no id: what is pushed under it is queued."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobq.batch_plan import Plan
from jobq.batches import counts_of
from jobq.errors import BatchSealed, DuplicateTask
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.task import Task
from jobq.testing.clock import VirtualClock
from jobq_sqlite import SqliteBackend
from tests.sqlite.support import DONE, LEASE, NOW, backend, states, tasks, virtual_file

_LATER = timedelta(days=31).total_seconds()


async def _done(queue: SqliteBackend, count: int, prefix: str = "t", **fields: Any) -> list[Task]:
    made = tasks(count, prefix, **fields)
    await queue.push(made)
    for delivery in await queue.receive(count, LEASE, NOW):
        await delivery.settle(Complete(DONE))
    return made


@pytest.mark.parametrize("others", [1, 300])  # that are forgotten, too: more than one push gets to
async def test_what_is_pushed_again_is_queued_with_higher_tokens(tmp_path: Path, others: int) -> None:
    """It was acknowledged, and forgotten in the same transaction."""
    clock = VirtualClock()
    file = virtual_file(tmp_path, clock)
    async with backend(file) as queue:
        await queue.create()
        await _done(queue, others, prefix="other")
        again = await _done(queue, 3)
        await clock.advance(_LATER - 2 * 86400)
        await queue.push([*again, *tasks(1, "new")])
        assert (await queue.stats()).visible == 1, "not yet"
        await clock.advance(2 * 86400)
        await queue.push([*tasks(1, "newer"), *again, *again])
        assert (await queue.stats()).visible == 5
        found = {each.id: each.fencing for each in await queue.receive(5, LEASE, NOW)}
        assert [found[each.id] for each in again] == [(1, 0, 1)] * 3


async def test_another_payload_is_taken(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with backend(virtual_file(tmp_path, clock)) as queue:
        await queue.create()
        (task,) = await _done(queue, 1)
        await clock.advance(_LATER)
        other = Task.new(command="other", id=task.id)
        with pytest.raises(DuplicateTask, match="another payload"):
            await queue.push([other, task])
        await queue.push([other])
        (delivery,) = await queue.receive(2, LEASE, NOW)
        assert delivery.task.command == "other"


async def test_a_dead_letter_is_known_for_as_long_as_it_is_there(tmp_path: Path) -> None:
    clock = VirtualClock()
    file = virtual_file(tmp_path, clock)
    async with backend(file) as queue:
        await queue.create()
        await queue.push(tasks(1))
        (delivery,) = await queue.receive(1, LEASE, NOW)
        await delivery.settle(MoveToDeadLetters("failures", ""))
        await clock.advance(_LATER)
        await queue.push(tasks(1))
    assert set(states(file.path).values()) == {"dead"}


async def test_ids_are_known_for_as_long_as_the_journal_keeps_them(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with SqliteBackend(virtual_file(tmp_path, clock), "q", keep=timedelta(days=90)) as queue:
        await queue.create()
        again = await _done(queue, 1)
        await clock.advance(_LATER)
        await queue.push(again)
        assert (await queue.stats()).visible == 0
        await clock.advance(60 * 86400)
        await queue.push(again)
        assert (await queue.stats()).visible == 1


async def test_it_is_gone_from_its_batch_and_new_to_one_that_is_sealed(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with backend(virtual_file(tmp_path, clock)) as queue:
        await queue.create()
        for name in ("open", "sealed"):
            await queue.batches.begin(name, Plan())
        again = await _done(queue, 1, prefix="o", batch="open")
        late = await _done(queue, 2, prefix="s", batch="sealed")
        await queue.batches.seal("sealed")
        await queue.push(late)
        await clock.advance(_LATER)
        with pytest.raises(BatchSealed):
            await queue.push(late)
        await queue.push(again)
        assert dict((await queue.batches.find("open")).counts) == counts_of({"ready": 1, "gone": 1})
        assert dict((await queue.batches.find("sealed")).counts) == counts_of({"gone": 2})
