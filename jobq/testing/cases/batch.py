"""Batches: what takes tasks, when one has finished, and that its counts are those of its tasks, whatever comes."""

import asyncio
from datetime import timedelta
from typing import Any

from jobq.batch_plan import Plan
from jobq.batches import Batch, Batches, BatchState, batches_of, counts_of
from jobq.errors import BatchNotFound, BatchSealed, ConfigurationError, DuplicateTask, MalformedTask
from jobq.formats.wire_v3 import Signature, work_in
from jobq.journal.store import KeepsJournal
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.task import Task
from jobq.testing.cases import case
from jobq.testing.harness import DONE, Bench, raises, task

_THEN = Plan(
    template="python train.py",
    then=(Task.new(command="python merge.py", id="whatever").encode().decode(),),
)
_SECONDS = 15.0  # by which what follows from the end of a batch has happened, whoever ended it


@case("batches")
async def an_open_batch_takes_tasks_and_never_ends(bench: Bench) -> None:
    """Its tasks are its own, and the others are not; that all have ended ends it only once it is sealed."""
    batches = _of(bench)
    begun = await batches.begin("s7", _THEN)
    assert (begun.state, begun.round, begun.total, begun.template) == (BatchState.OPEN, 1, 0, "python train.py")
    await bench.pushed()
    mine = await bench.pushed(2, batch="s7")
    assert await _counts(bench, "s7") == counts_of({"ready": 2})
    for delivery in await bench.take_all(3):
        await delivery.settle(Complete(DONE))
    found = await batches.find("s7")
    assert (found.state, dict(found.counts)) == (BatchState.OPEN, counts_of({"succeeded": 2})), found
    assert sorted(each.id for each in await batches.members("s7", "", 100)) == sorted(each.id for each in mine)
    await bench.nothing()
    assert (await batches.begin("s7", Plan())).template == "python train.py", "who comes later takes nothing away"


@case("batches")
async def a_sealed_batch_finishes_with_its_last_task_and_says_so_once(bench: Bench) -> None:
    """What is to be run at its end is in the queue then, once, under an id that follows from the round."""
    batches = _of(bench)
    await batches.begin("s7", _THEN)
    await bench.pushed(3, batch="s7")
    first, second, third = await bench.take_all(3)
    await first.settle(Complete(DONE))
    sealed = await batches.seal("s7")
    assert sealed.state is BatchState.SEALED
    await second.settle(MoveToDeadLetters("failures", "by the suite"))
    await third.renew(bench.lease)
    await _stays(bench, "s7", BatchState.SEALED)
    await third.settle(Complete(DONE))
    await third.settle(Complete(DONE))  # the same again (S5)
    ended = await _finished(bench, "s7")
    assert dict(ended.counts) == counts_of({"succeeded": 2, "dead": 1})
    assert [(each.number, dict(each.counts)) for each in ended.rounds] == [(1, dict(ended.counts))]
    then = await bench.take()
    assert (then.id, then.task.command) == ("jobq.then.s7.1", "python merge.py")
    await batches.seal("s7")
    await then.settle(Complete(DONE))
    await bench.nothing()
    assert (await batches.find("s7")).total == 3, "what is run then is not of the batch"


@case("batches")
async def what_is_run_at_an_end_is_each_its_own(bench: Bench) -> None:
    """Of several tasks, and of batches whose names begin alike: no id is made twice, so that none is dropped (S8)."""
    several = Plan(then=_THEN.then * 2)
    for name, plan in (("s7", several), ("s7.1", several)):
        await _of(bench).begin(name, plan)
        await _of(bench).seal(name)
        await _finished(bench, name)
    found = await bench.take_all(4)
    assert {each.task.command for each in found} == {"python merge.py"}
    assert {each.id for each in found} >= {"jobq.then.s7.1", "jobq.then.s7.1.1"}


