"""Messages and letters that name a task of a batch: only the work that was pushed is the task, also by hand."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from jobq.batch_ids import IdInBatch
from jobq.batch_plan import Plan
from jobq.batches import BatchState
from jobq.errors import ConfigurationError
from jobq.settlement import Complete, MoveToDeadLetters, Release, Settlement
from jobq.submit import batch_end
from jobq.task import Task
from jobq.testing.harness import DONE
from jobq_azure.common.letter_work import work_of
from jobq_azure.ledger.queue import LedgerQueue
from jobq_azure.storage.message_format import MessageContent, MessageNotes
from tests.azure.ledger.ledger_stage import NAME, book_of, drained, finished, ledgered, pushed
from tests.azure.payloads.payload_stage import large_task
from tests.azure.stage import LEASE, NOW, Stage, make_container
from tests.azure.test_strange_letters import signed

pytestmark = pytest.mark.timeout(120)


async def _sealed(stage: Stage) -> tuple[LedgerQueue, Task]:
    queue = await ledgered(stage, behind=True)
    (task,) = await pushed(queue)
    await queue.batches.seal(NAME)
    return queue, task


async def _died(queue: LedgerQueue) -> None:
    (delivery,) = await queue.receive(1, LEASE, NOW)
    await delivery.settle(MoveToDeadLetters("failed", "by a test"))


def _other(task: Task) -> Task:
    return Task.new(id=task.id, command="echo spam")


def _forged(task: Task) -> Task:
    return signed(task.id, str(task.command), b"forged")


@pytest.mark.parametrize("made", [_other, _forged], ids=["unsigned", "with another signature"])
async def test_a_message_of_other_work_is_a_letter_of_its_own(stage: Stage, made: Callable[[Task], Task]) -> None:
    """It came first, was the task by its id, and the real one was deleted unrun."""
    queue = await ledgered(stage, behind=True)
    await pushed(queue)
    book = await book_of(stage)
    await drained(queue)
    task = signed(f"{NAME}.signed", "true").in_batch(NAME)
    wire = await stage.wire()
    await wire.put(MessageContent(made(task).in_ledger(book).encode()).text())
    await queue.push([task])
    await queue.batches.seal(NAME)
    assert await drained(queue) == [task.id]
    assert (await finished(queue)).counts["succeeded"] == 2
    (letter,) = await queue.dead_letters(9)
    assert (letter.reason, "other work" in letter.description) == ("unknown", True)


async def test_a_letter_of_other_work_changes_nothing_of_the_task(stage: Stage) -> None:
    """Not when its batch is put back, nor when it is put back or deleted itself."""
    queue, task = await _sealed(stage)
    book = await book_of(stage)
    await _died(queue)
    spam = _other(task).in_ledger(book)
    story = {"id": task.id, "epoch": 2**53 - 1, "died": 1.0, "reason": "failed", "description": "spam", "ledger": book}
    await (await stage.wire(f"{stage.queue}-failed")).put(
        MessageContent(spam.encode(), MessageNotes(dead=story)).text()
    )
    letters = {each.description: each for each in await queue.dead_letters(9)}
    own = IdInBatch.of(task.id, NAME, letters["spam"].work)
    assert await queue.redrive([own]) == []
    assert (await queue.batches.find(NAME)).state is BatchState.FINISHED
    assert await batch_end.put_back(queue, NAME) == 1
    assert await queue.purge_dead([own]) == [task.id]
    assert await drained(queue) == [task.id]
    assert (await finished(queue)).counts["succeeded"] == 1


async def test_an_id_alone_says_that_other_work_stays(stage: Stage) -> None:
    queue, task = await _sealed(stage)
    spam = _other(task).in_ledger(await book_of(stage))
    await drained(queue)
    await (await stage.wire(f"{stage.queue}-failed")).put(MessageContent(spam.encode()).text())
    with pytest.raises(ConfigurationError, match="holds other work than was pushed"):
        await queue.redrive([task.id])
    assert len(await queue.dead_letters(9)) == 1


async def test_a_letter_that_is_a_copy_of_a_task_that_waits_is_deleted_alone(stage: Stage) -> None:
    """Its task was gone by that, and the real message was deleted unrun."""
    queue, task = await _sealed(stage)
    (real,) = await (await stage.wire()).peek(1)
    story = {"id": task.id, "epoch": 9, "died": 1.0, "reason": "failed", "description": "spam"}
    body = MessageContent.read(real.text).body
    await (await stage.wire(f"{stage.queue}-failed")).put(MessageContent(body, MessageNotes(dead=story)).text())
    assert await queue.purge_dead([task.id]) == [task.id]
    assert await queue.dead_letters(9) == []
    assert await drained(queue) == [task.id]
    assert (await finished(queue)).counts["succeeded"] == 1


async def test_who_signs_a_repeated_push_anew_makes_no_other_task(stage: Stage) -> None:
    """A text that is signed says until when: the second message holds another, and either may come first."""
    queue = await ledgered(stage, behind=True)
    await pushed(queue)
    await drained(queue)
    task = signed(f"{NAME}.signed", "true").in_batch(NAME)
    again = task.copied({"work": replace(task.work, signatures=signed("x", "x", b"anew").work.signatures)})  # type: ignore[type-var, union-attr]
    entering = queue._inner.push

    async def cut_off(tasks: list[Task]) -> list[str]:
        await entering(tasks)
        raise TimeoutError

    queue._inner.push = cut_off  # type: ignore[method-assign, assignment]
    with pytest.raises(TimeoutError):
        await queue.push([task])
    queue._inner.push = entering  # type: ignore[method-assign]
    await queue.push([again])
    await queue.batches.seal(NAME)
    assert await drained(queue) == [task.id]
    assert await queue.dead_letters(9) == []
    await finished(queue)


@pytest.mark.night("waits for leases of Azurite: 37 s")
@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_message_that_says_that_its_payload_is_lost_takes_no_task_away(stage: Stage, has_ended: bool) -> None:
    """What it holds cannot be compared, so it is the task until the real one comes."""
    await make_container(stage)
    queue, task = await _sealed(stage)
    book = await book_of(stage)
    (real,) = await (await stage.wire()).get(1, 2)
    gone = f"{stage.queue}/{'0' * 64}-{'0' * 32}"
    changed = {"epoch": 2**53 - 1, "generation": 0, "counters": {"failures": 0, "preemptions": 0, "ends": 0}}
    notes = MessageNotes(id=task.id, blob=gone, ledger=book, changed=changed, origin=real.id, before=10**6)
    await (await stage.wire()).put(MessageContent(b"", notes).text())
    (stranger,) = await queue.receive(1, LEASE, NOW)
    if has_ended:
        await stranger.settle(MoveToDeadLetters("malformed", "its payload is gone"))
    found = await queue.receive(1, LEASE, LEASE)  # the real one, once it shows
    assert [each.id for each in found] == ([] if has_ended else [task.id])
    if has_ended:
        assert sorted(each.reason for each in await queue.dead_letters(9)) == ["malformed", "malformed"]
        assert await batch_end.put_back(queue, NAME) == 1
        found = await queue.receive(1, LEASE, NOW)
    assert found[0].task.command == task.command
    await found[0].settle(Complete(DONE))
    assert (await finished(queue)).counts["succeeded"] == 1


@pytest.mark.parametrize("then", [MoveToDeadLetters("malformed", "gone"), Release()], ids=["purged", "released"])
async def test_what_becomes_of_a_payload_that_is_lost_deletes_no_task(stage: Stage, then: Settlement) -> None:
    """Once the stranger's letter was purged, or its message put back, the real message was deleted unrun."""
    queue, task = await _sealed(stage)
    book, wire = await book_of(stage), await stage.wire()
    (real,) = await wire.get(1, 60)
    notes = MessageNotes(id=task.id, blob="nonsense", ledger=book)
    await wire.put(MessageContent(b"", notes).text())
    (stranger,) = await queue.receive(1, LEASE, NOW)
    await stranger.settle(then)
    if is_purged := isinstance(then, MoveToDeadLetters):
        assert await queue.purge_dead([task.id]) == [task.id]
    else:
        (message,) = await wire.get(1, 60)
        assert "nonsense" in message.text
    await wire.update(real.id, real.receipt, 0)
    if is_purged:
        assert await drained(queue) == []
        assert [each.work for each in await queue.dead_letters(9)] == [work_of(task)]
        assert (await finished(queue)).counts["dead"] == 1
        assert await batch_end.put_back(queue, NAME) == 1
    assert await drained(queue) == [task.id]
    assert (await finished(queue)).counts["succeeded"] == 1


