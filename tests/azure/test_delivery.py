"""A delivery on Azurite: what the suite cannot ask for every backend."""

import time
from datetime import timedelta

import pytest

from jobq.errors import LockLost, MalformedTask
from jobq.task import Task
from jobq.testing.harness import DONE, crashes
from jobq_azure.content import HEADROOM_BYTES, MAX_TEXT_BYTES, Content, size_of
from tests.azure.stage import LEASE, NOW, Stage, is_update

_DAY = 86_400.0


async def test_delay_over_seven_days_is_hidden_in_steps(stage: Stage) -> None:
    # Item 3 of the issue: the service hides for 7 days at most.
    later = Task.new(command="true", not_before=time.time() + 20 * _DAY)
    await stage.backend.push([later])
    assert stage.proxy.requests[-1].query["visibilitytimeout"] == str(7 * 86_400)
    # As it is received after the first step: put the same task where it can be seen.
    wire = await stage.wire()
    await wire.clear()
    early, due = Content(later.encode()).text(), Content(Task.new(command="true").encode()).text()
    await wire.put(early)
    await wire.put(due)
    stage.proxy.requests.clear()
    (only,) = await stage.backend.receive(2, LEASE, NOW)
    assert only.task.not_before is None, "a task was handed out before its time"
    (hidden,) = [each for each in stage.proxy.requests if is_update(each)]
    assert hidden.query["visibilitytimeout"] == str(7 * 86_400)
    assert await stage.total() == 2


async def test_the_step_that_reaches_the_time_hides_the_rest_and_is_no_crash(stage: Stage) -> None:
    later = Task.new(command="true", not_before=time.time() + 8.0)
    wire = await stage.wire()
    await wire.put(Content(later.encode()).text())
    assert await stage.backend.receive(1, LEASE, NOW) == []
    (delivery,) = await stage.backend.receive(1, LEASE, timedelta(seconds=15))
    assert time.time() >= later.not_before - 1 if later.not_before else False
    assert (delivery.deliveries, crashes(delivery)) == (2, 0)


async def test_requeue_over_seven_days_keeps_its_time(stage: Stage) -> None:
    await stage.pushed()
    delivery = await stage.take()
    await delivery.requeue(delivery.task.requeued(failures=1), timedelta(days=30))
    update = [each for each in stage.proxy.requests if is_update(each)][-1]
    assert update.query["visibilitytimeout"] == str(7 * 86_400)
    assert b"not_before" in update.body


async def test_a_settled_delivery_has_no_say(stage: Stage) -> None:
    # Each update gives a new receipt, which would go on working.
    await stage.pushed()
    delivery = await stage.take()
    await delivery.requeue(delivery.task.requeued(failures=1), timedelta(seconds=60))
    seen = len(stage.proxy.requests)
    with pytest.raises(LockLost):
        await delivery.renew(LEASE)
    with pytest.raises(LockLost):
        await delivery.complete(DONE)
    assert len(stage.proxy.requests) == seen


async def test_no_checkpoint_pushes_a_message_over_the_limit(stage: Stage) -> None:
    await stage.pushed()
    delivery = await stage.take()
    for value, fault in (("x" * MAX_TEXT_BYTES, "65536 bytes makes a message of"), ("\ud800", "surrogate")):
        with pytest.raises(MalformedTask, match=fault):
            await delivery.checkpoint(value)
    await delivery.checkpoint("")
    await delivery.complete(DONE)


async def test_dead_letter_of_a_full_message_keeps_its_bytes(stage: Stage) -> None:
    # Where the story has no room beside the original, the original is stored as it came and the log tells the story.
    wire = await stage.wire()
    bodies = [b"-" * MAX_TEXT_BYTES, b"_" * (MAX_TEXT_BYTES - 500)]
    for body in bodies:
        await wire.put(Content(body).text())
        await (await stage.take()).dead_letter("malformed", "a long story " * 1000)
    letters = {each.body: each for each in await stage.backend.dead_letters(10)}
    assert letters.keys() == set(bodies)
    assert letters[bodies[0]].reason == "unknown"
    assert letters[bodies[1]].reason == "malformed"
    assert "a long story" in letters[bodies[1]].description
    ids = [each.id for each in letters.values()]
    assert sorted(await stage.backend.redrive(ids)) == sorted(ids)
    assert {each.body for each in await stage.backend.receive(2, LEASE, NOW)} == set(bodies)


async def test_a_task_at_the_limit_can_be_retried_and_buried(stage: Stage) -> None:
    bare = size_of(Content(Task.new(command="x").encode()).text())
    largest = Task.new(command="x" * (MAX_TEXT_BYTES - HEADROOM_BYTES - bare - 8))  # less for its date
    await stage.backend.push([largest])
    delivery = await stage.take()
    await delivery.requeue(delivery.task.requeued(failures=1), NOW)
    await (await stage.take()).dead_letter("failures", "exit code 1\n" * 500)
    (letter,) = await stage.backend.dead_letters(1)
    assert (letter.id, letter.reason) == (largest.id, "failures")
    assert await stage.backend.redrive([letter.id]) == [letter.id]
    assert (await stage.take()).task.epoch == 1


async def test_forty_dead_letters_are_all_found(stage: Stage) -> None:
    # A look takes 32 at most.
    tasks = await stage.pushed(40)
    left = len(tasks)
    while left:
        for delivery in await stage.backend.receive(32, LEASE, NOW):
            await delivery.dead_letter("failures", "")
            left -= 1
    assert len(await stage.backend.dead_letters(100)) == 40
    last = [tasks[-1].id]
    assert await stage.backend.purge_dead(last) == last
    assert len(await stage.backend.dead_letters(100)) == 39
