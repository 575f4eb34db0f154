"""A delivery on Azurite: what the suite cannot ask for every backend."""

import asyncio
import json
import math
import time
from datetime import timedelta

import pytest

from jobq.errors import LockLost, MalformedTask
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.task import Task
from jobq.testing.harness import DONE, crashes
from jobq_azure.storage.message_format import HEADROOM_BYTES, MAX_TEXT_BYTES, MessageContent, MessageNotes, size_of
from tests.azure.stage import LEASE, NOW, SHORT, Stage, is_update, make_container
from tests.support.http_proxy import Strike

pytestmark = pytest.mark.check

_DAY = 86_400.0


async def test_delay_over_seven_days_is_hidden_in_steps(stage: Stage) -> None:
    # Item 3 of the issue: the service hides for 7 days at most.
    later = Task.new(command="true", not_before=time.time() + 20 * _DAY)
    await stage.backend.push([later])
    assert stage.proxy.requests[-1].query["visibilitytimeout"] == str(7 * 86_400)
    # As it is received after the first step: put the same task where it can be seen.
    wire = await stage.wire()
    await wire.clear()
    early, due = MessageContent(later.encode()).text(), MessageContent(Task.new(command="true").encode()).text()
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
    await wire.put(MessageContent(later.encode()).text())
    assert await stage.backend.receive(1, LEASE, NOW) == []
    (delivery,) = await stage.backend.receive(1, LEASE, timedelta(seconds=15))
    assert time.time() >= later.not_before - 1 if later.not_before else False
    assert (delivery.deliveries, crashes(delivery)) == (2, 0)


@pytest.mark.parametrize("days", [8, 30])
async def test_requeue_over_seven_days_keeps_its_time(stage: Stage, days: int) -> None:
    await stage.pushed()
    delivery = await stage.take()
    await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, timedelta(days=days)))
    update = [each for each in stage.proxy.requests if is_update(each)][-1]
    assert update.query["visibilitytimeout"] == str(7 * 86_400)
    assert b"not_before" in update.body


async def test_a_receive_that_is_given_up_gives_back_what_it_was_granted(stage: Stage) -> None:
    await stage.pushed(3)
    receiving = asyncio.ensure_future(stage.backend.receive(3, LEASE, NOW))
    await stage.proxy.until(lambda: stage.proxy.seen("GET", "/messages"))
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    again = await stage.backend.receive(3, LEASE, NOW)
    assert [(each.deliveries, crashes(each)) for each in again] == [(2, 0)] * 3


async def test_a_settled_delivery_has_no_say(stage: Stage) -> None:
    # Each update gives a new receipt, which would go on working.
    await stage.pushed()
    delivery = await stage.take()
    await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, timedelta(seconds=60)))
    seen = len(stage.proxy.requests)
    with pytest.raises(LockLost):
        await delivery.renew(LEASE)
    with pytest.raises(LockLost):
        await delivery.settle(Complete(DONE))
    assert len(stage.proxy.requests) == seen


async def test_no_checkpoint_pushes_a_message_over_the_limit(stage: Stage) -> None:
    await stage.pushed()
    delivery = await stage.take()
    for value, fault in (("x" * MAX_TEXT_BYTES, "65536 bytes makes a message of"), ("\ud800", "surrogate")):
        with pytest.raises(MalformedTask, match=fault):
            await delivery.checkpoint(value)
    bare = size_of(MessageContent(delivery.body, MessageNotes(checkpoint="")).text())
    most = MAX_TEXT_BYTES - HEADROOM_BYTES - bare
    with pytest.raises(MalformedTask):  # the rest is for counters
        await delivery.checkpoint("x" * (most + 1))
    await delivery.checkpoint("x" * most)
    await delivery.settle(Complete(DONE))


