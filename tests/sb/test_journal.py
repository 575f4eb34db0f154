"""A queue of Service Bus with its journal in a table: checkpoints, cancel requests, what is back beside its copy."""

import asyncio
import logging
import math
import time
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote

import pytest
from aiohttp import ClientTimeout

from jobq.cli.submit.already_there import known_ids
from jobq.errors import BackendUnavailable, LockLost, MalformedTask, QueueNotFound, SettlementUnknown
from jobq.fencing import FencingNumber
from jobq.journal.records import TaskState
from jobq.settings import Settings
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.spec import resolve
from jobq.task import Counters, Task, TaskResult, new_id
from jobq_azure.service_bus.rest_client import Outgoing
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.backend import JournaledQueue
from jobq_azure.table_journal.checkpoints import Claim
from jobq_azure.table_journal.client import Verb, Write
from jobq_azure.table_journal.delivery import claim_of
from tests.azure.emulator import ACCOUNT, Azurite, connection_string
from tests.azure.journal.journal_stage import key_of, state, written
from tests.emulators.service_bus.faults import Fault, Operation
from tests.emulators.service_bus.message import State
from tests.sb.stage import NOW, SPEC, Stage, staged
from tests.support.http_proxy import HttpProxy, Strike

GOOD = TaskResult(exit_code=0)
PLACE = f"tables://{ACCOUNT}"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is short here, and this machine may be busy."""
    monkeypatch.setattr("jobq_azure.table_journal.backend._CHECKPOINT_SHARE", 0.5)


async def _journaled(
    stage: Stage, azurite: Azurite, keep: timedelta = timedelta(days=30)
) -> tuple[JournaledQueue, HttpProxy]:
    proxy = await stage.stack.enter_async_context(HttpProxy(azurite.table_port))
    signed = connection_string(1, table_port=proxy.port)
    settings = Settings(connection_string=stage.signed, journal=PLACE, journal_connection_string=signed, keep=keep)
    found = resolve(SPEC, settings)
    assert isinstance(found, JournaledQueue)
    await stage.stack.enter_async_context(found)
    await found._wire.create()
    return found, proxy


async def _checkpoints(queue: JournaledQueue) -> list[str]:
    first, end = rows.below("c")
    found, _ = await queue._wire.look(queue._wire.place.queue, first, end)
    return [row["RowKey"] for row in found]


async def _pushed(queue: JournaledQueue) -> Task:
    task = Task.new(command="true")
    await queue.push([task])
    return task


async def test_a_checkpoint_is_durable_and_fenced(stage: Stage, azurite: Azurite) -> None:
    """S9: acknowledged once it is in the table; the next attempt finds it, and keeps the one before out (S4)."""
    queue, proxy = await _journaled(stage, azurite)
    assert queue.capabilities.native_checkpoint
    task = await _pushed(queue)
    (first,) = await queue.receive(1, None, NOW)
    assert first.checkpoint_value is None
    assert not [each for each in proxy.seen("GET") if "c!" in unquote(each.path)], "a first delivery can have none"
    await first.checkpoint("epoch 2")
    await first.checkpoint("epoch 3")
    proxy.strike(Strike.BUSY, count=math.inf)
    with pytest.raises(BackendUnavailable):
        await first.checkpoint("epoch 4")
    await proxy.heal()
    proxy.strike(Strike.SWALLOW_ANSWER, matches=lambda request: b"c%21" in request.body)  # of all that is written
    queue._wire._requests._timeout = ClientTimeout(total=0.5)
    with pytest.raises(SettlementUnknown):
        await first.checkpoint("epoch 4")  # it was done all the same
    queue._wire._requests._timeout = ClientTimeout(total=5.0)
    await first.settle(Requeue(first.task.requeued(failures=1).counters, NOW))
    proxy.strike(Strike.BUSY, "GET", count=math.inf)
    with pytest.raises(BackendUnavailable, match="nothing of what was received"):
        await queue.receive(1, None, NOW)  # it must not start from nothing: put off
    await proxy.heal()
    (seen,) = [each for each in await queue._inner._amqp().peek(10) if each.is_scheduled]  # type: ignore[attr-defined]
    await queue._inner._amqp().cancel_scheduled([seen.number])  # type: ignore[attr-defined]
    await queue._inner.push([task.copied({"generation": 3, "id": task.id})])
    (second,) = await queue.receive(1, None, NOW)
    assert second.checkpoint_value == "epoch 4"
    with pytest.raises(LockLost):
        await queue._checkpoints.save(claim_of(first), "late")  # type: ignore[union-attr]
    await second.settle(Complete(GOOD))
    await written(queue)
    assert await _checkpoints(queue) == [], "nothing of it is left"


async def test_s9_a_late_checkpoint_undoes_no_newer_one(stage: Stage, azurite: Azurite) -> None:
    """As on queues that keep checkpoints themselves: one that was given up arrives after the next was acknowledged."""
    queue, _ = await _journaled(stage, azurite)
    await _pushed(queue)
    (first,) = await queue.receive(1, None, NOW)
    await first.checkpoint("first", 1)
    await first.checkpoint("third", 3)
    with pytest.raises(LockLost, match="a newer checkpoint"):
        await first.checkpoint("second", 2)
    await first.checkpoint("third", 3)  # a repetition is answered
    await first.settle(Release())
    (second,) = await queue.receive(1, None, timedelta(seconds=5))
    assert second.checkpoint_value == "third"
    await second.checkpoint("fourth", 1)  # each attempt counts from one
    await second.settle(Release())
    (third,) = await queue.receive(1, None, timedelta(seconds=5))
    assert third.checkpoint_value == "fourth"
    await third.settle(Complete(GOOD))
    await written(queue)  # other tests look at all that the table holds of a queue of this name


async def test_s9_the_checkpoint_of_what_has_not_ended_is_not_old(
    stage: Stage, azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever JOBQ_KEEP says, and however long ago it was saved: of a task that runs, waits, or may be dead."""
    queue, _ = await _journaled(stage, azurite, keep=timedelta(0))

    async def swept() -> None:
        await asyncio.sleep(0.01)
        await written(queue)
        await queue._sweep.once()
        await written(queue)

    await _pushed(queue)
    (first,) = await queue.receive(1, None, NOW)
    await first.checkpoint("epoch 3")
    await swept()
    with monkeypatch.context() as later:  # so long after that age alone protects nothing
        later.setattr("jobq_azure.table_journal.retention._SAVED_SECONDS", 0.0)
        await swept()
        await first.settle(Requeue(first.task.requeued(failures=1).counters, NOW))
        await swept()
        (second,) = await queue.receive(1, None, NOW)
    assert second.checkpoint_value == "epoch 3"
    await second.settle(MoveToDeadLetters("failed", "exit code 3"))
    monkeypatch.setattr("jobq_azure.table_journal.retention._DONE_SECONDS", -1.0)
    await swept()
    assert await queue._wire.get(queue._wire.place.queue, key_of(second.task)) is None, (
        "it is no more known than others"
    )
    assert await queue.redrive([second.id]) == [second.id]
    (third,) = await queue.receive(1, None, timedelta(seconds=2))
    assert third.checkpoint_value == "epoch 3"
    await third.settle(MoveToDeadLetters("failed", "exit code 3"))
    monkeypatch.setattr("jobq_azure.table_journal.retention._SAVED_SECONDS", 0.0)
    await swept()
    await swept()  # what the first has left of it
    assert await _checkpoints(queue) == [], "nor is it kept for ever"


