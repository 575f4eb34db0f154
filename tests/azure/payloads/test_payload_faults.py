"""Payloads that are gone, changed, forged, denied or late, and who must not suffer from it (S1, S11, L3)."""

import asyncio
import math
from dataclasses import replace
from datetime import timedelta

import pytest
from azure.storage.blob.aio import ContainerClient

from jobq.errors import (
    AccessDenied,
    MalformedTask,
    PushUnknown,
    SettlementUnknown,
)
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.task import Task, TaskResult
from jobq_azure.storage import backend, large_payloads
from jobq_azure.storage.large_payloads import CONTAINER
from jobq_azure.storage.message_format import MessageContent, MessageNotes
from tests.azure.payloads.payload_stage import LARGE, blobs_of, delete_blobs, large_task, no_blobs, push_as_cli
from tests.azure.stage import LEASE, NOW, SHORT, Stage, eventually, make_container
from tests.support.http_proxy import Strike

pytestmark = pytest.mark.check


async def test_payload_that_is_gone_ends_as_dead_letter_and_harms_nobody(stage: Stage) -> None:
    await push_as_cli(stage, [large_task()])
    await delete_blobs(stage)
    await stage.pushed(2)
    result = await stage.run("worker", **SHORT)
    assert result.code == 0, result.err
    assert await stage.total() == 0
    (letter,) = await stage.backend.dead_letters(10)
    assert letter.reason == "malformed"
    assert "gone" in letter.description
    assert b'"blob"' in letter.body


async def test_payload_that_was_changed_is_refused(stage: Stage) -> None:
    await push_as_cli(stage, [large_task()])
    (name,) = await blobs_of(stage)
    client = ContainerClient.from_connection_string(stage.azurite.connection_string, CONTAINER)
    async with client:
        await client.upload_blob(name, large_task().encode(), overwrite=True)
    delivery = await stage.take()
    with pytest.raises(MalformedTask, match="hash"):
        _ = delivery.task


async def test_a_message_cannot_name_what_is_not_its_queues(stage: Stage) -> None:
    await push_as_cli(stage, [large_task()])
    (name,) = await blobs_of(stage)
    owner = await stage.take()
    wire = await stage.wire()
    for hostile in (f"other/{name.partition('/')[2]}", "../x", f"{stage.queue}/../{name}", f"{name}?x=1"):
        await wire.put(MessageContent(b"", MessageNotes(id="x", blob=hostile)).text())
        delivery = await stage.take()
        with pytest.raises(MalformedTask, match="names no payload"):
            _ = delivery.task
        await delivery.settle(Complete(TaskResult(exit_code=0)))
    assert list(await blobs_of(stage)) == [name]
    await owner.settle(Complete(TaskResult(exit_code=0)))
    await no_blobs(stage)


@pytest.mark.parametrize("strike", [Strike.DENY, Strike.BUSY, Strike.HANG])
async def test_unreachable_payload_is_put_off_and_others_go_on(
    stage: Stage, strike: Strike, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_UNREADABLE_SECONDS", 2)
    monkeypatch.setattr(backend, "_BLOB_SECONDS", 0.5)
    await push_as_cli(stage, [large := large_task()])
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
    await push_as_cli(stage, [large_task()])
    stage.blobs.strike(Strike.HANG, "GET")
    receiving = asyncio.ensure_future(stage.backend.receive(1, LEASE, NOW))
    await stage.blobs.until(lambda: bool(stage.blobs.seen("GET")))
    receiving.cancel()
    await stage.blobs.heal()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    (delivery,) = await stage.backend.receive(1, LEASE, timedelta(seconds=60))
    assert delivery.deliveries - delivery.task.counters.ends == 1


async def test_only_the_service_says_that_a_payload_is_gone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # A gateway's 404 is no word of the service's (S1): the task is put off, and comes back.
    monkeypatch.setattr(backend, "_UNREADABLE_SECONDS", 1)
    await push_as_cli(stage, [large := large_task()])
    stage.blobs.strike(Strike.MISSING, "GET")
    assert await stage.backend.receive(1, LEASE, timedelta(seconds=20))
    assert (await blobs_of(stage)).popitem()[1] == large.encode()


async def test_an_answer_of_a_gateway_takes_no_payload_away(stage: Stage) -> None:
    # It says 503 to what the service has done: the message is there, and so must its payload be (S1, S8).
    await make_container(stage)
    stage.proxy.strike(Strike.GATEWAY, "POST")
    with pytest.raises(PushUnknown):
        await stage.backend.push([task := large_task()])
    delivery = await stage.take()
    assert delivery.task.in_epoch(0) == task
    stage.proxy.strike(Strike.GATEWAY, "POST", "-failed/")
    with pytest.raises(SettlementUnknown):
        await delivery.settle(MoveToDeadLetters("failed", ""))
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
            await wire.put(
                MessageContent(b"", MessageNotes(id=f"x{number}", blob=name, dead={"id": f"x{number}"})).text()
            )
        assert await stage.backend.purge_dead(["x0", "x1"]) == ["x0", "x1"]
        assert await client.get_blob_client(f"{stage.queue}-thesis/thesis.pdf").exists()


async def test_tasks_that_are_put_off_hide_no_other(stage: Stage) -> None:
    # L1, L3: a moment without blobs, more such tasks than slots, and good ones behind them.
    await push_as_cli(stage, [large_task() for _ in range(8)])
    await stage.pushed(4, command="echo $JOBQ_TASK_ID >> done")
    stage.blobs.strike(Strike.BUSY, "GET", count=8)
    worker = await stage.start("worker", "-n", "2", "--idle-timeout", "20s", **SHORT)
    done = stage.folder / "done"
    await eventually(lambda: done.exists() and len(done.read_text().split()) == 4, seconds=15)
    worker.terminate()
    await worker.communicate()


async def test_a_blob_larger_than_any_task_is_not_read(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever may write there could put anything in a payload's place; the limit is lowered here, not the blob grown.
    await push_as_cli(stage, [large_task()])
    monkeypatch.setattr(large_payloads, "MAX_BODY_BYTES", LARGE)
    with pytest.raises(MalformedTask, match="not what was pushed"):
        _ = (await stage.take()).task


async def test_unknown_changes_are_refused(stage: Stage) -> None:
    await push_as_cli(stage, [large_task()])
    (message,) = await (await stage.wire()).get(1, 30)
    content = MessageContent.read(message.text)
    changed = {**(content.beside.changed or {}), "command": "rm -rf /"}
    await (await stage.wire()).put(replace(content, beside=replace(content.beside, changed=changed)).text())
    with pytest.raises(MalformedTask, match="command: unknown field"):
        _ = (await stage.take()).task


async def test_a_letter_that_cannot_be_read_hides_no_other(stage: Stage) -> None:
    # S11: blobs are denied for a while.
    await push_as_cli(stage, [large := large_task(), small := Task.new(command="false")])
    for delivery in await stage.backend.receive(2, LEASE, NOW):
        await delivery.settle(MoveToDeadLetters("failed", ""))
    stage.blobs.strike(Strike.DENY, count=math.inf)
    letters = {letter.id: letter for letter in await stage.backend.dead_letters(10)}
    assert letters.keys() == {large.id, small.id}
    assert "cannot be had now" in letters[large.id].description
    with pytest.raises(AccessDenied) as caught:
        await stage.backend.redrive([large.id, small.id])
    assert caught.value.done == [small.id]
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