async def test_dead_letter_of_a_full_message_keeps_its_bytes(stage: Stage) -> None:
    # Where the story has no room beside the original, the body goes to a blob; without blobs (the container is missing
    # for a worker that may not make it) it is stored as it came, and the log tells the story.
    wire = await stage.wire()
    bodies = [b"-" * MAX_TEXT_BYTES, b"_" * (MAX_TEXT_BYTES - 500)]
    stage.blobs.strike(Strike.DENY, count=math.inf)
    for body in bodies:
        await wire.put(MessageContent(body).text())
        await (await stage.take()).settle(MoveToDeadLetters("malformed", "a long story " * 1000))
    await stage.blobs.heal()
    letters = {each.body: each for each in await stage.backend.dead_letters(10)}
    assert letters.keys() == set(bodies)
    assert letters[bodies[0]].reason == "unknown"
    assert letters[bodies[1]].reason == "malformed"
    assert "a long story" in letters[bodies[1]].description
    ids = [each.id for each in letters.values()]
    assert sorted(await stage.backend.redrive(ids)) == sorted(ids)
    assert {each.body for each in await stage.backend.receive(2, LEASE, NOW)} == set(bodies)


async def test_a_task_at_the_limit_can_be_retried_and_buried(stage: Stage) -> None:
    bare = size_of(MessageContent(Task.new(command="x").encode()).text())
    largest = Task.new(command="x" * (MAX_TEXT_BYTES - HEADROOM_BYTES - bare - 8))  # less for its date
    await stage.backend.push([largest])
    delivery = await stage.take()
    await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW))
    await (await stage.take()).settle(MoveToDeadLetters("failures", "exit code 1\n" * 500))
    (letter,) = await stage.backend.dead_letters(1)
    assert (letter.id, letter.reason) == (largest.id, "failures")
    assert await stage.backend.redrive([letter.id]) == [letter.id]
    assert (await stage.take()).task.epoch > delivery.task.epoch


async def test_a_checkpoint_that_was_taken_is_not_undone_by_the_next_settle(stage: Stage) -> None:
    # S9: its caller gives up, as the keeper does after an eighth of the lease, and the request goes on.
    await stage.pushed()
    delivery = await stage.take()
    await delivery.checkpoint("A")
    before = len(stage.proxy.seen("PUT"))
    saving = asyncio.ensure_future(delivery.checkpoint("B"))
    await stage.proxy.until(lambda: len(stage.proxy.seen("PUT")) > before)
    saving.cancel()
    await asyncio.wait({saving})
    await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW))
    assert (await stage.take()).checkpoint_value == "B"


def _of_a_peer(size: int) -> str:
    """A message of ai4s-jobq, which writes tasks in fewer words, that takes so many bytes."""

    def text(padding: int) -> str:
        command = "exit 3 #" + "x" * padding
        return json.dumps({"version": 1, "id": "big", "kwargs": json.dumps({"cmd": command}), "num_retries": 2})

    return text(size - size_of(text(0)))


@pytest.mark.parametrize("has_blobs", [True, False])
async def test_a_foreign_task_that_outgrows_its_message_keeps_its_budget(stage: Stage, has_blobs: bool) -> None:
    # S7: what cannot be put back with its count must not run for ever, nor die for another reason than its own.
    wire = await stage.wire()
    await wire.put(_of_a_peer(MAX_TEXT_BYTES))
    signed = stage.signed if has_blobs else stage.signed.partition("BlobEndpoint")[0]
    await make_container(stage)
    limits = (
        "--idle-timeout",
        "2s",
        "--backoff",
        "200ms",
        "--time-limit",
        "6s",
    )  # it waits long for what it has put back
    ended = await stage.run("worker", *limits, **SHORT, JOBQ_CONNECTION_STRING=signed)
    assert ended.code == 0, ended.err
    (letter,) = await stage.backend.dead_letters(10)
    if has_blobs:
        assert (letter.id, letter.reason, letter.deliveries) == ("big", "failed", 3)
    else:  # nor has its story room: it is in the log
        assert letter.id == "big"
        assert "failed: exit code 3; it cannot be put back" in ended.err
    assert await stage.total() == 0