@case("batches", "deduplicates", "knows_batch_ids=False")
async def an_id_that_is_taken_keeps_nothing_from_its_end(bench: Bench) -> None:
    """By whatever it is, waiting or ended: what is to be run then is there under another id, once, as it was signed."""
    same, other, done = "jobq.then.s7.1", "jobq.then.s7:1.1", "jobq.then.s7:2.1"
    await bench.backend.push([task(id=done), task(id=other), task(id=same, command="python merge.py")])
    await (await bench.take_id(done)).settle(Complete(DONE))
    text = '{"id": "jobq.then.s7:1", "command": "python merge.py"}'
    work, fields = work_in(text, (Signature("someone", b"signature"),))
    signed = Task.new(**{**fields, "created": None}, work=work).encode().decode()
    await _of(bench).begin("s7", Plan(then=(*_THEN.then, signed, *_THEN.then, *_THEN.then)))
    await bench.pushed(batch="s7")
    held = {each.id: each for each in await bench.take_all(3)}
    await _of(bench).seal("s7")
    for id_, delivery in held.items():
        if id_ not in (same, other):
            await delivery.settle(Complete(DONE))
    await _finished(bench, "s7")
    found = {each.id: each.task for each in await bench.take_all(4)}
    begin_with = ("jobq.then.s7.", "jobq.then.s7:1.", "jobq.then.s7:2.", "jobq.then.s7:3.1")
    assert all(id_.startswith(begin) for id_, begin in zip(sorted(found), begin_with, strict=True)), found
    assert [found[id_].command for id_ in sorted(found)] == ["python merge.py"] * 4
    assert not {same, other, done} & found.keys()
    assert [(each.id, each.work.text) for each in found.values() if each.work] == [(sorted(found)[1], text)]
    for verb in (_of(bench).seal, _of(bench).find):
        await verb("s7")
    await bench.nothing()


@case("batches", "knows_batch_ids")
async def an_id_that_another_task_has_keeps_nothing_from_its_end(bench: Bench) -> None:
    """Where a queue knows ids within its batches alone, no id is taken: what is run then is there, once, as signed."""
    named, done = "jobq.then.s7.1", "jobq.then.s7:2.1"
    await bench.backend.push([task(id=done), task(id=named, command="python merge.py")])
    await (await bench.take_id(done)).settle(Complete(DONE))
    text = '{"id": "jobq.then.s7:1", "command": "python merge.py"}'
    work, fields = work_in(text, (Signature("someone", b"signature"),))
    signed = Task.new(**{**fields, "created": None}, work=work).encode().decode()
    await _of(bench).begin("s7", Plan(then=(*_THEN.then, signed, *_THEN.then)))
    await bench.pushed(batch="s7")
    held = await bench.take_all(2)
    await _of(bench).seal("s7")
    for delivery in held:
        if delivery.id != named:
            await delivery.settle(Complete(DONE))
    await _finished(bench, "s7")
    found = await bench.take_all(3)
    assert sorted(each.id for each in found) == [named, "jobq.then.s7:1.1", done]
    signed_texts = [each.task.work.text for each in found if each.task.work and each.task.work.signatures]
    assert signed_texts == [text]
    for verb in (_of(bench).seal, _of(bench).find):
        await verb("s7")
    await bench.nothing()


@case("batches")
async def a_plan_that_cannot_be_carried_out_is_refused_at_once(bench: Bench) -> None:
    """Not at the end, when whoever settles the last task would meet it; nor is a name taken that can be none."""
    batches = _of(bench)
    for bad in ("", "{}", "\ud800", '{"version": 2, "id": "a", "command": "true", "batch": "s7"}'):
        with raises(MalformedTask):
            await batches.begin("s7", Plan(then=(*_THEN.then, bad)))
    for plan in (Plan(then=_THEN.then * 17), Plan(template="x" * 4097), Plan(template="\0")):
        with raises(MalformedTask):
            await batches.begin("s7", plan)
    for name in ("", ".", "a b", "x" * 65, "\0"):
        with raises(ConfigurationError):
            await batches.begin(name, Plan())
    assert await batches.list("", 10) == []
    await batches.begin("x" * 64, Plan(template="x" * 4096, then=_THEN.then * 16))
    await batches.seal("x" * 64)
    await _finished(bench, "x" * 64)
    await bench.take_all(16)


@case("batches")
async def what_several_say_of_its_end_is_done_once_each(bench: Bench) -> None:
    """Whoever says the same again adds nothing; who comes too late with more is told so."""
    batches = _of(bench)
    others = Plan(then=(Task.new(command="python other.py").encode().decode(),))
    again = Plan(then=(Task.new(command="python merge.py").encode().decode(),))
    for plan in (_THEN, others, again, others):
        await batches.begin("s7", plan)
    await batches.seal("s7")
    await _finished(bench, "s7")
    found = [await bench.take() for _ in range(2)]
    assert sorted(str(each.task.command) for each in found) == ["python merge.py", "python other.py"]
    await bench.nothing()
    await batches.begin("s7", again)
    with raises(BatchSealed):
        await batches.begin("s7", Plan(then=(Task.new(command="python late.py").encode().decode(),)))


