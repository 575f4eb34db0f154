"""A push that the service has not taken raises, and nothing is told as sent (S1, S8)."""

import asyncio
from pathlib import Path

import pytest

from jobq.errors import (
    AccessDenied,
    BackendUnavailable,
    DuplicateTask,
    JobqError,
    MalformedTask,
    PushUnknown,
)
from jobq.task import Task
from tests.emulators.service_bus.faults import Drop, Fault, Operation
from tests.sb.stage import NOW, Stage, staged
from tests.support.http_proxy import Strike

pytestmark = pytest.mark.check


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (403, AccessDenied),
        (413, MalformedTask),
        (410, JobqError),
        (400, JobqError),
        (500, PushUnknown),
        (504, PushUnknown),
        (408, PushUnknown),
    ],
)
async def test_a_refused_push_raises(stage: Stage, status: int, error: type[JobqError]) -> None:
    stage.emulator.faults.plan(Fault(status), Operation.SEND)
    task = Task.new(command="true")
    with pytest.raises(error) as caught:
        await stage.backend.push([task])
    assert stage.queue.messages() == []
    assert len(stage.requests(Operation.SEND)) == 1, "a push is sent once"
    if isinstance(caught.value, PushUnknown):
        assert caught.value.ids == (task.id,)
    assert await stage.backend.push([task]) == [task.id]


@pytest.mark.parametrize("status", [503, 429])
async def test_what_a_busy_service_refuses_is_sent_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """And after a while it is an error: nothing is queued, and nothing is in doubt."""
    stage.emulator.faults.plan(Fault(status), Operation.SEND, count=2)
    task = Task.new(command="true")
    assert await stage.backend.push([task]) == [task.id]
    assert len(stage.requests(Operation.SEND)) == 3
    monkeypatch.setattr("jobq_azure.service_bus.push.PUSH_SECONDS", 0.5)
    stage.emulator.faults.plan(Fault(status), Operation.SEND, count=1000)
    with pytest.raises(BackendUnavailable, match="busy"):
        await stage.backend.push([Task.new(command="true")])
    assert len(stage.queue.messages()) == 1


@pytest.mark.parametrize("status", [403, 500])
async def test_the_command_line_tells_no_id_of_a_refused_push(stage: Stage, status: int) -> None:
    stage.emulator.faults.plan(Fault(status), Operation.SEND, count=1000)
    result = await stage.run("push", "-c", "true", "--json")
    assert result.code != 0, result
    assert result.out == ""
    assert stage.queue.messages() == []


async def test_a_lost_answer_names_what_is_in_doubt(stage: Stage) -> None:
    stage.emulator.faults.plan(Fault(drop=Drop.AFTER), Operation.SEND)
    tasks = [Task.new(command="true") for _ in range(3)]
    with pytest.raises(PushUnknown) as caught:
        await stage.backend.push(tasks)
    assert list(caught.value.ids) == [task.id for task in tasks]
    assert len(stage.queue.messages()) == 3, "it was sent once, and not again by a library"


@pytest.mark.parametrize("strike", [Strike.BARE, Strike.PAGE, Strike.MISSING, Strike.GATEWAY, Strike.REDIRECT])
async def test_only_the_service_says_that_a_push_is_done(stage: Stage, strike: Strike) -> None:
    stage.proxy.strike(strike, "POST")
    with pytest.raises(PushUnknown):
        await stage.pushed()
    assert len(stage.queue.messages()) == (strike is Strike.GATEWAY)


async def test_a_failure_in_the_middle_names_what_is_queued(stage: Stage) -> None:
    # Nothing takes messages back: what the first batch has brought in is told.
    tasks = [Task.new(command="true") for _ in range(250)]
    real = stage.emulator.faults.take
    sends = 0

    def second_is_refused(request: object) -> Fault:
        nonlocal sends
        sends += getattr(request, "operation", None) is Operation.SEND
        return Fault(400) if sends == 2 else real(request)  # type: ignore[arg-type] # is a request

    stage.emulator.faults.take = second_is_refused  # type: ignore[method-assign] # one of the sends alone
    with pytest.raises(PushUnknown, match="100 of 250") as caught:
        await stage.backend.push(tasks)
    assert caught.value.ids == tuple(task.id for task in tasks[:100])
    assert len(stage.queue.messages()) == 100


async def test_a_push_that_is_given_up_tells_what_it_has_done(stage: Stage) -> None:
    stage.emulator.faults.plan(Fault(delay=0.3), Operation.SEND)
    pushing = asyncio.create_task(stage.pushed())
    while not stage.requests(Operation.SEND):
        await asyncio.sleep(0.01)
    pushing.cancel()
    with pytest.raises(PushUnknown):
        await pushing
    assert len(stage.queue.messages()) == 1


async def test_one_id_with_two_payloads_is_refused_where_it_can_be_seen(stage: Stage) -> None:
    await stage.pushed()
    twin = Task.new(command="true")
    with pytest.raises(DuplicateTask):
        await stage.backend.push([twin, twin.copied({"command": "false"})])
    assert len(stage.queue.messages()) == 1


async def test_the_broker_drops_a_second_push(tmp_path: Path) -> None:
    async with staged(tmp_path, dedup_window=600.0) as stage:
        able = stage.backend.capabilities
        assert able.deduplicates
        assert able.idempotent_push
        (task,) = await stage.pushed()
        assert await stage.backend.push([task]) == [task.id]
        assert len(stage.queue.messages()) == 1
        assert (await stage.run("push", "--id", "mine", "-c", "true")).code == 0
        assert (await stage.run("push", "--id", "mine", "-c", "true")).code == 0
        assert len(stage.queue.messages()) == 2


async def test_without_duplicate_detection_an_id_is_refused(stage: Stage) -> None:
    assert not stage.backend.capabilities.deduplicates
    result = await stage.run("push", "--id", "mine", "-c", "true")
    assert result.code == 2, result


async def test_large_and_many_arrive_as_they_are(stage: Stage) -> None:
    most = stage.backend.capabilities.max_message_bytes
    assert most is not None
    quotes = '"' * (most // 2 - 200)  # JSON in JSON doubles each of them twice
    texts = ("x" * (most - 400), quotes, "ü€𝄞 \\ \n", *["true"] * 120)
    tasks = [Task.new(call="builtins:len", kwargs={"obj": text}) for text in texts]
    await stage.backend.push(tasks)
    found = await stage.backend.receive(200, None, NOW)
    assert sorted(each.body for each in found) == sorted(task.encode() for task in tasks)
    with pytest.raises(MalformedTask, match="has room for"):
        await stage.backend.push([Task.new(call="builtins:len", kwargs={"obj": "x" * most})])
