"""Two at once on one batch: in whatever order they come, its counts are those of what was acknowledged.

Each is tried many times, for what meets what is the machine's choice.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from jobq.backend import Delivery
from jobq.batches import BatchState
from jobq.errors import AllPutBack, BackendUnavailable, BatchSealed, JobqError, LockLost
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.task import Task
from jobq.testing.harness import DONE
from jobq_azure.ledger.queue import LedgerQueue
from jobq_azure.storage.dead_letters import SUFFIX
from jobq_azure.storage.message_format import text_of
from jobq_azure.storage.queue_client import StorageQueueClient
from tests.azure.emulator import Azurite
from tests.azure.ledger.ledger_stage import THEN, drained, finished, ledgered, pushed
from tests.azure.ledger.sites import Site, sited
from tests.azure.stage import LEASE, NOW, Stage

_TIMES: Final = 20
pytestmark = [pytest.mark.night("races of many on Azurite: 30 s"), pytest.mark.timeout(240)]


@pytest.fixture
async def site(azurite: Azurite, tmp_path: Path) -> AsyncIterator[Site]:
    async with sited(azurite, tmp_path) as found:
        yield found


async def test_a_seal_and_a_push_at_once(site: Site) -> None:
    # Either the push is told that it is sealed, and nothing of it counts; or it is acknowledged, and all of it does.
    queue, other = await site.ledgered(), await site.ledgered(behind=True)
    met = Counter[str]()
    for number in range(_TIMES):
        name = f"b{number}"
        await pushed(queue, 1, name)
        tasks = [Task.new(command="true", batch=name, id=f"{name}.{each}") for each in range(3)]

        async def push(tasks: list[Task] = tasks, number: int = number) -> int:
            await asyncio.sleep(0.015 * (number % 10))  # at last it comes when all is sealed
            try:
                return len(await other.push(tasks))
            except BatchSealed:
                return 0

        async def seal(name: str = name, number: int = number) -> None:
            await asyncio.sleep(0.004 * (number % 3))
            while True:
                with suppress(BackendUnavailable):  # the push may go on
                    await queue.batches.seal(name)
                    return

        added, _ = await asyncio.gather(push(), seal())
        met["acknowledged" if added else "refused"] += 1
        found = await queue.batches.find(name)
        assert (found.state, found.total) == (BatchState.SEALED, 1 + added)
        assert len(await drained(queue)) == 1 + added
        assert (await finished(queue, name)).counts["succeeded"] == 1 + added
    assert len(met) == 2, f"they never met in both orders: {met}"


async def test_two_who_start_one_task_at_once(stage: Stage) -> None:
    # Its message is there twice: one of them has it, the other completes its message unrun.
    queue, other = await ledgered(stage), await ledgered(stage, behind=True)
    wire = await stage.wire()
    for _ in range(_TIMES):
        (task,) = await pushed(queue)
        (seen,) = await stage.behind.peek(1)
        await wire.put(text_of(seen.body))

        async def take(handle: LedgerQueue) -> list[str]:
            with suppress(AllPutBack):
                taken = await handle.receive(1, LEASE, NOW)
                for delivery in taken:
                    await delivery.settle(Complete(DONE))
                return [delivery.id for delivery in taken]
            return []

        first, second = await asyncio.gather(take(queue), take(other))
        assert first + second == [task.id]
        assert await drained(queue) == []
        assert await stage.total() == 0
    await queue.batches.seal("s7")
    assert (await finished(queue)).counts["succeeded"] == _TIMES


async def test_a_redrive_and_the_end_of_its_batch_at_once(site: Site) -> None:
    # Whichever is first: what is put back runs in a batch that has not finished, and each round is told once.
    queue, other = await site.ledgered(), await site.ledgered(behind=True)
    rounds = Counter[int]()
    for number in range(_TIMES):
        name = f"b{number}"
        await queue.batches.begin(name, THEN)
        dead, last = await pushed(queue, 2, name)
        held = {each.id: each for each in await queue.receive(2, LEASE, NOW)}
        await held[dead.id].settle(MoveToDeadLetters("failed", "by the test"))
        await queue.batches.seal(name)

        async def end(name: str = name, number: int = number, delivery: Delivery = held[last.id]) -> None:
            await asyncio.sleep(0.008 * (number % 10))
            await delivery.settle(Complete(DONE))
            await queue.batches.find(name)

        assert (await asyncio.gather(other.redrive([dead.id]), end()))[0] == [dead.id]
        ran = await drained(queue)
        ended = await finished(queue, name)
        rounds[ended.round] += 1
        assert dict(ended.counts) | {"succeeded": 2} == dict(ended.counts)
        assert ended.total == 2
        told = [id_ for id_ in ran if id_.startswith("jobq.then.")]
        assert sorted(told) == [f"jobq.then.{name}.{each}" for each in range(1, ended.round + 1)]
        assert [id_ for id_ in ran if id_ not in told] == [dead.id]
    assert len(rounds) == 2, f"they never met in both orders: {rounds}"


async def test_many_who_finish_a_batch_at_once(site: Site) -> None:
    handles = [await site.ledgered(behind=True) for _ in range(4)]
    queue = handles[0]
    for number in range(_TIMES // 2):
        name = f"b{number}"
        await queue.batches.begin(name, THEN)
        await pushed(queue, 1, name)
        (delivery,) = await queue.receive(1, LEASE, NOW)
        await queue.batches.seal(name)
        await delivery.settle(Complete(DONE))
        await asyncio.gather(*(each.batches.find(name) for each in handles))
        assert [each.number for each in (await finished(queue, name)).rounds] == [1]
        assert await drained(queue) == [f"jobq.then.{name}.1"]


async def test_a_cancel_and_starts_at_once(site: Site) -> None:
    # What has started ends as it ends, all else is canceled; nothing is both.
    queue, other = await site.ledgered(), await site.ledgered(behind=True)
    met = Counter[str]()
    for number in range(_TIMES):
        name = f"b{number}"
        await pushed(queue, 6, name)

        async def run(number: int = number) -> list[str]:
            await asyncio.sleep(0.003 * (number % 10))
            with suppress(AllPutBack):
                started = await other.receive(6, LEASE, NOW)
                for delivery in started:
                    await delivery.settle(Complete(DONE))
                return [delivery.id for delivery in started]
            return []

        ran, _ = await asyncio.gather(run(), queue.batches.cancel(name))
        with suppress(AllPutBack):
            assert await drained(queue) == []
        ended = await finished(queue, name)
        assert ended.counts["succeeded"] == len(ran)
        assert ended.counts["canceled"] == 6 - len(ran)
        met["ran" if ran else "canceled"] += 1
    assert len(met) == 2, f"they never met in both orders: {met}"


async def test_whatever_befalls_a_batch_at_once_the_sum_is_what_was_acknowledged(site: Site) -> None:
    handles = [await site.ledgered(behind=True) for _ in range(4)]
    queue, count = handles[0], 60
    await queue.batches.begin("s7", THEN)
    for start in range(0, count, 20):
        tasks = [Task.new(command="true", batch="s7", id=f"s7.{each}") for each in range(start, start + 20)]
        await queue.push(tasks)

    async def work(handle: LedgerQueue, seed: int) -> None:
        for step in range(8):
            with suppress(JobqError):
                for place, delivery in enumerate(await handle.receive(4, timedelta(seconds=2), NOW)):
                    with suppress(LockLost):
                        if (place + seed + step) % 3 == 0:
                            await delivery.settle(MoveToDeadLetters("failed", "by the test"))
                        elif (place + seed + step) % 3 == 1:
                            await delivery.settle(Complete(DONE))  # else its lease runs out

    async def meddle() -> None:
        await asyncio.sleep(0.3)
        letters = [each.id for each in await queue.dead_letters(32)]
        back = await queue.redrive(letters[:4])
        gone = await queue.purge_dead(letters[4:8])
        assert len(back) + len(gone) == len(letters[:8])
        await handles[1].batches.cancel("s7")
        await handles[2].clear()

    await asyncio.gather(*(work(handle, seed) for seed, handle in enumerate(handles)), meddle())
    async with asyncio.timeout(60):
        while (found := await queue.batches.find("s7")).state is not BatchState.FINISHED:
            assert found.total == count, found
            with suppress(AllPutBack, LockLost):
                await drained(queue)
            await queue.batches.cancel("s7")
            await queue.clear()
    assert found.total == count, found
    members = await queue.batches.members("s7", "", 500)
    await _shown(await site.stage.wire(site.queue + SUFFIX))
    letters = {each.id for each in await queue.dead_letters(500) if each.batch == "s7"}
    assert letters == {each.id for each in members if each.state == "dead"}


async def _shown(dead: StorageQueueClient) -> None:
    """Wait until no reader of dead letters holds any: one whose answer came late holds them for a minute."""
    async with asyncio.timeout(90):
        while len(await dead.peek(32)) < min(32, await dead.count()):
            await asyncio.sleep(0.2)
