"""What is noted of a queue from time to time: kept under kind and key, listed in order, counted by outcome."""

import asyncio
from dataclasses import replace
from datetime import timedelta

from jobq.backend import Backend
from jobq.clock import Clock, SystemClock
from jobq.errors import ConfigurationError, QueueNotFound
from jobq.journal.changes import QueueChange, change_key
from jobq.journal.minutes import MINUTE, MOST_SAMPLED, EndedAttempts, QueueDepth, start_of
from jobq.journal.notes import DEPTH_MARK, MOST_KEY, MOST_NOTES, MOST_VALUE, NoteKind, time_key
from jobq.journal.observations import Observations, Observed
from jobq.journal.observing import Observer
from jobq.journal.presence import WorkerPresence
from jobq.journal.records import Attempt, TaskState
from jobq.journal.store import journal_of
from jobq.journal.views import KeepsViews
from jobq.settlement import Complete, MoveToDeadLetters, Record, Release, Requeue
from jobq.task import OutcomeKind
from jobq.testing.cases import case
from jobq.testing.harness import DONE, NOW, Bench, raises

_AMPLE = timedelta(seconds=10)  # for a machine that is busy with other cases
_PRESENCE = WorkerPresence(holder="host:1", host="host", version="1", slots=2, busy=1, state="working", started=1.7e9)


@case("views")
async def a_note_is_kept_under_its_kind_and_key(bench: Bench) -> None:
    """The first stays, unless the next replaces it; who writes hears which it was, and the store's time."""
    notes = _of(bench.backend)
    values = [replace(_PRESENCE, busy=busy).encode() for busy in range(5)]
    first = await notes.put(NoteKind.WORKER, "a", values[1], replaces=False)
    second = await notes.put(NoteKind.WORKER, "a", values[2], replaces=False)
    assert (first.is_kept, second.is_kept) == (True, False)
    assert abs(first.at - bench.clock.wall()) < 60
    assert [(note.key, note.value) for note in await notes.page(NoteKind.WORKER, "", 10)] == [("a", values[1])]
    assert (await notes.put(NoteKind.WORKER, "a", values[3], replaces=True)).is_kept
    assert (await notes.put(NoteKind.WORKER, "b", values[4], replaces=True)).is_kept
    others, ended = [_of(await bench.handle()) for _ in range(4)], EndedAttempts(outcomes={}).encode()
    puts = (each.put(NoteKind.ENDED, time_key(0), ended, replaces=False) for each in others)
    assert sum(each.is_kept for each in await asyncio.gather(*puts)) == 1, "of many at once one has the turn"
    found = await notes.page(NoteKind.WORKER, "", 10)
    assert [(note.key, note.value) for note in found] == [("a", values[3]), ("b", values[4])]
    assert all(0.0 <= note.age < 60 for note in found)


@case("views")
async def notes_are_listed_page_by_page_in_the_order_of_keys(bench: Bench) -> None:
    """By code points, whatever the database makes of letters; also for who only looks."""
    notes = _of(bench.backend)
    keys = ["Z", "a:1", "a:10", "a:2", "é", "0", "~"]
    for key in keys:
        await notes.put(NoteKind.WORKER, key, _PRESENCE.encode(), replaces=False)
    assert isinstance(bench.backend, KeepsViews)
    views = await bench.entered(bench.backend.views())
    for size in (1, 3, MOST_NOTES):
        for which in (notes.page, lambda *page: views.notes(bench.queue, *page)):
            found: list[str] = []
            while page := await which(NoteKind.WORKER, found[-1] if found else "", size):
                assert len(page) <= size
                found += [note.key for note in page]
            assert found == sorted(keys)
    assert await views.notes(bench.queue, NoteKind.CHANGE, "", 1) == []


