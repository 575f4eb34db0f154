"""Tasks of one id, each of which is a life with rows of its own: none hides, ends, cancels or clears another."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from jobq.fencing import FencingNumber
from jobq.journal.records import Canceled
from jobq.journal.wait_for_end import ended
from jobq.queue import Queue
from jobq.settings import Settings
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.task import Task, TaskResult
from jobq.task_handle import SyncTaskHandle, TaskHandle
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.backend import JournaledQueue
from jobq_azure.table_journal.cancel_requests import CancelRequest
from jobq_azure.table_journal.client import Verb, Write
from tests.azure.journal.journal_stage import another, journaled, state, written
from tests.azure.stage import LEASE, NOW, Stage

GOOD = TaskResult(exit_code=0)
BAD = MoveToDeadLetters("failed", "exit code 3")


async def _pushed(queue: JournaledQueue, **fields: Any) -> tuple[Task, TaskHandle]:
    """Push a task of the id that all have here."""
    task = Task.new(**{"command": "true", "id": "train"} | fields)
    handle = await Queue(queue, Settings()).push(task)
    await written(queue)
    return task, handle


async def test_s5_each_handle_has_the_task_that_it_was_returned_for(stage: Stage) -> None:
    """Also where one program has pushed all tasks of that id, and whichever ends first."""
    queue = await journaled(stage)
    handles = [(await _pushed(queue))[1] for _ in range(3)]
    first, second, third = sorted(await queue.receive(3, LEASE, NOW), key=lambda each: each.task.created or 0.0)
    await second.settle(BAD)
    await written(queue)
    assert [(await each.status()).state for each in handles] == ["running", "dead", "running"]
    await first.settle(Complete(TaskResult(value=1)))
    await third.settle(Requeue(third.task.requeued(failures=1).counters, timedelta(hours=1)))
    await written(queue)
    assert [(await each.status()).state for each in handles] == ["succeeded", "dead", "scheduled"]
    assert [(await each.result(20)).outcome for each in handles[:2]] == ["succeeded", "failed"]
    async with another(stage) as other:
        assert await state(other, "train") == "scheduled", "of an id alone the newest is shown"


async def test_what_is_pushed_while_its_former_runs_is_known_to_others(stage: Stage) -> None:
    queue = await journaled(stage)
    async with another(stage) as other:
        await _pushed(queue)
        (former,) = await queue.receive(1, LEASE, NOW)
        await written(queue)
        await _pushed(queue, not_before=time.time() + 3600)
        assert [each.state for each in await other.journal.find(["train"])] == ["scheduled"]
        assert [each.state for each in await other.journal.unfinished("", 10)] == ["scheduled", "running"]
        states = (await other.journal.stats(60)).states
        assert (states["scheduled"], states["running"]) == (1, 1)
        assert await other.journal.cancel(["train"]) == [Canceled.CANCELED]
        await queue._cancel_requests._cancel_requested([former])  # type: ignore[list-item]
        assert not former.cancel_requested, "the request is for the other one"
        await former.settle(Complete(GOOD))
        await written(queue)
        assert [each.state for each in await other.journal.find(["train"])] == ["scheduled"], "the end is another's"


async def test_s11_a_queue_that_is_given_a_handle_means_its_task(stage: Stage) -> None:
    """`Queue.cancel([handle])` took the text of the handle alone, and stopped the latest task of that id."""
    queue = await journaled(stage)
    (_, first), (_, second) = await _pushed(queue), await _pushed(queue)
    older, newer = sorted(await queue.receive(2, LEASE, NOW), key=lambda each: each.task.created or 0.0)
    await older.settle(BAD)
    await written(queue)
    program = Queue(queue, Settings())
    assert [(await program.status(each)).state for each in (first, second)] == ["dead", "running"]
    assert (await program.task(first).status()).state == "dead"
    blocking = SyncTaskHandle.of(first, asyncio.run)
    assert await program.cancel([blocking]) == [Canceled.ENDED]
    await queue._cancel_requests._cancel_requested([newer])  # type: ignore[list-item]
    assert not newer.cancel_requested


async def test_s5_who_waits_for_two_tasks_of_one_id_hears_of_both(stage: Stage) -> None:
    """`push --wait` heard of one, and ended with 0 where the other was dead."""
    queue = await journaled(stage)
    handles = [(await _pushed(queue))[1] for _ in range(2)]
    older, newer = sorted(await queue.receive(2, LEASE, NOW), key=lambda each: each.task.created or 0.0)
    await newer.settle(Complete(GOOD))
    await older.settle(BAD)
    await written(queue)
    ids = [TaskHandle.pushed(each) for each in handles]
    found = [record async for _, record in ended(queue.journal, [*ids, "train"])]
    assert sorted(record.state for record in found if record is not None) == ["dead", "succeeded", "succeeded"]


async def test_s11_a_handle_cancels_its_own_task(stage: Stage) -> None:
    queue = await journaled(stage)
    (_, first), (_, second) = await _pushed(queue), await _pushed(queue)
    held = {each.task.created: each for each in await queue.receive(2, LEASE, NOW)}
    older, newer = (held[created] for created in sorted(held, key=lambda each: each or 0.0))
    await written(queue)
    assert await first.cancel() is Canceled.STOPPING
    assert [(await each.status()).cancel_requested for each in (first, second)] == [True, False]
    await queue._cancel_requests._cancel_requested(queue._cancel_requests._open)
    assert [(await each.renew(LEASE)).cancel for each in (older, newer)] == [True, False]
    assert await queue.journal.cancel([record.id for record in await queue.journal.running(2)]) == ["stopping"] * 2
    await queue._cancel_requests._cancel_requested(queue._cancel_requests._open)
    assert (await newer.renew(LEASE)).cancel, "an id that was listed is that of its own life"


async def test_s11_a_request_that_was_too_late_ends_nothing_later(stage: Stage) -> None:
    """Nor one for an id of which nothing was known: it is for what had that id then."""
    queue = await journaled(stage)
    await queue.journal.cancel(["train"])
    _, handle = await _pushed(queue)
    (held,) = await queue.receive(1, LEASE, NOW)
    assert not held.cancel_requested
    await handle.cancel()
    await held.settle(BAD)
    await written(queue)
    await queue.redrive(["train"])
    (again,) = await queue.receive(1, LEASE, NOW)
    assert not again.cancel_requested, "who retries it wants it to run"


async def test_s11_an_end_that_is_written_late_takes_no_later_request_away(stage: Stage) -> None:
    """Its worker was cut off from the table alone; meanwhile the task was retried, and is to end again."""
    cut_off = await journaled(stage)
    async with another(stage) as other:
        _, handle = await _pushed(cut_off)
        await handle.cancel()
        (held,) = await cut_off.receive(1, LEASE, NOW)
        assert held.cancel_requested
        await written(cut_off)
        await stage.tables.refuse()
        await held.settle(BAD)
        request = CancelRequest.of("train", rows.birth(held.task.created), at=time.time())
        await other._cancel_requests.forget([request])
        await other._cancel_requests.record([request])
        await stage.tables.heal()
        await written(cut_off)
        assert (await other._cancel_requests.among(["train"]))["train"]


async def test_s5_a_redrive_and_a_purge_concern_dead_letters_alone(stage: Stage) -> None:
    """Of one id there are a dead letter, what runs, and what has succeeded since."""
    queue = await journaled(stage)
    handles = list[TaskHandle]()
    for settlement in (BAD, None, Complete(GOOD)):
        handles.append((await _pushed(queue))[1])
        (held,) = await queue.receive(1, LEASE, NOW)
        if settlement is not None:
            await held.settle(settlement)
    await written(queue)
    assert await queue.redrive(["train"]) == ["train"]
    await written(queue)
    assert [(await each.status()).state for each in handles] == ["ready", "running", "succeeded"]
    (again,) = await queue.receive(1, LEASE, NOW)
    await again.settle(BAD)
    await written(queue)
    assert [(await each.status()).state for each in handles] == ["dead", "running", "succeeded"]
    assert await queue.purge_dead(["train"]) == ["train"]
    await written(queue)
    assert [(await each.status()).state for each in handles[1:]] == ["running", "succeeded"]
    assert [each.then for each in await queue.journal.attempts("train")] == ["done"]


async def test_what_ended_is_forgotten_and_what_goes_on_is_not(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = await journaled(stage, keep=timedelta(0))
    _, first = await _pushed(queue)
    _, second = await _pushed(queue)
    for held in await queue.receive(2, LEASE, NOW):
        if rows.birth(held.task.created) == first._pushed.birth:  # type: ignore[attr-defined]
            await held.settle(Complete(GOOD))
    await written(queue)
    monkeypatch.setattr("jobq_azure.table_journal.retention._DONE_SECONDS", -1.0)
    await asyncio.sleep(0.01)
    await queue._sweep.once()
    await written(queue)
    assert await queue.journal.attempts("train") == []
    assert (await second.status()).state == "running"
    async with another(stage) as other:
        assert await state(other, "train") == "running"


async def test_pages_of_a_list_have_each_life_once(stage: Stage) -> None:
    queue = await journaled(stage)
    tasks = [Task.new(command="true", id=f"t{number}", created=1.0 + life) for number in range(5) for life in range(4)]
    await queue.push(tasks)
    await written(queue)
    for limit in (1, 3, 5, 7, 100):
        seen, page = list[Any](), await queue.journal.unfinished("", limit)
        while page:
            seen += [(record.id, record.id.birth) for record in page]  # type: ignore[attr-defined]
            page = await queue.journal.unfinished(page[-1].id, limit)
        assert sorted(seen) == sorted((task.id, rows.birth(task.created)) for task in tasks), limit


async def test_the_longest_ids_are_keys(stage: Stage) -> None:
    """A key has 1 KiB, two bytes a character; what is no task may be named by anything."""
    queue = await journaled(stage)
    for id_ in ("a" + "@" * 99, "é" * 100, "\U0001f600" * 100):
        keys = [rows.ended_key(time.time(), rows.attempt_key(id_, 1, FencingNumber(10**10, 10**10, 10**10)))]
        keys += [rows.cancel_request_key(id_, 1)]
        await queue._wire.write("keys", [Write(Verb.REPLACE, key, {}) for key in keys])
        assert max(map(len, keys)) <= 512
    assert rows.safe("\U0001f600" * 100) != rows.safe("\U0001f600" * 99)
    ids = ["a" + "@" * 99, "a" + "=" * 99]
    await queue.push([Task.new(command="true", id=id_) for id_ in ids])
    assert await state(queue, ids[0]) == "ready"
    for held in await queue.receive(2, LEASE, NOW):
        await held.settle(Complete(GOOD))
    assert [await state(queue, id_) for id_ in ids] == ["succeeded"] * 2


async def test_one_task_pushed_twice_is_one_life(stage: Stage) -> None:
    """Both are run and recorded; where the task is, is the word of either."""
    queue = await journaled(stage)
    task, _ = await _pushed(queue)
    second = int(time.time())
    while int(time.time()) == second:
        await asyncio.sleep(0.05)
    await queue.push([task])
    first, later = sorted(await queue.receive(2, LEASE, NOW), key=lambda each: each.fencing)
    assert later.fencing > first.fencing
    await later.settle(Complete(GOOD))
    await first.settle(BAD)
    assert await state(queue, "train") in {"succeeded", "dead"}
    assert [each.then for each in await queue.journal.attempts("train")] == ["dead", "done"]
