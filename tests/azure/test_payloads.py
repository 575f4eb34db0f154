"""Tasks too large for a message: their bodies lie in blobs, each owned by one message (issue 5, item 4; S1, S6)."""

import asyncio
import contextlib
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.blob.aio import ContainerClient

from jobq.errors import (
    AccessDenied,
    BackendUnavailable,
    MalformedTask,
    PushUnknown,
    QueueNotFound,
    SettlementUnknown,
)
from jobq.task import Task, TaskResult
from jobq.testing.http_proxy import Strike
from jobq_azure import backend, payloads
from jobq_azure.connection import Account
from jobq_azure.content import Beside, Content
from jobq_azure.payloads import CONTAINER
from tests.azure.emulator import ACCOUNT
from tests.azure.stage import LEASE, NOW, SHORT, Stage, eventually, make_container

_LARGE = 200_000  # bytes: three times what a message holds


def _large(**fields: Any) -> Task:
    return Task.new(command="true", env={"DATA": "d" * _LARGE}, **fields)


async def _blobs(stage: Stage) -> dict[str, bytes]:
    """What the container holds of this queue and its dead letters, behind the proxies."""
    client = ContainerClient.from_connection_string(stage.azurite.connection_string, CONTAINER)
    async with client:
        names = [blob.name async for blob in client.list_blobs(name_starts_with=stage.queue)]
        found = {}
        for name in names:
            with contextlib.suppress(ResourceNotFoundError):  # deleted since it was listed
                found[name] = bytes(await (await client.download_blob(name)).readall())
        return found


async def _no_blobs(stage: Stage) -> None:
    """Wait until none is left: nobody waits for their removal but the backend's end."""
    async with asyncio.timeout(20):
        while await _blobs(stage):
            await asyncio.sleep(0.02)


async def _push(stage: Stage, tasks: Sequence[Task]) -> None:
    """Push as the command line does: what is missing is made."""
    try:
        await stage.backend.push(tasks)
    except QueueNotFound:
        await stage.backend.create()
        await stage.backend.push(tasks)


async def test_a_large_task_comes_back_whole_and_its_blob_goes_with_it(stage: Stage) -> None:
    task = _large()
    await _push(stage, [task])
    ((name, stored),) = (await _blobs(stage)).items()
    assert name.startswith(f"{stage.queue}/{hashlib.sha256(task.encode()).hexdigest()}-")
    assert stored == task.encode()
    delivery = await stage.take()
    assert (delivery.task, delivery.body, delivery.id) == (task, task.encode(), task.id)
    await delivery.renew(LEASE)
    await delivery.complete(TaskResult(exit_code=0))
    await _no_blobs(stage)
    assert await stage.total() == 0


async def test_time_to_live_of_a_spilled_message_is_for_ever(stage: Stage) -> None:
    await _push(stage, [_large()])
    (put,) = [each for each in stage.proxy.seen("POST") if each.status == 201]
    assert put.query["messagettl"] == "-1"


async def test_requeues_change_the_message_and_leave_the_blob(stage: Stage) -> None:
    task = _large(not_before=0.0)
    await _push(stage, [task])
    before = await _blobs(stage)
    for generation in range(1, 4):
        stage.proxy.requests.clear()
        delivery = await stage.take()
        await delivery.checkpoint(f"step {generation}")
        await delivery.requeue(delivery.task.requeued(failures=1), NOW)
        assert [each.method for each in stage.proxy.requests] == ["GET", "PUT", "PUT"], "a requeue is one request (S6)"
    delivery = await stage.take()
    assert (delivery.task.generation, delivery.task.counters.failures, delivery.task.counters.ends) == (3, 3, 3)
    assert (delivery.checkpoint_value, delivery.deliveries, delivery.task.not_before) == ("step 3", 4, None)
    assert delivery.task.fingerprint() == task.fingerprint()
    assert await _blobs(stage) == before
    await delivery.release()
    assert (await stage.take()).task.counters.ends == 4


