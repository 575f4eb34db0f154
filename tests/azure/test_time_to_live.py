"""S1: messages that another program has sent with a time to live; none is run that expires under its lease."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from azure.storage.queue.aio import QueueClient

from jobq.backend import Delivery
from jobq.errors import BackendUnavailable, LockLost
from jobq.settlement import Complete, Release
from jobq.task import Task
from jobq.testing.harness import DONE
from tests.azure.stage import LEASE, NOW, Stage


@pytest.fixture
async def stranger(stage: Stage) -> AsyncIterator[QueueClient]:
    """Another program with the service's own SDK, not through the proxy."""
    async with QueueClient.from_connection_string(stage.azurite.connection_string, stage.queue) as client:
        yield client


async def _sent(stranger: QueueClient, seconds: int) -> Task:
    task = Task.new(command="true")
    await stranger.send_message(task.encode().decode(), time_to_live=seconds)
    return task


async def _renewed_for_ever(delivery: Delivery) -> None:
    async with asyncio.timeout(30):
        while True:
            await delivery.renew(timedelta(seconds=1))
            await asyncio.sleep(0.2)


async def test_what_outlives_its_lease_is_run_and_its_expiry_told_once(
    stage: Stage, stranger: QueueClient, caplog: pytest.LogCaptureFixture
) -> None:
    task = await _sent(stranger, 3600)
    await _sent(stranger, 3600)
    first, second = await stage.backend.receive(2, LEASE, NOW)
    assert task.id in (first.id, second.id)
    told = [each.message for each in caplog.records if "expires at" in each.message]
    assert len(told) == 1
    assert "is lost then" in told[0]
    when = datetime.fromisoformat(told[0].partition("expires at ")[2].split()[0])
    assert timedelta(minutes=58) < when - datetime.now(UTC) < timedelta(minutes=62)
    await first.settle(Release())
    again = await stage.take()
    assert (again.id, again.deliveries) == (first.id, 2), "in its own message"
    for delivery in (again, second):
        await delivery.settle(Complete(DONE))
    assert await stage.total() == 0


async def test_what_expires_under_its_lease_is_given_back_and_hinders_nothing(
    stage: Stage, stranger: QueueClient, caplog: pytest.LogCaptureFixture
) -> None:
    task = await _sent(stranger, 10)
    (lasting,) = await stage.pushed()
    found = await stage.backend.receive(8, timedelta(seconds=60), NOW)
    assert [each.id for each in found] == [lasting.id]
    assert "would expire under its lease" in caplog.text
    async with asyncio.timeout(30):
        while not (short := await stage.backend.receive(1, timedelta(seconds=2), timedelta(seconds=1))):
            pass
    assert short[0].id == task.id, "a worker with a shorter lease runs it"


async def test_what_has_expired_under_a_task_is_a_lost_lock(stage: Stage, stranger: QueueClient) -> None:
    await _sent(stranger, 4)
    (delivery,) = await stage.backend.receive(1, timedelta(seconds=2), NOW)
    with pytest.raises(LockLost):
        await _renewed_for_ever(delivery)
    with pytest.raises(LockLost):
        await delivery.settle(Complete(DONE))


async def test_nothing_but_what_expires_is_no_empty_queue(
    stage: Stage, stranger: QueueClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobq_azure.storage.backend._PUT_OFF_SECONDS", 0.0)
    await _sent(stranger, 30)
    with pytest.raises(BackendUnavailable, match="cannot be handed out yet"):
        await stage.backend.receive(1, timedelta(seconds=60), NOW)
