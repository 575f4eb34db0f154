"""What a lost answer means, verb by verb, and that nothing below us repeats a request (S5, S8, facts 1.5 trap 15)."""

import asyncio
import math
from datetime import timedelta

import pytest

from jobq.errors import BackendUnavailable, LockLost, PushUnknown, SettlementUnknown
from jobq.settlement import Complete, MoveToDeadLetters, Release
from jobq.task import Task
from jobq.testing.harness import DONE
from tests.azure.stage import LEASE, NOW, SHORT, Stage, is_renewal, is_update
from tests.support.http_proxy import ProxiedRequest, Strike

pytestmark = pytest.mark.check


async def test_a_put_that_is_throttled_is_repeated(stage: Stage) -> None:
    """One of 500 took 499 back, however often the push was begun again."""
    tasks = [Task.new(command="true") for _ in range(40)]
    stage.proxy.strike(Strike.BUSY, "POST", count=3)
    assert await stage.backend.push(tasks) == [task.id for task in tasks]
    assert await stage.total() == 40
    assert len(stage.proxy.seen("POST")) == 43


async def test_put_that_is_refused_takes_back_the_others(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobq_azure.storage.push.PUSH_SECONDS", 1.0)
    tasks = [Task.new(command="true") for _ in range(5)]
    stage.proxy.strike(
        Strike.BUSY, "POST", count=math.inf, matches=lambda request: tasks[3].id.encode() in request.body
    )
    with pytest.raises(BackendUnavailable, match="busy"):
        await stage.backend.push(tasks)
    assert await stage.total() == 0
    await stage.proxy.heal()
    assert await stage.backend.push(tasks) == [task.id for task in tasks]


async def test_l1_a_worker_waits_for_what_a_lost_receive_may_have_leased(stage: Stage) -> None:
    """The next look found the queue empty: the worker ended with 0, and nobody ran what came back."""
    await stage.pushed(4)
    stage.proxy.strike(Strike.LOSE_ANSWER, "GET", matches=_is_receive)
    result = await stage.run("worker", "-n", "2", **SHORT)
    assert result.code == 0, result.err
    assert "the answer was lost" in result.err
    assert await stage.total() == 0, result.err


async def test_a_cancelled_renewal_goes_on_and_its_receipt_is_used(stage: Stage) -> None:
    # The keeper gives up after L/8; the service may answer a little later, and the receipt is in that answer.
    await stage.pushed()
    delivery = await stage.take()
    renewing = asyncio.ensure_future(delivery.renew(LEASE))
    await stage.proxy.until(lambda: stage.proxy.seen("PUT", "/messages/"))
    renewing.cancel()
    await asyncio.wait({renewing})
    assert renewing.cancelled()
    await delivery.settle(Complete(DONE))
    assert await stage.total() == 0


async def test_dead_letter_cut_off_anywhere_loses_nothing_and_folds(stage: Stage) -> None:
    # S6: write, then delete; a second delivery writes it again, and readers see one.
    (task,) = await stage.pushed()
    (delivery,) = await stage.backend.receive(1, timedelta(seconds=1), NOW)
    stage.proxy.strike(Strike.BREAK, "DELETE")
    with pytest.raises(SettlementUnknown):
        await delivery.settle(MoveToDeadLetters("failures", "the first time"))
    (again,) = await stage.backend.receive(1, LEASE, timedelta(seconds=10))
    await again.settle(MoveToDeadLetters("failures", "the second time"))
    assert (await stage.behind.stats()).dead == 2
    assert [each.id for each in await stage.backend.dead_letters(10)] == [task.id]
    assert await stage.backend.redrive([task.id]) == [task.id]
    stats = await stage.behind.stats()
    assert (stats.total, stats.dead) == (1, 0)


async def test_dead_letter_by_a_stale_worker_buries_nothing(stage: Stage) -> None:
    await stage.pushed()
    (stale,) = await stage.backend.receive(1, timedelta(seconds=1), NOW)
    (holder,) = await stage.backend.receive(1, LEASE, timedelta(seconds=10))
    with pytest.raises(LockLost):
        await stale.settle(MoveToDeadLetters("failures", ""))
    assert (await stage.behind.stats()).dead == 0
    await holder.settle(Complete(DONE))


async def test_renewals_name_visibility_and_carry_no_body(stage: Stage) -> None:
    # Facts 1.5, traps 11 and 12: without the first the task is visible at once, with the second a checkpoint is undone.
    await stage.pushed()
    delivery = await stage.take()
    await delivery.checkpoint("step 7")
    for _ in range(3):
        await delivery.renew(LEASE)
    renewals = [each for each in stage.proxy.requests if is_renewal(each)]
    assert len(renewals) == 3
    assert {each.query["visibilitytimeout"] for each in renewals} == {"30"}
    assert all("visibilitytimeout" in each.query for each in stage.proxy.requests if is_update(each))
    await delivery.settle(Release())
    assert (await stage.take()).checkpoint_value == "step 7"


async def test_time_to_live_is_never(stage: Stage) -> None:
    # S1: the service's default deletes a waiting task after 7 days.
    (task,) = await stage.pushed()
    await (await stage.take()).settle(MoveToDeadLetters("failures", ""))
    await stage.backend.redrive([task.id])
    puts = stage.proxy.seen("POST", "/messages")
    assert [each.path.removesuffix("/messages").rpartition("/")[2] for each in puts] == [
        stage.queue,
        f"{stage.queue}-failed",
        stage.queue,
    ]
    assert {each.query["messagettl"] for each in puts} == {"-1"}


async def test_what_cannot_be_taken_back_is_named(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # S8: all of a push or, on an error, none; what may be there all the same is in doubt.
    tasks = [Task.new(command="true") for _ in range(3)]
    monkeypatch.setattr("jobq_azure.storage.push._TAKE_BACK_SECONDS", 1.0)
    stage.proxy.strike(Strike.DENY, "POST", matches=lambda request: tasks[2].id.encode() in request.body)
    stage.proxy.strike(Strike.BUSY, "DELETE", count=math.inf)
    with pytest.raises(PushUnknown) as caught:
        await stage.backend.push(tasks)
    await stage.proxy.heal()
    queued = {each.id for each in await stage.behind.peek(32)}
    assert queued
    assert queued == set(caught.value.ids)


def _is_receive(request: ProxiedRequest) -> bool:
    return "numofmessages" in request.query and "peekonly" not in request.query
