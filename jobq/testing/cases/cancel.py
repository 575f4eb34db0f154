"""Canceling: what waits has ended with the answer, what runs is stopped, and neither runs again."""

from datetime import timedelta
from typing import Final

from jobq.batch_plan import Plan
from jobq.batches import batches_of
from jobq.journal.records import Attempt, Canceled, TaskState
from jobq.journal.store import Journal, journal_of
from jobq.pausing import Pausable, Pause
from jobq.settlement import Complete, MoveToDeadLetters, Record, Release, Requeue
from jobq.task import OutcomeKind
from jobq.testing.cases import case
from jobq.testing.harness import DONE, NOW, Bench

_LATER: Final = timedelta(hours=1)


@case("views", "journal_lags=False")
async def what_waits_and_is_canceled_has_ended(bench: Bench) -> None:
    """At once, and for good: it is not handed out, is no dead letter, and may be canceled again."""
    (done,) = await bench.pushed()
    await (await bench.take()).settle(Complete(DONE))
    dead = await bench.bury()
    waits, other = await bench.pushed(2)
    (later,) = await bench.pushed(not_before=bench.clock.wall() + 2)
    journal = _of(bench)
    asked = [waits.id, later.id, done.id, dead.id, "no-such-task"]
    answers = [Canceled.CANCELED, Canceled.CANCELED, Canceled.ENDED, Canceled.ENDED, Canceled.UNKNOWN]
    for _ in range(2):
        assert await journal.cancel(asked) == answers
    for each in (waits, later):
        found = await bench.record(each.id)
        assert (found.state, found.body, found.result().outcome) == (TaskState.CANCELED, b"", OutcomeKind.CANCELED)
    assert [each.id for each in await bench.backend.dead_letters(10)] == [dead.id]
    await bench.counts(visible=1, dead=1)
    assert (await journal.stats(60)).states["canceled"] == 2
    assert (await bench.take(lease=bench.long_lease)).id == other.id
    await bench.clock.advance(3)
    await bench.nothing()


@case("views", "journal_lags=True")
async def what_waits_and_is_canceled_is_handed_out_to_be_ended(bench: Bench) -> None:
    """A journal beside its queue takes nothing out of it: the record says what is to come, until a worker ends it."""
    waits, other = await bench.pushed(2)
    await bench.recorded()
    for _ in range(2):
        assert await _of(bench).cancel([waits.id]) == [Canceled.CANCELED]
    found = await bench.record(waits.id)
    assert (found.state, found.cancel_requested) == (TaskState.READY, True)
    held = {each.id: each for each in await bench.take_all(2)}
    assert {each.id: each.cancel_requested for each in held.values()} == {waits.id: True, other.id: False}
    await held[waits.id].settle(Complete(then="canceled"))
    assert (await bench.record(waits.id)).state is TaskState.CANCELED
    assert await _of(bench).cancel([waits.id]) == [Canceled.CANCELED]


@case("views")
async def what_runs_and_is_canceled_hears_of_it_with_its_renewal(bench: Bench) -> None:
    """Its neighbour does not (S11); its end is recorded as the worker tells it."""
    pushed, other = await bench.pushed(2)
    held = {each.id: each for each in await bench.take_all(2)}
    await bench.recorded()
    for _ in range(2):
        assert await _of(bench).cancel([pushed.id]) == [Canceled.STOPPING]
    found = await bench.record(pushed.id)
    assert (found.state, found.cancel_requested) == (TaskState.RUNNING, True)
    await bench.heard()
    delivery = held[pushed.id]
    assert [(await each.renew(bench.lease)).cancel for each in (delivery, held[other.id])] == [True, False]
    record = Record(Attempt(attempt=1, outcome=OutcomeKind.CANCELED, then="canceled", ended=bench.clock.wall()))
    await delivery.settle(Complete(then="canceled", record=record))
    found = await bench.record(pushed.id)
    assert (found.state, found.result().outcome) == (TaskState.CANCELED, OutcomeKind.CANCELED)
    assert found.last is not None
    assert found.last.then == "canceled"
    assert await _of(bench).cancel([pushed.id]) == [Canceled.CANCELED]
    await held[other.id].settle(Complete(DONE))
    await bench.recorded()
    assert await _of(bench).cancel([other.id]) == [Canceled.ENDED]


