"""`jobq check`: what is wrong with a queue is found, its service is tried out, and nothing is left behind."""

import asyncio
import signal
from pathlib import Path
from typing import Final

import pytest
from azure.storage.queue import QueueServiceClient

from jobq.backend import Backend
from jobq.cli import service_check
from jobq.errors import ConfigurationError
from jobq.examination import Finding, Verdict
from jobq.servable import served
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task
from jobq.testing import conformance
from jobq.testing.cases import Case
from jobq.testing.harness import Bench
from tests.azure.emulator import ACCOUNT, Azurite
from tests.cli.conftest import Jobq
from tests.emulators.service_bus.description import Description
from tests.emulators.service_bus.emulator import Emulator
from tests.postgres.server import Database
from tests.service.server import running

pytestmark = pytest.mark.check

FEW: Final = ("push.not_before_is_kept", "settle.complete_ends_the_task", "dead.keeps_bytes_and_reason")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them take a minute, which `test_all_of_it` has."""
    monkeypatch.setattr(service_check, "_CASES", FEW)


async def looked_at(backend: Backend) -> dict[str, Finding]:
    async with backend:
        return {each.what: each async for each in service_check.look(backend)}


async def tried_out(backend: Backend) -> list[Finding]:
    async with backend:
        return [each async for each in service_check.Trial(backend).findings()]


def queues_of(azurite: Azurite) -> set[str]:
    with QueueServiceClient.from_connection_string(azurite.connection_string) as client:
        return {queue.name for queue in client.list_queues(name_starts_with=service_check.SCRATCH)}


def test_a_look_at_the_embedded_queue_changes_nothing(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true"))
    before = jobq("demo", "peek", "--json").out
    result = jobq("demo", "check", "--look")
    assert {line.split()[0] for line in result.lines} == {"ok"}
    assert result.err.splitlines() == ["7 things looked at, 0 to see to"]
    assert jobq("demo", "peek", "--json").out == before
    jobq.file.chmod(0o644)
    result = jobq("demo", "check", "--look", code=1)
    assert "differs  the file is this user's alone: no\n         other users may read" in result.out
    assert "chmod go= " in result.out


def test_a_queue_that_is_not_there(jobq: Jobq) -> None:
    result = jobq("demo", "check", "--look", code=1)
    assert "differs  tasks can be counted: no\n         queue 'demo' does not exist" in result.out


@pytest.mark.usefixtures("few")
async def test_the_embedded_queue_is_tried_out_and_nothing_is_left(jobq: Jobq) -> None:
    await asyncio.to_thread(jobq.fill, Task.new(command="true", id="mine"))
    settings = Settings(home=jobq.home)
    found = await tried_out(resolve("demo", settings))
    assert [each.verdict for each in found] == [Verdict.OK] * len(FEW)
    async with resolve("demo", settings) as queue:
        assert [each.id for each in await queue.peek(2)] == ["mine"]
        assert await served(queue).queues() == ["demo"]


@pytest.mark.slow("real processes, and leases of seconds")
@pytest.mark.usefixtures("few")
async def test_postgresql(postgres: Database) -> None:
    spec = postgres.url.removesuffix("/") + "/demo"
    async with resolve(spec, Settings()) as backend:
        await backend.create()
    found = await looked_at(resolve(spec, Settings()))
    assert found["the server takes writes"].verdict is Verdict.OK
    assert found["this machine's clock"].found == "as the server's"
    assert {found["fsync"].found, found["fsync"].verdict} in ({"on", Verdict.OK}, {"off", Verdict.DIFFERS})
    assert [each.verdict for each in await tried_out(resolve(spec, Settings()))] == [Verdict.OK] * len(FEW)
    async with resolve(spec.removesuffix("demo") + service_check.SCRATCH, Settings()) as scratch:
        assert (await scratch.stats()).unfinished == 0
        assert await scratch.dead_letters(1) == []
        await scratch.push([Task.new(command="true")])
        with pytest.raises(ConfigurationError, match="jobq-check holds tasks: another check runs, or was cut off"):
            await tried_out(resolve(spec, Settings()))
        assert (await scratch.stats()).unfinished == 1, "they may be somebody's own"


def test_what_to_do_can_be_copied(jobq: Jobq, postgres: Database) -> None:
    spec = postgres.fresh().spec()
    assert f"make them and the queue with: jobq {spec} create" in jobq(spec, "check", "--look", code=1).out


@pytest.mark.slow("real processes, and leases of seconds")
@pytest.mark.usefixtures("few")
async def test_http(tmp_path: Path) -> None:
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path) as server:
        found = await tried_out(resolve(f"{server.url}/demo", Settings()))
    assert [each.verdict for each in found] == [Verdict.OK] * len(FEW)


@pytest.mark.usefixtures("few")
async def test_a_storage_queue_is_tried_out_and_nothing_is_left(azurite: Azurite) -> None:
    settings = Settings(connection_string=azurite.connection_string)
    spec = f"{ACCOUNT}/check-look"
    missing = await looked_at(resolve(spec, settings))
    assert missing["the place of dead letters"].advice == f"make it with: jobq {spec} create"
    async with resolve(spec, settings) as backend:
        await backend.create()
    assert {each.verdict for each in (await looked_at(resolve(spec, settings))).values()} == {Verdict.OK}
    found = await tried_out(resolve(spec, settings))
    assert {each.what: each.found for each in found if each.verdict is not Verdict.OK} == {}
    assert len(found) == len(FEW)
    assert queues_of(azurite) == set()


async def test_what_a_service_does_otherwise_is_said_and_its_queues_are_deleted(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(bench: Bench) -> None:
        """S1: a lease that ends."""
        await bench.pushed()
        raise AssertionError("it did not end")

    broken = Case(name="lease.that_ends", needs=(), injects=False, check=fails)
    monkeypatch.setattr(conformance, "cases", lambda _: [broken])
    monkeypatch.setattr(service_check, "_CASES", (broken.name,))
    settings = Settings(connection_string=azurite.connection_string)
    found = await tried_out(resolve(f"{ACCOUNT}/check-broken", settings))
    (last,) = [each for each in found if each.verdict is not Verdict.OK]
    assert (last.what, last.found, last.assumed) == ("a lease that ends", "it did not end", broken.name)
    assert queues_of(azurite) == set()


@pytest.mark.slow("real processes, and leases of seconds")
def test_a_check_that_is_interrupted_leaves_nothing(jobq: Jobq, azurite: Azurite) -> None:
    jobq.environment["JOBQ_CONNECTION_STRING"] = azurite.connection_string
    jobq(f"{ACCOUNT}/check-interrupted", "create")
    process = jobq.start(f"{ACCOUNT}/check-interrupted", "check")
    assert process.stdout is not None
    while b"two receivers" not in (line := process.stdout.readline()) and b"ok       A" not in line:
        assert line, "it ended without a case"
    assert queues_of(azurite) != set()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert queues_of(azurite) == set()


async def test_a_queue_of_service_bus_whose_settings_lose_tasks() -> None:
    queue = Description("check", max_delivery_count=3, time_to_live=60.0)
    async with Emulator([queue]) as emulator:
        found = await looked_at(resolve("sb://emulator/check", Settings(connection_string=emulator.connection_string)))
    assert {each.what for each in found.values() if each.verdict is Verdict.DIFFERS} == {
        "MaxDeliveryCount",
        "DefaultMessageTimeToLive",
    }
    assert "raise it to 117" in found["MaxDeliveryCount"].advice


@pytest.mark.night
@pytest.mark.timeout(400)
async def test_all_of_it(jobq: Jobq) -> None:
    found = await tried_out(resolve("demo", Settings(home=jobq.home)))
    assert len(found) == len(service_check._CASES)
    assert {each.what: each.found for each in found if each.verdict is not Verdict.OK} == {}
