"""The real command line on `sb://`: every command, rights, what is missing, and settings that cannot be."""

import asyncio
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.errors import AccessDenied, ConfigurationError, InvalidSpec, QueueNotFound
from jobq.settings import Settings
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.spec import resolve
from jobq.task import Task
from jobq.testing.harness import DONE
from jobq_azure.service_bus import admin_client
from jobq_azure.service_bus.backend import ServiceBusBackend
from jobq_azure.service_bus.namespace import Namespace, place_of
from jobq_azure.service_bus.options import Options
from tests.emulators.service_bus.access import Policy, Right
from tests.emulators.service_bus.description import Description
from tests.emulators.service_bus.emulator import Emulator
from tests.emulators.service_bus.faults import Fault, Operation
from tests.fork_server import forked
from tests.sb.stage import NOW, QUEUE, SPEC, Stage, ended, staged

pytestmark = pytest.mark.check

_KEY = "Endpoint=sb://ns-of-mine.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=c2VjcmV0"


async def test_every_command(tmp_path: Path) -> None:
    async with staged(tmp_path, lock_duration=30.0) as stage:
        commands = ("-c", "echo it ran >> done", "-c", "echo no; exit 3")
        pushed = await stage.run("push", *commands, "--num-retries", "0", "--json")
        assert pushed.code == 0, pushed.err
        task_id, bad_id = (str(each["id"]) for each in _lines(pushed.out))
        # Side by side what does not depend on each other: a command's connection over AMQP takes a second to close.
        seen, size = await asyncio.gather(stage.run("peek", "--json"), stage.run("size", "--json"))
        assert {each["id"] for each in _lines(seen.out)} == {task_id, bad_id}
        (counts,) = _lines(size.out)
        assert (counts["total"], counts["dead"]) == (2, 0)
        worked = await stage.run("worker")
        assert worked.code == 0, worked.err
        assert (tmp_path / "done").read_text() == "it ran\n"
        listed, shown = await asyncio.gather(stage.run("dead", "list", "--json"), stage.run("dead", "show", bad_id))
        (letter,) = _lines(listed.out)
        assert (letter["id"], letter["reason"]) == (bad_id, "failed")
        assert "no" in shown.out.splitlines()[-1]
        assert (await stage.run("dead", "retry", bad_id)).code == 0
        assert len(stage.queue.messages()) == 1
        await (await stage.take()).settle(MoveToDeadLetters("failed", ""))
        await stage.pushed(3)
        purged, cleared = await asyncio.gather(
            stage.run("dead", "purge", "--all", "--yes"), stage.run("clear", "--yes")
        )
        assert (purged.code, cleared.code) == (0, 0), purged.err + cleared.err
        assert stage.queue.messages() == stage.dead.messages() == []


def _lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


async def test_a_queue_is_made_so_that_nothing_expires_and_budgets_decide(stage: Stage) -> None:
    made = await stage.run("create", spec="sb://emulator/new", JOBQ_VISIBILITY_TIMEOUT="2m")
    assert made.code == 0, made.err
    described = stage.emulator.broker.queue("new").description
    assert described.time_to_live is None
    assert described.max_delivery_count > 1 + 3 + 100 + 3
    assert (described.lock_duration, described.dedup_window) == (120, 600)
    pushed = await stage.run("push", "-c", "true", spec="sb://emulator/another", JOBQ_SERVICE_BUS_DEDUP_WINDOW="0")
    assert pushed.code == 0, pushed.err
    assert stage.emulator.broker.queue("another").description.dedup_window == 0
    assert (await stage.run("size", spec="sb://emulator/none")).code == 4
    assert (await stage.run("push", "--no-create", "-c", "true", spec="sb://emulator/none")).code == 4


def test_the_elements_of_a_description_stand_in_the_order_of_the_sdk() -> None:
    from azure.servicebus.management._generated.models import QueueDescription  # noqa: PLC0415 - private, and slow

    known = [each["xml"]["name"] for each in QueueDescription._attribute_map.values() if "xml" in each]
    body = admin_client._entry(timedelta(minutes=1), 117, timedelta(minutes=10)).decode()
    used = [name for name in known if f"<{name}>" in body]
    assert len(used) == 6
    assert sorted(used, key=body.index) == used


