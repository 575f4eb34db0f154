"""Batches in the file itself: what others leave, what is done in steps, what is forgotten."""

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.batch_plan import Plan, named_for_end
from jobq.batches import BatchState, counts_of
from jobq.errors import BatchNotFound
from jobq.settlement import Complete
from jobq.task import Task
from jobq.testing.clock import VirtualClock
from jobq.testing.harness import raises
from jobq_sqlite import SqliteBackend
from tests.sqlite.support import DONE, LEASE, NOW, ask, backend, real_file, tasks, virtual_file

_THEN = Plan(then=tuple(each.encode().decode() for each in named_for_end("s7", [Task.new(command="merge")])))


async def test_what_an_older_jobq_ends_is_looked_after_by_the_next_that_writes(tmp_path: Path) -> None:
    """It has the file open, and knows nothing of batches: the trigger notes the end, and an idle worker finds it."""
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()
        await queue.batches.begin("s7", _THEN)
        await queue.push(tasks(1, batch="s7"))
        await queue.batches.seal("s7")
        ask(tmp_path / "jobs.db", "UPDATE task SET state = 'done', body = x''")
        assert [each.state for each in await queue.batches.list("", 10)] == [BatchState.SEALED]
        (then,) = await queue.receive(1, LEASE, NOW)
        assert then.id == "jobq.then.s7.1"
        assert (await queue.batches.find("s7")).state is BatchState.FINISHED
        assert ask(tmp_path / "jobs.db", "SELECT count(*) FROM outbox") == [(0,)]


async def test_who_looks_at_it_looks_after_it_where_he_may(tmp_path: Path) -> None:
    """`batch wait` alone, without a worker; who may not write is answered as it stands, as are looks at others."""
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()
        for name in ("s7", "s8"):
            await queue.batches.begin(name, Plan(then=(Task.new(command="merge").encode().decode(),)))
            await queue.push(tasks(1, name, batch=name))
            await queue.batches.seal(name)
        path = tmp_path / "jobs.db"
        ask(path, "UPDATE task SET state = 'done', body = x'' WHERE id LIKE 's7%'")
        assert (await queue.batches.find("s8")).state is BatchState.SEALED
        assert ask(path, "SELECT count(*) FROM outbox") == [(1,)], "no more than a look"
        ask(path, "CREATE TRIGGER refuse BEFORE UPDATE ON batch BEGIN SELECT raise(abort, 'may not write'); END")
        found = await queue.batches.find("s7")
        assert (found.state, found.counts["succeeded"]) == (BatchState.SEALED, 1)
        ask(path, "DROP TRIGGER refuse")
        assert (await queue.batches.find("s7")).state is BatchState.FINISHED
        assert [each.id for each in await queue.peek(10)] == ["s8-00000", "jobq.then.s7.1"]


async def test_who_waits_looks_after_it_as_well(tmp_path: Path) -> None:
    """A worker that waits for a task, and writes nothing, when somebody else ends the last one."""
    async with backend(real_file(tmp_path / "jobs.db")) as queue:
        await queue.create()
        await queue.batches.begin("s7", _THEN)
        await queue.push(tasks(1, batch="s7"))
        await queue.batches.seal("s7")
        await queue.receive(1, timedelta(seconds=60), NOW)
        waiting = asyncio.ensure_future(queue.receive(1, LEASE, timedelta(seconds=15)))
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done
        ask(tmp_path / "jobs.db", "UPDATE task SET state = 'done', body = x'', receipt = NULL, expires_at = NULL")
        began = time.monotonic()
        assert [each.id for each in await waiting] == ["jobq.then.s7.1"]
        assert time.monotonic() - began < 5


async def test_a_large_one_is_canceled_in_steps_by_whoever_writes(tmp_path: Path) -> None:
    """The one who canceled is killed after the first: claims go on with it."""
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()
        await queue.batches.begin("s7", _THEN)
        await queue.push(tasks(5000, batch="s7"))
        found = await queue.batches.cancel("s7")
        assert 0 < found.counts["canceled"] < 5000
        handed_out = 0
        while (delivery := (await queue.receive(1, LEASE, NOW))[0]).id != "jobq.then.s7.1":
            handed_out += 1
            assert (await delivery.renew(LEASE)).cancel
            await delivery.settle(Complete(DONE))
        found = await queue.batches.find("s7")
        assert found.state is BatchState.FINISHED
        assert found.counts["canceled"] + found.counts["succeeded"] == 5000
        assert found.counts["succeeded"] == handed_out


async def test_a_deleted_queue_takes_its_batches_along(tmp_path: Path) -> None:
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()
        await queue.batches.begin("s7", _THEN)
        await queue.push(tasks(3, batch="s7"))
        await queue.batches.seal("s7")
        await queue.delete()
        await queue.create()
        with raises(BatchNotFound):
            await queue.batches.find("s7")
        await queue.batches.begin("s7", Plan())
        await queue.push(tasks(3, batch="s7"))
        assert dict((await queue.batches.find("s7")).counts) == counts_of({"ready": 3})
        assert ask(tmp_path / "jobs.db", "SELECT count(*) FROM outbox") == [(0,)]