async def test_s7_what_is_back_beside_its_copy_makes_no_other_when_it_cannot_be_completed(
    stage: Stage, azurite: Azurite
) -> None:
    queue, _ = await _journaled(stage, azurite)
    task = await _pushed(queue)
    (original,) = await queue.receive(1, None, NOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue._inner._wire, "complete", _lost)  # type: ignore[attr-defined]
        with pytest.raises(Exception, match="lost"):
            await original.settle(Requeue(task.requeued(failures=1).counters, NOW))
    (copy,) = await queue.receive(1, None, timedelta(seconds=2))
    await written(queue)
    await queue._inner._wire.unlock(original._inner._locked)  # type: ignore[attr-defined] # its lock ends
    stage.emulator.faults.plan(Fault(503), Operation.COMPLETE)
    assert await queue.receive(1, None, timedelta(seconds=2)) == []
    names = [each.content.message_id for each in stage.queue.messages()]
    assert [str(name).startswith("~") for name in names] == [False, True], "the original under its lock, and its copy"
    await copy.settle(Complete(GOOD))


async def test_l1_a_worker_ends_though_a_lease_shows_that_nobody_has(stage: Stage, azurite: Azurite) -> None:
    """Its worker died between the settlement and its note: it was waited for without end, and without a pause."""
    queue, _ = await _journaled(stage, azurite)
    task = await _pushed(queue)
    (held,) = await queue.receive(1, None, NOW)
    await written(queue)
    place = queue._wire.place.queue
    row = await queue._wire.get(place, key_of(task))
    assert row is not None
    kept = {name: row[name] for name in ("State", "Fencing", "At", "Holder")}
    await queue._inner._wire.complete(held._inner._locked)  # type: ignore[attr-defined] # it has ended
    await queue._wire.write(place, [Write(Verb.REPLACE, key_of(task), kept | {"LeaseLeft": -1.0})])
    signed = connection_string(1, table_port=azurite.table_port)
    ended = await stage.run("worker", JOBQ_JOURNAL=PLACE, JOBQ_JOURNAL_CONNECTION_STRING=signed)
    assert ended.code == 0, ended.err


