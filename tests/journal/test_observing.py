"""Noting how a queue is, over days: folded to hours, forgotten in time, whoever is killed half way."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from jobq.errors import BackendUnavailable
from jobq.journal.changes import QueueChange, new_change_key
from jobq.journal.minutes import HOUR, MINUTE, EndedAttempts, QueueDepth, in_steps, start_of
from jobq.journal.notes import MOST_NOTES, MOST_VALUE, NoteKind, QueueNote, Written, time_key
from jobq.journal.observations import Observations
from jobq.journal.observing import CHANGES_KEPT, HOURS_KEPT, MINUTES_KEPT, Observer
from jobq.journal.presence import FORGOTTEN_SECONDS, STOPPED, WorkerPresence
from jobq.testing.clock import VirtualClock
from jobq_memory import MemoryBackend, Router
from jobq_memory.observations import MemoryObservations

_PRESENCE = WorkerPresence(holder="h:1", host="h", version="1", slots=1, busy=0, state="working", started=0.0)
_COUNTED = EndedAttempts.of({"succeeded": 2, "failed": 1}, [0.05, 5.0, 100.0], [0.0, 40.0])


class Counting(MemoryObservations):
    """Counts its verbs, and fails at one of them on wish."""

    def __init__(self, router: Router, queue: str) -> None:
        super().__init__(router, queue)
        self.router = router
        self.calls: list[str] = []
        self.fails_at = -1

    def _count(self, verb: str) -> None:
        self.calls.append(verb)
        if len(self.calls) == self.fails_at:
            raise BackendUnavailable("killed here")

    async def put(
        self, kind: NoteKind, key: str, value: str, *, replaces: bool, seconds: float | None = None
    ) -> Written:
        self._count("put")
        return await super().put(kind, key, value, replaces=replaces, seconds=seconds)

    async def page(self, kind: NoteKind, after: str, limit: int) -> Sequence[QueueNote]:
        self._count("page")
        return await super().page(kind, after, limit)

    async def drop(self, kind: NoteKind, keys: Sequence[str]) -> None:
        self._count("drop")
        await super().drop(kind, keys)


async def _observed() -> tuple[VirtualClock, Counting]:
    clock = VirtualClock()
    router = Router(clock, is_observed=True)
    await MemoryBackend(router, "q").create()
    return clock, Counting(router, "q")


async def _filled(clock: VirtualClock, notes: Observations, hours: int) -> int:
    """Note each minute of so many hours that are over two days ago; return when they began."""
    first = start_of(clock.wall() - MINUTES_KEPT, HOUR) - hours * HOUR
    for at in range(first, first + hours * HOUR, MINUTE):
        depth = QueueDepth(counts={"ready": (at - first) // HOUR, "running": 1}, oldest_seconds=float(at - first))
        await notes.put(NoteKind.DEPTH, time_key(at), depth.encode(), replaces=False)
        await notes.put(NoteKind.ENDED, time_key(at), _COUNTED.encode(), replaces=False)
    return first


async def _tidied(clock: VirtualClock, notes: Observations, times: int) -> None:
    for _ in range(times):
        await Observer(notes, clock=clock).step(_PRESENCE)
        await clock.advance(MINUTE)


async def test_minutes_become_hours_after_two_days(caplog: pytest.LogCaptureFixture) -> None:
    clock, notes = await _observed()
    first = await _filled(clock, notes, 20)
    assert caplog.records == []
    await _tidied(clock, notes, 6)
    hours = {int(note.key): note.value for note in await notes.page(NoteKind.ENDED_OF_HOUR, "", MOST_NOTES)}
    assert list(hours) == list(range(first, first + 20 * HOUR, HOUR))
    whole = EndedAttempts.decode(hours[first])
    assert whole is not None
    assert (whole.outcomes, whole.minutes, sum(whole.runs)) == ({"succeeded": 120, "failed": 60}, 60, 180)
    depths = [QueueDepth.decode(note.value) for note in await notes.page(NoteKind.DEPTH_OF_HOUR, "", MOST_NOTES)]
    assert [depth.counts["ready"] for depth in depths if depth] == list(range(20))
    left = await notes.page(NoteKind.ENDED, "", MOST_NOTES)
    assert all(int(note.key) >= start_of(clock.wall() - MINUTES_KEPT, HOUR) - HOUR for note in left)


async def test_no_step_is_long() -> None:
    """However much there is to tidy up."""
    clock, notes = await _observed()
    await _filled(clock, notes, 200)
    notes.calls.clear()
    await Observer(notes, clock=clock).step(_PRESENCE)
    assert len(notes.calls) < 60


async def test_who_comes_later_in_a_minute_pays_for_its_own_word_alone() -> None:
    clock, notes = await _observed()
    observers = [Observer(notes, clock=clock) for _ in range(3)]
    costs = []
    for _ in range(2):
        for number, observer in enumerate(observers):
            notes.calls.clear()
            await observer.step(replace(_PRESENCE, holder=f"h:{number}"))
            costs.append(len(notes.calls))
        await clock.advance(30)
    assert costs[1:3] == [2, 2], "its presence, and the mark that stands there"
    await clock.advance(start_of(clock.wall()) + MINUTE - clock.wall() + 1)
    notes.calls.clear()
    for _ in range(2):
        for observer in observers:
            await observer.step(_PRESENCE)
        await clock.advance(20)
    assert len(notes.calls) <= 3 * 3 + 5, "three statements of each, and the turn of one"


@pytest.mark.parametrize("fails_at", range(4, 28))
async def test_whoever_is_killed_leaves_the_rest_to_the_next_and_counts_nothing_twice(fails_at: int) -> None:
    clock, notes = await _observed()
    first = await _filled(clock, notes, 4)
    notes.calls.clear()
    notes.fails_at = fails_at
    try:
        await Observer(notes, clock=clock).step(_PRESENCE)
    except BackendUnavailable:
        assert len(notes.calls) == fails_at
    notes.fails_at = -1
    await clock.advance(MINUTE)
    await _tidied(clock, notes, 2)
    hours = await notes.page(NoteKind.ENDED_OF_HOUR, "", MOST_NOTES)
    found = [EndedAttempts.decode(note.value) for note in hours]
    assert [int(note.key) for note in hours] == list(range(first, first + 4 * HOUR, HOUR))
    assert [each.total for each in found if each] == [180] * 4
    left = [note for note in await notes.page(NoteKind.DEPTH, "", MOST_NOTES) if int(note.key) < first + 4 * HOUR]
    assert left == []


async def test_a_turn_that_was_cut_off_is_a_gap_in_depth_alone() -> None:
    clock, notes = await _observed()
    notes.fails_at = 3  # when the depth is to be kept
    with pytest.raises(BackendUnavailable):
        await Observer(notes, clock=clock).step(_PRESENCE)
    (mark,) = await notes.page(NoteKind.DEPTH, "", 10)
    assert QueueDepth.decode(mark.value) is None
    await clock.advance(MINUTE)
    await Observer(notes, clock=clock).step(_PRESENCE)
    assert len(await notes.page(NoteKind.ENDED, "", 10)) == 3, "two of which the former one had not counted"


async def test_old_hours_workers_and_changes_are_forgotten() -> None:
    clock, notes = await _observed()
    now = clock.wall()
    old, young = time_key(int(now - HOURS_KEPT - 1)), time_key(int(now - HOURS_KEPT + HOUR))
    for key in (old, young):
        await notes.put(NoteKind.DEPTH_OF_HOUR, key, QueueDepth(counts={}).encode(), replaces=False)
        await notes.put(NoteKind.ENDED_OF_HOUR, key, _COUNTED.encode(), replaces=False)
    for at in (now, now - CHANGES_KEPT + HOUR, now - CHANGES_KEPT - 10):
        change = QueueChange(at=at, by="ada", did="pause")
        await notes.put(NoteKind.CHANGE, new_change_key(at), change.encode(), replaces=False)
    await notes.put(NoteKind.WORKER, "left:1", replace(_PRESENCE, state=STOPPED).encode(), replaces=True)
    await clock.advance(FORGOTTEN_SECONDS - 100)
    await notes.put(NoteKind.WORKER, "young:1", _PRESENCE.encode(), replaces=True)
    await clock.advance(200)
    await _tidied(clock, notes, 2)
    assert [note.key for note in await notes.page(NoteKind.WORKER, "", 10)] == ["h:1", "young:1"]
    changes = [QueueChange.decode(note.value) for note in await notes.page(NoteKind.CHANGE, "", 10)]
    assert [round(now - change.at) for change in changes if change] == [0], "the latest, and none of 400 days ago"


async def test_a_note_that_nobody_can_read_stops_no_tidying() -> None:
    """It was written past the check, or by a jobq before it; those beside it are folded, and it goes."""
    clock, notes = await _observed()
    first = await _filled(clock, notes, 2)
    huge = EndedAttempts(outcomes={"failed": 2**53}, runs=[2**53], minutes=2**53).encode()
    other = time_key(first + MINUTE)
    with notes.router.opened("q") as store:
        for kind in (NoteKind.ENDED, NoteKind.DEPTH):
            for key in ("!", "0", "+5", f"{other}x", f"{other[:-1]}\uff11"):
                store.notes[kind, key] = huge, clock.wall()
            for back, value in enumerate((huge, huge, "{}", "[", '{"outcomes": {"failed": 1' + "0" * 4000 + "}}")):
                store.notes[kind, time_key(first + back * MINUTE)] = value, clock.wall()
    await _tidied(clock, notes, 2)
    hours = await notes.page(NoteKind.ENDED_OF_HOUR, "", MOST_NOTES)
    assert [int(note.key) for note in hours] == [first, first + HOUR]
    assert [each and each.outcomes["failed"] for each in map(_read, hours)] == [2**53, 60]
    for kind in (NoteKind.ENDED, NoteKind.DEPTH):
        left = await notes.page(kind, "", MOST_NOTES)
        assert [note.key for note in left if note.key < time_key(first + 2 * HOUR)] == []


def _read(note: QueueNote) -> EndedAttempts | None:
    return EndedAttempts.decode(note.value)


def test_what_nobody_can_read_is_a_gap() -> None:
    for text in ("", "{}", "[]", "null", '{"outcomes": 1}', '{"outcomes": {"a": "x"}, "runs": [], "minutes": 1}', "["):
        assert EndedAttempts.decode(text) is None
        assert QueueDepth.decode(text) is None
        assert WorkerPresence.decode(text) is None
        assert QueueChange.decode(text) is None


def test_a_change_is_cut_to_what_a_note_holds() -> None:
    change = QueueChange(at=1.0, by="x" * 9000, did="purge", ids=tuple("i" * 900 for _ in range(900)), said="\0" * 9000)
    long = "\0" * 9000
    worst = QueueChange(
        at=1.0, by=long, address=long, did=long, filter=long, state=long, said=long, ids=("\0" * 900,) * 90
    )
    assert max(len(change.encode()), len(worst.encode())) <= MOST_VALUE
    found = QueueChange.decode(change.encode())
    assert found is not None
    assert (len(found.ids), found.count, found.did) == (10, None, "purge")


def test_steps_have_gaps_where_nobody_has_looked() -> None:
    ended = {0: _COUNTED, 60: _COUNTED, 600: _COUNTED}
    points = in_steps(ended, {60: QueueDepth(counts={"ready": 4}), 120: QueueDepth(counts={"ready": 8})}, 0, 900, 300)
    assert [point.at for point in points] == [0, 300, 600]
    assert [point.rate(["succeeded"]) for point in points] == [2.0, None, 2.0]
    assert [point.depth and point.depth.counts["ready"] for point in points] == [6, None, None]
    longest = _COUNTED.ran_seconds(1.0)
    assert longest is not None
    assert 100 <= longest <= 205
    assert EndedAttempts(outcomes={}).ran_seconds(0.5) is None


def test_how_long_tasks_waited_is_added_up_and_kept() -> None:
    """Beside how long they ran, of which it is independent."""
    both = EndedAttempts.sum([_COUNTED, EndedAttempts.of({"failed": 1}, [], [900.0])])
    assert (sum(both.runs), sum(both.waits), both.minutes) == (3, 3, 2)
    longest, half = both.waited_seconds(1.0), both.waited_seconds(0.5)
    assert longest is not None
    assert half is not None
    assert 900 <= longest <= 1638.4, "as its bounds tell it"
    assert 25.6 < half <= 51.2
    assert EndedAttempts.decode(both.encode()) == both
    assert EndedAttempts.sum([]) == EndedAttempts(outcomes={}, minutes=0)