@case("views")
async def notes_are_dropped_by_key_alone(bench: Bench) -> None:
    """Repeating it is safe, and other kinds and queues keep theirs."""
    notes = _of(bench.backend)
    other = await bench.handle(bench.harness.queue_name())
    await other.create()
    assert isinstance(other, Observed)
    others = other.observations()
    assert others is not None
    first, second, third = map(time_key, range(0, 3 * MINUTE, MINUTE))
    for each in (notes, others):
        for key in (first, second, third):
            await each.put(NoteKind.DEPTH, key, DEPTH_MARK, replaces=False)
    await notes.put(NoteKind.ENDED, first, EndedAttempts(outcomes={}).encode(), replaces=False)
    for _ in range(2):
        await notes.drop(NoteKind.DEPTH, [first, third, "never there", "\0"])
        assert [note.key for note in await notes.page(NoteKind.DEPTH, "", 10)] == [second]
    assert len(await notes.page(NoteKind.ENDED, "", 10)) == 1
    assert len(await others.page(NoteKind.DEPTH, "", 10)) == 3
    assert isinstance(bench.backend, Observed)
    of_other = bench.backend.observations(other.name)
    assert of_other is not None
    await of_other.drop(NoteKind.DEPTH, [second])
    assert [note.key for note in await others.page(NoteKind.DEPTH, "", 10)] == [first, third]


@case("views")
async def what_cannot_be_kept_is_refused(bench: Bench) -> None:
    """Without a change: a note too long, a key that no store holds, a page of none, a queue that is not there."""
    notes, known = _of(bench.backend), _PRESENCE.encode()
    for key, value in (
        ("", known), ("k" * (MOST_KEY + 1), known), ("k", known.ljust(MOST_VALUE + 1)), ("\0", known),
        ("k", "\ud800"), ("k", "x"), ("k", known.replace("1700000000.0", "1e300")),
    ):  # fmt: skip
        with raises(ConfigurationError):
            await notes.put(NoteKind.WORKER, key, value, replaces=True)
    for limit in (0, MOST_NOTES + 1):
        with raises(ConfigurationError):
            await notes.page(NoteKind.WORKER, "", limit)
    with raises(ConfigurationError):
        await notes.drop(NoteKind.WORKER, [])
    assert await notes.page(NoteKind.WORKER, "", 10) == []
    await notes.put(NoteKind.WORKER, "k" * MOST_KEY, known.ljust(MOST_VALUE), replaces=True)
    assert isinstance(bench.backend, Observed)
    missing = bench.backend.observations(bench.harness.queue_name())
    assert missing is not None
    with raises(QueueNotFound):
        await missing.put(NoteKind.WORKER, "k", known, replaces=True)
    with raises(QueueNotFound):
        await missing.line()


@case("views")
async def a_note_that_nobody_could_read_is_refused(bench: Bench) -> None:
    """Who may write one is weaker than who reads it: its figures are bounded, and its key is of its kind."""
    notes, minute = _of(bench.backend), time_key(start_of(bench.clock.wall()))
    worker, change = _PRESENCE.encode(), QueueChange(at=1.7e9, by="ada", did="pause", count=3).encode()
    ended, depth = EndedAttempts(outcomes={"failed": 3}).encode(), QueueDepth(counts={"ready": 3}).encode()
    huge = "1" + "0" * 4000
    for kind, key, value in (
        (NoteKind.WORKER, "h:1", worker.replace("1700000000.0", "NaN")),
        (NoteKind.WORKER, "h:1", worker.replace('"busy":1', f'"busy":{huge}')),
        (NoteKind.WORKER, "h:1", worker.replace('"busy":1', '"busy":-1')),
        (NoteKind.WORKER, "h:1", worker.replace('"busy":1', f'"busy":{2**53 + 1}')),
        (NoteKind.ENDED, minute, ended.replace(":3", f":{huge}")),
        (NoteKind.ENDED, minute, ended.replace(":3", ":-3")),
        (NoteKind.ENDED, minute, "[" * 3000),
        (NoteKind.ENDED, minute, "{}"),
        (NoteKind.DEPTH, minute, depth.replace(":3", f":{huge}")),
        (NoteKind.DEPTH, minute, depth.replace("null", "Infinity")),
        (NoteKind.CHANGE, change_key(1.7e9), change.replace("1700000000.0", "1e300")),
        (NoteKind.CHANGE, change_key(1.7e9), change.replace(":3", f":{huge}")),
        *((NoteKind.ENDED, key, ended) for key in ("zzzz", "+5", "\uff11" * 10, f"{minute}\n", "1")),
        (NoteKind.CHANGE, minute, change),
    ):  # fmt: skip
        with raises(ConfigurationError):
            await notes.put(kind, key, value, replaces=True)
    for kind in NoteKind:
        assert await notes.page(kind, "", 10) == []


