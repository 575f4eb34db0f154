"""What the table of a journal holds is true: late words change nothing, and only what was confirmed is recorded."""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta

import pytest

from jobq.errors import AccessDenied, BackendUnavailable, ConfigurationError, SettlementUnknown, StoreUnusable
from jobq.fencing import FencingNumber
from jobq.settings import Settings
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.spec import resolve
from jobq.task import Task, TaskResult
from jobq_azure.table_journal import client, recorder
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.backend import JournaledQueue
from jobq_azure.table_journal.cancel_requests import CancelRequest
from jobq_azure.table_journal.client import MOST_ROWS, Verb, Write
from tests.azure.journal.journal_stage import another, journaled, key_of, state, written
from tests.azure.stage import LEASE, NOW, Stage, eventually
from tests.support.http_proxy import Strike

pytestmark = pytest.mark.check

GOOD = TaskResult(exit_code=0)


async def _done(queue: JournaledQueue) -> Task:
    task = Task.new(command="true")
    await queue.push([task])
    (delivery,) = await queue.receive(1, LEASE, NOW)
    await delivery.settle(Complete(GOOD))
    await written(queue)
    return task


async def test_late_words_change_nothing(stage: Stage) -> None:
    """Of its push, of an attempt whose lease is over, of a worker that is behind the times (S3)."""
    queue = await journaled(stage)
    task = await _done(queue)
    assert await state(queue, task.id) == "succeeded"
    queue._notebook.pushed([task])
    assert await state(queue, task.id) == "succeeded", "a push that is recorded late"
    place = queue._wire.place
    stale = {"State": "running", "Fencing": rows.order(FencingNumber(0, 0, 1)), "At": 1.0, "LeaseLeft": -1.0}
    await queue._wire.write(place.queue, [Write(Verb.REPLACE, key_of(task), stale | {"Holder": "elsewhere:1"})])
    assert await state(queue, task.id) == "succeeded", "a heartbeat that lands after the end"
    assert await queue.journal.running(10) == await queue.journal.unfinished("", 10) == []
    states = (await queue.journal.stats(60)).states
    assert (states["running"], states["expired"], states["succeeded"]) == (0, 0, 1)


