"""A ledger beside its queue: what is there twice, what is not there, who does not use it, a table that is away."""

import logging
import math
import re
from contextlib import suppress
from datetime import timedelta

import pytest

from jobq.batch_plan import Plan
from jobq.batches import BatchState
from jobq.errors import AllPutBack, BackendUnavailable, BatchNotFound, ConfigurationError, LockLost, PushUnknown
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.task import Task
from jobq.testing.harness import DONE
from jobq_azure.ledger.heads import Heads
from jobq_azure.ledger.ledger import Ledger
from jobq_azure.ledger.retention import LedgerRetention
from jobq_azure.storage.message_format import text_of
from tests.azure.ledger.ledger_stage import NAME, SOON, THEN, drained, finished, ledgered, pushed
from tests.azure.stage import LEASE, NOW, Stage
from tests.support.http_proxy import Strike

pytestmark = pytest.mark.check


async def test_a_message_that_is_there_twice_runs_once(stage: Stage) -> None:
    queue = await ledgered(stage)
    (task,) = await pushed(queue)
    (again,) = await stage.behind.peek(1)
    await (await stage.wire()).put(text_of(again.body))
    await queue.batches.seal(NAME)
    assert await drained(queue) == [task.id]
    assert (await finished(queue)).counts["succeeded"] == 1
    assert await stage.total() == 0, "what was left over is done with"


async def test_who_lost_its_lease_ends_nothing(stage: Stage) -> None:
    # S4: by the ledger, too, the later delivery is the task.
    queue, other = await ledgered(stage), await ledgered(stage, behind=True)
    await pushed(queue)
    await queue.batches.seal(NAME)
    (stale,) = await queue.receive(1, timedelta(seconds=1), NOW)
    (held,) = await other.receive(1, LEASE, timedelta(seconds=10))
    with pytest.raises(LockLost):
        await stale.settle(MoveToDeadLetters("failed", "too late"))
    assert (await queue.batches.find(NAME)).counts["running"] == 1
    await held.settle(Complete(DONE))
    assert (await finished(queue)).counts["succeeded"] == 1
    assert await queue.dead_letters(10) == []


async def test_what_is_dead_has_its_letter_though_its_message_is_cleared_meanwhile(stage: Stage) -> None:
    # The ledger has its death before the queue moves it: a clear in between deletes the message, and no dead letter.
    queue = await ledgered(stage)
    (task,) = await pushed(queue)
    await queue.batches.seal(NAME)
    (delivery,) = await queue.receive(1, LEASE, NOW)
    wire = await stage.wire()
    await wire.clear()
    await delivery.settle(MoveToDeadLetters("failed", "by the test"))
    assert (await finished(queue)).counts["dead"] == 1
    assert [(each.id, each.description) for each in await queue.dead_letters(10)] == [(task.id, "by the test")]
    assert await queue.redrive([task.id]) == [task.id]
    assert await drained(queue) == [task.id]
    assert (await finished(queue)).round == 2


