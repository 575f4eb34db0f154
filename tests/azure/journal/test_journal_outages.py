"""A table that is away, silent, busy or refusing: no task is delayed or failed by it, and the journal catches up."""

import asyncio
import logging
import math
import time
from datetime import timedelta

import pytest

from jobq.cli.submit.wait_for_results import check_journal
from jobq.errors import ConfigurationError
from jobq.queue import Queue
from jobq.settings import Settings
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.spec import resolve
from jobq.task import Task
from jobq.testing.harness import DONE
from jobq_azure.table_journal import backend as module
from jobq_azure.table_journal import client
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.batch_writer import Writer
from jobq_azure.table_journal.client import TableWire, Verb, Write
from jobq_azure.table_journal.note import fixed
from tests.azure.journal.journal_stage import journaled, key_of, state, written
from tests.azure.stage import LEASE, NOW, SHORT, Stage
from tests.support.http_proxy import Strike

pytestmark = pytest.mark.check

SETTINGS = Settings(scheduled_events="off", poll_max=timedelta(seconds=1))


async def _strike(stage: Stage, strike: Strike | None) -> None:
    if strike is None:
        await stage.tables.refuse()
    else:
        stage.tables.strike(strike, count=math.inf)


@pytest.mark.parametrize("strike", [None, Strike.HANG, Strike.BUSY, Strike.DENY, Strike.PAGE, Strike.BARE])
async def test_tasks_go_on_and_the_journal_catches_up(
    stage: Stage, strike: Strike | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    patience = module.ANSWER_SECONDS
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.5)
    queue = await journaled(stage)
    ids = await queue.push([Task.new(kwargs={"n": n}) for n in range(20)])
    await written(queue)
    await _strike(stage, strike)
    caplog.clear()

    async def callback(n: int) -> int:
        return n

    began = time.monotonic()
    report = await Queue(queue, SETTINGS).worker(callback, num_workers=4)
    assert report.succeeded == 20
    assert time.monotonic() - began < 10, "a table that is away holds up nothing"
    async with asyncio.timeout(10):  # the tasks may have ended before the writer's first try has failed
        while "cannot be written, and the tasks go on" not in caplog.text:
            await asyncio.sleep(0.02)
    assert "cancel requests cannot be read" in caplog.text
    assert len([each for each in caplog.records if "cannot be" in each.getMessage()]) <= 3, "the log is not flooded"
    await stage.tables.heal()
    monkeypatch.setattr(module, "ANSWER_SECONDS", patience)  # a busy machine takes half a second for an answer, too
    await written(queue)
    assert "is written again" in caplog.text
    assert {await state(queue, id_) for id_ in ids} == {"succeeded"}
    assert [one.value for one in await queue.journal.attempts(ids[7])] == [7]


async def test_what_could_not_be_told_is_said(stage: Stage) -> None:
    """By the command line: the push is acknowledged, the tasks are done, and the log says what the journal misses."""
    on = {"JOBQ_JOURNAL": "tables"}
    assert (await stage.run("create", **on)).code == 0
    await stage.tables.refuse()
    pushed = await stage.run("push", "-c", "touch one", "-c", "touch two", **on)
    assert (pushed.code, "notes were not written" in pushed.err) == (0, True), pushed.err
    worked = await stage.run("worker", **SHORT, **on)
    assert worked.code == 0, worked.err
    assert "cannot be written, and the tasks go on" in worked.err
    assert "notes were not written, as far as is known; the tasks themselves are not concerned" in worked.err
    assert (stage.folder / "one").exists()
    assert await stage.total() == 0
    asked = await stage.run("status", "some-id", **on)
    assert (asked.code, "cannot connect" in asked.err) == (75, True), asked.err


