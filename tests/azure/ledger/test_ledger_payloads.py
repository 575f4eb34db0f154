"""Tasks of batches that are larger than a message: where the payload is lost, the batch hears of their end."""

from dataclasses import replace
from datetime import timedelta

import pytest

from jobq.batch_plan import Plan
from jobq.batches import BatchState
from jobq.errors import MalformedTask
from jobq.settings import Settings
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.spec import resolve
from jobq.task import Counters, Task
from jobq.testing.harness import DONE
from jobq_azure.ledger.queue import LedgerQueue
from jobq_azure.storage.dead_letters import SUFFIX
from jobq_azure.storage.message_format import MessageContent
from tests.azure.journal.journal_stage import state
from tests.azure.ledger.ledger_stage import NAME, drained, finished, ledgered, pushed
from tests.azure.payloads.payload_stage import blobs_of, delete_blobs, large_task
from tests.azure.stage import LEASE, NOW, Stage, make_container

pytestmark = pytest.mark.timeout(120)


async def _large(stage: Stage, queue: LedgerQueue) -> Task:
    await make_container(stage)
    await queue.batches.begin(NAME, Plan())
    task = large_task(batch=NAME, id=f"{NAME}.0")
    await queue.push([task])
    await queue.batches.seal(NAME)
    return task


@pytest.mark.parametrize("is_held_before", [False, True])
async def test_a_payload_that_is_gone_ends_its_task_and_its_batch(stage: Stage, *, is_held_before: bool) -> None:
    queue = await ledgered(stage, behind=True)
    task = await _large(stage, queue)
    if is_held_before:
        (delivery,) = await queue.receive(1, LEASE, NOW)
        await delivery.settle(Requeue(Counters(failures=1, ends=1), timedelta(0)))
    await delete_blobs(stage)
    (delivery,) = await queue.receive(1, LEASE, NOW)
    assert delivery.id == task.id
    with pytest.raises(MalformedTask, match="gone"):
        _ = delivery.task
    await delivery.settle(MoveToDeadLetters("malformed", "the payload is gone"))
    assert (await finished(queue)).counts["dead"] == 1
    assert await state(queue, task.id) == "dead"
    (letter,) = await queue.dead_letters(9)
    assert (letter.id, letter.batch) == (task.id, NAME)


async def test_a_payload_that_comes_back_is_run_after_a_redrive(stage: Stage) -> None:
    queue = await ledgered(stage, behind=True)
    task = await _large(stage, queue)
    ((name, payload),) = (await blobs_of(stage)).items()
    await delete_blobs(stage)
    (delivery,) = await queue.receive(1, LEASE, NOW)
    await delivery.settle(MoveToDeadLetters("malformed", "the payload is gone"))
    await finished(queue)
    await queue._inner._payloads._client.upload_blob(name, payload)
    assert await queue.redrive([task.id]) == [task.id]
    (delivery,) = await queue.receive(1, LEASE, NOW)
    assert delivery.task.fingerprint() == task.fingerprint()
    await delivery.settle(Complete(DONE))
    found = await finished(queue)
    assert (found.round, found.counts["succeeded"]) == (2, 1)


async def test_who_uses_no_tables_gives_up_no_task_of_a_batch_whose_payload_is_gone(stage: Stage) -> None:
    queue = await ledgered(stage, behind=True)
    await _large(stage, queue)
    await delete_blobs(stage)
    assert await stage.backend.receive(1, LEASE, NOW) == []
    assert (await queue.batches.find(NAME)).state is BatchState.SEALED
    assert await queue.dead_letters(9) == []


@pytest.mark.parametrize("is_large", [False, True])
async def test_a_letter_of_an_older_worker_is_of_its_task(stage: Stage, *, is_large: bool) -> None:
    """It takes the task for malformed, and knows no id but that of the message."""
    queue = await ledgered(stage, behind=True)
    task = await _large(stage, queue) if is_large else (await pushed(queue))[0]
    wire, dead = await stage.wire(), await stage.wire(stage.queue + SUFFIX)
    (message,) = await wire.get(1, 30)
    story = {
        "id": message.id,
        "origin": message.id,
        "epoch": 0,
        "generation": 0,
        "reason": "malformed",
        "deliveries": 1,
    }
    body = message.text.encode() if is_large else MessageContent.read(message.text).body
    content = MessageContent(body)
    await dead.put(replace(content, beside=replace(content.beside, dead=story)).text())
    await wire.delete(message.id, message.receipt)
    (letter,) = await queue.dead_letters(9)
    assert (letter.id, letter.batch, letter.reason) == (task.id, NAME, "malformed")
    assert await queue.redrive([task.id]) == [task.id]
    assert await drained(queue) == [task.id]
    assert (await queue.batches.find(NAME)).counts["succeeded"] == 1


async def _without_blobs(stage: Stage) -> LedgerQueue:
    signed = ";".join(part for part in stage.azurite.connection_string.split(";") if "BlobEndpoint" not in part)
    found = resolve(stage.spec, Settings(connection_string=signed, journal="tables"))
    assert isinstance(found, LedgerQueue)
    return await stage.stack.enter_async_context(found)


async def test_what_cannot_be_queued_at_the_end_is_refused_at_the_beginning(stage: Stage) -> None:
    queue, small = await ledgered(stage, behind=True), await _without_blobs(stage)
    plan = Plan(then=(Task.new(command=f"echo {'x' * 65_000}", id="any").encode().decode(),))
    with pytest.raises(MalformedTask, match=r"then\.0: takes \d+ bytes .* BlobEndpoint"):
        await small.batches.begin(NAME, plan)
    assert (await queue.batches.begin(NAME, plan)).state is BatchState.OPEN


async def test_an_end_that_cannot_be_queued_is_told_once(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever has begun the batch could: whoever ends it may know of no blobs."""
    queue, small = await ledgered(stage, behind=True), await _without_blobs(stage)
    await make_container(stage)
    await queue.batches.begin(NAME, Plan(then=(Task.new(command=f"echo {'x' * 65_000}", id="any").encode().decode(),)))
    await pushed(queue)
    await queue.batches.seal(NAME)
    (delivery,) = await small.receive(1, LEASE, NOW)
    await delivery.settle(Complete(DONE))
    for _ in range(2):
        assert await small.receive(1, LEASE, NOW) == []
    assert [each.levelname for each in caplog.records if "cannot finish" in each.message] == ["WARNING"]
    assert (await small.batches.find(NAME)).state is BatchState.SEALED
    await small.prepare()
    await finished(queue)
    (delivery,) = await queue.receive(1, LEASE, NOW)
    assert delivery.id == f"jobq.then.{NAME}.1"
