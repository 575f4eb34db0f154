"""Dead letters: each task's own, put back once, whoever interrupts, races or writes nonsense (S1, S3, S4)."""

import asyncio
import json
import math
from collections.abc import Sequence

import pytest

from jobq.errors import BackendUnavailable, LockLost, PushUnknown
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.task import Task
from jobq.testing.harness import DONE
from jobq_azure.storage.backend import StorageQueueBackend
from jobq_azure.storage.message_format import MessageContent, MessageNotes
from tests.azure.stage import LEASE, NOW, Stage
from tests.support.http_proxy import Strike

pytestmark = pytest.mark.check


async def _bury_all(stage: Stage, count: int) -> None:
    while count:
        for delivery in await stage.backend.receive(32, LEASE, NOW):
            await delivery.settle(MoveToDeadLetters("failed", ""))
            count -= 1


async def test_forty_dead_letters_are_all_found(stage: Stage) -> None:
    # A look takes 32 at most.
    tasks = await stage.pushed(40)
    left = len(tasks)
    while left:
        for delivery in await stage.backend.receive(32, LEASE, NOW):
            await delivery.settle(MoveToDeadLetters("failures", ""))
            left -= 1
    assert len(await stage.backend.dead_letters(100)) == 40
    last = [tasks[-1].id]
    assert await stage.backend.purge_dead(last) == last
    assert len(await stage.backend.dead_letters(100)) == 39


async def test_tasks_of_one_id_are_as_many_dead_letters(stage: Stage) -> None:
    # The service knows no ids, so two pushes of one id are two tasks, alike as they may be.
    await stage.backend.push([Task.new(command="exit 3", id="same") for _ in range(4)])
    await _bury_all(stage, 4)
    assert len(await stage.backend.dead_letters(10)) == 4
    assert await stage.backend.redrive(["same"]) == ["same"]
    assert await stage.total() == 4
    assert (await stage.behind.stats()).dead == 0
    await _bury_all(stage, 4)
    assert len(await stage.backend.dead_letters(10)) == 4
    assert await stage.backend.purge_dead(["same"]) == ["same"]
    assert (await stage.behind.stats()).dead == 0


async def test_written_twice_is_one_letter(stage: Stage) -> None:
    await stage.pushed(command="exit 3")
    delivery = await stage.take()
    stage.proxy.strike(Strike.BUSY, "DELETE")
    with pytest.raises(Exception, match="busy"):
        await delivery.settle(MoveToDeadLetters("failed", "first"))
    await delivery.settle(MoveToDeadLetters("failed", "second"))
    assert (await stage.behind.stats()).dead == 2
    (letter,) = await stage.backend.dead_letters(10)
    assert await stage.backend.redrive([letter.id]) == [letter.id]
    assert await stage.total() == 1
    assert (await stage.behind.stats()).dead == 0


async def test_the_newest_end_is_told(stage: Stage) -> None:
    # The first write was not followed by its delete, and the task ran on.
    await stage.pushed(command="exit 3")
    delivery = await stage.take()
    stage.proxy.strike(Strike.BUSY, "DELETE")
    with pytest.raises(Exception, match="busy"):
        await delivery.settle(MoveToDeadLetters("failed", "first"))
    await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW))
    await (await stage.take()).settle(MoveToDeadLetters("failed", "second"))
    (letter,) = await stage.backend.dead_letters(10)
    assert (letter.description, letter.deliveries) == ("second", 2)


async def test_two_that_put_back_at_once_send_each_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # A reader's hold runs out while it works, another takes over: the receipt decides who sends (S4).
    monkeypatch.setattr("jobq_azure.storage.held_letters.HOLD_SECONDS", 1)
    tasks = await stage.pushed(60)
    await _bury_all(stage, 60)
    ids = [task.id for task in tasks]

    async def put_back(queue: StorageQueueBackend) -> Sequence[str]:
        try:
            return await queue.redrive(ids)
        except BackendUnavailable as busy:  # the other one holds some of them
            return busy.done

    done = [await asyncio.gather(put_back(stage.backend), put_back(stage.behind)) for _ in range(3)]
    assert await stage.total() == 60
    assert sorted(each for pair in done for found in pair for each in found) == sorted(ids), "told twice, or not at all"