@case("batches")
async def an_empty_batch_finishes_when_it_is_sealed(bench: Bench) -> None:
    """There is nothing to wait for."""
    await _of(bench).begin("s7", _THEN)
    await _of(bench).seal("s7")
    assert (await _finished(bench, "s7")).total == 0
    assert (await bench.take()).id == "jobq.then.s7.1"


@case("batches")
async def who_waits_for_tasks_has_what_is_run_at_an_end(bench: Bench) -> None:
    """Whether it is sealed or canceled: nobody settles then, and nobody pushes."""
    for verb in (_of(bench).seal, _of(bench).cancel):
        await _of(bench).begin(verb.__name__, _THEN)
        waiting = asyncio.create_task(bench.backend.receive(1, bench.long_lease, timedelta(minutes=1)))
        await bench.clock.advance(1.0)
        await verb(verb.__name__)
        (held,) = await bench.finish(waiting, _SECONDS)
        assert held.id == f"jobq.then.{verb.__name__}.1"


@case("batches")
async def a_sealed_batch_takes_no_new_task_and_knows_its_own(bench: Bench) -> None:
    """A push is refused whole; one whose answer was lost is answered as at first (S8)."""
    batches = _of(bench)
    await batches.begin("s7", Plan())
    mine = await bench.pushed(2, batch="s7")
    await batches.seal("s7")
    with raises(BatchSealed):
        await bench.backend.push([task(), task(batch="s7")])
    await bench.backend.push(mine)
    await bench.counts(visible=2)
    for delivery in await bench.take_all(2):
        await delivery.settle(Complete(DONE))
    await _finished(bench, "s7")
    with raises(BatchSealed):
        await bench.pushed(batch="s7")
    await bench.backend.push(mine)
    assert (await batches.find("s7")).total == 2


@case("batches")
async def a_batch_that_nobody_began_takes_nothing(bench: Bench) -> None:
    """A typo is no new batch."""
    with raises(BatchNotFound):
        await bench.backend.push([task(), task(batch="s7")])
    await bench.counts()
    batches = _of(bench)
    for verb in (batches.find, batches.seal, batches.reopen, batches.cancel):
        with raises(BatchNotFound):
            await verb("s7")
    with raises(BatchNotFound):
        await batches.members("s7", "", 10)
    await batches.begin("s7", Plan())
    await batches.begin("s8", Plan())
    assert [each.name for each in await batches.list("", 10)] == ["s7", "s8"]
    assert [each.name for each in await batches.list("s7", 10)] == ["s8"]
    assert [each.name for each in await batches.list("", 1)] == ["s7"]


@case("batches", "deduplicates", "knows_batch_ids=False")
async def an_id_of_another_batch_is_no_task_of_this_one(bench: Bench) -> None:
    """Nor of none: the same id is one task of the queue (S8)."""
    await _of(bench).begin("s7", Plan())
    await _of(bench).begin("s8", Plan())
    (mine,) = await bench.pushed(batch="s7")
    for other in ({"batch": "s8"}, {"batch": None}):
        with raises(DuplicateTask):
            await bench.backend.push([mine.copied(other)])


@case("batches")
async def an_id_of_a_batch_is_one_task_of_it(bench: Bench) -> None:
    """Pushed again it is known, while it waits and once it has ended; with another payload it is refused (S8)."""
    await _of(bench).begin("s7", Plan())
    (first, second) = await bench.pushed(2, batch="s7")
    await bench.backend.push([second, first])
    await (await bench.take_id(first.id)).settle(Complete(DONE))
    await bench.backend.push([first, second])
    await (await bench.take()).settle(MoveToDeadLetters("failures", "by the suite"))
    await bench.backend.push([first, second])
    with raises(DuplicateTask):
        await bench.backend.push([task(batch="s7"), first.copied({"command": "false"})])
    await bench.nothing()
    assert await _counts(bench, "s7") == counts_of({"succeeded": 1, "dead": 1})