async def test_a_late_word_of_a_requeue_hides_no_later_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a worker that was cut off from the table alone: meanwhile another has run the task to its end (S3)."""
    monkeypatch.setattr(recorder, "_AT_ONCE_SECONDS", 0.0)
    cut_off = await journaled(stage)
    given = Settings(connection_string=stage.azurite.connection_string, journal="tables")
    async with resolve(stage.spec, given) as other:
        assert isinstance(other, JournaledQueue)
        (id_,) = await cut_off.push([Task.new(command="true")])
        (first,) = await cut_off.receive(1, LEASE, NOW)
        await written(cut_off)
        await stage.tables.refuse()
        await first.settle(Requeue(first.task.requeued(preemptions=1).counters, NOW))
        (second,) = await other.receive(1, LEASE, NOW)
        await second.settle(Complete(GOOD))
        assert await state(other, id_) == "succeeded"
        await stage.tables.heal()
        assert await state(cut_off, id_) == "succeeded", "its word that the task waits has come too late"
        assert await other.journal.unfinished("", 10) == []
        assert [one.then for one in await other.journal.attempts(id_)] == ["retry", "done"]


async def test_a_heartbeat_is_not_written_once_the_lease_is_over(stage: Stage) -> None:
    queue = await journaled(stage)
    (id_,) = await queue.push([Task.new(command="true")])
    await written(queue)
    stage.tables.strike(Strike.BUSY, "POST", count=2)
    await queue.receive(1, timedelta(seconds=1), NOW)
    assert await state(queue, id_) == "ready", "by the time the table was back another could have held it"


async def test_only_what_was_confirmed_is_told(stage: Stage) -> None:
    """S5: a settle without an answer is none; one that is answered after its caller gave up is one."""
    queue = await journaled(stage)
    one, two = await queue.push([Task.new(command="true") for _ in range(2)])
    first, second = await queue.receive(2, LEASE, NOW)
    assert {first.id, second.id} == {one, two}
    stage.proxy.strike(Strike.LOSE_ANSWER, "DELETE")
    with pytest.raises(SettlementUnknown):
        await first.settle(Complete(GOOD))
    assert await state(queue, first.id) == "running"
    settling = asyncio.ensure_future(second.settle(Complete(GOOD)))
    await stage.proxy.until(lambda: len(stage.proxy.seen("DELETE")) == 2)
    settling.cancel()
    await eventually(lambda: not queue._on_their_way)
    assert await state(queue, second.id) == "succeeded"


async def test_what_a_task_costs(stage: Stage) -> None:
    """docs/costs.md: a look, and a transaction each for its push, start and end; many tasks share them."""
    queue = await journaled(stage)
    queue._sweep.start = lambda: None  # type: ignore[method-assign] # its looks are an hour's, not a task's
    before = len(stage.tables.requests)
    await queue.push([Task.new(command="true") for _ in range(30)])
    await written(queue)
    deliveries = await queue.receive(30, LEASE, NOW)
    await written(queue)
    await asyncio.gather(*(delivery.settle(Complete(GOOD)) for delivery in deliveries))
    await written(queue)
    asked = [(each.method, each.path.rpartition("/")[2]) for each in stage.tables.requests[before:]]
    assert asked.count(("GET", "jobqjournal()")) == 1
    assert 3 <= asked.count(("POST", "$batch")) == len(asked) - 1 <= 15, "for thirty tasks"


@pytest.mark.slow("leases of seconds on Azurite")
async def test_a_push_that_is_faster_than_the_table_waits_for_it(stage: Stage) -> None:
    queue = await journaled(stage)
    queue.writer._most_notes = 400
    ids = [id_ for _ in range(10) for id_ in await queue.push([Task.new(command="true") for _ in range(100)])]
    await written(queue)
    assert queue.writer._dropped == 0
    found = await queue.journal.find(ids[:500])
    assert len(found) == 500
    assert {each.attempt for each in found} == {0}


async def test_any_id_is_a_key(stage: Stage) -> None:
    """Those of tasks, and those of messages that are none."""
    for strange in ("/\\#?%'\x00\x7f\x9fé\U0001f600!=", "a b"):
        assert rows.unsafe(rows.safe(strange)) == strange
    queue = await journaled(stage)
    ids = ["a", "A", "a:b@c+d=e_f.g-h", "a:", "x" * 100, "a.b", "a-b", "aa"]
    await queue.push([Task.new(command="true", id=id_) for id_ in ids])
    await written(queue)
    assert {found.id for found in await queue.journal.find(ids)} == set(ids)
    seen: list[str] = []
    while page := await queue.journal.unfinished(seen[-1] if seen else "", 3):
        seen += [found.id for found in page]
    assert sorted(seen) == sorted(ids)
    many = [Task.new(command="true") for _ in range(40)]
    queue._notebook.pushed(many)
    await written(queue)
    assert len(await queue.journal.find([task.id for task in many] + ids)) == 48


async def test_a_thousand_wishes_hide_none(stage: Stage) -> None:
    queue = await journaled(stage)
    ids = [f"task-{number:04}" for number in range(1010)]
    for start in range(0, len(ids), MOST_ROWS):
        await queue._cancel_requests.record(
            CancelRequest.of(id_, None, at=time.time()) for id_ in ids[start : start + MOST_ROWS]
        )
    (id_,) = await queue.push([Task.new(command="true", id="task-zzzz")])
    assert await queue.journal.cancel([id_, "nobody-s"]) == ["canceled", "unknown"]
    (delivery,) = await queue.receive(1, LEASE, NOW)
    assert delivery.cancel_requested


async def _dead(queue: JournaledQueue, id_: str) -> Task:
    task = Task.new(command="true", id=id_)
    await queue.push([task])
    (delivery,) = await queue.receive(1, LEASE, NOW)
    await delivery.settle(MoveToDeadLetters("failed", "exit code 3"))
    return task


async def test_s5_what_has_ended_again_before_its_redrive_is_told_shows_no_other_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It showed as ready for ever: it is recorded once all of the letters are back."""
    queue = await journaled(stage)
    task = await _dead(queue, "train")
    await written(queue)
    redrive = queue._inner.redrive

    async def slow(ids: Sequence[str]) -> list[str]:
        done = await redrive(ids)
        (delivery,) = await queue.receive(1, LEASE, NOW)
        await delivery.settle(Complete(GOOD))
        await written(queue)
        return done

    monkeypatch.setattr(queue._inner, "redrive", slow)
    assert await queue.redrive([task.id]) == [task.id]
    assert await state(queue, task.id) == "succeeded"
    assert (await queue.journal.stats(60)).states["ready"] == 0


