"""`jobq QUEUE delete`: an empty queue goes, a filled one when it is said twice."""

import asyncio

from jobq.task import Task
from tests.azure.emulator import ACCOUNT, Azurite
from tests.cli.conftest import Jobq
from tests.emulators.service_bus.description import Description
from tests.emulators.service_bus.emulator import Emulator


def test_a_filled_queue_is_deleted_by_force_alone(jobq: Jobq) -> None:
    jobq.kill_tasks(Task(id="lost", command="false"))
    jobq.fill(Task.new(command="true"), Task.new(command="true"))
    result = jobq("demo", "delete", code=2)
    assert "demo holds 2 tasks and 1 dead letter; --force deletes it all the same" in result.err
    assert jobq("queues").out == "demo\n"
    assert jobq("demo", "delete", "--force").err == "queue demo is deleted\n"
    assert jobq("queues").out == ""
    assert "queue 'demo' does not exist; the first push makes it" in jobq("demo", "delete", code=4).err
    jobq("demo", "push", "-c", "echo anew")
    assert jobq("demo", "worker", "-q").out == "anew\n"


def test_a_queue_whose_tasks_are_done_is_empty(jobq: Jobq) -> None:
    jobq("demo", "push", "-c", "true")
    jobq("demo", "worker", "-q")
    assert jobq("demo", "delete", "--json").objects == [{"queue": "demo", "deleted": True}]


def test_a_storage_queue_goes_with_its_dead_letters(jobq: Jobq, azurite: Azurite) -> None:
    jobq.environment["JOBQ_CONNECTION_STRING"] = azurite.connection_string
    spec = f"{ACCOUNT}/to-delete"
    jobq(spec, "push", "-c", "true")
    assert "to-delete holds 1 task; --force deletes it all the same" in jobq(spec, "delete", code=2).err
    jobq(spec, "delete", "--force")
    for queue in ("to-delete", "to-delete-failed"):
        assert f"there is no queue {ACCOUNT}/{queue}" in jobq(f"{ACCOUNT}/{queue}", "peek", code=4).err


async def test_a_queue_of_service_bus_is_deleted(jobq: Jobq) -> None:
    async with Emulator([Description("q")]) as emulator:
        jobq.environment["JOBQ_CONNECTION_STRING"] = emulator.connection_string
        await asyncio.to_thread(jobq, "sb://emulator/q", "delete")
        result = await asyncio.to_thread(jobq, "sb://emulator/q", "size", code=4)
        assert "there is no queue" in result.err


def test_where_queues_are_not_deleted_it_is_said(jobq: Jobq) -> None:
    result = jobq("postgresql://127.0.0.1:1/db/q", "delete", code=3)
    assert "`clear` and `dead purge --all` leave nothing but the name" in result.err