@case("batches")
async def a_redrive_begins_the_next_round(bench: Bench) -> None:
    """Its end is told again, under that round; a redrive before the end begins none."""
    batches = _of(bench)
    await batches.begin("s7", _THEN)
    first, second = await bench.pushed(2, batch="s7")
    await batches.seal("s7")
    held = {each.id: each for each in await bench.take_all(2)}
    await held[first.id].settle(MoveToDeadLetters("failures", "by the suite"))
    await bench.backend.redrive([first.id])
    assert (await batches.find("s7")).round == 1
    await (await bench.take()).settle(MoveToDeadLetters("failures", "again"))
    await held[second.id].settle(MoveToDeadLetters("failures", "by the suite"))
    await _finished(bench, "s7")
    await (await bench.take_id("jobq.then.s7.1")).settle(Complete(DONE))
    dead = [each.id for each in await batches.members("s7", "", 10, "dead")]
    assert sorted(dead) == sorted([first.id, second.id])
    await bench.backend.redrive([first.id])
    again = await batches.find("s7")
    assert (again.state, again.round, again.finished) == (BatchState.SEALED, 2, None)
    with raises(BatchSealed):
        await bench.pushed(batch="s7")
    assert [each.id for each in await batches.members("s7", "", 10, "dead")] == [second.id]
    await (await bench.take_id(first.id)).settle(Complete(DONE))
    ended = await _finished(bench, "s7")
    assert dict(ended.counts) == counts_of({"succeeded": 1, "dead": 1})
    assert [each.number for each in ended.rounds] == [1, 2]
    assert (await bench.take()).id == "jobq.then.s7.2"


@case("batches")
async def reopened_it_takes_tasks_again(bench: Bench) -> None:
    """In its next round, where it has finished; else it is as if it had not been sealed."""
    batches = _of(bench)
    await batches.begin("s7", Plan())
    await bench.pushed(batch="s7")
    await batches.seal("s7")
    assert (await batches.reopen("s7")).round == 1
    await bench.pushed(batch="s7")
    await batches.seal("s7")
    for delivery in await bench.take_all(2):
        await delivery.settle(Complete(DONE))
    await _finished(bench, "s7")
    for _ in range(2):
        again = await batches.reopen("s7")
        assert (again.state, again.round, again.sealed, again.finished) == (BatchState.OPEN, 2, None, None)
    await bench.pushed(batch="s7")
    await batches.seal("s7")
    await (await bench.take()).settle(Complete(DONE))
    assert (await _finished(bench, "s7")).total == 3


@case("batches")
async def canceled_it_ends_what_waits_and_asks_what_runs(bench: Bench) -> None:
    """It has finished when that has ended, too; a task that comes back has ended with that."""
    batches = _of(bench)
    await batches.begin("s7", Plan())
    await bench.pushed(batch="s7")
    running = await bench.take()
    await bench.pushed(2, batch="s7")
    await bench.pushed(1, batch="s7", not_before=bench.clock.wall() + 3600)
    (other,) = await bench.pushed()
    canceled = await batches.cancel("s7")
    assert canceled.is_canceled
    assert await _counts(bench, "s7") == counts_of({"running": 1, "canceled": 3})
    await _stays(bench, "s7", BatchState.SEALED)
    await bench.heard()
    assert (await running.renew(bench.lease)).cancel
    await running.settle(Requeue(running.task.counters.raised(preemptions=1), timedelta(0)))
    ended = await _finished(bench, "s7")
    assert dict(ended.counts) == counts_of({"canceled": 4})
    assert (await bench.take()).id == other.id
    await bench.nothing()


@case("batches")
async def canceled_it_ends_what_a_dead_worker_held(bench: Bench) -> None:
    """Whether its lease has run out by then or later: with no worker left, the batch never ended."""
    batches = _of(bench)
    for name, is_before in (("s7", True), ("s8", False)):
        await batches.begin(name, Plan())
        await bench.pushed(batch=name)
        await bench.take()
        if is_before:
            await bench.expire()
        await batches.cancel(name)
        if not is_before:
            await bench.expire()
        if bench.capabilities.journal_lags:
            back = await bench.take()  # there the queue alone knows that the lease has run out
            assert back.cancel_requested
            await back.settle(Complete(then="canceled"))
        assert dict((await _finished(bench, name)).counts) == counts_of({"canceled": 1})
    await bench.nothing()


