"""The journal: where each task is, what its attempts came to, and what is counted of them."""

from dataclasses import replace
from datetime import timedelta
from typing import Final

from jobq.backend import Delivery
from jobq.errors import LockLost, QueueNotFound
from jobq.journal.records import RELEASED, Attempt, Beat, Canceled, TaskRecord, TaskState
from jobq.journal.store import Journal, journal_of
from jobq.settlement import TAIL_CHARACTERS, Complete, MoveToDeadLetters, Record, Release, Requeue
from jobq.task import OutcomeKind, Usage
from jobq.testing.cases import case
from jobq.testing.harness import DONE, NOW, Bench, raises, task

_OUTPUT: Final = "a NUL \0, é, \U0001f600 and\nthe end"


@case("views")
async def a_task_is_known_through_its_whole_life(bench: Bench) -> None:
    """Its state, how often it was handed out, who holds it and until when, why it died; and its body until its end."""
    (pushed,) = await bench.pushed()
    ready = await bench.record(pushed.id)
    assert (ready.state, ready.attempt, ready.holder, ready.lease_left) == (TaskState.READY, 0, None, None)
    assert ready.body
    delivery = await bench.take(lease=bench.long_lease)
    running = await bench.record(pushed.id)
    assert (running.state, running.attempt) == (TaskState.RUNNING, 1)
    assert running.holder
    assert running.leased_at is not None
    assert abs(running.leased_at - bench.clock.wall()) < 60
    assert running.lease_left is not None
    assert 0 < running.lease_left <= bench.long_lease.total_seconds()
    await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, timedelta(seconds=2)))
    scheduled = await bench.record(pushed.id)
    assert (scheduled.state, scheduled.lease_left) == (TaskState.SCHEDULED, None)
    assert scheduled.at is not None
    assert -2 < scheduled.at - bench.clock.wall() < 60
    await bench.clock.advance(3)
    assert (await bench.record(pushed.id)).state is TaskState.READY
    await bench.take()
    await bench.expire()
    expired = await bench.record(pushed.id)
    assert (expired.state, expired.attempt) == (TaskState.EXPIRED, 2)
    assert expired.lease_left is not None
    assert expired.lease_left <= 0
    delivery = await bench.take()
    await delivery.settle(MoveToDeadLetters("failures", "ünd so\nwent it", record=_record(bench, delivery, "dead")))
    dead = await bench.record(pushed.id)
    assert (dead.state, dead.reason, dead.attempt) == (TaskState.DEAD, "failures", 3)
    assert dead.description == "ünd so\nwent it"
    assert dead.at is not None
    assert abs(dead.at - bench.clock.wall()) < 60
    assert await bench.backend.redrive([pushed.id]) == [pushed.id]
    assert (await bench.record(pushed.id)).state is TaskState.READY
    delivery = await bench.take()
    await delivery.settle(Complete(DONE, record=_record(bench, delivery, "done")))
    done = await bench.record(pushed.id)
    assert (done.state, done.attempt, done.body) == (TaskState.SUCCEEDED, 4, b"")
    assert (done.holder, done.lease_left, done.beat) == (None, None, None)


