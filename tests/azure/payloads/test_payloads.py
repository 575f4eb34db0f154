"""Tasks too large for a message: their bodies lie in blobs, each owned by one message (S1, S6)."""

import asyncio
import datetime as dt
import hashlib
import json
import math
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from azure.storage.blob.aio import ContainerClient

from jobq.errors import (
    AccessDenied,
    BackendUnavailable,
    PushUnknown,
)
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.task import Task, TaskResult
from jobq_azure.storage import large_payloads
from jobq_azure.storage.account import Account
from jobq_azure.storage.large_payloads import CONTAINER
from tests.azure.emulator import ACCOUNT
from tests.azure.payloads.payload_stage import blobs_of, delete_blobs, large_task, no_blobs, push_as_cli
from tests.azure.stage import LEASE, NOW, Stage, make_container
from tests.support.http_proxy import Strike

pytestmark = pytest.mark.check


async def test_a_large_task_comes_back_whole_and_its_blob_goes_with_it(stage: Stage) -> None:
    task = large_task()
    await push_as_cli(stage, [task])
    ((name, stored),) = (await blobs_of(stage)).items()
    assert name.startswith(f"{stage.queue}/{hashlib.sha256(task.encode()).hexdigest()}-")
    assert stored == task.encode()
    delivery = await stage.take()
    assert (delivery.task.in_epoch(0), delivery.body, delivery.id) == (task, task.encode(), task.id)
    await delivery.renew(LEASE)
    await delivery.settle(Complete(TaskResult(exit_code=0)))
    await no_blobs(stage)
    assert await stage.total() == 0


async def test_time_to_live_of_a_spilled_message_is_for_ever(stage: Stage) -> None:
    await push_as_cli(stage, [large_task()])
    (put,) = [each for each in stage.proxy.seen("POST") if each.status == 201]
    assert put.query["messagettl"] == "-1"


async def test_requeues_change_the_message_and_leave_the_blob(stage: Stage) -> None:
    task = large_task(not_before=0.0)
    await push_as_cli(stage, [task])
    before = await blobs_of(stage)
    for generation in range(1, 4):
        stage.proxy.requests.clear()
        delivery = await stage.take()
        await delivery.checkpoint(f"step {generation}")
        await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW))
        assert [each.method for each in stage.proxy.requests] == ["GET", "PUT", "PUT"], "a requeue is one request (S6)"
    delivery = await stage.take()
    assert (delivery.task.generation, delivery.task.counters.failures, delivery.task.counters.ends) == (3, 3, 3)
    assert (delivery.checkpoint_value, delivery.deliveries, delivery.task.not_before) == ("step 3", 4, None)
    assert delivery.task.fingerprint() == task.fingerprint()
    assert await blobs_of(stage) == before
    await delivery.settle(Release())
    assert (await stage.take()).task.counters.ends == 4


async def test_a_dead_letter_has_a_copy_and_a_redrive_another(stage: Stage) -> None:
    task = large_task()
    await push_as_cli(stage, [task])
    (first,) = await blobs_of(stage)
    delivery = await stage.take()
    await delivery.settle(MoveToDeadLetters("retries", "it failed"))
    async with asyncio.timeout(20):
        while first in (found := await blobs_of(stage)):
            await asyncio.sleep(0.02)
    (second,) = found
    assert second.startswith(f"{stage.queue}-failed/")
    (letter,) = await stage.backend.dead_letters(10)
    assert (letter.id, letter.reason, letter.body) == (task.id, "retries", task.encode())
    assert await stage.backend.redrive([task.id]) == [task.id]
    (third,) = await blobs_of(stage)
    assert third.startswith(f"{stage.queue}/")
    again = await stage.take()
    assert again.task.epoch > delivery.task.epoch
    assert (again.task.counters.failures, again.deliveries) == (0, 2)
    assert again.task.fingerprint() == task.fingerprint()
    await again.settle(MoveToDeadLetters("retries", "again"))
    assert await stage.backend.purge_dead([task.id]) == [task.id]
    await no_blobs(stage)


async def test_killed_between_dead_letter_and_delete_loses_no_payload(stage: Stage) -> None:
    task = large_task()
    await push_as_cli(stage, [task])
    delivery = await stage.take()
    stage.proxy.strike(Strike.BUSY, "DELETE", f"/{stage.queue}/")
    with pytest.raises(BackendUnavailable):
        await delivery.settle(MoveToDeadLetters("retries", "first"))
    assert len(await blobs_of(stage)) == 2, "each message has its own"
    await stage.backend.purge_dead([task.id])
    await delivery.settle(Release())
    assert (await stage.take()).task.fingerprint() == task.fingerprint(), "its payload went with the dead letter"