async def test_s5_an_end_that_is_written_late_is_not_told_over_a_later_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a worker that is cut off from the table alone."""
    monkeypatch.setattr(recorder, "_AT_ONCE_SECONDS", -1.0)
    cut_off = await journaled(stage)
    given = Settings(connection_string=stage.azurite.connection_string, journal="tables")
    async with resolve(stage.spec, given) as other:
        assert isinstance(other, JournaledQueue)
        (id_,) = await cut_off.push([Task.new(command="true")])
        (delivery,) = await cut_off.receive(1, LEASE, NOW)
        await written(cut_off)
        await stage.tables.refuse()
        await delivery.settle(MoveToDeadLetters("failed", "exit code 3"))
        assert await other.redrive([id_]) == [id_]
        (again,) = await other.receive(1, LEASE, NOW)
        await again.settle(Complete(GOOD))
        assert await state(other, id_) == "succeeded"
        await stage.tables.heal()
        assert await state(cut_off, id_) == "succeeded"


async def test_s5_an_end_that_is_written_late_meets_a_word_that_comes_after_its_look(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked up again, and not written over it."""
    monkeypatch.setattr(recorder, "_AT_ONCE_SECONDS", -1.0)
    queue = await journaled(stage)
    task = Task.new(command="true")
    await queue.push([task])
    (delivery,) = await queue.receive(1, LEASE, NOW)
    await written(queue)
    write, place = queue._wire.write, queue._wire.place
    after = rows.order(delivery.fencing._replace(epoch=delivery.fencing.epoch + 1))
    later = {"State": rows.DONE, "Fencing": after, "At": 2.0, "Then": "done"}
    met = list[str]()

    async def behind_another(partition: str, writes: Sequence[Write]) -> None:
        if not met and any(each.row == key_of(task) for each in writes):
            met.append(task.id)
            await write(place.queue, [Write(Verb.REPLACE, key_of(task), later)])
        await write(partition, writes)

    monkeypatch.setattr(queue._wire, "write", behind_another)
    await delivery.settle(MoveToDeadLetters("failed", "exit code 3"))
    await written(queue)
    row = await queue._wire.get(place.queue, key_of(task))
    assert met
    assert row is not None
    assert row["Then"] == "done"


