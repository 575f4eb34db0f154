"""A journal's table with two writers: tasks of one id, words that come late, requests some of which are refused."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, cast

import pytest

from jobq.fencing import FencingNumber
from jobq.journal.records import Attempt, TaskRecord
from jobq.journal.wait_for_end import ended
from jobq.settlement import Complete, MoveToDeadLetters, Record, Release, Requeue, Settlement
from jobq.task import Counters, OutcomeKind, Task, TaskResult
from jobq.task_handle import TaskHandle
from jobq_azure.common.errors import NoAnswer
from jobq_azure.storage.delivery import StorageDelivery
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal import recorder
from jobq_azure.table_journal.backend import JournaledQueue
from jobq_azure.table_journal.client import Row, Verb, Write
from jobq_azure.table_journal.note import fixed
from tests.azure.journal.journal_stage import another, journaled, key_of, state, written
from tests.azure.stage import LEASE, NOW, Stage
from tests.support.http_proxy import Strike

pytestmark = pytest.mark.check

GOOD = TaskResult(exit_code=0)
FIRST = FencingNumber(1, 0, 1)


class _Wait:
    """`push --wait` of one task: it looks, and looks again."""

    def __init__(self, queue: JournaledQueue, id_: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._find, self._looks = queue.journal.find, asyncio.Semaphore(0)
        monkeypatch.setattr(queue.journal, "find", self._looked)
        self.found: asyncio.Future[tuple[str, TaskRecord | None]] = asyncio.ensure_future(
            anext(ended(queue.journal, [id_], lag=queue.capabilities.record_lag, unseen=True))
        )

    async def _looked(self, ids: Sequence[str]) -> list[TaskRecord]:
        found = await self._find(ids)
        self._looks.release()
        return found

    async def look(self) -> None:
        """Return once it has looked twice: the second look began after this was called."""
        while not self._looks.locked():
            await self._looks.acquire()
        async with asyncio.timeout(20):
            for _ in range(2):
                looking: asyncio.Future[Any] = asyncio.ensure_future(self._looks.acquire())
                await asyncio.wait(
                    {looking, cast("asyncio.Future[Any]", self.found)}, return_when=asyncio.FIRST_COMPLETED
                )
                looking.cancel()


async def test_s5_the_end_of_a_former_task_of_that_id_is_not_told_as_this_ones(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pushes are two tasks on a Storage Queue; the former runs still when the next is pushed and started."""
    worker = await journaled(stage)
    async with another(stage) as pusher:
        await worker.push([Task.new(command="true", id="train")])
        (former,) = await worker.receive(1, LEASE, NOW)
        await written(worker)
        await pusher.push([Task.new(command="sleep 100", id="train")])
        waiting = _Wait(pusher, "train", monkeypatch)
        (ours,) = await worker.receive(1, LEASE, NOW)
        await written(worker)
        await waiting.look()
        await former.settle(Complete(GOOD))
        await written(worker)
        await waiting.look()
        assert not waiting.found.done()
        await ours.settle(Complete(GOOD))
        async with asyncio.timeout(20):
            _, record = await waiting.found
        assert record is not None
        assert record.state == "succeeded"