async def test_a_lost_answer_to_what_is_put_back_is_told_and_repeated_with_a_higher_number(stage: Stage) -> None:
    task = Task.new(command="exit 3")
    wire = await stage.wire(f"{stage.queue}-failed")
    # It died long ago: the epochs of what is put back come from the service's clock, and are not counted on.
    await wire.put(MessageContent(task.encode(), MessageNotes(dead={"id": task.id, "epoch": 1_700_000_000})).text())
    stage.proxy.strike(Strike.LOSE_ANSWER, "POST", f"/{stage.queue}/")
    with pytest.raises(PushUnknown) as caught:
        await stage.backend.redrive([task.id])
    assert list(caught.value.ids) == [task.id]
    (letter,) = await stage.backend.dead_letters(10)
    assert await stage.backend.redrive([letter.id]) == [letter.id]
    assert len({each.task.epoch for each in await stage.backend.receive(2, LEASE, NOW)}) == 2, (
        "two copies of one task, and nothing to tell them apart by (S3)"
    )


@pytest.mark.parametrize("strike", [Strike.LOSE_ANSWER, Strike.BUSY])
async def test_what_is_back_is_told_as_back_whatever_becomes_of_its_letter(stage: Stage, strike: Strike) -> None:
    (task,) = await stage.pushed(command="exit 3")
    await _bury_all(stage, 1)
    stage.proxy.strike(strike, "DELETE", "-failed/")
    assert await stage.backend.redrive([task.id]) == [task.id]
    assert await stage.total() == 1


async def test_nonsense_beside_a_letter_stops_no_other(stage: Stage) -> None:
    wire = await stage.wire(f"{stage.queue}-failed")
    body = Task.new(command="true", id="hostile").encode()
    for beside in ({"before": -5}, {"dead": {"deliveries": -7, "epoch": -1}}, {"dead": {"origin": 7, "epoch": 2**70}}):
        await wire.put(f"#jobq {json.dumps(beside)}\n{body.decode()}")
    await wire.put(MessageContent(b"no task", MessageNotes(dead={"id": "x"})).text())
    await stage.pushed(command="exit 3")
    await _bury_all(stage, 1)
    letters = await stage.backend.dead_letters(10)
    assert len(letters) == 5
    assert all(letter.deliveries >= 0 for letter in letters)
    ids = sorted({letter.id for letter in letters})
    assert sorted(await stage.backend.redrive(ids)) == ids
    assert await stage.total() == 5


async def test_epochs_rise_also_where_no_story_had_room(stage: Stage) -> None:
    wire = await stage.wire(f"{stage.queue}-failed")
    await wire.put(MessageContent(Task.new(command="true", id="full", epoch=1).encode()).text())
    assert await stage.backend.redrive(["full"]) == ["full"]
    assert (await stage.take()).task.epoch >= 2


async def test_a_look_that_is_given_up_hides_nothing(stage: Stage) -> None:
    await stage.pushed(40)
    await _bury_all(stage, 40)
    before = len(stage.proxy.seen("GET", "/messages"))
    looking = asyncio.ensure_future(stage.backend.dead_letters(100))
    await stage.proxy.until(lambda: len(stage.proxy.seen("GET", "/messages")) >= before + 2)
    looking.cancel()
    await asyncio.wait({looking})
    assert len(await stage.backend.dead_letters(100)) == 40


async def test_settled_is_settled(stage: Stage) -> None:
    (task,) = await stage.pushed()
    await _bury_all(stage, 1)
    await stage.backend.redrive([task.id])
    await (await stage.take()).settle(Complete(DONE))
    assert await stage.total() == 0


async def test_of_two_letters_of_one_attempt_the_later_counts(stage: Stage) -> None:
    # S9: killed between the write and the delete; the next delivery saved another checkpoint, and was given up too.
    await stage.pushed(command="exit 3")
    delivery = await stage.take()
    await delivery.checkpoint("step 1")
    stage.proxy.strike(Strike.BUSY, "DELETE", f"/{stage.queue}/")
    with pytest.raises(Exception, match="busy"):
        await delivery.settle(MoveToDeadLetters("failed", "first"))
    await delivery.settle(Requeue(delivery.task.counters, NOW))
    again = await stage.take()
    await again.checkpoint("step 2")
    await again.settle(MoveToDeadLetters("failed", "second"))
    (letter,) = await stage.backend.dead_letters(10)
    assert letter.description == "second"
    await stage.backend.redrive([letter.id])
    assert (await stage.take()).checkpoint_value == "step 2"