@case("views")
async def a_cancel_outlives_the_attempt_that_did_not_hear_of_it(bench: Bench) -> None:
    """Its worker has failed, gives the task back or is dead: the task does not run again; a dead letter stays one."""
    tried, given, lost, dead = pushed = await bench.pushed(4)
    held = {each.id: each for each in await bench.take_all(4)}
    await bench.recorded()
    assert await _of(bench).cancel([each.id for each in pushed]) == [Canceled.STOPPING] * 4
    await held[tried.id].settle(Requeue(held[tried.id].task.requeued(failures=1).counters, NOW))
    await held[given.id].settle(Release())
    await held[dead.id].settle(MoveToDeadLetters("failures", "no"))
    await bench.expire()
    canceled = {tried.id, given.id, lost.id}
    if bench.capabilities.journal_lags:
        for each in await bench.take_all(3):
            assert each.cancel_requested
            await each.settle(Complete(then="canceled"))
    await bench.nothing()
    await bench.recorded()
    found = {each.id: each.state for each in await _of(bench).find([each.id for each in pushed])}
    assert found == {dead.id: TaskState.DEAD} | dict.fromkeys(canceled, TaskState.CANCELED)
    await bench.backend.redrive([dead.id])
    assert not (await bench.take()).cancel_requested, "who retries it wants it to run"


@case("views")
async def what_a_dead_worker_held_is_canceled_before_it_is_handed_on(bench: Bench) -> None:
    """Whoever asks first, a canceler or the next worker: its lease is over, and it does not start again."""
    (pushed,) = await bench.pushed()
    await bench.take()
    await bench.expire()
    await bench.recorded()
    (answer,) = await _of(bench).cancel([pushed.id])
    assert answer is Canceled.CANCELED or bench.capabilities.journal_lags
    if bench.capabilities.journal_lags:
        again = await bench.take()
        assert again.cancel_requested
        await again.settle(Complete(then="canceled"))
    await bench.nothing()
    assert (await bench.record(pushed.id)).state is TaskState.CANCELED


@case("views", "pauses", "journal_lags=False")
async def a_pause_holds_up_no_cancel_of_what_a_dead_worker_held(bench: Bench) -> None:
    """It stayed leased, or waiting, until somebody resumed."""
    (pushed,) = await bench.pushed()
    await bench.take()
    assert await _of(bench).cancel([pushed.id]) == [Canceled.STOPPING]
    assert isinstance(bench.backend, Pausable)
    await bench.backend.pause(Pause(at=1.7e9, by="ada@host"))
    await bench.expire()
    await bench.nothing()
    assert (await bench.record(pushed.id)).state is TaskState.CANCELED
    assert (await bench.backend.stats()).unfinished == 0


@case("views", "batches")
async def the_journal_says_what_a_canceled_batch_has_ended(bench: Bench) -> None:
    """What waits, what was tried or given back and is put off, and what is put back while the cancel goes on."""
    batches = batches_of(bench.backend)
    await batches.begin("s7", Plan())
    waits, tried, given, dead, runs = pushed = await bench.pushed(5, batch="s7")
    held = {each.id: each for each in await bench.take_all(5)}
    await held[waits.id].settle(Release())
    await held[tried.id].settle(Requeue(held[tried.id].task.requeued(failures=1).counters, _LATER))
    await held[given.id].settle(Release(_LATER))
    await held[dead.id].settle(MoveToDeadLetters("failures", "no"))
    await held[runs.id].renew(bench.long_lease)
    await bench.recorded()
    await batches.cancel("s7")
    await bench.backend.redrive([dead.id])
    await bench.nothing()
    await bench.recorded()
    found = {each.id: each.state for each in await _of(bench).find([each.id for each in pushed])}
    canceled = dict.fromkeys((waits.id, tried.id, given.id, dead.id), TaskState.CANCELED)
    assert found == canceled | {runs.id: TaskState.RUNNING}


def _of(bench: Bench) -> Journal:
    return journal_of(bench.backend)