async def test_s5_the_end_of_a_later_task_of_that_id_is_not_told_as_this_ones(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody pushes the id again and a worker starts that, while the former is waited for."""
    worker = await journaled(stage)
    async with another(stage) as pusher, another(stage) as other:
        await pusher.push([Task.new(command="true", id="train")])
        await written(pusher)
        waiting = _Wait(pusher, "train", monkeypatch)
        (ours,) = await worker.receive(1, LEASE, NOW)
        await written(worker)
        await waiting.look()
        await other.push([Task.new(command="true", id="train")])
        (later,) = await worker.receive(1, LEASE, NOW)
        await written(worker)
        await waiting.look()
        await later.settle(Complete(GOOD))
        await written(worker)
        await waiting.look()
        assert not waiting.found.done()
        await ours.settle(MoveToDeadLetters("failed", "exit code 3"))
        async with asyncio.timeout(20):
            _, record = await waiting.found
        assert record is not None
        assert record.state == "dead"


async def test_s5_a_task_that_waits_again_is_not_told_as_ended_by_a_later_one_of_its_id(stage: Stage) -> None:
    """Its own row says that it waits; the last attempt of that id is the later one's."""
    queue = await journaled(stage)
    async with another(stage) as other:
        await queue.push([Task.new(command="true", id="train")])
        (ours,) = await queue.receive(1, LEASE, NOW)
        await written(queue)
        await other.push([Task.new(command="true", id="train")])
        (later,) = await other.receive(1, LEASE, NOW)
        await later.settle(Requeue(later.task.requeued(failures=1).counters, NOW))
        (later,) = await other.receive(1, LEASE, NOW)
        await later.settle(Complete(GOOD))
        await written(other)
        await ours.settle(Requeue(ours.task.requeued(failures=1).counters, NOW))
        assert await state(queue, "train") == "ready"


async def test_s5_the_word_of_a_push_hides_no_end_that_waits_to_be_written(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process that pushes and works: the first tasks of a push have ended when the last ones are queued."""
    queue = await journaled(stage)
    push = queue._inner.push

    async def slow(tasks: Sequence[Task]) -> list[str]:
        ids = await push(tasks)
        await stage.tables.refuse()
        (delivery,) = await queue.receive(1, LEASE, NOW)
        await delivery.settle(Complete(GOOD))
        return ids

    monkeypatch.setattr(queue._inner, "push", slow)
    (id_,) = await queue.push([Task.new(command="true")])
    await stage.tables.heal()
    assert await state(queue, id_) == "succeeded"
    assert (await queue.journal.stats(60)).states["ready"] == 0


async def test_s5_the_end_of_a_former_task_is_not_told_where_its_row_does_not_say_when_it_was_made(
    stage: Stage,
) -> None:
    """Of a message that does not say: it ended before this one was pushed."""
    queue = await journaled(stage)
    former: dict[str, Any] = {"State": rows.DONE, "At": time.time() - 60, "Then": "done", "Fencing": rows.order(FIRST)}
    await queue._wire.write(queue._wire.place.queue, [Write(Verb.REPLACE, rows.live("train", 0), former)])
    await queue.push([Task.new(command="true", id="train")])
    assert await state(queue, "train") == "ready"
    async with another(stage) as other:
        assert await state(other, "train") == "ready"


async def test_what_is_pushed_and_known_already_costs_few_requests(stage: Stage) -> None:
    """Workers are often faster than the word of a push, and a push that is resumed repeats some."""
    queue = await journaled(stage)
    tasks = [Task.new(command="true") for _ in range(100)]
    await queue.push(tasks)
    await written(queue)
    async with another(stage) as again:
        requests, request = list[str](), again._wire._request

        async def counted(method: str, *words: Any, **more: Any) -> Any:
            requests.append(method)
            return await request(method, *words, **more)

        again._wire._request = counted  # type: ignore[method-assign] # the subject is how often
        again._notebook.pushed(tasks)
        await written(again)
    assert requests.count("POST") <= 4


async def test_the_word_of_a_push_meets_a_row_of_a_stranger(stage: Stage) -> None:
    """It stays as it is, and what is pushed beside it is recorded."""
    queue = await journaled(stage)
    place, tasks = queue._wire.place, [Task.new(command="true", id=id_) for id_ in ("train", "other")]
    await queue._wire.write(place.queue, [Write(Verb.REPLACE, key_of(tasks[0]), {})])
    await queue.push(tasks)
    await written(queue)
    strange, other = [await queue._wire.get(place.queue, key_of(task)) for task in tasks]
    assert other is not None
    assert strange is not None
    assert "State" not in strange


async def test_an_id_that_is_pushed_again_soon_is_known_to_others_and_can_be_canceled(stage: Stage) -> None:
    """The row of the former task said that it has ended; the cancel was refused, and the task ran."""
    queue = await journaled(stage)
    async with another(stage) as other:
        await queue.push([Task.new(command="true", id="train")])
        (former,) = await queue.receive(1, LEASE, NOW)
        await former.settle(Complete(GOOD))
        await written(queue)
        assert await state(other, "train") == "succeeded"
        await queue.push([Task.new(command="true", id="train")])
        await written(queue)
        assert await state(other, "train") == "ready"
        assert await other.journal.cancel(["train"]) == ["canceled"]
        (again,) = await other.receive(1, LEASE, NOW)
        assert again.cancel_requested


async def test_s5_an_end_that_is_written_late_is_not_told_of_a_later_life(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a worker that is cut off from the table alone: meanwhile the queue was cleared, and the id pushed again."""
    cut_off = await journaled(stage)
    async with another(stage) as other:
        await other.push([Task.new(command="true", id="train")])
        await written(other)
        (former,) = await cut_off.receive(1, LEASE, NOW)
        await written(cut_off)
        await stage.tables.refuse()
        await former.settle(Complete(GOOD))
        await other.clear()
        await written(other)
        later = Task.new(command="true", id="train")
        await other.push([later])
        await written(other)
        waiting = _Wait(other, "train", monkeypatch)
        await waiting.look()
        await stage.tables.heal()
        await written(cut_off)
        await waiting.look()
        assert not waiting.found.done()
        row = await other._wire.get(other._wire.place.queue, key_of(later))
        assert row is not None
        assert row["State"] == "ready"
        waiting.found.cancel()


async def test_s5_a_final_word_is_not_dropped_as_told_already(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one transaction with the deletion of what is gone, when the word of its push comes in that moment."""
    monkeypatch.setattr(recorder, "_AT_ONCE_SECONDS", -1.0)
    queue = await journaled(stage)
    task = Task.new(command="true")
    await stage.behind.push([task])
    (inner,) = await queue._inner.receive(1, LEASE, NOW)
    assert isinstance(inner, StorageDelivery)
    delivery = queue._delivery(inner, 0.0)  # its word that it runs is worth nothing any more
    await written(queue)
    write, place, met = queue._wire.write, queue._wire.place, list[str]()

    async def behind_another(partition: str, writes: Sequence[Write]) -> None:
        if not met and any(each.row == key_of(task) for each in writes):
            met.append(task.id)
            pushed = recorder._waiting(task, time.time()) | {"Fencing": rows.order(FencingNumber(0, 0, 0))}
            await write(place.queue, [Write(Verb.INSERT, key_of(task), pushed)])
        await write(partition, writes)

    monkeypatch.setattr(queue._wire, "write", behind_another)
    queue.writer.add([fixed(place.queue, "a!gone!0000000001.0000000000.0000000001", {}, Verb.DELETE, spare=True)])
    await delivery.settle(Complete(GOOD))
    await written(queue)
    row = await queue._wire.get(place.queue, key_of(task))
    assert met
    assert row is not None
    assert row["State"] == rows.DONE


async def test_what_was_given_back_and_has_ended_is_not_told_as_waiting(stage: Stage) -> None:
    """The table refused the word of its give-back once; it was repeated over the end, and counted as ready for ever."""
    queue = await journaled(stage)
    async with another(stage) as other:
        (id_,) = await queue.push([Task.new(command="true")])
        (first,) = await queue.receive(1, LEASE, NOW)
        await written(queue)
        stage.tables.strike(Strike.BUSY, "POST", count=1)
        await first.settle(Release())
        (second,) = await other.receive(1, LEASE, NOW)
        await second.settle(Complete(GOOD))
        await written(other)
        await written(queue)
        assert await state(other, id_) == "succeeded"
        assert (await other.journal.stats(60)).states["ready"] == 0
        assert await other.journal.unfinished("", 5) == []


async def test_what_was_given_back_is_recorded_as_it_is_by_then(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker was waiting for it, and had ended it before its give-back was written."""
    queue = await journaled(stage)
    async with another(stage) as other:
        (id_,) = await queue.push([Task.new(command="true")])
        (first,) = await queue.receive(1, LEASE, NOW)
        await written(queue)
        write, ended = queue._wire.write, asyncio.Event()

        async def late(partition: str, writes: Sequence[Write]) -> None:
            await ended.wait()
            await write(partition, writes)

        monkeypatch.setattr(queue._wire, "write", late)
        await first.settle(Release())
        (second,) = await other.receive(1, LEASE, NOW)
        await second.settle(Complete(GOOD))
        await written(other)
        ended.set()
        assert await state(queue, id_) == "succeeded"
        assert (await other.journal.stats(60)).states["ready"] == 0
        assert await other.journal.unfinished("", 5) == []


async def test_looks_that_are_refused_keep_no_others_from_being_written(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage all workers look at once, and the service refuses some: nothing was written any more."""
    monkeypatch.setattr(recorder, "_AT_ONCE_SECONDS", -1.0)
    queue = await journaled(stage)
    await queue.push([Task.new(command="true") for _ in range(60)])
    held = [each for _ in range(2) for each in await queue.receive(30, LEASE, NOW)]
    await written(queue)
    get, count = queue._wire.get, 0

    async def refused(partition: str, row: str) -> Row | None:
        nonlocal count
        count += 1
        if count % 10 == 0:
            raise NoAnswer("busy")
        return await get(partition, row)

    monkeypatch.setattr(queue._wire, "get", refused)
    await asyncio.gather(*(each.settle(Complete(GOOD)) for each in held))
    await written(queue)  # within 20 s
    assert count >= len(held)


async def test_what_was_requeued_counts_as_no_lost_lease(stage: Stage) -> None:
    """Who takes it before the word of its requeue is written finds it running."""
    queue = await journaled(stage)
    await queue.push([Task.new(command="true")])
    (first,) = await queue.receive(1, LEASE, NOW)
    await written(queue)
    came_to: dict[str, Any] = {"outcome": OutcomeKind.FAILED, "then": "retry", "ended": time.time()}
    record = Record(Attempt(attempt=1, **came_to))
    await first.settle(Requeue(first.task.requeued(failures=1).counters, NOW, record=record))
    (second,) = await queue.receive(1, LEASE, NOW)
    await second.settle(Complete(GOOD))
    await written(queue)
    assert (await queue.journal.stats(60)).ended == {"failed": 1, "succeeded": 1}


async def test_s5_what_is_pushed_before_the_end_of_its_former_task_is_written_is_known(stage: Stage) -> None:
    """A program that runs `nightly` and pushes the next one: others saw it as succeeded, and could not cancel it."""
    queue = await journaled(stage)
    async with another(stage) as other:
        await queue.push([Task.new(command="true", id="nightly")])
        (former,) = await queue.receive(1, LEASE, NOW)
        await written(queue)
        await former.settle(Complete(GOOD))
        await queue.push([Task.new(command="true", id="nightly", not_before=time.time() + 3600)])
        await written(queue)
        assert [each.state for each in await other.journal.find(["nightly"])] == ["scheduled"]
        assert await other.journal.cancel(["nightly"]) == ["canceled"]
        assert [each.id for each in await other.journal.unfinished("", 10)] == ["nightly"]


async def test_s5_two_pushes_before_the_end_of_their_former_task_is_written_hide_no_end(stage: Stage) -> None:
    """The second took the place of the first, and of what that had displaced: others were told that it runs."""
    queue = await journaled(stage)
    async with another(stage) as other:
        await queue.push([Task.new(command="true", id="nightly")])
        (former,) = await queue.receive(1, LEASE, NOW)
        await written(queue)
        await former.settle(Complete(GOOD))
        for hours in (1, 2):
            await queue.push([Task.new(command="true", id="nightly", not_before=time.time() + 3600 * hours)])
        await written(queue)
        assert [each.state for each in await other.journal.find(["nightly"])] == ["scheduled"]


async def test_s5_what_waits_behind_a_former_task_of_its_id_is_not_gone_with_that(stage: Stage) -> None:
    """The row of the former one goes: that says nothing of what its pusher has pushed."""
    worker = await journaled(stage)
    async with another(stage) as pusher:
        former = Task.new(command="true", id="nightly")
        await worker.push([former])
        await worker.receive(1, LEASE, NOW)
        await written(worker)
        await pusher.push([Task.new(command="true", id="nightly", not_before=time.time() + 3600)])
        await written(pusher)
        place = pusher._wire.place.queue
        await pusher._wire.write(place, [Write(Verb.DELETE, key_of(former), {})])
        assert [each.state for each in await pusher.journal.find(["nightly"])] == ["scheduled"]


@pytest.mark.parametrize("settlement", [Requeue(Counters(failures=1), NOW), Release()], ids=["retry", "release"])
async def test_what_was_cleared_after_an_attempt_is_gone(stage: Stage, settlement: Settlement) -> None:
    """It showed as ready for a month, and `result()` waited for ever."""
    queue = await journaled(stage)
    async with another(stage) as worker, another(stage) as other:
        await queue.push([Task.new(command="true", id="train")])
        (delivery,) = await worker.receive(1, LEASE, NOW)
        await delivery.settle(settlement)
        await written(worker)
        await other.clear()
        await written(other)
        assert await other.journal.find(["train"]) == []
        await queue.journal.find(["train"])  # the first look: a worker may have it, and write so in a moment
        assert await queue.journal.find(["train"]) == []


async def test_what_was_cleared_before_its_pusher_looked_is_gone(stage: Stage) -> None:
    queue = await journaled(stage)
    async with another(stage) as other:
        await queue.push([Task.new(command="true", id="train")])
        await written(queue)
        await other.clear()
        await written(other)
        assert [each.state for each in await queue.journal.find(["train"])] == ["ready"], "a worker may have it"
        assert await queue.journal.find(["train"]) == []


@pytest.mark.parametrize("asks_before", [False, True])
async def test_s5_a_result_has_the_output_of_its_own_task(stage: Stage, asks_before: bool) -> None:
    """And the outcome, also where that was asked for before."""
    queue = await journaled(stage)
    async with another(stage) as other:
        await queue.push([Task.new(command="true", id="train")])
        await written(queue)
        handle = TaskHandle.of("train", queue)
        (ours,) = await other.receive(1, LEASE, NOW)
        await ours.settle(
            MoveToDeadLetters("failed", "exit code 1", record=_record("dead", OutcomeKind.FAILED, "OURS"))
        )
        await written(other)
        if asks_before:
            assert (await handle.status()).state == "dead"
        second = int(time.time())  # of two pushes within one the fencing numbers are alike (guarantees)
        while int(time.time()) == second:
            await asyncio.sleep(0.05)
        await other.push([Task.new(command="true", id="train")])
        (later,) = await other.receive(1, LEASE, NOW)
        await later.settle(Requeue(later.task.requeued(failures=1).counters, NOW))
        (later,) = await other.receive(1, LEASE, NOW)
        await later.settle(Complete(GOOD, record=_record("done", OutcomeKind.SUCCEEDED, "LATER")))
        await written(other)
        result = await handle.result(20)
        assert (result.outcome, result.output_tail) == ("failed", "OURS")


async def test_a_row_that_is_none_keeps_no_other_from_being_written(stage: Stage) -> None:
    """Its fault made all that waited be dropped."""
    queue = await journaled(stage)
    place = queue._wire.place
    await queue._wire.write(place.queue, [Write(Verb.REPLACE, "l!bad", {"State": rows.DONE})])
    ids = await queue.push([Task.new(command="true", id="bad"), *(Task.new(command="true") for _ in range(150))])
    await written(queue)
    assert {each.id for each in await queue.journal.unfinished("", 1000)} >= set(ids[1:])


async def test_the_word_of_a_redrive_hides_no_later_one_that_waits(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a program that works and redrives: it received the task before all of the letters were back."""
    queue = await journaled(stage)
    await queue.push([Task.new(command="true", id="train")])
    (delivery,) = await queue.receive(1, LEASE, NOW)
    await delivery.settle(MoveToDeadLetters("failed", "exit code 3"))
    await written(queue)
    redrive = queue._inner.redrive

    async def slow(ids: Sequence[str]) -> list[str]:
        done = await redrive(ids)
        await queue.receive(1, LEASE, NOW)
        return done

    monkeypatch.setattr(queue._inner, "redrive", slow)
    assert await queue.redrive(["train"]) == ["train"]
    assert await state(queue, "train") == "running"


def _record(then: str, outcome: OutcomeKind, output: str) -> Record:
    return Record(Attempt(attempt=0, outcome=outcome, then=then, ended=time.time()), output)