async def test_who_uses_no_tables_runs_nothing_of_a_batch(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    queue = await ledgered(stage)
    (task, dead) = await pushed(queue, 2)
    (plain,) = await stage.pushed()
    for delivery in await queue.receive(3, LEASE, NOW):
        if delivery.id == dead.id:
            await delivery.settle(MoveToDeadLetters("failed", "by the test"))
        else:
            await delivery.settle(Complete(DONE)) if delivery.id == plain.id else None
    (task,) = await pushed(queue)
    (other,) = await stage.pushed()
    with caplog.at_level(logging.WARNING):
        found = await stage.backend.receive(8, LEASE, NOW)
    assert [each.id for each in found] == [other.id]
    assert f"task {task.id} is put back, for it is of a batch, which is kept in a table" in caplog.text
    assert "set JOBQ_JOURNAL=tables for whoever pushes and works" in caplog.text
    for verb in (stage.backend.redrive, stage.backend.purge_dead):
        with pytest.raises(ConfigurationError, match="set JOBQ_JOURNAL=tables"):
            await verb([dead.id])
    assert [each.id for each in await queue.dead_letters(10)] == [dead.id]
    assert (await queue.batches.find(NAME)).counts["dead"] == 1


async def test_a_body_says_so_that_no_older_worker_runs_it(stage: Stage) -> None:
    await pushed(await ledgered(stage))
    (seen,) = await stage.behind.peek(1)
    assert seen.body.startswith(b'{"version":3,')
    assert re.search(rb'"ledger":"s7~[0-9a-f]{8}"}$', seen.body)


async def test_what_no_ledger_knows_is_put_back(stage: Stage) -> None:
    # S1: another table, or one that was deleted, takes no task with it; nor is it run outside of its batch.
    queue = await ledgered(stage)
    lost = Task.new(command="true", id="s9.1", batch="s9").in_ledger("s9")
    await (await stage.wire()).put(text_of(lost.encode()))
    with suppress(AllPutBack):
        assert await queue.receive(1, LEASE, NOW) == []
    assert (await stage.total(), await queue.dead_letters(10)) == (1, [])
    assert "of which" in queue.misplaced
    assert "knows nothing: JOBQ_JOURNAL names another table" in queue.misplaced


async def test_a_letter_of_what_no_ledger_knows_stays(stage: Stage) -> None:
    queue = await ledgered(stage)
    lost = Task.new(command="true", id="s9.1", batch="s9").in_ledger("s9")
    await (await stage.wire(f"{stage.queue}-failed")).put(text_of(lost.encode()))
    with pytest.raises(ConfigurationError, match="nothing is known any more"):
        await queue.redrive(["s9.1"])
    assert await queue.purge_dead(["s9.1"]) == ["s9.1"]


async def test_a_table_that_is_away_puts_off_starts_and_leaves_ends_to_the_lease(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobq_azure.table_journal.backend._PUT_OFF", timedelta(seconds=1))
    queue = await ledgered(stage)
    await queue.batches.begin(NAME, Plan())
    (held, waits) = await pushed(queue, 2)
    (delivery,) = await queue.receive(1, timedelta(seconds=3), NOW)
    (plain,) = await stage.pushed()
    stage.tables.strike(Strike.BUSY, count=math.inf)
    with pytest.raises(BackendUnavailable, match="busy"):
        await delivery.settle(Complete(DONE))
    with pytest.raises(BackendUnavailable):
        await queue.push([Task.new(command="true", batch=NAME)])
    found = await queue.receive(8, LEASE, NOW)
    assert [each.id for each in found] == [plain.id], "a task of no batch waits for no table"
    await found[0].settle(Complete(DONE))
    await stage.tables.heal()
    await queue.batches.seal(NAME)
    ran: list[str] = []
    while len(ran) < 2:
        ran += await drained(queue)
    assert set(ran) == {held.id, waits.id}, "it has run again: its end was never told"
    assert (await finished(queue)).counts["succeeded"] == 2


async def test_a_batch_is_forgotten_as_a_whole_and_its_name_is_free(stage: Stage) -> None:
    queue = await ledgered(stage)
    await queue.batches.begin(NAME, THEN)
    (task,) = await pushed(queue)
    await queue.batches.seal(NAME)
    (delivery,) = await queue.receive(1, LEASE, NOW)
    await delivery.settle(MoveToDeadLetters("failed", "by the test"))
    await drained(queue)
    await finished(queue)
    ledger = Ledger(queue._wire)
    retention = LedgerRetention(ledger, Heads(queue._wire), keep_seconds=-5.0)
    await retention.once()
    assert (await finished(queue)).counts["dead"] == 1, "a dead letter keeps its batch"
    await queue.purge_dead([task.id])
    await LedgerRetention(ledger, Heads(queue._wire), keep_seconds=60.0).once()
    assert (await finished(queue)).counts["gone"] == 1, "not yet"
    await retention.once()
    with pytest.raises(BatchNotFound):
        await queue.batches.find(NAME)
    assert await queue.batches.list("", 10) == []
    found, _ = await queue._wire.look(f"{ledger.queue}!b", "a", "z", behind=f'{ledger.queue}!b"')
    (mark,) = [row["RowKey"] for row in found]
    assert mark.startswith(f"f!{NAME}~"), "nothing else is left: by this a message that comes later is known"
    await queue.batches.begin(NAME, Plan())
    await queue.push([task])
    assert (await queue.batches.find(NAME)).counts["ready"] == 1


async def test_a_batch_that_is_being_forgotten_is_there_for_nobody_and_begun_anew(
    stage: Stage,
) -> None:
    queue = await ledgered(stage)
    (task,) = await pushed(queue)
    await queue.batches.seal(NAME)
    await drained(queue)
    await finished(queue)
    heads = Heads(queue._wire)
    await heads.replace(await heads.found(NAME), {"State": "forgetting"})  # and its worker died
    with pytest.raises(BatchNotFound):
        await queue.batches.find(NAME)
    begun = await queue.batches.begin(NAME, Plan())
    assert (begun.state, begun.total) == (BatchState.OPEN, 0)
    await queue.push([task])
    assert await drained(queue) == [task.id]


async def test_a_push_whose_mark_fails_is_in_doubt_and_repeated(stage: Stage) -> None:
    queue = await ledgered(stage)
    await queue.batches.begin(NAME, Plan())
    task = Task.new(command="true", batch=NAME, id="s7.1")

    def is_mark(request: object) -> bool:
        return b"DELETE" in request.body and b"p%21s7.1" in request.body  # type: ignore[attr-defined]

    stage.tables.strike(Strike.BUSY, count=math.inf, matches=is_mark)
    with pytest.raises(PushUnknown) as caught:
        await queue.push([task])
    assert caught.value.ids == ("s7.1",)
    with pytest.raises(BackendUnavailable, match="is not sealed: 1 tasks of it"):
        await queue.batches.seal(NAME)
    await stage.tables.heal()
    assert await queue.push([task]) == ["s7.1"]
    await queue.batches.seal(NAME)
    assert await drained(queue) == ["s7.1"]
    assert (await finished(queue)).counts["succeeded"] == 1


async def test_what_a_seal_took_for_dead_is_never_run(stage: Stage) -> None:
    queue = await ledgered(stage)
    await queue.batches.begin(NAME, Plan())
    task = Task.new(command="true", batch=NAME, id="s7.1")
    stage.proxy.strike(Strike.LOSE_ANSWER, "POST")
    with pytest.raises(PushUnknown):
        await queue.push([task])
    queue.batches.pushing.seconds = -1.0
    await queue.batches.seal(NAME)
    assert (await finished(queue)).total == 0
    with suppress(AllPutBack):
        assert await queue.receive(1, LEASE, SOON) == []
    assert await stage.total() == 0, "its message was left over"
