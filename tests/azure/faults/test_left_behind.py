"""A worker does not end with 0 while a task is hidden that it has hidden itself, also where two faults meet."""

import asyncio
import math
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from jobq.backend import UNKNOWN_ID, Backend
from jobq.batch_plan import Plan
from jobq.errors import JobqError
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from jobq.settlement import Complete
from jobq.task import Task, new_id
from jobq.testing.harness import DONE
from tests.azure.ledger.ledger_stage import NAME, finished, ledgered
from tests.azure.payloads.payload_stage import large_task
from tests.azure.stage import LEASE, NOW, Stage, is_update, make_container
from tests.process.stage import QUICK
from tests.support.http_proxy import ProxiedRequest, Strike

pytestmark = pytest.mark.check

_HIDDEN: int = 6  # seconds: longer than the lease, and than what a worker waits beyond that


def _is_receive(request: ProxiedRequest) -> bool:
    return "numofmessages" in request.query and "peekonly" not in request.query


def _puts_off(request: ProxiedRequest) -> bool:
    return is_update(request) and request.query.get("visibilitytimeout") == str(_HIDDEN)


def _worker(queue: Backend, **settings: Any) -> Worker:
    return Worker(queue, Settings(**{**QUICK, **settings}))


async def test_l1_a_requeue_whose_answer_is_lost_hides_a_task_for_its_whole_delay(stage: Stage) -> None:
    """It was waited for a lease only: the worker ended with 0 before its task was due."""
    path = stage.folder / "once"
    command = f"[ -e {path} ] || {{ touch {path}; exit 3; }}"
    await stage.backend.push([Task.new(command=command, on_exit=[f"3=delay:{_HIDDEN}s"])])
    stage.proxy.strike(Strike.LOSE_ANSWER, "PUT", matches=_puts_off)
    report = await _worker(stage.backend).run()
    assert await stage.total() == 0, report
    assert report.succeeded == 1


@pytest.mark.parametrize("away", ["tables", "blobs"])
async def test_l1_what_was_put_off_comes_when_it_is_due_though_the_answer_was_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    """It was waited for a lease only, which is shorter."""
    monkeypatch.setattr("jobq_azure.table_journal.backend._PUT_OFF", timedelta(seconds=_HIDDEN))
    monkeypatch.setattr("jobq_azure.storage.backend._UNREADABLE_SECONDS", _HIDDEN)
    queue = await ledgered(stage)
    await make_container(stage)
    await queue.batches.begin(NAME, Plan())
    await queue.push([large_task(batch=NAME, id=f"{NAME}.{new_id()[-12:]}")])
    await queue.batches.seal(NAME)
    getattr(stage, away).strike(Strike.BUSY, count=math.inf)
    stage.proxy.strike(Strike.LOSE_ANSWER, "PUT", matches=_puts_off)
    working = asyncio.create_task(_worker(queue).run())
    await stage.proxy.until(lambda: any(map(_puts_off, stage.proxy.requests)))
    await getattr(stage, away).heal()
    assert (await working).succeeded == 1
    assert (await finished(queue)).counts["succeeded"] == 1


@pytest.mark.slow("waits for outages and leases of Azurite")
async def test_l1_what_is_put_off_later_comes_later(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its put-off was refused at first: counted was from before that."""
    monkeypatch.setattr("jobq_azure.table_journal.backend._PUT_OFF", timedelta(seconds=_HIDDEN))
    queue = await ledgered(stage)
    await queue.batches.begin(NAME, Plan())
    await queue.push([Task.new(command="true", batch=NAME, id=f"{NAME}.{new_id()[-12:]}")])
    await queue.batches.seal(NAME)
    stage.tables.strike(Strike.BUSY, count=math.inf)
    stage.proxy.strike(Strike.BUSY, "PUT", count=6, matches=_puts_off)  # for 3 s
    working = asyncio.create_task(_worker(queue, visibility_timeout=timedelta(seconds=5)).run())
    await stage.proxy.until(lambda: any(map(_puts_off, stage.proxy.requests)))
    await stage.tables.heal()
    assert (await working).succeeded == 1
    assert (await finished(queue)).counts["succeeded"] == 1


async def test_l4_a_receive_that_is_given_up_while_it_turns_a_message_away_is_just_given_up(stage: Stage) -> None:
    """It ended with a ValueError, and the worker with it; and the message stayed leased, which nobody was told of."""
    queue = await ledgered(stage)
    await queue.batches.begin(NAME, Plan())
    await queue.push([Task.new(command="true", batch=NAME, id=f"{NAME}.1")])
    (delivery,) = await queue.receive(1, timedelta(seconds=1), NOW)
    stage.proxy.strike(Strike.BUSY, "DELETE", count=math.inf)
    with suppress(JobqError):
        await delivery.settle(Complete(DONE))  # by the ledger it has ended
    await stage.proxy.heal()
    stage.proxy.strike(Strike.HANG, "DELETE", count=math.inf)
    before = len(stage.proxy.seen("DELETE"))
    receiving = asyncio.ensure_future(queue.receive(1, LEASE, LEASE))
    await stage.proxy.until(lambda: len(stage.proxy.seen("DELETE")) > before)
    queue.take_put_off()
    receiving.cancel()
    await asyncio.wait([receiving])
    assert receiving.cancelled(), receiving.exception()
    assert UNKNOWN_ID in queue.take_put_off()
    await stage.proxy.heal()


def _asks_for_what_came(stage: Stage) -> bool:
    """Return whether the table is asked since a message came; what is asked before, others want to know."""
    came = [each.ended for each in stage.proxy.seen("GET") if each.ended and b"<MessageText>" in each.answer]
    return bool(came) and any(each.strike is Strike.HANG and each.began >= max(came) for each in stage.tables.requests)


@pytest.mark.slow("waits for outages and leases of Azurite")
async def test_l1_what_is_given_back_slowly_is_told_of_at_once(stage: Stage) -> None:
    """Its table and its queue hung: a look that followed found an empty queue, and the worker ended with 0."""
    queue = await ledgered(stage)
    await queue.batches.begin(NAME, Plan())
    await queue.push([Task.new(command="true", batch=NAME, id=f"{NAME}.1")])
    stage.tables.strike(Strike.HANG, count=math.inf)
    stage.proxy.strike(Strike.HANG, "PUT", count=math.inf, matches=is_update)
    receiving = asyncio.ensure_future(queue.receive(1, timedelta(minutes=2), NOW))
    await stage.tables.until(lambda: _asks_for_what_came(stage))
    receiving.cancel()
    await asyncio.wait([receiving])
    assert queue.take_put_off() == {UNKNOWN_ID: pytest.approx(120, abs=1)}