async def test_a_dead_letter_has_a_copy_and_a_redrive_another(stage: Stage) -> None:
    task = _large()
    await _push(stage, [task])
    (first,) = await _blobs(stage)
    delivery = await stage.take()
    await delivery.dead_letter("retries", "it failed")
    async with asyncio.timeout(20):
        while first in (found := await _blobs(stage)):
            await asyncio.sleep(0.02)
    (second,) = found
    assert second.startswith(f"{stage.queue}-failed/")
    (letter,) = await stage.backend.dead_letters(10)
    assert (letter.id, letter.reason, letter.body) == (task.id, "retries", task.encode())
    assert await stage.backend.redrive([task.id]) == [task.id]
    (third,) = await _blobs(stage)
    assert third.startswith(f"{stage.queue}/")
    again = await stage.take()
    assert (again.task.epoch, again.task.counters.failures, again.deliveries) == (1, 0, 2)
    assert again.task.fingerprint() == task.fingerprint()
    await again.dead_letter("retries", "again")
    assert await stage.backend.purge_dead([task.id]) == [task.id]
    await _no_blobs(stage)


async def test_killed_between_dead_letter_and_delete_loses_no_payload(stage: Stage) -> None:
    task = _large()
    await _push(stage, [task])
    delivery = await stage.take()
    stage.proxy.strike(Strike.BUSY, "DELETE", f"/{stage.queue}/")
    with pytest.raises(BackendUnavailable):
        await delivery.dead_letter("retries", "first")
    assert len(await _blobs(stage)) == 2, "each message has its own"
    await stage.backend.purge_dead([task.id])
    await delivery.release()
    assert (await stage.take()).task.fingerprint() == task.fingerprint(), "its payload went with the dead letter"


async def test_push_that_is_refused_leaves_no_blob(stage: Stage) -> None:
    await _push(stage, [_large()])
    await stage.backend.clear()
    before = await _blobs(stage)
    stage.proxy.strike(Strike.BUSY, "POST")
    with pytest.raises(BackendUnavailable):
        await stage.backend.push([_large()])
    assert await _blobs(stage) == before
    assert await stage.total() == 0


async def test_lost_answer_to_the_message_keeps_its_payload(stage: Stage) -> None:
    await _push(stage, [])
    await stage.backend.push([Task.new(command="true")])
    await (await stage.take()).complete(TaskResult(exit_code=0))
    task = _large()
    await make_container(stage)
    stage.proxy.strike(Strike.LOSE_ANSWER, "POST")
    with pytest.raises(PushUnknown) as raised:
        await stage.backend.push([task])
    assert list(raised.value.ids) == [task.id]
    assert (await stage.take()).task == task


@pytest.mark.parametrize("strike", [Strike.LOSE_ANSWER, Strike.BREAK, Strike.BUSY])
async def test_lost_upload_pushes_nothing(stage: Stage, strike: Strike) -> None:
    await make_container(stage)
    stage.blobs.strike(strike, "PUT")
    with pytest.raises(BackendUnavailable):
        await stage.backend.push([_large()])
    assert await stage.total() == 0
    assert not await _blobs(stage)


async def test_missing_container_is_made_by_create_alone(stage: Stage, tmp_path: Path) -> None:
    client = ContainerClient.from_connection_string(stage.azurite.connection_string, CONTAINER)
    async with client:
        if await client.exists():
            await client.delete_container()
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_bytes(json.dumps({"command": "true", "env": {"DATA": "d" * _LARGE}}).encode() + b"\n")
    refused = await stage.run("push", "--no-create", str(tasks))
    assert refused.code == 4, refused.err
    assert CONTAINER in refused.err
    assert await stage.total() == 0
    pushed = await stage.run("push", str(tasks))
    assert pushed.code == 0, pushed.err
    assert await stage.total() == 1


async def test_payload_that_is_gone_ends_as_dead_letter_and_harms_nobody(stage: Stage) -> None:
    await _push(stage, [_large()])
    await _delete_blobs(stage)
    await stage.pushed(2)
    result = await stage.run("worker", **SHORT)
    assert result.code == 0, result.err
    assert await stage.total() == 0
    (letter,) = await stage.backend.dead_letters(10)
    assert letter.reason == "malformed"
    assert "gone" in letter.description
    assert b'"blob"' in letter.body