async def test_what_was_not_deleted_is_not_told_as_purged(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = await stage.pushed(command="exit 3")
    await _bury_all(stage, 1)

    async def taken(*_: object) -> None:
        raise LockLost("another reader has it")

    with monkeypatch.context() as patched:
        patched.setattr("jobq_azure.storage.queue_client.StorageQueueClient.delete", taken)
        with pytest.raises(BackendUnavailable, match="the service counts 1 more"):
            await stage.backend.purge_dead([task.id])


async def test_letters_that_another_reader_holds_are_not_said_to_be_missing(stage: Stage) -> None:
    """One that was cut off hides them for a minute: the answer was "no dead letter with the id", or an empty list."""
    ids = [task.id for task in await stage.pushed(3)]
    await _bury_all(stage, 3)
    dead = await stage.wire(f"{stage.queue}-failed")
    held = await dead.get(1, 60)
    with pytest.raises(BackendUnavailable, match=r"1 of these .* the service counts 1 more.*; run it again") as busy:
        await stage.backend.redrive(ids)
    assert len(busy.value.done) == 2
    listed = await stage.run("dead", "list")
    assert "counts 1 more, which another reader holds for 60 s at most" in listed.err
    await dead.update(held[0].id, held[0].receipt, 0)
    assert len(await stage.backend.purge_dead(ids)) == 1
    assert await stage.backend.purge_dead(ids) == []


async def test_however_many_are_looked_through_all_are_shown_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind thousands the 10 s that a Ctrl-C has ended each command: what it had hidden was gone for a minute."""
    monkeypatch.setattr("jobq_azure.storage.held_letters._LET_GO_SECONDS", 0.0)
    ids = [task.id for task in await stage.pushed(40)]
    await _bury_all(stage, 40)
    assert await stage.backend.redrive(ids[:1]) == ids[:1]
    assert len(await stage.backend.dead_letters(100)) == 39
    assert await stage.backend.purge_dead(ids) == ids[1:]


async def test_a_list_hides_no_more_than_it_shows(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobq_azure.storage.dead_letters._MARGIN", 0)
    await stage.pushed(100)
    await _bury_all(stage, 100)
    stage.proxy.requests.clear()
    assert len(await stage.backend.dead_letters(40)) == 40
    assert len(stage.proxy.requests) < 80, "one for each that it has hidden, and few more"


async def test_who_may_process_messages_needs_not_count_them(stage: Stage) -> None:
    """The role Storage Queue Data Message Processor reads no property of a queue."""
    (task,) = await stage.pushed()
    await _bury_all(stage, 1)
    stage.proxy.strike(
        Strike.DENY, "GET", count=math.inf, matches=lambda request: request.path.endswith(f"{stage.queue}-failed")
    )
    assert [letter.id for letter in await stage.backend.dead_letters(10)] == [task.id]
    assert await stage.backend.redrive([task.id, "other"]) == [task.id]
    await _bury_all(stage, 1)
    assert await stage.backend.purge_dead([task.id]) == [task.id]


async def test_what_was_done_before_an_answer_was_lost_is_told(stage: Stage) -> None:
    """The journal heard of none of them, and the command said that it had purged, or put back, none."""
    ids = [task.id for task in await stage.pushed(4)]
    await _bury_all(stage, 4)
    places = iter(("", "", "here"))
    stage.proxy.strike(Strike.LOSE_ANSWER, "DELETE", matches=lambda _: bool(next(places, "")))
    with pytest.raises(BackendUnavailable) as lost:
        await stage.backend.purge_dead(ids)
    assert len(lost.value.done) == 2
    ids = [task.id for task in await stage.pushed(2)]
    await _bury_all(stage, 2)
    places = iter(("", "here"))
    stage.proxy.strike(Strike.LOSE_ANSWER, "PUT", matches=lambda _: bool(next(places, "")))
    with pytest.raises(BackendUnavailable) as lost:
        await stage.backend.redrive(ids)
    assert len(lost.value.done) == 1


async def test_what_is_purged_is_told_also_where_nobody_can_sweep_after(stage: Stage) -> None:
    (task,) = await stage.pushed()
    await _bury_all(stage, 1)
    places = iter(("", "here"))  # the first count is of what another reader holds
    stage.proxy.strike(
        Strike.BUSY,
        "GET",
        count=math.inf,
        matches=lambda request: request.path.endswith(f"{stage.queue}-failed") and bool(next(places, "here")),
    )
    assert await stage.backend.purge_dead([task.id]) == [task.id]