async def test_s1_what_is_given_back_without_a_copy_was_not_replaced(stage: Stage, azurite: Azurite) -> None:
    """Its counters have no room left, so its lock is ended: the journal must not say that a copy is there."""
    queue, _ = await _journaled(stage, azurite)
    full = Task.new(command="true", id="full").copied({"counters": Counters(ends=2**31 - 1)})
    await queue._inner._wire.send(Outgoing(body=full.encode(), message_id="m"))  # type: ignore[attr-defined]
    (first,) = await queue.receive(1, None, NOW)
    await first.settle(Release())
    await written(queue)
    (again,) = await queue.receive(1, None, timedelta(seconds=2))
    assert again.id == "full"
    await again.settle(Complete(GOOD))
    await written(queue)


async def test_a_wish_reaches_what_a_repeated_push_tells_of_anew(tmp_path: Path, azurite: Azurite) -> None:
    """The answer to the first push was lost; the broker drops the second, and the journal has its birth."""
    async with staged(tmp_path, dedup_window=600.0) as stage:
        queue, _ = await _journaled(stage, azurite)
        await queue._inner.push([Task.new(command="true", id="train")])
        await queue.push([Task.new(command="true", id="train")])
        await written(queue)
        assert [*await queue.journal.cancel(["train"])] == ["canceled"]
        (found,) = await queue.receive(1, None, NOW)
        assert found.cancel_requested
        await found.settle(Complete(GOOD))
        await written(queue)