async def test_payload_that_was_changed_is_refused(stage: Stage) -> None:
    await _push(stage, [_large()])
    (name,) = await _blobs(stage)
    client = ContainerClient.from_connection_string(stage.azurite.connection_string, CONTAINER)
    async with client:
        await client.upload_blob(name, _large().encode(), overwrite=True)
    delivery = await stage.take()
    with pytest.raises(MalformedTask, match="hash"):
        _ = delivery.task


async def test_a_message_cannot_name_what_is_not_its_queues(stage: Stage) -> None:
    await _push(stage, [_large()])
    (name,) = await _blobs(stage)
    owner = await stage.take()
    wire = await stage.wire()
    for hostile in (f"other/{name.partition('/')[2]}", "../x", f"{stage.queue}/../{name}", f"{name}?x=1"):
        await wire.put(Content(b"", Beside(id="x", blob=hostile)).text())
        delivery = await stage.take()
        with pytest.raises(MalformedTask, match="names no payload"):
            _ = delivery.task
        await delivery.complete(TaskResult(exit_code=0))
    assert list(await _blobs(stage)) == [name]
    await owner.complete(TaskResult(exit_code=0))
    await _no_blobs(stage)


@pytest.mark.parametrize("strike", [Strike.DENY, Strike.BUSY, Strike.HANG])
async def test_unreachable_payload_is_put_off_and_others_go_on(
    stage: Stage, strike: Strike, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_UNREADABLE_SECONDS", 2)
    monkeypatch.setattr(backend, "_BLOB_SECONDS", 0.5)
    await _push(stage, [large := _large()])
    (small,) = await stage.pushed()
    stage.blobs.strike(strike, "GET")
    (delivery,) = await stage.backend.receive(2, LEASE, NOW)
    assert delivery.id == small.id
    assert await stage.total() == 2
    (delivery,) = await stage.backend.receive(2, LEASE, timedelta(seconds=20))
    assert delivery.task.fingerprint() == large.fingerprint()
    assert delivery.deliveries - delivery.task.counters.ends == 1, "an outage of the blobs was counted as a crash (S7)"


async def test_receive_that_is_given_up_while_a_payload_comes_counts_no_crash(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_UNREADABLE_SECONDS", 1)
    monkeypatch.setattr(backend, "_BLOB_SECONDS", 0.5)
    await _push(stage, [_large()])
    stage.blobs.strike(Strike.HANG, "GET")
    receiving = asyncio.ensure_future(stage.backend.receive(1, LEASE, NOW))
    await stage.blobs.until(lambda: bool(stage.blobs.seen("GET")))
    receiving.cancel()
    await stage.blobs.heal()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    (delivery,) = await stage.backend.receive(1, LEASE, timedelta(seconds=60))
    assert delivery.deliveries - delivery.task.counters.ends == 1


async def test_access_denied_names_the_role(stage: Stage) -> None:
    await make_container(stage)
    stage.blobs.strike(Strike.DENY, "PUT")
    with pytest.raises(AccessDenied, match="Storage Blob Data Contributor"):
        await stage.backend.push([_large()])


async def test_original_that_leaves_no_room_keeps_its_story(stage: Stage) -> None:
    await make_container(stage)
    wire = await stage.wire()
    original = "x " * 32_768
    await wire.put(original)
    delivery = await stage.take()
    await delivery.dead_letter("malformed", "not JSON")
    (letter,) = await stage.backend.dead_letters(10)
    assert (letter.reason, letter.description, letter.body) == ("malformed", "not JSON", original.encode())
    assert await stage.backend.purge_dead([letter.id]) == [letter.id]
    await _no_blobs(stage)


async def test_without_blobs_the_original_stays_verbatim(stage: Stage) -> None:
    wire = await stage.wire()
    original = "x " * 32_768
    await wire.put(original)
    delivery = await stage.take()
    stage.blobs.strike(Strike.HANG, "PUT")
    await delivery.dead_letter("malformed", "not JSON")
    (letter,) = await stage.backend.dead_letters(10)
    assert (letter.reason, letter.body) == ("unknown", original.encode())


async def test_the_command_line_runs_large_tasks(stage: Stage, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    lines = [{"command": "echo ${#DATA} >> sizes", "env": {"DATA": "d" * 100_000}} for _ in range(20)]
    tasks.write_text("".join(json.dumps(line) + "\n" for line in lines))
    pushed = await stage.run("push", str(tasks))
    assert pushed.code == 0, pushed.err
    assert len(await _blobs(stage)) == 20
    worked = await stage.run("worker", "-n", "4", **SHORT)
    assert worked.code == 0, worked.err
    assert (tmp_path / "sizes").read_text().split() == ["100000"] * 20
    assert not await _blobs(stage), "a worker left payloads behind"
    assert await stage.total() == 0


async def test_no_endpoint_no_spill(stage: Stage) -> None:
    signed = stage.azurite.connection_string.partition("BlobEndpoint")[0]
    assert not Account(ACCOUNT, signed, "").has_blobs
    result = await stage.run("push", "-c", "x" * 70_000, JOBQ_CONNECTION_STRING=signed)
    assert result.code == 2, result.err
    assert "64512" in result.err
    assert "BlobEndpoint" in result.err


async def _delete_blobs(stage: Stage) -> None:
    client = ContainerClient.from_connection_string(stage.azurite.connection_string, CONTAINER)
    async with client:
        for name in await _blobs(stage):
            await client.delete_blob(name)


async def test_only_the_service_says_that_a_payload_is_gone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # A gateway's 404 is no word of the service's (S1): the task is put off, and comes back.
    monkeypatch.setattr(backend, "_UNREADABLE_SECONDS", 1)
    await _push(stage, [large := _large()])
    stage.blobs.strike(Strike.MISSING, "GET")
    assert await stage.backend.receive(1, LEASE, timedelta(seconds=20))
    assert (await _blobs(stage)).popitem()[1] == large.encode()


async def test_a_payload_that_comes_back_is_run_after_a_redrive(stage: Stage) -> None:
    await _push(stage, [large := _large()])
    ((name, stored),) = (await _blobs(stage)).items()
    await _delete_blobs(stage)
    await (await stage.take()).dead_letter("malformed", "the payload is gone")
    (letter,) = await stage.backend.dead_letters(10)
    client = ContainerClient.from_connection_string(stage.azurite.connection_string, CONTAINER)
    async with client:
        await client.upload_blob(name, stored)
    assert await stage.backend.redrive([letter.id]) == [letter.id]
    delivery = await stage.take()
    assert delivery.task.fingerprint() == large.fingerprint()
    await delivery.complete(TaskResult(exit_code=0))
    await _no_blobs(stage)


async def test_an_answer_of_a_gateway_takes_no_payload_away(stage: Stage) -> None:
    # It says 503 to what the service has done: the message is there, and so must its payload be (S1, S8).
    await make_container(stage)
    stage.proxy.strike(Strike.GATEWAY, "POST")
    with pytest.raises(PushUnknown):
        await stage.backend.push([task := _large()])
    delivery = await stage.take()
    assert delivery.task == task
    stage.proxy.strike(Strike.GATEWAY, "POST", "-failed/")
    with pytest.raises(SettlementUnknown):
        await delivery.dead_letter("failed", "")
    assert (await stage.backend.dead_letters(10))[0].body == task.encode()


async def test_nothing_outside_the_queues_payloads_is_deleted(stage: Stage) -> None:
    await make_container(stage)
    client = ContainerClient.from_connection_string(stage.azurite.connection_string, CONTAINER)
    async with client:
        await client.upload_blob(f"{stage.queue}-thesis/thesis.pdf", b"precious", overwrite=True)
        wire = await stage.wire(f"{stage.queue}-failed")
        for number, name in enumerate(
            (f"{stage.queue}-thesis/thesis.pdf", f"../{CONTAINER}/{stage.queue}-thesis/thesis.pdf")
        ):
            await wire.put(Content(b"", Beside(id=f"x{number}", blob=name, dead={"id": f"x{number}"})).text())
        assert await stage.backend.purge_dead(["x0", "x1"]) == ["x0", "x1"]
        assert await client.get_blob_client(f"{stage.queue}-thesis/thesis.pdf").exists()


async def test_tasks_that_are_put_off_hide_no_other(stage: Stage) -> None:
    # L1, L3: a moment without blobs, more such tasks than slots, and good ones behind them.
    await _push(stage, [_large() for _ in range(8)])
    await stage.pushed(4, command="echo $JOBQ_TASK_ID >> done")
    stage.blobs.strike(Strike.BUSY, "GET", count=8)
    worker = await stage.start("worker", "-n", "2", "--idle-timeout", "20s", **SHORT)
    done = stage.folder / "done"
    await eventually(lambda: done.exists() and len(done.read_text().split()) == 4, seconds=15)
    worker.terminate()
    await worker.communicate()


async def test_a_sweep_takes_what_is_old_and_nobody_names(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await _push(stage, [_large()])
    await stage.backend.clear()
    assert len(await _blobs(stage)) == 1, "it took what may belong to a push under way"
    monkeypatch.setattr(payloads, "_SWEEP_AGE", timedelta(0))
    await asyncio.sleep(1.1)  # the service tells the age of a blob in whole seconds
    await stage.backend.clear()
    assert not await _blobs(stage)
    await _push(stage, [task := _large()])
    await (await stage.take()).dead_letter("failed", "")
    await stage.backend.purge_dead([task.id])
    await _no_blobs(stage)


async def test_a_blob_larger_than_any_task_is_not_read(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever may write there could put anything in a payload's place; the limit is lowered here, not the blob grown.
    await _push(stage, [_large()])
    monkeypatch.setattr(payloads, "MAX_BODY_BYTES", _LARGE)
    with pytest.raises(MalformedTask, match="not what was pushed"):
        _ = (await stage.take()).task


async def test_what_is_taken_back_takes_its_payload_along(stage: Stage) -> None:
    await make_container(stage)
    good, bad = _large(), _large()
    stage.proxy.strike(Strike.BUSY, "POST", matches=lambda request: bad.id.encode() in request.body)
    with pytest.raises(BackendUnavailable):
        await stage.backend.push([good, bad])
    assert await stage.total() == 0
    assert not await _blobs(stage)


async def test_unknown_changes_are_refused(stage: Stage) -> None:
    await _push(stage, [_large()])
    (message,) = await (await stage.wire()).get(1, 30)
    content = Content.read(message.text)
    changed = {**(content.beside.changed or {}), "command": "rm -rf /"}
    await (await stage.wire()).put(replace(content, beside=replace(content.beside, changed=changed)).text())
    with pytest.raises(MalformedTask, match="no field that a requeue changes"):
        _ = (await stage.take()).task


async def test_a_letter_that_cannot_be_read_hides_no_other(stage: Stage) -> None:
    # S11: blobs are denied for a while.
    await _push(stage, [large := _large(), small := Task.new(command="false")])
    for delivery in await stage.backend.receive(2, LEASE, NOW):
        await delivery.dead_letter("failed", "")
    stage.blobs.strike(Strike.DENY, count=math.inf)
    letters = {letter.id: letter for letter in await stage.backend.dead_letters(10)}
    assert letters.keys() == {large.id, small.id}
    assert "cannot be had now" in letters[large.id].description
    with pytest.raises(AccessDenied) as caught:
        await stage.backend.redrive([large.id, small.id])
    assert small.id in str(caught.value.__notes__)
    assert (await stage.take()).id == small.id
    await stage.blobs.heal()
    assert await stage.backend.redrive([large.id]) == [large.id]


@pytest.mark.parametrize("has_blobs", [True, False])
async def test_hostile_lines_without_room_are_buried(stage: Stage, has_blobs: bool) -> None:
    await make_container(stage)
    wire = await stage.wire()
    hostile = [f'#jobq {{"{field}": "{"A" * 65_450}"}}\nx' for field in ("checkpoint", "id")]
    hostile.append("#jobq " + "y" * 65_000)
    for text in hostile:
        await wire.put(text)
    signed = stage.signed if has_blobs else stage.signed.partition("BlobEndpoint")[0]
    ended = await stage.run("worker", "--idle-timeout", "3s", **SHORT, JOBQ_CONNECTION_STRING=signed)
    assert ended.code == 0, ended.err
    assert "internal error" not in ended.err
    assert await stage.total() == 0
    assert len(await stage.behind.dead_letters(10)) == 3