@case("batches")
async def what_is_put_back_while_a_batch_is_canceled_is_canceled_too(bench: Bench) -> None:
    """Nothing of it begins again before it has finished; then it is its next round, which nobody has canceled."""
    batches = _of(bench)
    await batches.begin("s7", Plan())
    await bench.pushed(3, batch="s7")
    first, second, running = await bench.take_all(3)
    for each in (first, second):
        await each.settle(MoveToDeadLetters("failures", "by the suite"))
    await batches.cancel("s7")
    assert await bench.backend.redrive([first.id]) == [first.id]
    await _stays(bench, "s7", BatchState.SEALED)
    await bench.nothing()
    found = await batches.find("s7")
    assert (found.round, found.is_canceled, dict(found.counts)) == (
        1, True, counts_of({"running": 1, "dead": 1, "canceled": 1})
    )  # fmt: skip
    await bench.heard()
    assert (await running.renew(bench.lease)).cancel
    await running.settle(Complete(DONE))
    assert (await _finished(bench, "s7")).is_canceled
    await bench.backend.redrive([second.id])
    again = await batches.find("s7")
    assert (again.state, again.round, again.is_canceled) == (BatchState.SEALED, 2, False)
    await (await bench.take_id(second.id)).settle(Complete(DONE))
    assert dict((await _finished(bench, "s7")).counts) == counts_of({"succeeded": 2, "canceled": 1})


@case("batches")
async def what_is_deleted_is_counted_as_gone(bench: Bench) -> None:
    """Cleared, or purged: the counts are of all that was pushed, and who waits for the end hears of it."""
    batches = _of(bench)
    await batches.begin("s7", _THEN)
    await bench.pushed(3, batch="s7")
    await batches.seal("s7")
    await (await bench.take()).settle(Complete(DONE))
    lost = await bench.take()
    await lost.settle(MoveToDeadLetters("failures", "by the suite"))
    await bench.backend.clear()
    ended = await _finished(bench, "s7")
    assert dict(ended.counts) == counts_of({"succeeded": 1, "dead": 1, "gone": 1})
    await bench.backend.purge_dead([lost.id])
    assert await _counts(bench, "s7") == counts_of({"succeeded": 1, "gone": 2})
    assert (await batches.find("s7")).round == 1
    assert (await bench.take()).id == "jobq.then.s7.1"


@case("batches")
async def counts_follow_every_state(bench: Bench) -> None:
    """Of a task that runs, runs out, comes back at once or later; its sum never changes."""
    batches = _of(bench)
    await batches.begin("s7", Plan())
    await bench.pushed(batch="s7")
    assert await _counts(bench, "s7") == counts_of({"ready": 1})
    delivery = await bench.take()
    assert await _counts(bench, "s7") == counts_of({"running": 1})
    await delivery.settle(Release())
    assert await _counts(bench, "s7") == counts_of({"ready": 1})
    delivery = await bench.take()
    await delivery.settle(Requeue(delivery.task.counters.raised(failures=1), timedelta(seconds=2)))
    assert await _counts(bench, "s7") == counts_of({"scheduled": 1})
    await bench.clock.advance(3)
    assert await _counts(bench, "s7") == counts_of({"ready": 1})
    delivery = await bench.take()
    await bench.expire()
    expired = await _counts(bench, "s7")
    assert expired in (counts_of({"expired": 1}), counts_of({"ready": 1})), expired
    await (await bench.take()).settle(Complete(DONE))
    assert await _counts(bench, "s7") == counts_of({"succeeded": 1})


@case("batches")
async def params_are_kept_with_the_task(bench: Bench) -> None:
    """Texts and numbers come back as they were, by pages in the order of ids; they make no other task of it."""
    batches = _of(bench)
    await batches.begin("s7", Plan())
    params: list[dict[str, Any]] = [{"lr": 0.1, "seed": 7, "name": 'a "ü" \n'}, {"lr": 1e-7}, {}]
    given = [task(id=f"s7.{number}", batch="s7", params=each or None) for number, each in enumerate(params)]
    await bench.backend.push(given)
    await bench.backend.push([given[0].copied({"params": {"lr": 0.2}})])
    await (await bench.take_id("s7.0")).settle(Complete(DONE))
    await (await bench.take_id("s7.1")).settle(MoveToDeadLetters("failures", "by the suite"))
    first = await batches.members("s7", "", 2)
    rest = await batches.members("s7", first[-1].id, 2)
    found = [*first, *rest]
    assert [each.id for each in found] == ["s7.0", "s7.1", "s7.2"]
    assert [dict(each.params) for each in found] == params
    assert [each.state for each in found] == ["succeeded", "dead", "ready"]
    for number, each in enumerate(found):
        assert [type(value) for value in each.params.values()] == [type(value) for value in params[number].values()]