async def test_a_queue_that_is_deleted_leaves_no_note_to_look_at(tmp_path: Path) -> None:
    """Each idle worker of the file looked at it again at once, and a hundred of them kept all other batches waiting."""
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()
        await queue.batches.begin("s7", _THEN)
        await queue.push(tasks(3000, batch="s7"))
        await queue.batches.cancel("s7")
        assert ask(tmp_path / "jobs.db", "SELECT count(*) FROM outbox") == [(1,)]
        await queue.delete()
        assert ask(tmp_path / "jobs.db", "SELECT count(*) FROM outbox") == [(0,)]


async def test_a_queue_that_an_older_jobq_deletes_holds_up_nothing(tmp_path: Path) -> None:
    """It takes the name away and leaves the batch, sealed: each transaction of the file failed for ever."""
    async with backend(virtual_file(tmp_path)) as queue, backend(virtual_file(tmp_path), "other") as other:
        await queue.create()
        await other.create()
        await queue.batches.begin("s7", _THEN)
        await queue.push(tasks(1, batch="s7"))
        await queue.batches.seal("s7")
        await other.push(tasks(1))
        ask(tmp_path / "jobs.db", "UPDATE queue SET name = 'deleted ' || queue_id WHERE name = 'q'")
        ask(tmp_path / "jobs.db", "DELETE FROM task WHERE batch_id IS NOT NULL")
        (delivery,) = await other.receive(1, LEASE, NOW)
        await delivery.settle(Complete(DONE))
        assert ask(tmp_path / "jobs.db", "SELECT count(*) FROM outbox") == [(0,)]


async def test_an_end_forgets_no_ids(tmp_path: Path) -> None:
    """What is kept for longer than 30 days was forgotten by the push at the end of a batch, and ran a second time."""
    async with SqliteBackend(virtual_file(tmp_path), "q", keep=timedelta(days=90)) as queue:
        await queue.create()
        old = tasks(5, prefix="old")
        await queue.push(old)
        ask(tmp_path / "jobs.db", "UPDATE task SET state = 'done', finished_at = available_at - 40 * 86400")
        await queue.batches.begin("s7", _THEN)
        await queue.batches.seal("s7")
        assert [each.id for each in await queue.receive(9, LEASE, NOW)] == ["jobq.then.s7.1"]
        await queue.push(old)
        assert await queue.receive(9, LEASE, NOW) == []


async def test_one_is_forgotten_with_the_ids_of_its_tasks_and_not_before(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with backend(virtual_file(tmp_path, clock)) as queue:
        await queue.create()
        for name in ("s7", "open"):
            await queue.batches.begin(name, Plan())
        await queue.push(tasks(1, batch="s7"))
        await queue.batches.seal("s7")
        (delivery,) = await queue.receive(1, LEASE, NOW)
        await delivery.settle(Complete(DONE))
        await clock.advance(29 * 86400)
        await queue.batches.begin("new", Plan())
        assert (await queue.batches.find("s7")).total == 1
        await clock.advance(2 * 86400)
        await queue.push(tasks(1, prefix="later"))  # forgets its task
        assert dict((await queue.batches.find("s7")).counts) == counts_of({"gone": 1})
        await queue.batches.begin("new", Plan())
        assert [each.name for each in await queue.batches.list("", 10)] == ["new"]


@pytest.mark.parametrize("place", [0, 1])
async def test_one_is_kept_while_what_was_queued_at_its_end_is_known(tmp_path: Path, place: int) -> None:
    """Else what is run at the end of the next one of its name were dropped; names that begin alike keep none."""
    then = (Task.new(command="merge").encode().decode(),) * 2
    plan = Plan(then=then)
    clock = VirtualClock()
    async with backend(virtual_file(tmp_path, clock)) as queue:
        await queue.create()
        for name in ("s7", "s7.1"):
            await queue.batches.begin(name, plan if name == "s7.1" else Plan())
            await queue.batches.seal(name)
        for held in await queue.receive(2, LEASE, NOW):
            if held.id != "jobq.then.s7.1" + (":1.1" if place else ".1"):
                await held.settle(Complete(DONE))
        await queue.push([Task.new(command="true", id=f"jobq.then.s70{end}") for end in (".1", ":1.1")])
        await clock.advance(31 * 86400)
        await queue.push(tasks(1))  # forgets what has ended
        await queue.batches.begin("new", Plan())
        assert [each.name for each in await queue.batches.list("", 10)] == ["new", "s7.1"]


async def test_an_id_that_was_given_to_another_task_holds_up_nothing(tmp_path: Path) -> None:
    """Somebody has pushed what would be run at the end, as something else: it is run all the same, under another id."""
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(backend(virtual_file(tmp_path)))
        await queue.create()
        await queue.batches.begin("s7", _THEN)
        await queue.push([Task.new(command="other", id="jobq.then.s7.1")])
        await queue.batches.seal("s7")
        assert (await queue.batches.find("s7")).state is BatchState.FINISHED
        other, then = await queue.receive(3, LEASE, NOW)
        assert (other.task.command, then.task.command) == ("other", "merge")
        assert then.id == then.task.id != other.id