@case("views")
async def an_attempt_is_kept_as_it_was_told(bench: Bench) -> None:
    """What it came to, on which host, what it used and returned; each with its own output, under its own number."""
    (pushed,) = await bench.pushed()
    now = bench.clock.wall()
    whole = Attempt(
        attempt=1, outcome=OutcomeKind.FAILED, then="retry", ended=now, started=now - 2.5, host="node-7", pid=17,
        detail="exit code 3: ünd \0", exit_code=3, usage=Usage(cpu_seconds=1.5, max_rss_bytes=2**33, processes=4),
        value={"loss": [0.25, None, "é"]}, program="python", waited=0.5,
    )  # fmt: skip
    killed = Attempt(attempt=2, outcome=OutcomeKind.CRASHED, then="done", ended=now, signal=9)
    first = await bench.take()
    await first.settle(Requeue(first.task.requeued(failures=1).counters, NOW, record=Record(whole, _OUTPUT)))
    printed = "".join(map(str, range(15_000)))
    await (await bench.take()).settle(Complete(DONE, record=Record(killed, printed)))
    record = await bench.record(pushed.id)
    found = await _of(bench).attempts(pushed.id)
    assert [replace(each, ended=now, started=None) for each in found] == [replace(whole, started=None), killed]
    assert found[0].started is not None, "it may be dated by the store, and took as long as it took"
    assert abs(found[0].ended - found[0].started - 2.5) < 0.01
    assert all(abs(each.ended - now) < 60 for each in found)
    assert record.last == found[1]
    journal = _of(bench)
    assert await journal.output(pushed.id, 1) == (1, _OUTPUT)
    number, kept = await journal.output(pushed.id) or (0, "")
    assert number == 2
    assert printed.endswith(kept)
    assert len(kept) >= TAIL_CHARACTERS
    assert await journal.output(pushed.id, 3) is None


@case("views")
async def each_way_out_of_an_attempt_is_recorded_once(bench: Bench) -> None:
    """Given back, lost with its worker, tried again, dead, put back, done; a settle that is refused is none."""
    (pushed,) = await bench.pushed()
    await (await bench.take()).settle(Release())
    lost = await bench.take()
    await bench.expire()
    delivery = await bench.take()
    with raises(LockLost):
        await lost.settle(Complete(DONE, record=_record(bench, lost, "done")))
    requeue = Requeue(delivery.task.requeued(failures=1).counters, NOW, record=_record(bench, delivery, "retry"))
    await delivery.settle(requeue)
    if bench.capabilities.idempotent_settle:
        await delivery.settle(requeue)
    delivery = await bench.take()
    await delivery.settle(MoveToDeadLetters("failures", "no", record=_record(bench, delivery, "dead")))
    await bench.backend.redrive([pushed.id])
    delivery = await bench.take()
    for _ in range(2 if bench.capabilities.idempotent_settle else 1):
        await delivery.settle(Complete(DONE, record=_record(bench, delivery, "done")))
    await bench.recorded()
    found = await _of(bench).attempts(pushed.id)
    assert [(each.attempt, each.outcome, each.then) for each in found] == [
        (1, RELEASED, "retry"),
        (2, OutcomeKind.LOCK_LOST, "lost"),
        (3, OutcomeKind.FAILED, "retry"),
        (4, OutcomeKind.FAILED, "dead"),
        (5, OutcomeKind.SUCCEEDED, "done"),
    ]
    assert found[1].host, "whose it was is known"
    assert "died" in found[1].detail


@case("views")
async def how_a_running_attempt_is_comes_with_its_renewals(bench: Bench) -> None:
    """The last that was said stays until the attempt ends; what was saved of it is the next attempt's, too (S9)."""
    (pushed,) = await bench.pushed()
    delivery = await bench.take(lease=bench.long_lease)
    assert delivery.journaled
    said = Beat(
        at=bench.clock.wall(), progress=0.25, text="épochs", cpu_seconds=1.5, cores=2.0, rss_bytes=2**33, processes=3,
        output=_OUTPUT,
    )  # fmt: skip
    await delivery.renew(bench.long_lease, replace(said, progress=0.125))
    await delivery.renew(bench.long_lease, said)
    await delivery.renew(bench.long_lease)
    if bench.capabilities.native_checkpoint:
        await delivery.checkpoint("ünd/2")
    found = await bench.record(pushed.id)
    assert found.beat is not None
    assert replace(found.beat, at=said.at) == said
    assert abs(found.beat.at - said.at) < 60
    assert found.checkpoint == ("ünd/2" if bench.capabilities.native_checkpoint else None)
    await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW))
    assert (await bench.record(pushed.id)).beat is None
    await bench.take()
    again = await bench.record(pushed.id)
    assert (again.state, again.beat, again.checkpoint) == (TaskState.RUNNING, None, found.checkpoint)