@case("batches")
async def a_task_says_its_batch_wherever_it_is(bench: Bench) -> None:
    """In the journal as a dead letter; what runs is found by its batch, and a batch that has finished is left out."""
    batches, backend = _of(bench), bench.backend
    for name in ("s7", "s8"):
        await batches.begin(name, Plan())
    await batches.seal("s8")
    (other,) = await bench.pushed()
    await bench.take()
    pushed = {each.id for each in await bench.pushed(4, batch="s7")}
    held = {each.id: each for each in [await bench.take() for _ in range(3)]}
    done, dead, runs = held
    (waits,) = pushed - held.keys()
    await held[done].settle(Complete(DONE))
    await held[dead].settle(MoveToDeadLetters("failures", "by the suite"))
    assert [(each.id, each.batch) for each in await backend.dead_letters(10)] == [(dead, "s7")]
    await _finished(bench, "s8")
    assert [each.name for each in await batches.list("", 10, unfinished=True)] == ["s7"]
    assert [each.name for each in await batches.list("", 10)] == ["s7", "s8"]
    journal = backend.journal if isinstance(backend, KeepsJournal) else None
    if journal is not None:
        await bench.heard()
        found = {each.id: each.batch for each in await journal.find([other.id, done, dead, runs, waits])}
        assert found == {other.id: None, **dict.fromkeys((done, dead, runs, waits), "s7")}, found
        assert {each.id: each.batch for each in await journal.running(10)} == {other.id: None, runs: "s7"}
        assert [each.id for each in await journal.running(10, "s7")] == [runs]
        assert await journal.running(10, "none") == []
        assert {each.id: each.batch for each in await journal.unfinished("", 10)} == {
            other.id: None, runs: "s7", waits: "s7"
        }  # fmt: skip


@case("batches")
async def how_long_the_rest_takes_is_told_by_what_ended_in_this_round(bench: Bench) -> None:
    """Once two have ended, done or dead; not by what was canceled, of another batch, or in a round before."""
    batches = _of(bench)
    await batches.begin("s8", Plan())
    await bench.pushed(3, batch="s8")
    runs = await bench.take()
    await batches.cancel("s8")
    other = await batches.find("s8")
    assert (other.state, other.counts["canceled"], other.rate) == (BatchState.SEALED, 2, None)
    await runs.settle(Complete(DONE))
    await batches.begin("s7", Plan())
    await bench.pushed(8, batch="s7")
    first = await bench.take()
    assert (await batches.find("s7")).rate is None
    await first.settle(Complete(DONE))
    assert (await batches.find("s7")).rate is None, "one is no pace"
    await bench.clock.advance(2.0)
    second, third, *rest = await bench.take_all(7)
    await second.settle(Complete(DONE))
    await third.settle(MoveToDeadLetters("failures", "by the suite"))
    seen = await batches.find("s7")
    assert seen.rate is not None
    assert 0.1 <= seen.rate <= 1.0, seen.rate  # two in about two seconds after the first
    assert seen.seconds_left is None, "more may come"
    left = (await batches.seal("s7"), await batches.find("s7"))[1].seconds_left
    assert left is not None
    assert 5.0 <= left <= 50.0, left  # five at that rate
    for each in rest:
        await each.settle(Complete(DONE))
    await _finished(bench, "s7")
    await bench.clock.advance(1.0)
    await bench.backend.redrive([third.id])
    assert ((await batches.find("s7")).round, (await batches.find("s7")).rate) == (2, None)


def _of(bench: Bench) -> Batches:
    return batches_of(bench.backend)


async def _counts(bench: Bench, name: str) -> dict[str, int]:
    return dict((await batches_of(await bench.handle()).find(name)).counts)


async def _stays(bench: Bench, name: str, state: BatchState) -> None:
    await bench.clock.advance(1.0)
    assert (await _of(bench).find(name)).state is state


async def _finished(bench: Bench, name: str) -> Batch:
    """Return the batch once it has finished; a worker that looks for tasks meanwhile is enough for that."""
    until = bench.clock.boottime() + _SECONDS
    while (found := await _of(bench).find(name)).state is not BatchState.FINISHED:
        assert bench.clock.boottime() < until, f"it has not finished: {found}"
        await bench.clock.advance(0.25)
    return found