async def test_push_that_is_refused_leaves_no_blob(stage: Stage) -> None:
    await push_as_cli(stage, [large_task()])
    await stage.backend.clear()
    before = await blobs_of(stage)
    stage.proxy.strike(Strike.DENY, "POST")
    with pytest.raises(AccessDenied):
        await stage.backend.push([large_task()])
    assert await blobs_of(stage) == before
    assert await stage.total() == 0


async def test_lost_answer_to_the_message_keeps_its_payload(stage: Stage) -> None:
    await push_as_cli(stage, [])
    await stage.backend.push([Task.new(command="true")])
    await (await stage.take()).settle(Complete(TaskResult(exit_code=0)))
    task = large_task()
    await make_container(stage)
    stage.proxy.strike(Strike.LOSE_ANSWER, "POST")
    with pytest.raises(PushUnknown) as raised:
        await stage.backend.push([task])
    assert list(raised.value.ids) == [task.id]
    assert (await stage.take()).task.in_epoch(0) == task


@pytest.mark.parametrize("strike", [Strike.LOSE_ANSWER, Strike.BREAK, Strike.BUSY])
async def test_lost_upload_pushes_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch, strike: Strike) -> None:
    monkeypatch.setattr("jobq_azure.storage.push.PUSH_SECONDS", 0.5)
    await make_container(stage)
    stage.blobs.strike(strike, "PUT", count=math.inf)
    with pytest.raises(BackendUnavailable):
        await stage.backend.push([large_task()])
    await stage.blobs.heal()
    assert await stage.total() == 0
    assert not await blobs_of(stage)


async def test_missing_container_is_made_by_create_alone(stage: Stage, tmp_path: Path) -> None:
    client = ContainerClient.from_connection_string(stage.azurite.connection_string, CONTAINER)
    async with client:
        if await client.exists():
            await client.delete_container()
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_bytes(json.dumps({"command": "true", "env": {"DATA": "d" * 100_000}}).encode() + b"\n")
    refused = await stage.run("push", "--no-create", str(tasks))
    assert refused.code == 4, refused.err
    assert CONTAINER in refused.err
    assert await stage.total() == 0
    pushed = await stage.run("push", str(tasks))
    assert pushed.code == 0, pushed.err
    assert await stage.total() == 1


async def test_access_denied_names_the_role(stage: Stage) -> None:
    await make_container(stage)
    stage.blobs.strike(Strike.DENY, "PUT")
    with pytest.raises(AccessDenied, match="Storage Blob Data Contributor"):
        await stage.backend.push([large_task()])


async def test_original_that_leaves_no_room_keeps_its_story(stage: Stage) -> None:
    await make_container(stage)
    wire = await stage.wire()
    original = "x " * 32_768
    await wire.put(original)
    delivery = await stage.take()
    await delivery.settle(MoveToDeadLetters("malformed", "not JSON"))
    (letter,) = await stage.backend.dead_letters(10)
    assert (letter.reason, letter.description, letter.body) == ("malformed", "not JSON", original.encode())
    assert await stage.backend.purge_dead([letter.id]) == [letter.id]
    await no_blobs(stage)


async def test_without_blobs_the_original_stays_verbatim(stage: Stage) -> None:
    wire = await stage.wire()
    original = "x " * 32_768
    await wire.put(original)
    delivery = await stage.take()
    stage.blobs.strike(Strike.HANG, "PUT")
    await delivery.settle(MoveToDeadLetters("malformed", "not JSON"))
    (letter,) = await stage.backend.dead_letters(10)
    assert (letter.reason, letter.body) == ("unknown", original.encode())