async def test_nothing_is_queued_whose_end_cannot_be_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """`push --wait` queued its tasks, and failed then: who pushed them again had them twice."""
    on = {"JOBQ_JOURNAL": "tables"}
    queue = await journaled(stage)
    (stage.folder / "tasks.txt").write_text("true\n")
    for source in (("-c", "true"), ("tasks.txt",), ("--resume", "s1", "tasks.txt")):
        stage.tables.strike(Strike.DENY, count=math.inf)
        pushed = await stage.run("push", "--wait", *source, **on)
        assert (pushed.code, "Storage Table Data" in pushed.err) == (3, True), pushed
        assert await stage.total() == 0
    await stage.tables.heal()
    monkeypatch.setattr(client, "TABLE", "nosuchtable")
    with pytest.raises(ConfigurationError, match=f"make it with: jobq {stage.spec} create"):
        await check_journal(queue)
    async with resolve(f"{stage.spec}-missing", Settings(connection_string=stage.signed, journal="tables")) as missing:
        await check_journal(missing)  # the push makes both


async def test_memory_is_bounded_and_ends_outlast_beats(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    queue = await journaled(stage)
    await stage.tables.refuse()
    place = queue._wire.place
    async with TableWire(place, 0.5) as wire:
        writer = Writer(wire, most_notes=100, most_bytes=100_000)
        for number in range(5000):
            writer.add([fixed(place.queue, f"l!{number % 3000}", {"State": "x" * 100}, spare=True)])
            assert len(writer) <= 100
            assert writer.bytes <= 100_000
        for number in range(50):
            writer.add([fixed(place.queue, f"a!{number}", {"Record": "x" * 100})])
            await asyncio.sleep(0)
        assert sum(key.startswith("a!") for _, key in writer._notes) == 50, "what came to an end is kept"
        assert len(writer) <= 100
        await writer.aclose()
    assert "were not written" in caplog.text


@pytest.mark.slow("leases of seconds on Azurite")
async def test_a_refusing_table_is_asked_seldom(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """1,000 tasks with the table unreachable cost no more requests than the pauses allow, and so no more time."""
    caplog.set_level(logging.ERROR)
    queue = await journaled(stage)
    stage.tables.strike(Strike.BUSY, count=math.inf)
    before = len(stage.tables.requests)
    await queue.push([Task.new(kwargs={}) for _ in range(200)])

    async def callback() -> None:
        return None

    began = time.monotonic()
    report = await Queue(queue, SETTINGS).worker(callback, num_workers=8)
    assert report.succeeded == 200
    asked, seconds = len(stage.tables.requests) - before, time.monotonic() - began
    assert asked <= 6 + 2 * seconds, f"{asked} requests in {seconds:.1f} s"
    await stage.tables.heal()


async def test_a_lost_answer_is_written_once(stage: Stage) -> None:
    """Rows are replaced by themselves, and counted once."""
    queue = await journaled(stage)
    (id_,) = await queue.push([Task.new(command="true")])
    await written(queue)
    (delivery,) = await queue.receive(1, timedelta(seconds=30), timedelta(0))
    stage.tables.strike(Strike.LOSE_ANSWER, "POST", "$batch", count=2)
    await delivery.settle(MoveToDeadLetters("failed", "exit code 3"))
    assert await state(queue, id_) == "dead"
    assert (await queue.journal.stats(60)).ended == {"failed": 1}
    assert rows.safe(id_) == id_


async def test_l1_a_worker_ends_though_a_lease_shows_that_nobody_has(stage: Stage) -> None:
    """Its worker died between the settlement and its note: it was waited for without end, and without a pause."""
    queue = await journaled(stage)
    await queue.push([task := Task.new(command="true")])
    (held,) = await queue.receive(1, LEASE, NOW)
    await written(queue)
    place = queue._wire.place.queue
    row = await queue._wire.get(place, key_of(task))
    assert row is not None
    kept = {name: row[name] for name in ("State", "Fencing", "At", "Holder")}
    await held._inner.settle(Complete(DONE))  # type: ignore[attr-defined] # it has ended
    await queue._wire.write(place, [Write(Verb.REPLACE, key_of(task), kept | {"LeaseLeft": -1.0})])
    worker = await stage.run("worker", **SHORT, JOBQ_JOURNAL="tables")
    assert worker.code == 0, worker.err