@case("views")
async def any_outcomes_of_a_minute_fit_into_a_note(bench: Bench) -> None:
    """A worker may send any word: the first are told apart, jobq's own in any case, and none is lost."""
    notes, now = _of(bench.backend), bench.clock.wall()
    for number in range(40):
        await bench.pushed()
        outcome = "succeeded" if number == 0 else f"{number}" * 10
        attempt = Attempt(attempt=1, outcome=outcome, then="done", ended=now)
        await (await bench.take()).settle(Complete(DONE, record=Record(attempt)))
    await bench.recorded()
    ended = await notes.ended(now - 60, bench.clock.wall() + 60)
    assert (ended.total, ended.outcomes["succeeded"]) == (40, 1)
    assert len(ended.outcomes) <= 25
    await notes.put(NoteKind.ENDED, time_key(start_of(now)), ended.encode(), replaces=False)


@case("views")
async def the_line_is_that_of_the_views(bench: Bench) -> None:
    """Counted at the same time, it is the same."""
    notes = _of(bench.backend)
    await bench.bury()
    await bench.pushed(3)
    await bench.take(lease=bench.long_lease)
    await bench.recorded()
    assert isinstance(bench.backend, KeepsViews)
    views = await bench.entered(bench.backend.views())
    line, other = await notes.line(), await views.queue(bench.queue, budget=_AMPLE)
    assert (line.name, line.counts, line.paused) == (other.name, other.counts, other.paused)
    depth = QueueDepth.of(line)
    assert (depth.counts["ready"], depth.counts["running"], depth.counts["dead"]) == (2, 1, 1)


@case("views")
async def attempts_are_counted_by_how_they_ended(bench: Bench) -> None:
    """Those of the time alone, each once, with how long they ran; what was never started ran for no time."""
    notes = _of(bench.backend)
    began = bench.clock.wall()
    for outcome, seconds in ((OutcomeKind.SUCCEEDED, 0.05), (OutcomeKind.SUCCEEDED, 3.0), (OutcomeKind.FAILED, 100.0)):
        await bench.pushed()
        delivery = await bench.take()
        is_done = outcome is OutcomeKind.SUCCEEDED
        then = "done" if is_done else "dead"
        attempt = Attempt(attempt=delivery.deliveries, outcome=outcome, then=then, ended=began, started=began - seconds)
        settle = Complete(replace(DONE)) if is_done else MoveToDeadLetters("failures", "no")
        await delivery.settle(replace(settle, record=Record(attempt)))
    await bench.pushed()
    await (await bench.take()).settle(Release())
    await bench.recorded()
    ended = await notes.ended(began - 60, bench.clock.wall() + 60)
    assert ended.outcomes == {"succeeded": 2, "failed": 1, "released": 1}
    assert sum(ended.runs) == 3
    longest = ended.ran_seconds(1.0)
    assert longest is not None
    assert 100 <= longest <= 205, "as its bounds tell it"
    assert (await notes.ended(began - 3600, began - 60)).outcomes == {}
    assert (await notes.ended(bench.clock.wall() + 60, bench.clock.wall() + 3600)).total == 0
    assert MOST_SAMPLED >= 100


@case("views")
async def how_long_tasks_waited_is_counted_where_it_is_known(bench: Bench) -> None:
    """As the attempt's record has it, which keeps it; of a retry nobody knows it."""
    notes = _of(bench.backend)
    now = bench.clock.wall()
    for waited in (0.05, 40.0, None):
        (pushed,) = await bench.pushed()
        record = Record(Attempt(attempt=1, outcome="succeeded", then="done", ended=now, started=now, waited=waited))
        await (await bench.take()).settle(Complete(DONE, record=record))
        await bench.recorded()
        assert [each.waited for each in await journal_of(bench.backend).attempts(pushed.id)] == [waited]
    ended = await notes.ended(now - 60, bench.clock.wall() + 60)
    assert (sum(ended.runs), sum(ended.waits)) == (3, 2)
    shortest, longest = ended.waited_seconds(0.5), ended.waited_seconds(1.0)
    assert shortest is not None
    assert longest is not None
    assert shortest <= 0.1, "as its bounds tell it"
    assert 40 <= longest <= 51.2, "likewise"