async def test_a_worker_and_a_pusher_need_no_right_to_manage() -> None:
    policies = {
        "worker": Policy("worker-key", frozenset({Right.LISTEN, Right.SEND})),
        "pusher": Policy("pusher-key", frozenset({Right.SEND})),
    }

    def reached(emulator: Emulator, policy: str) -> ServiceBusBackend:
        place = place_of("emulator", QUEUE, emulator.connection_string_of(policy), "")
        return ServiceBusBackend(Namespace(place), Options())

    async with Emulator([Description(QUEUE)], policies=policies) as emulator:
        async with reached(emulator, "pusher") as backend:
            tasks = [Task.new(command="true") for _ in range(3)]
            await backend.push(tasks)
            with pytest.raises(AccessDenied):
                await backend.receive(1, None, NOW)
            with pytest.raises(AccessDenied, match="Manage"):
                await backend.create()
            assert not backend.capabilities.deduplicates
        async with reached(emulator, "worker") as backend:
            one, two, three = await backend.receive(3, None, NOW)
            await one.settle(Complete(DONE))
            await two.settle(Requeue(two.task.requeued(failures=1).counters, NOW))
            await three.settle(MoveToDeadLetters("failed", ""))
            assert await backend.redrive([three.id]) == [three.id]
            assert len(await backend.peek(10)) == 2
            stats = await backend.stats()
            assert (stats.visible, stats.leased, stats.scheduled, stats.dead, stats.total) == (None,) * 5
            assert not stats.is_known
            environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
            environment["JOBQ_CONNECTION_STRING"] = emulator.connection_string_of("worker")
            command = (sys.executable, "-m", "jobq", SPEC, "size", "--fail-if-empty")
            asked = await ended(
                await forked.create_subprocess_exec(
                    *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
                )
            )
            assert (asked.code, "does not say how many" in asked.err) == (3, True), "unknown is not empty: two wait"


async def test_counts_are_asked_for_seldom(stage: Stage) -> None:
    # The service bills each look like ten messages.
    place = place_of("emulator", QUEUE, stage.signed, "")
    async with ServiceBusBackend(Namespace(place), Options()) as backend:
        before = len(stage.requests(Operation.ADMIN))
        for _ in range(50):
            await backend.stats()
        assert len(stage.requests(Operation.ADMIN)) == before


async def test_a_worker_warns_of_a_queue_that_takes_tasks_away(tmp_path: Path) -> None:
    async with staged(tmp_path, max_delivery_count=3, time_to_live=600.0) as stage:
        await stage.pushed()
        result = await stage.run("worker")
        assert result.code == 0
        assert "MaxDeliveryCount" in result.err + result.out
        assert "DefaultMessageTimeToLive" in result.err + result.out


@pytest.mark.parametrize(
    ("namespace", "text", "error", "says"),
    [
        ("ns", None, InvalidSpec, "6 to 50"),
        ("one-two/three", None, InvalidSpec, "sb://NAMESPACE/QUEUE"),
        ("ns-of-mine", "AccountName=a;AccountKey=c2VjcmV0", ConfigurationError, "none of Service Bus"),
        ("another-one", _KEY, ConfigurationError, "of the namespace"),
        ("ns-of-mine", f"{_KEY};EntityPath=other", ConfigurationError, "of the queue 'other'"),
        ("ns-of-mine", f"{_KEY};UseDevelopmentEmulator=true", ConfigurationError, "this machine"),
    ],
)
def test_what_cannot_be_reached_is_told(namespace: str, text: str | None, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        resolve(f"sb://{namespace}/q", Settings(connection_string=text))
    assert "c2VjcmV0" not in str(caught.value)


def test_where_a_namespace_is() -> None:
    assert place_of("ns-of-mine", "q", None, "core.windows.net").rest_url == "https://ns-of-mine.servicebus.windows.net"
    assert place_of("ns-of-mine", "q", None, "core.chinacloudapi.cn").host == "ns-of-mine.servicebus.chinacloudapi.cn"
    place = place_of("ns-of-mine", "q", _KEY, "core.windows.net")
    assert place.rest_url == "https://ns-of-mine.servicebus.windows.net"
    assert "c2VjcmV0" not in repr(place)
    local = "Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
    assert place_of("emulator", "q", local, "").rest_url == "http://localhost:5300"


async def test_a_missing_queue_is_told(stage: Stage) -> None:
    place = place_of("emulator", "none", stage.signed, "")
    async with ServiceBusBackend(Namespace(place), Options()) as backend:
        with pytest.raises(QueueNotFound, match="jobq sb://emulator/none create"):
            await backend.receive(1, None, NOW)
    assert SPEC == "sb://emulator/jobs"


async def test_l4_one_404_ends_no_fresh_worker_and_a_missing_queue_does(stage: Stage) -> None:
    """The data plane is known to say so for a moment of a queue that it has."""
    await stage.pushed(command="echo done >> out")
    stage.emulator.faults.plan(Fault(404), Operation.RECEIVE)
    result = await stage.run("worker")
    assert (result.code, (stage.folder / "out").read_text()) == (0, "done\n"), result.err
    began = time.monotonic()
    missing = await stage.run("worker", spec="sb://emulator/nowhere")
    assert missing.code == 4, missing.err
    assert time.monotonic() - began < 15


async def test_a_worker_that_has_done_all_says_of_nothing_that_it_is_left(stage: Stage) -> None:
    """It counted before its work, for a look of the service serves for some seconds."""
    await stage.pushed(5)
    worker = await stage.run("worker")
    last = json.loads(worker.err.splitlines()[-1])
    assert (last["event"], last["succeeded"], last.get("detail")) == ("worker.stopped", 5, None), last