@case("views")
async def an_end_that_nobody_told_is_no_earlier_attempts(bench: Bench) -> None:
    """A worker without a journal completes what failed under one that has it."""
    (pushed,) = await bench.pushed()
    delivery = await bench.take()
    record = _record(bench, delivery, "retry", exit_code=3)
    await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW, record=record))
    await (await bench.take()).settle(Complete(DONE))
    result = (await bench.record(pushed.id)).result()
    assert result.outcome == OutcomeKind.SUCCEEDED
    assert result.exit_code in (None, DONE.exit_code), "what was settled, where the service records that"


@case("views")
async def what_runs_is_listed_the_longest_first(bench: Bench) -> None:
    """As many as asked for, with those whose lease is over, and without what waits or has ended."""
    await bench.pushed(4)
    held = []
    for _ in range(3):
        held.append(await bench.take(lease=bench.long_lease))
        await bench.clock.advance(0.1)
    await held.pop(1).settle(Complete(DONE))
    await bench.recorded()
    journal = _of(bench)
    assert [each.id for each in await journal.running(10)] == [each.id for each in held]
    assert [each.id for each in await journal.running(1)] == [held[0].id]
    assert await journal.running(0) == []
    await held[0].settle(Release())
    await bench.take_id(held[0].id)
    await bench.expire()
    found = {each.id: each.state for each in await journal.running(10)}
    assert found[held[0].id] is TaskState.EXPIRED
    assert held[1].id in found


@case("views")
async def what_has_not_ended_is_walked_through_page_by_page(bench: Bench) -> None:
    """Each once, whatever the store makes of letters and marks; nothing of what has ended."""
    ids = [f"{letter}{mark}{number}" for letter in "aBc" for mark in "-._" for number in range(3)]
    await bench.backend.push([task(id=id_, command=f"echo {id_}") for id_ in ids])
    held = await bench.take_all(len(ids))
    for number, delivery in enumerate(held):
        if number % 3:
            await delivery.settle(Complete(DONE) if number % 3 == 1 else MoveToDeadLetters("failures", "no"))
    left = sorted(each.id for each in held[::3])
    await bench.recorded()
    for size in (1, 4, len(left), 100):
        seen = list[TaskRecord]()
        while page := await _of(bench).unfinished(seen[-1].id if seen else "", size):
            assert len(page) <= size
            seen += page
        assert sorted(each.id for each in seen) == left, f"in pages of {size}"
        assert all(each.state in {TaskState.RUNNING, TaskState.EXPIRED} for each in seen)


@case("views")
async def ids_are_found_by_a_part_of_them(bench: Bench) -> None:
    """Of what waits and of what has ended; letter for letter, and no more than asked for."""
    await bench.backend.push([task(id=f"train.{number}") for number in range(4)] + [task(id="Train_.4")])
    await (await bench.take_id("train.0")).settle(Complete(DONE))
    await bench.recorded()
    journal = _of(bench)
    assert sorted(await journal.ids_with("rain.", 10)) == [f"train.{number}" for number in range(4)]
    assert await journal.ids_with("train.2", 10) == ["train.2"]
    assert await journal.ids_with("_", 10) == ["Train_.4"]
    assert len(await journal.ids_with("train", 2)) == 2
    assert await journal.ids_with("eval", 10) == []