@case("views")
async def a_lost_lease_is_counted_as_such(bench: Bench) -> None:
    """Nobody tells of it: who takes the task again notes it."""
    notes = _of(bench.backend)
    began = bench.clock.wall()
    await bench.pushed()
    await bench.take()
    await bench.expire()
    await bench.take()
    await bench.recorded()
    ended = await notes.ended(began - 60, bench.clock.wall() + 60)
    assert ended.outcomes == {"lock_lost": 1}


@case("views")
async def an_observer_notes_each_minute_once(bench: Bench) -> None:
    """Of several at once one has the turn; minutes that nobody looked at are gaps, and the next turn counts ends."""
    notes = _of(bench.backend)
    await bench.pushed(3)
    await bench.recorded()
    clock = _Unhurried(bench.clock)
    observers = [Observer(_of(await bench.handle()), clock=clock) for _ in range(3)]
    steps = (each.step(replace(_PRESENCE, holder=f"host:{number}")) for number, each in enumerate(observers))
    await asyncio.gather(*steps)
    (depth,) = await notes.page(NoteKind.DEPTH, "", 10)
    assert int(depth.key) % MINUTE == 0
    known = QueueDepth.decode(depth.value)
    assert known is not None
    assert known.counts["ready"] == 3
    workers = await notes.page(NoteKind.WORKER, "", 10)
    assert [note.key for note in workers] == ["host:0", "host:1", "host:2"]
    assert WorkerPresence.decode(workers[0].value) == replace(_PRESENCE, holder="host:0")
    counted = await notes.page(NoteKind.ENDED, "", 10)
    assert len(counted) == 3
    assert all(int(note.key) < int(depth.key) - MINUTE for note in counted)
    assert all(EndedAttempts.decode(note.value) == EndedAttempts(outcomes={}) for note in counted)


@case("views")
async def an_observer_notes_how_the_queue_was_a_day_ago(bench: Bench) -> None:
    """A service that begins counts what nobody has, from the journal; depth nobody can look up."""
    notes = _of(bench.backend)
    await bench.pushed()
    delivery = await bench.take()
    ended_at = start_of(bench.clock.wall()) - 3 * 3600 + 5.0
    record = Record(Attempt(attempt=1, outcome="succeeded", then="done", ended=ended_at, started=ended_at - 2))
    await delivery.settle(Complete(DONE, record=record))
    await bench.recorded()
    observer = Observer(notes, clock=bench.clock, looks_back=True)
    is_by_store = (await notes.ended(ended_at - 60, ended_at + 60)).total == 0  # it dates what it takes in
    for _ in range(2000):
        await observer.step()
        found = await notes.page(NoteKind.ENDED, "", MOST_NOTES)
        if len(found) >= 24 * 60:
            break
    assert len(found) == 24 * 60
    of_then = EndedAttempts.decode(next(note.value for note in found if note.key == time_key(start_of(ended_at))))
    assert of_then is not None
    assert of_then.outcomes == ({} if is_by_store else {"succeeded": 1})
    assert len(await notes.page(NoteKind.DEPTH, "", 10)) <= 2, "there was only now to look at"


@case("views")
async def counting_is_by_state_of_now(bench: Bench) -> None:
    """What waits for its time is told apart from what is ready."""
    notes = _of(bench.backend)
    await bench.pushed(2, not_before=bench.clock.wall() + 3600)
    await bench.pushed()
    delivery = await bench.take()
    task = delivery.task
    await delivery.settle(Requeue(task.counters, NOW))
    await bench.recorded()
    line = await notes.line()
    assert (line.counts[TaskState.SCHEDULED].number, line.counts[TaskState.READY].number) == (2, 1)


class _Unhurried(SystemClock):
    """Of which no time goes by while something is done: on a slow machine a turn would leave some to the next."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def boottime(self) -> float:
        return 1000.0

    def wall(self) -> float:
        return self._clock.wall()


def _of(backend: Backend) -> Observations:
    assert isinstance(backend, Observed)
    notes = backend.observations()
    assert notes is not None
    return notes
