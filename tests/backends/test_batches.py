"""Batches that were left half done, or in another form: they keep nobody from his tasks, and go on."""

import asyncio

import pytest

from jobq.batch_plan import Plan
from jobq.batches import BatchState
from jobq.errors import MalformedTask
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.task import Task
from tests.backends.places import DONE, LEASE, NOW, Place, Table, take, tasks


async def test_a_redrive_while_a_cancel_goes_on_lets_nothing_run(place: Place, queue: Table) -> None:
    """Who canceled was killed half way: what waited still, ran."""
    await queue.batches.begin("s7", Plan())
    await queue.push(tasks(700, batch="s7"))
    delivery = await take(queue)
    await delivery.settle(MoveToDeadLetters("failures", ""))
    place.run("UPDATE jobq.batch SET state = 'sealed', sealed_at = created_at, is_canceled = true")
    assert await queue.redrive([delivery.id]) == [delivery.id]
    async with asyncio.timeout(30):
        while [each.state for each in await queue.batches.list("", 10)] != [BatchState.FINISHED]:
            await queue.redrive(["none"])  # whoever writes goes on with it
            await asyncio.sleep(0.01)
    found = await queue.batches.find("s7")
    assert (found.round, found.is_canceled, found.counts["canceled"]) == (1, True, 700)


@pytest.mark.parametrize(
    ("column", "newer"),
    [
        ("plan", "[]"),
        ("plan", "in another language"),
        ("plan", '{"then": [{"id": "a"}]}'),
        ("plan", '{"then": 5}'),
        ("plan", '{"template": ["true"]}'),
        ("rounds", '{"1": {}}'),
        ("rounds", "[[1, 2.0, null]]"),
    ],
)
async def test_s11_a_batch_that_a_newer_jobq_keeps_in_another_form_keeps_nobody_from_settling(
    place: Place, queue: Table, column: str, newer: str
) -> None:
    """Whoever claimed, settled or wrote came upon its note, and failed."""
    await queue.batches.begin("new", Plan())
    await queue.push([Task.new(command="true", batch="new"), Task.new(command="true")])
    await queue.batches.seal("new")
    ((kept,),) = place.run(f"SELECT {column} FROM jobq.batch")
    place.run(f"UPDATE jobq.batch SET {column} = '{newer}'")
    for held in await queue.receive(2, LEASE, NOW):
        await held.settle(Complete(DONE))
    await queue.push([Task.new(command="true")])
    await (await take(queue)).settle(Complete(DONE))
    assert await queue.receive(1, LEASE, NOW) == []
    with pytest.raises(MalformedTask, match="in a form that this jobq does not know"):
        await queue.batches.find("new")
    assert place.run("SELECT state FROM jobq.batch") == [("sealed",)]
    place.run(f"UPDATE jobq.batch SET {column} = '{kept}'")
    assert (await queue.batches.seal("new")).state is BatchState.FINISHED, "who looks at it goes on"