async def test_s5_a_clear_forgets_nothing_that_was_pushed_since(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a second and more, and `push --wait` said of a task that ran that it was cleared."""
    queue = await journaled(stage)
    (before,) = await queue.push([Task.new(command="true")])
    await written(queue)
    clear, since = queue._inner.clear, list[str]()

    async def slow() -> int:
        count = await clear()
        since.extend(await queue.push([Task.new(command="true")]))
        await written(queue)
        return count

    monkeypatch.setattr(queue._inner, "clear", slow)
    assert await queue.clear() == 1
    await written(queue)
    async with another(stage) as other:
        for each in (queue, other):
            assert [found.id for found in await each.journal.find([before, *since])] == since


async def test_s5_a_purge_forgets_no_later_task_of_that_id(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = await journaled(stage)
    await _dead(queue, "nightly")
    await written(queue)
    monkeypatch.setattr("jobq_azure.table_journal.retention._DONE_SECONDS", -1.0)
    await queue._sweep.once()  # an hour later
    await written(queue)
    await queue.push([Task.new(command="true", id="nightly")])
    await written(queue)
    assert await queue.purge_dead(["nightly"]) == ["nightly"]
    assert await state(queue, "nightly") == "ready"
    assert await queue.journal.attempts("nightly") == [], "those of the former one are gone"


async def test_what_is_put_back_is_known_though_others_stay(stage: Stage) -> None:
    """It was shown as dead until it started, and what was purged beside it for ever."""
    queue = await journaled(stage)
    ids = await queue.push([Task.new(command="true") for _ in range(3)])
    for delivery in await queue.receive(3, LEASE, NOW):
        await delivery.settle(MoveToDeadLetters("failed", "exit code 3"))
    await written(queue)
    failed = await stage.wire(f"{stage.queue}-failed")
    (held,) = await failed.get(1, 60)  # another reader
    staying, back, gone = sorted(ids, key=lambda id_: id_ not in held.text)
    with pytest.raises(BackendUnavailable) as busy:
        await queue.redrive([staying, back])
    assert busy.value.done == [back]
    assert await state(queue, back) == "ready"
    with pytest.raises(BackendUnavailable):
        await queue.purge_dead([staying, gone])
    await written(queue)
    assert [record.id for record in await queue.journal.find([staying, gone])] == [staying]


async def test_l4_an_odd_wish_ends_no_worker(stage: Stage) -> None:
    """Who may push may write to the table."""
    queue = await journaled(stage)
    keys = (rows.cancel_request_key("odd", None), f"w!odd!{'x' * 19}", rows.cancel_request_key("odd", 5))
    odd = [Write(Verb.REPLACE, key, {"At": "soon", "Born": 1.5, "Window": "no"}) for key in keys]
    await queue._wire.write(rows.cancel_requests_of(queue._wire.place.queue), odd)
    await queue.push([Task.new(command="true", id="odd")])
    (found,) = await queue.receive(1, LEASE, NOW)
    await found.settle(Complete(GOOD))


async def test_a_wish_is_heard_by_each_task_of_its_id(stage: Stage) -> None:
    """A Storage Queue knows no ids: where nothing distinguishes two, both are meant."""
    queue = await journaled(stage)
    task = Task.new(command="true", id="twice")
    for _ in range(2):
        await queue.push([task])
    found = await queue.receive(2, LEASE, NOW)
    await written(queue)
    await queue.journal.cancel(["twice"])
    await queue._cancel_requests._cancel_requested(queue._cancel_requests._open)
    assert [(await each.renew(LEASE)).cancel for each in found] == [True, True]


async def test_what_is_old_is_forgotten(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = await journaled(stage, keep=timedelta(0))
    task = await _done(queue)
    await asyncio.sleep(0.01)
    await queue._sweep.once()
    await written(queue)
    assert await queue.journal.attempts(task.id) == []
    assert await state(queue, task.id) == "succeeded", "known for an hour, against a late word of its push"
    monkeypatch.setattr("jobq_azure.table_journal.retention._DONE_SECONDS", -1.0)
    monkeypatch.setattr("jobq_azure.table_journal.retention._CANCEL_REQUEST_SECONDS", -1.0)
    ours = CancelRequest.of(task.id, rows.birth(task.created), at=time.time())
    await queue._cancel_requests.record([ours, CancelRequest.of("nobody-s", None, at=time.time())])
    await queue._sweep.once()
    await written(queue)
    assert await queue.journal.find([task.id]) == []
    assert await _requested(queue, task.id, "nobody-s") == ["nobody-s"], "it waits a day"


@pytest.mark.parametrize("days", [31, -31])
async def test_a_worker_whose_clock_is_wrong_forgets_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """A month ahead it emptied the journal; a month behind its own attempts were forgotten by the next worker."""
    queue, right = await journaled(stage, keep=timedelta(days=30)), time.time
    first = await _done(queue)
    await written(queue)
    with monkeypatch.context() as wrong:
        wrong.setattr(time, "time", lambda: right() + days * 86400.0)
        other = await journaled(stage, keep=timedelta(days=30))
        second = await _done(other)
        await other._sweep.once()
        await written(other)
    await queue._sweep.once()
    await written(queue)
    for task in (first, second):
        (attempt,) = await queue.journal.attempts(task.id)
        assert abs(attempt.ended - right()) < 3600, "dated by the store"


async def test_what_stays_is_not_before_what_is_to_be_forgotten(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = await journaled(stage)
    monkeypatch.setattr("jobq_azure.table_journal.retention._MOST_ROWS", 1)
    monkeypatch.setattr("jobq_azure.table_journal.retention._CANCEL_REQUEST_SECONDS", -1.0)
    old = CancelRequest.of("b", None, at=1.0)
    await queue._cancel_requests.record(
        [CancelRequest.of("a", None, at=time.time()), old]
    )  # of "a" nobody has heard yet: it waits a day
    for _ in range(2):
        await queue._sweep.once()
    await written(queue)
    assert await _requested(queue, "a", "b") == ["a"]


async def _requested(queue: JournaledQueue, *ids: str) -> list[str]:
    """Return which of these ids somebody wants to end."""
    return [id_ for id_, found in (await queue._cancel_requests.among(ids)).items() if found]


async def test_rights_and_a_missing_table_are_told_plainly(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = await journaled(stage)
    stage.tables.strike(Strike.DENY)
    with pytest.raises(AccessDenied, match="Storage Table Data Contributor"):
        await queue.journal.find(["x"])
    monkeypatch.setattr(client, "TABLE", "nosuchtable")
    with pytest.raises(ConfigurationError, match=f"make it with: jobq {stage.spec} create"):
        await queue.journal.find(["x"])
    with pytest.raises(ConfigurationError, match="create"):
        await queue._wire.write("p", [Write(Verb.REPLACE, "r", {})])


KEY = "AccountKey=c2VjcmV0"


@pytest.mark.parametrize(
    ("spec", "settings", "says"),
    [
        ("demo", {"journal": "tables"}, "own database; unset it"),
        ("memory://a/q", {"journal": "tables://acct"}, "own database"),
        ("acct/qqq", {"journal": "tables://UPPER"}, "not the name of a storage account"),
        (
            "acct/qqq",
            {"journal": "tables", "connection_string": f"AccountName=acct;{KEY};QueueEndpoint=http://h:1/acct"},
            "TableEndpoint",
        ),
        (
            "acct/qqq",
            {
                "journal": "tables://acct",
                "journal_connection_string": f"AccountName=other;{KEY}",
            },
            "JOBQ_JOURNAL_CONNECTION_STRING",
        ),
    ],
)
def test_what_cannot_be_meant(spec: str, settings: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as told:
        resolve(spec, Settings(**settings))
    assert "c2VjcmV0" not in str(told.value)


def test_what_is_no_place_for_a_journal() -> None:
    for wrong in ("table", "tables://", "tables:/x", "blobs"):
        with pytest.raises(ConfigurationError, match=r"JOBQ_JOURNAL: .* is no place for a journal"):
            Settings.from_environment({"JOBQ_JOURNAL": wrong})


async def test_a_fault_of_the_journal_is_none_of_the_queue(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push, a renewal and a settle that the service has confirmed stay so."""
    queue = await journaled(stage)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("of ours")

    for verb in ("pushed", "held", "ended"):
        monkeypatch.setattr(queue._notebook, verb, fail)
    (id_,) = await queue.push([Task.new(command="true")])
    (delivery,) = await queue.receive(1, LEASE, NOW)
    assert delivery.id == id_
    await delivery.renew(LEASE)
    await delivery.settle(Complete(GOOD))
    assert await stage.total() == 0


async def test_rows_of_a_stranger_are_said_to_be_unreadable(stage: Stage) -> None:
    """Who may write to the table may write anything there; a worker goes on (L4)."""
    queue = await journaled(stage)
    task = Task.new(command="true")
    for values in ({"State": "running", "Fencing": "x"}, {"Fencing": 7}, {}):
        await queue._wire.write(queue._wire.place.queue, [Write(Verb.REPLACE, key_of(task), values)])
        with pytest.raises(StoreUnusable, match="cannot read"):
            await queue.journal.find([task.id])
    await queue.push([task])
    (delivery,) = await queue.receive(1, LEASE, NOW)
    await delivery.settle(Complete(GOOD))
    assert await state(queue, task.id) == "succeeded"


async def test_whose_an_outcome_is_is_known_an_hour_later(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row is swept then: whose an attempt was, was guessed by when it ended, by another machine's clock."""
    queue = await journaled(stage)
    monkeypatch.setattr("jobq_azure.table_journal.retention._DONE_SECONDS", -1.0)

    async def pushed_and_done(created: float) -> None:
        await queue.push([Task.new(command="true", id="nightly", created=created)])
        (delivery,) = await queue.receive(1, LEASE, NOW)
        await delivery.settle(Complete(GOOD))
        await written(queue)
        await queue._sweep.once()
        await written(queue)

    now = time.time()
    await pushed_and_done(now - 7200)
    again = Task.new(command="true", id="nightly")
    queue._notebook.pushed, pushed = lambda *_: None, queue._notebook.pushed  # type: ignore[method-assign] # on its way
    await queue.push([again])
    assert await state(queue, "nightly") == "ready", "the former one ended within the window, and was pushed before it"
    queue._notebook.pushed = pushed  # type: ignore[method-assign]
    (delivery,) = await queue.receive(1, LEASE, NOW)
    await delivery.settle(Complete(GOOD))
    await pushed_and_done(now + 60)
    assert await state(queue, "nightly") == "succeeded", "its pusher's clock is ahead"
