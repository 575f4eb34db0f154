"""What comes late to a batch of Azurite: a cancel after its reopening, a push after its seal, a claim within that."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest

from jobq.batch_plan import Plan
from jobq.batches import BatchState
from jobq.errors import BackendUnavailable, BatchSealed, ConfigurationError
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.task import Task
from jobq.testing.harness import DONE
from jobq_azure.ledger import walk
from jobq_azure.ledger.counting import Counted, Counting
from jobq_azure.ledger.heads import Head
from jobq_azure.ledger.pushes import LedgerPush
from jobq_azure.ledger.queue import LedgerQueue
from jobq_azure.ledger.walk import LedgerWalk
from tests.azure.ledger.ledger_stage import NAME, SOON, THEN, drained, finished, ledgered, pushed
from tests.azure.stage import LEASE, NOW, Stage

pytestmark = pytest.mark.timeout(120)


async def test_who_finishes_a_large_batch_runs_what_comes_meanwhile(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It took up to two minutes, in which a worker saw nothing of its queue; nor is that empty until it is done.
    queue, other = await ledgered(stage, behind=True), await ledgered(stage, behind=True)
    await queue.batches.begin(NAME, THEN)
    await pushed(queue)
    await queue.batches.seal(NAME)
    is_counted, counted = asyncio.Event(), Counting.counted

    async def slow(self: Counting, *given: Any) -> Counted:
        await is_counted.wait()
        return await counted(self, *given)

    monkeypatch.setattr(Counting, "counted", slow)
    for delivery in await queue.receive(1, LEASE, NOW):
        await delivery.settle(Complete(DONE))
    receiving = asyncio.create_task(queue.receive(1, LEASE, NOW))
    await asyncio.wait({receiving}, timeout=2.0)
    assert not receiving.done(), "what is run at its end was about to come"
    (task,) = await other.push([Task.new(command="true")])
    async with asyncio.timeout(20):
        (delivery,) = await receiving
    assert delivery.id == task
    await delivery.settle(Complete(DONE))
    is_counted.set()
    async with asyncio.timeout(20):
        while not (ran := await drained(queue)):
            pass
    assert ran == [f"jobq.then.{NAME}.1"]


@pytest.mark.parametrize("how", ["pushed", "redriven"])
async def test_a_cancel_that_goes_on_ends_nothing_of_a_batch_that_was_opened_since(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    # Who cancels has read that the batch is canceled, and is held up before it looks what is there.
    queue, slow = await ledgered(stage, behind=True), await ledgered(stage, behind=True)
    (task,) = await pushed(queue)
    (delivery,) = await queue.receive(1, LEASE, NOW)
    await queue.batches.seal(NAME)
    is_held, goes_on = asyncio.Event(), asyncio.Event()
    cancel = LedgerWalk.cancel

    async def held(self: LedgerWalk, *given: object) -> bool:
        is_held.set()
        await goes_on.wait()
        return await cancel(self, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(walk.LedgerWalk, "cancel", held)
        canceling = asyncio.create_task(slow.batches.cancel(NAME))
        await is_held.wait()
    await delivery.settle(MoveToDeadLetters("failed", "by the test"))
    if how == "pushed":
        await queue.batches.reopen(NAME)
        (task,) = await pushed(queue)
    else:
        await finished(queue)
        assert await queue.redrive([task.id]) == [task.id]
    goes_on.set()
    await canceling
    await queue.batches.seal(NAME)
    assert await drained(queue) == [task.id]
    assert (await finished(queue)).counts["canceled"] == 0


async def _entered_late(queue: LedgerQueue) -> None:
    """Enter a task behind the look of its push at the batch, which has changed; and die there."""
    task = Task.new(command="true", batch=NAME, id="s7.late")
    entering = LedgerPush(queue._ledger, queue._heads, [(NAME, task)])
    head = await queue._heads.found(NAME)
    with (
        patch.object(entering, "_found", AsyncMock(return_value={NAME: Head({**head.row, "State": "open"})})),
        patch.object(entering, "take_back", AsyncMock()),
        pytest.raises(BatchSealed),
    ):
        await entering.enter()


async def test_what_a_push_enters_behind_the_seal_keeps_no_batch_from_its_end(stage: Stage) -> None:
    queue = await ledgered(stage, behind=True)
    (task,) = await pushed(queue)
    await queue.batches.seal(NAME)
    await _entered_late(queue)
    assert await drained(queue) == [task.id]
    assert (await queue.batches.find(NAME)).state is BatchState.SEALED, "that push may go on"
    queue.batches.pushing.seconds = -1.0
    async with asyncio.timeout(20):
        while (await queue.batches.find(NAME)).state is not BatchState.FINISHED:
            await asyncio.sleep(0.1)
    assert (await finished(queue)).total == 1


async def test_what_a_push_enters_behind_the_end_counts_for_nothing(stage: Stage) -> None:
    queue = await ledgered(stage, behind=True)
    (task,) = await pushed(queue)
    await queue.batches.seal(NAME)
    assert await drained(queue) == [task.id]
    await finished(queue)
    await _entered_late(queue)
    assert (await finished(queue)).total == 1
    assert [member.id for member in await queue.batches.members(NAME, "", 10)] == [task.id]
    await queue.batches.reopen(NAME)
    await queue.push([Task.new(command="true", batch=NAME, id="s7.late")])
    await queue.batches.seal(NAME)
    assert await drained(queue) == ["s7.late"]
    assert (await finished(queue)).counts["succeeded"] == 2


async def test_a_claim_within_a_seal_refuses_no_seal(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # The push has died behind its message: the seal takes it for dead, and it is claimed in that moment.
    queue = await ledgered(stage, behind=True)
    await queue.batches.begin(NAME, Plan())
    task = Task.new(command="true", batch=NAME, id="s7.1")

    async def dies(_: LedgerPush) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(LedgerPush, "mark", dies)
        with suppress(asyncio.CancelledError):
            await queue.push([task])
    queue.batches.pushing.seconds = -1.0
    write = queue._wire.write
    claimed = []

    async def claimed_before(partition: str, writes: object) -> list[str]:
        if not partition.startswith(f"{queue._ledger.queue}!b!"):  # of the journal
            return await write(partition, writes)  # type: ignore[arg-type]
        monkeypatch.setattr(queue._wire, "write", write)
        claimed.extend(await queue.receive(1, LEASE, SOON))
        return await write(partition, writes)  # type: ignore[arg-type]

    monkeypatch.setattr(queue._wire, "write", claimed_before)
    assert (await queue.batches.seal(NAME)).state is BatchState.SEALED
    assert [each.id for each in claimed] == [task.id]


async def test_a_purge_ends_nothing_that_is_being_put_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # The redrive died behind the message, so the letter is left, and the task waits for a worker.
    queue = await ledgered(stage, behind=True)
    monkeypatch.setattr("jobq_azure.storage.held_letters.HOLD_SECONDS", 1)
    (task,) = await pushed(queue)
    (delivery,) = await queue.receive(1, LEASE, NOW)
    await delivery.settle(MoveToDeadLetters("failed", "by the test"))
    await queue.batches.seal(NAME)

    async def dies(*_: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(queue._redrives, "redriven", dies)
        with suppress(asyncio.CancelledError):
            await queue.redrive([task.id])
    with pytest.raises(ConfigurationError, match="dead retry"):
        await _once_shown(queue.purge_dead, task.id)
    assert await drained(queue) == [task.id]
    assert (await finished(queue)).counts["succeeded"] == 1
    await _once_shown(queue.purge_dead, task.id)
    assert (await finished(queue)).counts["succeeded"] == 1


async def _once_shown(do: Callable[[list[str]], Awaitable[list[str]]], id_: str) -> None:
    """Do something with a letter once no reader holds it any more."""
    async with asyncio.timeout(20):
        while True:
            with suppress(BackendUnavailable):
                if await do([id_]):
                    return
            await asyncio.sleep(0.2)