async def test_s8_a_repetition_is_the_task_that_the_queue_has(
    tmp_path: Path, azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever pushed it second, before or after its end: it is listed once, and ends with it; nothing of it stays."""
    name = f"nightly-{new_id()}"
    async with staged(tmp_path, dedup_window=600.0, lock_duration=60.0) as stage:
        pusher, _ = await _journaled(stage, azurite)
        worker, _ = await _journaled(stage, azurite)

        async def listed() -> list[str]:
            return [record.state for record in await worker.journal.unfinished("", 1000) if record.id == name]

        async def count() -> int:
            states = (await worker.journal.stats(60)).states
            return sum(states[state] for state in TaskState if not state.is_final)

        async def repeated(state: str) -> None:
            """Push it again: it is where it was."""
            known = await count()
            await pusher.push([Task.new(command="true", id=name)])
            await written(pusher)
            assert await listed() == ([] if state == "succeeded" else [state])
            assert await count() == known
            for queue in (pusher, worker):
                assert [found.state for found in await queue.journal.find([name])] == [state]

        await worker.push([Task.new(command="true", id=name)])
        await written(worker)
        await repeated("ready")
        (held,) = await worker.receive(1, None, NOW)
        await written(worker)
        await repeated("running")
        await held.settle(Complete(GOOD))
        await written(worker)
        await repeated("succeeded")
        assert [*await pusher.journal.cancel([name])] == ["ended"]
        monkeypatch.setattr(worker._wire, "now", lambda: time.time() + 7200)
        await worker._sweep.once()
        await written(worker)
        assert await worker._wire.all(worker._wire.place.queue, *rows.lives(name), most=10) == []
        assert await state(pusher, name) == "succeeded"


async def test_s6_s7_a_receive_that_is_cancelled_gives_back_whole_and_tells_of_it(
    stage: Stage, azurite: Azurite
) -> None:
    queue, proxy = await _journaled(stage, azurite)
    task = await _pushed(queue)
    await written(queue)
    proxy.strike(Strike.HANG, "GET", count=math.inf)
    asked = len(proxy.seen("GET"))
    receiving = asyncio.create_task(queue.receive(1, None, NOW))
    async with asyncio.timeout(20):
        while stage.queue.count(State.LOCKED) == 0 or len(proxy.seen("GET")) == asked:
            await asyncio.sleep(0.02)
    stage.emulator.faults.plan(Fault(503), Operation.COMPLETE, count=2)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    await proxy.heal()
    (left,) = stage.queue.messages()
    assert str(left.content.message_id).startswith("~")
    await written(queue)
    row = await queue._wire.get(queue._wire.place.queue, key_of(task))
    assert row is not None
    assert rows.fencing_in(row["Fencing"]).generation == 1


@pytest.mark.parametrize("is_foreign", [False, True], ids=["own", "of another program"])
async def test_s9_tasks_of_one_id_have_checkpoints_of_their_own(
    stage: Stage, azurite: Azurite, *, is_foreign: bool
) -> None:
    """An id may be pushed anew while a task of it still runs: neither may lose, find or end what the other saved."""
    queue, _ = await _journaled(stage, azurite)
    for number in range(2):
        task = Task.new(command=f"echo {number}", id="train")
        body = task.copied({"created": None}) if is_foreign else task
        await queue._inner._wire.send(Outgoing(body=body.encode(), message_id=f"m{number}"))  # type: ignore[attr-defined]
    first, second = await queue.receive(2, None, timedelta(seconds=2))
    await first.checkpoint("of the first")
    await second.checkpoint("of the second")
    await first.settle(Requeue(first.task.requeued(failures=1).counters, NOW))
    (again,) = await queue.receive(1, None, timedelta(seconds=2))
    assert again.checkpoint_value == "of the first"
    await second.settle(Complete(GOOD))
    await written(queue)
    await again.settle(Requeue(again.task.requeued(failures=1).counters, NOW))
    (last,) = await queue.receive(1, None, timedelta(seconds=2))
    assert last.checkpoint_value == "of the first"
    await last.settle(Complete(GOOD))
    await written(queue)


@pytest.mark.parametrize("way_back", ["requeue", "release"])
async def test_what_is_back_beside_its_copy_is_not_run(
    stage: Stage, azurite: Azurite, caplog: pytest.LogCaptureFixture, way_back: str
) -> None:
    """S6: the copy was received, so that the original, whose completion was lost, is completed and not started."""
    queue, _ = await _journaled(stage, azurite)
    task = await _pushed(queue)
    (original,) = await queue.receive(1, None, NOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue._inner._wire, "complete", _lost)  # type: ignore[attr-defined]
        with pytest.raises(Exception, match="lost"):
            await (
                original.settle(Release())
                if way_back == "release"
                else original.settle(Requeue(task.requeued(failures=1).counters, NOW))
            )
    (copy,) = await queue.receive(1, None, timedelta(seconds=2))
    assert copy.fencing.generation == 1
    await written(queue)
    await queue._inner._wire.unlock(original._inner._locked)  # type: ignore[attr-defined] # its lock ends
    caplog.set_level(logging.INFO)
    assert await queue.receive(1, None, timedelta(seconds=2)) == []
    assert "is back beside its copy, and is done with" in caplog.text
    await copy.settle(Complete(GOOD))  # it is there, and its lock stands
    assert await queue.receive(1, None, timedelta(seconds=1)) == []
    assert await state(queue, task.id) == "succeeded"


async def test_what_is_back_before_its_copy_is_due_is_not_run(
    stage: Stage, azurite: Azurite, caplog: pytest.LogCaptureFixture
) -> None:
    """S6, S7: nobody has received the copy yet; who sent it has told of it, and each start would be one too many."""
    queue, _ = await _journaled(stage, azurite)
    task = await _pushed(queue)
    (original,) = await queue.receive(1, None, NOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue._inner._wire, "complete", _lost)  # type: ignore[attr-defined]
        with pytest.raises(Exception, match="lost"):
            await original.settle(Requeue(task.requeued(failures=1).counters, timedelta(minutes=1)))
    await original.renew(original.lease)  # tells nothing more of itself
    await written(queue)
    await queue._inner._wire.unlock(original._inner._locked)  # type: ignore[attr-defined] # its lock ends
    caplog.set_level(logging.INFO)
    assert await queue.receive(1, None, timedelta(seconds=2)) == []
    assert "is back beside its copy, and is done with" in caplog.text
    (copy,) = await queue._inner._amqp().peek(10)  # type: ignore[attr-defined]
    assert copy.is_scheduled
    assert await state(queue, task.id) == "scheduled"


@pytest.mark.parametrize("saves", [False, True], ids=["", "checkpoint"])
async def test_s1_a_retry_that_waits_is_not_taken_for_an_original_of_what_was_pushed_since(
    stage: Stage, azurite: Azurite, saves: bool
) -> None:
    """One `Task` at the head of a module, pushed again and again: its retry was completed, and never ran.

    Or it was put off each 30 s for ever, once the later one had saved a checkpoint in the row that both have.
    """
    queue, _ = await _journaled(stage, azurite)
    task = await _pushed(queue)
    (first,) = await queue.receive(1, None, NOW)
    await first.settle(Requeue(task.requeued(failures=1).counters, timedelta(seconds=3)))
    await written(queue)
    second = int(time.time())
    while int(time.time()) == second:
        await asyncio.sleep(0.05)
    await queue.push([task])
    (again,) = await queue.receive(1, None, NOW)
    assert again.fencing > first.fencing
    if saves:
        await again.checkpoint("half")
    await again.settle(MoveToDeadLetters("failed", "exit code 3"))
    await written(queue)
    (retry,) = await queue.receive(1, None, timedelta(seconds=10))
    assert retry.fencing[:2] == (first.fencing.epoch, 1)
    assert retry.checkpoint_value is None
    if saves:
        with pytest.raises(MalformedTask, match="the same Task was pushed again"):
            await retry.checkpoint("of the first")
    await retry.settle(Complete(GOOD))


async def test_s9_the_end_of_a_task_leaves_what_another_of_the_same_task_saved(stage: Stage, azurite: Azurite) -> None:
    """They share a row: it was deleted with the end of either."""
    queue, _ = await _journaled(stage, azurite)
    task = Task.new(command="true")
    for number in range(2):
        await queue._inner._wire.send(Outgoing(body=task.encode(), message_id=f"m{number}"))  # type: ignore[attr-defined]
    first, second = await queue.receive(2, None, timedelta(seconds=2))
    await first.checkpoint("of the first")
    await second.settle(Requeue(task.requeued(failures=1).counters, NOW))
    (again,) = await queue.receive(1, None, timedelta(seconds=2))
    await again.checkpoint("of the second")
    await first.settle(Complete(GOOD))
    await written(queue)
    await again.settle(Requeue(again.task.requeued(failures=1).counters, NOW))
    (last,) = await queue.receive(1, None, timedelta(seconds=2))
    assert last.checkpoint_value == "of the second"
    await last.settle(Complete(GOOD))
    await written(queue)
    assert not [key for key in await _checkpoints(queue) if task.id in key]


async def _lost(_: object) -> None:
    raise LockLost("lost")


async def test_a_wish_reaches_a_worker(stage: Stage, azurite: Azurite) -> None:
    """By the command line: what waits does not start, what runs is stopped, and their states are told."""
    queue, proxy = await _journaled(stage, azurite)
    signed = connection_string(1, table_port=proxy.port)
    on = {"JOBQ_JOURNAL": PLACE, "JOBQ_JOURNAL_CONNECTION_STRING": signed, "JOBQ_STOP_GRACE": "1s"}
    waits = await _pushed(queue)
    assert await queue.journal.cancel([waits.id]) == ["canceled"]
    runs = Task.new(command="echo out; sleep 60")
    await queue.push([runs])
    worker = await stage.start("worker", **on)
    async with asyncio.timeout(20):
        while await state(queue, runs.id) != "running":
            await asyncio.sleep(0.05)
    answer = await stage.run("cancel", runs.id, "--json", **on)
    assert '"stopping"' in answer.out
    out, err = await worker.communicate()
    assert worker.returncode == 0, (out, err)
    assert await state(queue, waits.id) == await state(queue, runs.id) == "canceled"
    assert await queue.journal.output(runs.id) == (1, "out\n")


async def test_s9_an_end_forgets_no_later_checkpoint_of_its_own_task(stage: Stage, azurite: Azurite) -> None:
    """An original that ran beside its copy ends: what the copy has saved under a higher number stays."""
    queue, _ = await _journaled(stage, azurite)
    kept = queue._checkpoints
    assert kept is not None
    id_ = new_id()

    async def row() -> object:
        await written(queue)
        return await queue._wire.get(queue._wire.place.queue, rows.checkpoint_key(id_, "life"))

    original, copy = (
        Claim(id=id_, life="life", fencing=FencingNumber(1, number, number + 2), origin="17") for number in (0, 1)
    )
    await kept.save(original, "old", 1)
    await kept.save(copy, "new", 1)
    kept.forget(original)
    assert await row() is not None
    kept.forget(copy)
    assert await row() is None


async def test_what_was_pushed_before_is_not_known_by_its_journal(tmp_path: Path, azurite: Azurite) -> None:
    """The service forgets an id within days, its journal within a month: "was there already" would be false."""
    async with staged(tmp_path, dedup_window=600.0, lock_duration=60.0) as stage:
        queue, _ = await _journaled(stage, azurite)
        named = Task.new(command="true", id="nightly")
        await queue.push([named])
        (held,) = await queue.receive(1, None, NOW)
        await held.settle(Complete(GOOD))
        await written(queue)
        await queue.stats()
        assert queue.capabilities.deduplicates
        assert await queue.journal.find(["nightly"]), "or the answer below would be for want of a row"
        assert await known_ids(queue, [named]) == {}


async def test_a_queue_is_deleted_with_what_its_journal_knows(azurite: Azurite, stage: Stage) -> None:
    queue, _ = await _journaled(stage, azurite)
    await queue.push([Task.new(command="true") for _ in range(3)])
    await written(queue)
    await queue.delete()
    left, _ = await queue._wire.look(queue._wire.place.queue, "!", "~", behind=f'{queue._wire.place.queue}"')
    assert left == []
    with pytest.raises(QueueNotFound):
        await queue.receive(1, None, NOW)