async def _moved_back(stage: Stage) -> None:
    """As Storage Explorer does it: read, add, delete."""
    failed, main = await stage.wire(f"{stage.queue}-failed"), await stage.wire()
    (letter,) = await failed.get(1, 30)
    await main.put(letter.text)
    await failed.delete(letter.id, letter.receipt)


async def _interrupted(queue: LedgerQueue) -> None:
    """Begin to put it back, and go no further than the ledger."""
    (letter,) = await queue.dead_letters(1)
    work = Task.decode(letter.body).work
    assert work is not None
    await queue._redrives.redriving(str(work.ledger), letter.id, 2**40, letter.work)


async def _not(_: LedgerQueue) -> None:
    """Do nothing before."""


@pytest.mark.parametrize("before", [_not, _interrupted])
async def test_a_letter_that_is_put_back_by_hand_is_a_letter_again(
    stage: Stage, before: Callable[[LedgerQueue], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    """It was taken for left over, and deleted: the batch had it as dead, and nothing put it back."""
    queue, task = await _sealed(stage)
    await _died(queue)
    await before(queue)
    await _moved_back(stage)
    assert await drained(queue) == []
    assert any("was put back by hand: a dead letter again" in each.message for each in caplog.records)
    (letter,) = await queue.dead_letters(9)
    assert (letter.id, letter.reason, letter.description) == (task.id, "failed", "by a test")
    assert await batch_end.put_back(queue, NAME) == 1
    (delivery,) = await queue.receive(1, LEASE, NOW)
    await delivery.settle(Complete(DONE))
    assert (await finished(queue)).counts["succeeded"] == 1


@pytest.mark.parametrize("is_of_batch", [False, True])
async def test_a_large_letter_that_is_put_back_by_hand_has_its_payload(stage: Stage, is_of_batch: bool) -> None:
    """That lies where those of dead letters do, and the queue read its own alone."""
    await make_container(stage)
    queue, _ = await _sealed(stage)
    await drained(queue)
    task = large_task(id="large.0", batch="large" if is_of_batch else None)
    if is_of_batch:
        await queue.batches.begin("large", Plan())
    await queue.push([task])
    await _died(queue)
    await _moved_back(stage)
    if is_of_batch:
        assert await drained(queue) == []
        assert await queue.redrive([task.id]) == [task.id]
    assert await drained(queue) == [task.id]