async def test_the_command_line_runs_large_tasks(stage: Stage, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    lines = [{"command": "echo ${#DATA} >> sizes", "env": {"DATA": "d" * 100_000}} for _ in range(20)]
    tasks.write_text("".join(json.dumps(line) + "\n" for line in lines))
    pushed = await stage.run("push", str(tasks))
    assert pushed.code == 0, pushed.err
    assert len(await blobs_of(stage)) == 20
    worked = await stage.run("worker", "-n", "4")  # a lease of minutes: nothing here is about short ones
    assert worked.code == 0, worked.err
    assert (tmp_path / "sizes").read_text().split() == ["100000"] * 20
    assert not await blobs_of(stage), "a worker left payloads behind"
    assert await stage.total() == 0


async def test_no_endpoint_no_spill(stage: Stage) -> None:
    signed = stage.azurite.connection_string.partition("BlobEndpoint")[0]
    assert not Account(ACCOUNT, signed, "").has_blobs
    result = await stage.run("push", "-c", "x" * 70_000, JOBQ_CONNECTION_STRING=signed)
    assert result.code == 2, result.err
    assert "64512" in result.err
    assert "BlobEndpoint" in result.err


async def test_a_payload_that_comes_back_is_run_after_a_redrive(stage: Stage) -> None:
    await push_as_cli(stage, [large := large_task()])
    ((name, stored),) = (await blobs_of(stage)).items()
    await delete_blobs(stage)
    await (await stage.take()).settle(MoveToDeadLetters("malformed", "the payload is gone"))
    (letter,) = await stage.backend.dead_letters(10)
    client = ContainerClient.from_connection_string(stage.azurite.connection_string, CONTAINER)
    async with client:
        await client.upload_blob(name, stored)
    assert await stage.backend.redrive([letter.id]) == [letter.id]
    delivery = await stage.take()
    assert delivery.task.fingerprint() == large.fingerprint()
    await delivery.settle(Complete(TaskResult(exit_code=0)))
    assert list(await blobs_of(stage)) == [name], "another message owned it: it is left to a sweep"


async def test_a_sweep_takes_what_is_old_and_nobody_names(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await push_as_cli(stage, [large_task()])
    await stage.backend.clear()
    assert len(await blobs_of(stage)) == 1, "it took what may belong to a push under way"
    monkeypatch.setattr(large_payloads, "_SWEEP_AGE", timedelta(0))
    await asyncio.sleep(1.1)  # the service tells the age of a blob in whole seconds
    await stage.backend.clear()
    assert not await blobs_of(stage)
    await push_as_cli(stage, [task := large_task()])
    await (await stage.take()).settle(MoveToDeadLetters("failed", ""))
    await stage.backend.purge_dead([task.id])
    await no_blobs(stage)


async def test_s1_a_sweep_by_a_machine_whose_clock_is_ahead_takes_no_payload_of_a_push_under_way(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service says how old a blob is; by this machine's clock all of them were."""

    class Ahead(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> "Ahead":
            return super().now(tz) + timedelta(days=2)

    await push_as_cli(stage, [large_task()])
    monkeypatch.setattr(large_payloads, "dt", SimpleNamespace(datetime=Ahead, timedelta=timedelta, UTC=dt.UTC))
    await stage.backend.clear()
    assert len(await blobs_of(stage)) == 1


async def test_what_is_taken_back_takes_its_payload_along(stage: Stage) -> None:
    await make_container(stage)
    good, bad = large_task(), large_task()
    stage.proxy.strike(Strike.DENY, "POST", matches=lambda request: bad.id.encode() in request.body)
    with pytest.raises(AccessDenied):
        await stage.backend.push([good, bad])
    assert await stage.total() == 0
    assert not await blobs_of(stage)


async def test_a_message_that_names_the_payload_of_another_does_not_take_it_away(stage: Stage) -> None:
    """Who may read and send messages can: its end deleted the other's payload, and that task was lost."""
    await make_container(stage)
    task = large_task()
    await stage.backend.push([task])
    wire = await stage.wire()
    (message,) = await wire.peek(1)
    await wire.put(message.text)
    first, second = await stage.backend.receive(2, LEASE, NOW)
    copy, real = (second, first) if first._message_id == message.id else (first, second)  # type: ignore[attr-defined]
    await copy.settle(Complete(TaskResult(exit_code=0)))
    await real.settle(Requeue(real.task.requeued(failures=1).counters, NOW))
    again = await stage.take()
    assert again.task.fingerprint() == task.fingerprint()
    await again.settle(MoveToDeadLetters("failed", "real"))
    dead = await stage.wire(f"{stage.queue}-failed")
    (letter,) = await dead.peek(1)
    await dead.put(letter.text.replace(task.id, "harmless"))
    assert await stage.backend.purge_dead(["harmless"]) == ["harmless"]
    assert await stage.backend.redrive([task.id]) == [task.id]
    await (await stage.take()).settle(Complete(TaskResult(exit_code=0)))
    await no_blobs(stage)