@case("views")
async def counts_are_of_states_and_of_what_ended_lately(bench: Bench) -> None:
    """All states are named; only attempts within the window count, and the rate is that since the first of them."""
    empty = await _of(bench).stats(60)
    assert (empty.oldest_ready_seconds, empty.ended, empty.first_ended_seconds) == (None, {}, None)
    assert dict(empty.states) == dict.fromkeys(map(str, TaskState), 0)
    for then in ("done", "done", "dead"):
        await bench.pushed()
        delivery = await bench.take()
        record = _record(bench, delivery, then)
        await delivery.settle(
            Complete(DONE, record=record) if then == "done" else MoveToDeadLetters("failures", "", record=record)
        )
    await bench.pushed()
    await bench.take(lease=bench.long_lease)
    await bench.pushed(2, not_before=bench.clock.wall() + 3600)
    await bench.pushed(3)
    await bench.clock.advance(2)
    await bench.recorded()
    found = await _of(bench).stats(3600)
    wanted = {"ready": 3, "scheduled": 2, "running": 1, "succeeded": 2, "dead": 1, "expired": 0, "canceled": 0}
    assert dict(found.states) == wanted
    assert found.oldest_ready_seconds is not None
    assert dict(found.ended) == {"succeeded": 2, "failed": 1}
    assert found.first_ended_seconds is not None
    assert 2 <= found.first_ended_seconds < 60
    assert 3 / 60 < found.rate <= 1.5
    assert found.seconds_left is not None
    past = await _of(bench).stats(1.0)
    assert (dict(past.ended), past.window_seconds) == ({}, 1.0)


@case("views")
async def of_what_is_not_there_nothing_is_known(bench: Bench) -> None:
    """Nor of what was cleared or purged; a queue that is not there is said to be none."""
    dead, (cleared,) = await bench.bury(), await bench.pushed()
    await (await bench.take()).settle(Release())
    await bench.backend.clear()
    assert await bench.backend.purge_dead([dead.id]) == [dead.id]
    await bench.recorded()
    journal, ids = _of(bench), [cleared.id, dead.id, "no-such-task"]
    await journal.find(ids)  # a journal beside its queue looks twice: a worker may have it, and write so in a moment
    assert await journal.find(ids) == []
    assert await journal.find([]) == []
    assert await journal.cancel(["no-such-task"]) == [Canceled.UNKNOWN]
    assert await journal.cancel([]) == []
    for id_ in ids[bench.capabilities.journal_lags :]:  # a `clear` beside the queue leaves attempts to be swept
        assert await journal.attempts(id_) == []
        assert await journal.output(id_) is None
        assert await journal.ids_with(id_, 5) == []
    assert (await journal.running(5), await journal.unfinished("", 5)) == ([], [])
    if bench.capabilities.whole_views:
        missing = journal_of(await bench.handle(bench.harness.queue_name()))
        for call in (missing.find(["x"]), missing.running(1), missing.attempts("x"), missing.cancel(["x"])):
            with raises(QueueNotFound):
                await call


@case("views")
async def an_id_that_is_pushed_again_is_another_task(bench: Bench) -> None:
    """Where its former one is gone, or the service knows no ids: nothing of that is told of this one, or ends it."""
    for number in range(2):
        await bench.backend.push([task(id="nightly")])
        assert (await bench.record("nightly")).state is TaskState.READY
        delivery = await bench.take()
        assert not delivery.cancel_requested
        found = await bench.record("nightly")
        assert (found.state, found.cancel_requested) == (TaskState.RUNNING, False)
        assert await _of(bench).cancel(["nightly"]) == [Canceled.STOPPING]
        record = _record(bench, delivery, "dead", exit_code=number)
        await delivery.settle(MoveToDeadLetters("failures", f"exit code {number}", record=record))
        found = await bench.record("nightly")
        assert (found.state, found.description) == (TaskState.DEAD, f"exit code {number}")
        attempts = await _of(bench).attempts("nightly")
        assert attempts[-1].exit_code == number
        assert len(attempts) == 1 or not bench.capabilities.deduplicates, "those of the former one are gone with it"
        if bench.capabilities.deduplicates:
            assert await bench.backend.purge_dead(["nightly"]) == ["nightly"]
        await bench.clock.advance(1.0)  # of two pushes within a second some services do not know the order


def _of(bench: Bench) -> Journal:
    return journal_of(bench.backend)


def _record(bench: Bench, delivery: Delivery, then: str, exit_code: int | None = None) -> Record:
    outcome = OutcomeKind.SUCCEEDED if then == "done" else OutcomeKind.FAILED
    attempt = Attempt(
        attempt=delivery.deliveries, outcome=outcome, then=then, ended=bench.clock.wall(), exit_code=exit_code
    )
    return Record(attempt, "")
