"""A queue of Service Bus keeps no tables: what says that it is of a batch is put off, and hinders nothing else."""

import asyncio
import logging
from datetime import timedelta

import pytest

from jobq.batches import check_batches
from jobq.errors import AllPutBack, ConfigurationError
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task
from jobq_azure.service_bus.rest_client import Outgoing
from tests.azure.stage import eventually
from tests.emulators.service_bus.faults import Fault, Operation
from tests.sb.stage import NOW, SPEC, Stage

pytestmark = pytest.mark.check


async def _of_a_batch(stage: Stage) -> Task:
    task = Task.new(command="touch of-a-batch", batch="s7", id="s7.1").in_ledger("s7~0")
    await stage.backend._wire.send(Outgoing(body=task.encode(), message_id="any"))
    return task


@pytest.mark.parametrize("place", ["tables", "tables://myaccount"])
async def test_a_journal_in_a_table_is_refused(stage: Stage, place: str) -> None:
    with pytest.raises(ConfigurationError, match="use a Storage Queue with JOBQ_JOURNAL=tables, SQLite or PostgreSQL"):
        resolve(SPEC, Settings(connection_string=stage.signed, journal=place))
    with pytest.raises(ConfigurationError, match="no batches"):
        check_batches(stage.backend)


async def test_what_is_of_a_batch_is_put_back_and_never_run(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    task = await _of_a_batch(stage)
    (other,) = await stage.pushed()
    with caplog.at_level(logging.WARNING):
        found = await stage.backend.receive(8, None, NOW)
    assert [each.id for each in found] == [other.id]
    assert f"task {task.id} is put back, for it is of a batch" in caplog.text
    assert "s7.1 is of a batch" in stage.backend.misplaced


async def test_l4_a_fresh_worker_comes_to_what_waits_behind_what_is_put_off(stage: Stage) -> None:
    for _ in range(3):
        await _of_a_batch(stage)
    await stage.pushed(command="touch started")
    worker = await stage.start("worker", "-n", "1")
    await eventually((stage.folder / "started").exists, 60)
    assert await asyncio.wait_for(worker.wait(), 60) == 3
    assert not (stage.folder / "of-a-batch").exists()


async def test_s6_what_is_put_off_leaves_no_original_beside_its_copy(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moment's refusal between its two steps: nobody died, and the task was there twice."""
    monkeypatch.setattr("jobq_azure.service_bus.backend._PUT_OFF_SECONDS", 0.0)
    await _of_a_batch(stage)
    stage.emulator.faults.plan(Fault(503), Operation.COMPLETE, count=1)
    with pytest.raises(AllPutBack):
        await stage.backend.receive(1, None, timedelta(milliseconds=1))
    while stage.backend._on_their_way:
        await asyncio.wait(stage.backend._on_their_way)
    assert len(stage.queue.messages()) == 1
    assert len(stage.requests(Operation.COMPLETE)) >= 2
