"""S1: messages that another program has sent with a time to live do not vanish under a task that runs."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest
from azure.storage.queue.aio import QueueClient

from jobq.settlement import Complete, Release
from jobq.task import Task
from jobq.testing.harness import DONE, crashes
from jobq_azure.storage.time_to_live import TimeToLiveRemoval
from tests.azure.stage import LEASE, SHORT, Stage, ended
from tests.support.http_proxy import ProxiedRequest, Strike


@pytest.fixture
async def stranger(stage: Stage) -> AsyncIterator[QueueClient]:
    """Another program with the service's own SDK, not through the proxy."""
    async with QueueClient.from_connection_string(stage.azurite.connection_string, stage.queue) as client:
        yield client


@pytest.fixture
def copies(stage: Stage) -> Callable[[], list[ProxiedRequest]]:
    """What was put into the queue through the proxy."""
    path = f"/{stage.queue}/messages"
    return lambda: [each for each in stage.proxy.seen("POST") if each.path.endswith(path)]


async def _sent(stranger: QueueClient, seconds: int = 3600, **fields: str) -> Task:
    task = Task.new(**{"command": "true"} | fields)
    await stranger.send_message(task.encode().decode(), time_to_live=seconds)
    return task


async def test_a_task_outlives_its_message(
    stage: Stage, stranger: QueueClient, copies: Callable[[], list[ProxiedRequest]]
) -> None:
    """By the command line, at the wire: it ends well, and its copy has no time to live."""
    worker = await stage.start("worker", "-n", "2", "--idle-timeout", "1s", **SHORT, JOBQ_GUARDIAN="off")
    await stage.proxy.until(lambda: stage.proxy.seen("GET", "/messages"))
    await _sent(stranger, 2, command="sleep 2.1")
    await _sent(stranger, 60)
    result = await ended(worker)
    assert result.code == 0, result.err
    last = json.loads(result.err.splitlines()[-1])
    assert (last["succeeded"], last["lost"]) == (2, 0), result.err
    told = [line for line in result.err.splitlines() if "another program sends messages with a time to live" in line]
    assert len(told) == 1
    assert [each.query["messagettl"] for each in copies()] == ["-1", "-1"]
    assert await stage.total() == 0
    assert (await stage.behind.stats()).dead == 0


async def test_a_copy_goes_on_where_the_message_was(stage: Stage, stranger: QueueClient) -> None:
    """S3, S7: deliveries, tokens, checkpoint, id; and it is copied once in its life."""
    task = await _sent(stranger)
    first = await stage.take()
    assert (first.id, first.deliveries, crashes(first)) == (task.id, 1, 0)
    await first.renew(LEASE)
    await first.checkpoint("step 7")
    await first.settle(Release())
    second = await stage.take()
    assert (second.task.command, second.checkpoint_value) == ("true", "step 7")
    assert (second.deliveries, crashes(second)) == (2, 0)
    assert second.fencing > first.fencing
    assert second.fencing.epoch == first.fencing.epoch
    assert sum("messagettl" in each.query for each in stage.proxy.seen("POST")) == 1
    await second.settle(Complete(DONE))
    assert await stage.total() == 0


@pytest.mark.parametrize("strike", [Strike.BUSY, Strike.LOSE_ANSWER])
async def test_without_a_copy_it_runs_as_it_is_and_is_told(
    stage: Stage, stranger: QueueClient, strike: Strike, caplog: pytest.LogCaptureFixture
) -> None:
    await _sent(stranger)
    stage.proxy.strike(strike, "POST")
    delivery = await stage.take()
    assert "runs as it is, and may vanish meanwhile" in caplog.text
    await delivery.settle(Complete(DONE))
    assert await stage.total() == (0 if strike is Strike.BUSY else 1), "the copy that nobody was told of runs once more"


async def test_a_deletion_whose_answer_was_lost_is_asked_again(stage: Stage, stranger: QueueClient) -> None:
    await _sent(stranger)
    stage.proxy.strike(Strike.LOSE_ANSWER, "DELETE")
    delivery = await stage.take()
    await delivery.settle(Complete(DONE))
    assert await stage.total() == 0


async def test_one_that_another_has_taken_meanwhile_is_not_doubled(stage: Stage, stranger: QueueClient) -> None:
    """Its receipt was stale when the copy stood: the copy goes again, and the other worker runs the task."""
    await _sent(stranger)
    wire = await stage.wire()
    (late,) = await wire.get(1, 30)
    await wire.update(late.id, late.receipt, 0)
    (other,) = await wire.get(1, 30)
    assert other.id == late.id
    assert await TimeToLiveRemoval(wire).of(late, 30, 5.0) is None
    assert await stage.total() == 1


async def test_one_that_expires_between_copy_and_deletion_goes_on_as_its_copy(
    stage: Stage, stranger: QueueClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: nobody else has it. Its deletion is refused all the same, as that of one that another has taken."""
    await _sent(stranger, 1)
    wire = await stage.wire()
    (late,) = await wire.get(1, 30)
    delete = wire.delete

    async def too_late(message_id: str, receipt: str) -> None:
        monkeypatch.undo()
        await asyncio.sleep(1.1)
        await delete(message_id, receipt)

    monkeypatch.setattr(wire, "delete", too_late)
    copy = await TimeToLiveRemoval(wire).of(late, 30, 5.0)
    assert await stage.total() == 1
    assert copy is not None
    assert copy.id != late.id
