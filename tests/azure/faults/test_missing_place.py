"""A queue without QUEUE-failed, as a portal, Terraform or the SDK makes it: what fails for good runs no more (S7)."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from azure.storage.queue import AccountSasPermissions, QueueServiceClient, ResourceTypes, generate_account_sas

from jobq.settlement import MoveToDeadLetters
from jobq.task import Task
from tests.azure.emulator import ACCOUNT, KEY
from tests.azure.stage import SHORT, Stage, ended, eventually


def _without_place(stage: Stage) -> None:
    with QueueServiceClient.from_connection_string(stage.azurite.connection_string) as service:
        service.delete_queue(f"{stage.queue}-failed")


def _may_not_create(stage: Stage) -> str:
    """Return what signs in as an identity that works a queue, and makes none."""
    may = AccountSasPermissions(read=True, add=True, update=True, process=True, delete=True, list=True)
    ends = datetime.now(UTC) + timedelta(hours=1)
    signature = generate_account_sas(ACCOUNT, KEY, ResourceTypes(object=True, container=True), may, ends)
    return f"QueueEndpoint=http://127.0.0.1:{stage.azurite.port}/{ACCOUNT};SharedAccessSignature={signature}"


async def test_a_worker_makes_it(stage: Stage) -> None:
    _without_place(stage)
    # Not stopped once the proxy has passed the answer on: that may come before the worker has told of it.
    worker = await stage.run("worker", "--idle-timeout", "2s", **SHORT, JOBQ_GUARDIAN="off")
    place = f"/{stage.spec}-failed"
    assert any((each.path, each.status) == (place, 201) for each in stage.proxy.requests)
    assert f"{stage.spec}-failed was missing, and is made" in worker.err
    assert (await stage.behind.stats()).dead == 0


async def test_it_is_made_when_it_is_needed(stage: Stage) -> None:
    await stage.pushed()
    delivery = await stage.take()
    _without_place(stage)
    await delivery.settle(MoveToDeadLetters("failed", "while the place was gone"))
    assert [letter.description for letter in await stage.backend.dead_letters(10)] == ["while the place was gone"]


async def test_where_it_may_not_be_made_a_task_without_retries_runs_once(stage: Stage, tmp_path: Path) -> None:
    """It ran four times, each as if its worker had crashed, and came back for ever."""
    _without_place(stage)
    ran = tmp_path / "ran"
    task = Task.new(command=f"echo run >> {ran}; false", budgets={"retries": 0})
    await stage.behind.push([task])
    settings = {**SHORT, "JOBQ_CONNECTION_STRING": _may_not_create(stage)}
    worker = await stage.run("worker", "--max-tasks", "1", **settings)
    assert f"`jobq {stage.spec} create` makes it" in worker.err
    assert "is put back and will not run again" in worker.err
    assert ran.read_text() == "run\n"
    assert await stage.total() == 1


async def test_without_a_place_others_go_on(stage: Stage) -> None:
    # L3, L5: what can be put nowhere comes again when its lease is over, and holds up no slot meanwhile.
    _without_place(stage)
    await (await stage.wire()).put("no task")
    await stage.pushed(command="echo $JOBQ_TASK_ID >> done")
    settings = SHORT | {"JOBQ_VISIBILITY_TIMEOUT": "60s", "JOBQ_CONNECTION_STRING": _may_not_create(stage)}
    worker = await stage.start("worker", "--idle-timeout", "30s", **settings)
    await eventually((stage.folder / "done").exists)
    worker.terminate()
    err = (await ended(worker)).err
    assert "there is no queue" in err
    assert "it cannot be made from here" in err


async def test_what_was_given_up_before_is_only_buried(stage: Stage, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    task = Task.new(command=f"echo run >> {ran}", budgets={"retries": 0})
    await stage.backend.push([task.requeued(failures=1, ends=0)])
    worker = await stage.run("worker", **SHORT)
    assert (worker.code, ran.exists()) == (0, False), worker.err
    (letter,) = await stage.backend.dead_letters(10)
    assert (letter.id, letter.reason) == (task.id, "failed")
    assert await stage.backend.redrive([task.id]) == [task.id]
    assert (await stage.run("worker", **SHORT)).code == 0
    assert ran.read_text(), "a redrive has its budgets anew"
