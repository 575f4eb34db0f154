"""A batch's ledger and its queue are two services: whatever is cut off between any two requests, the counts are exact.

Each test lets one step of a batch's life be cut at each of its requests, in four ways, and then lets others go on:
every acknowledged id has run and has ended once in the counts, the end is told once a round, the batch has finished.
"""

import asyncio
import time
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.batch_plan import Plan
from jobq.batches import BatchState
from jobq.errors import BackendUnavailable, JobqError
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue, Settlement
from jobq.testing.harness import DONE
from jobq_azure.ledger import heads
from jobq_azure.ledger.queue import LedgerQueue
from jobq_azure.ledger.retention import LedgerRetention
from tests.azure.emulator import Azurite
from tests.azure.faults.gaps import NAME, PLAN, Cut, Given, Life, counted, in_each_gap

_FEWER = 5  # of a long one: still each kind of gap in its turn
pytestmark = [
    pytest.mark.night("each verb of a batch is cut at each of its requests: minutes"),
    pytest.mark.timeout(240),
]


# Of each test some of the gaps; all of them in `make night`.
@pytest.fixture(
    params=[5, pytest.param(1, marks=[pytest.mark.night, pytest.mark.timeout(1800)])],
    ids=["some", "all"],
)
def every(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def given(azurite: Azurite, tmp_path: Path, every: int) -> Given:
    return Given(azurite, tmp_path, every)


@pytest.fixture(autouse=True)
def _sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is put off, or held by a reader that died, come back within seconds: hundreds of times it is."""
    monkeypatch.setattr("jobq_azure.table_journal.backend._PUT_OFF", timedelta(seconds=1))
    monkeypatch.setattr("jobq_azure.storage.held_letters.HOLD_SECONDS", 3)


async def test_push_is_cut_and_repeated(given: Given) -> None:
    # Nothing runs twice: what the first push has sent, and the second sends again, is completed unrun.
    async def before(life: Life) -> None:
        await life.healthy.batches.begin(NAME, PLAN)

    async def act(life: Life, process: LedgerQueue, _: Cut) -> None:
        life.acknowledged |= set(await process.push(life.tasks()))

    async def after(life: Life, process: LedgerQueue, cut: Cut) -> None:
        again = life.healthy if cut.gap.ends_it else process
        life.acknowledged |= set(await again.push(life.tasks()))
        await life.healthy.batches.seal(NAME)
        await life.drained()
        assert {id_: life.runs[id_] for id_ in life.acknowledged} == dict.fromkeys(life.acknowledged, 1)
        assert await life.counts() == counted(succeeded=3)

    await in_each_gap(given, before, act, after, least=9)


async def test_push_is_cut_and_never_repeated(given: Given) -> None:
    # A seal refuses while it may go on; once it is taken for dead, only what was acknowledged, or has run, counts.
    async def before(life: Life) -> None:
        await life.pushed(1)

    async def act(life: Life, process: LedgerQueue, _: Cut) -> None:
        life.acknowledged |= set(await process.push(life.tasks()[1:]))

    async def after(life: Life, _process: LedgerQueue, _: Cut) -> None:
        refusal = await _refused(life.healthy.batches.seal(NAME))
        if refusal:
            assert "is not sealed" in refusal
            assert (await life.healthy.batches.find(NAME)).state is BatchState.OPEN
            life.healthy.batches.pushing.seconds = -1.0
            await life.healthy.batches.seal(NAME)
        assert not (refusal and len(life.acknowledged) == 3), "what was acknowledged must not be revoked"
        known = {member.id for member in await life.healthy.batches.members(NAME, "", 10)}
        assert known >= life.acknowledged
        life.acknowledged = set(known)
        await life.drained()

    await in_each_gap(given, before, act, after, least=6)


@pytest.mark.parametrize(
    "settlement",
    [Complete(DONE), MoveToDeadLetters("failed", "by the test"), Release(), "requeue"],
    ids=["complete", "dead", "release", "requeue"],
)
async def test_start_and_end_are_cut(given: Given, settlement: Settlement | str) -> None:
    told = set[str]()  # by the queue of the life: whose settle was acknowledged

    async def before(life: Life) -> None:
        await life.pushed(1)
        await life.healthy.batches.seal(NAME)

    async def act(life: Life, process: LedgerQueue, _: Cut) -> None:
        for delivery in await process.receive(1, life.lease, life.lease):
            life.runs[delivery.id] += 1
            end = Requeue(delivery.task.counters.raised(failures=1)) if isinstance(settlement, str) else settlement
            for _attempt in range(3):  # as a worker does while the lease lasts
                try:
                    await delivery.settle(end)
                except BackendUnavailable:
                    await asyncio.sleep(0.1)
                else:
                    told.add(life.site.queue)
                    return

    async def after(life: Life, _process: LedgerQueue, _: Cut) -> None:
        await life.drained()
        is_final = isinstance(settlement, Complete | MoveToDeadLetters)
        if is_final and life.site.queue in told:
            assert life.runs[f"{NAME}.0"] == 1, "it has ended, as somebody was told, and ran again"
        assert life.runs[f"{NAME}.0"] <= 2
        letters = await life.healthy.dead_letters(10)
        is_dead = await life.counts() == counted(dead=1)
        assert is_dead or await life.counts() == counted(succeeded=1)
        assert [each.id for each in letters] == [f"{NAME}.0"] * is_dead, "a letter was lost, or doubled"
        assert [each.batch for each in letters] == [NAME] * is_dead
        if life.site.queue in told:
            assert is_dead == isinstance(settlement, MoveToDeadLetters)

    await in_each_gap(given, before, act, after, least=4)


async def test_seal_and_finish_are_cut(given: Given) -> None:
    async def before(life: Life) -> None:
        await life.pushed(2)
        await life.run_some()

    async def act(_: Life, process: LedgerQueue, __: Cut) -> None:
        await process.batches.seal(NAME)

    async def after(life: Life, process: LedgerQueue, cut: Cut) -> None:
        again = life.healthy if cut.gap.ends_it else process
        await again.batches.seal(NAME)
        await life.drained()
        assert await life.counts() == counted(succeeded=2)

    await in_each_gap(given, before, act, after, least=50)


async def test_finish_by_the_next_who_looks(given: Given) -> None:
    # Who ended the last task dies while it looks whether that was the last one, or while it queues what is run then.
    async def before(life: Life) -> None:
        await life.pushed(1)
        await life.healthy.batches.seal(NAME)

    async def act(life: Life, process: LedgerQueue, _: Cut) -> None:
        for _turn in range(2):  # the task, and what is run at the end
            for delivery in await process.receive(2, life.lease, life.lease):
                life.runs[delivery.id] += 1
                await delivery.settle(Complete(DONE))

    async def after(life: Life, _process: LedgerQueue, _: Cut) -> None:
        found = None
        async with asyncio.timeout(40):  # its tasks may have run before who queued them has said so
            while (
                not life.runs[f"jobq.then.{NAME}.1"]
                or not life.runs[f"jobq.then.{NAME}:1.1"]
                or found is None
                or found.state is not BatchState.FINISHED
            ):
                with suppress(BackendUnavailable):  # of a busy emulator
                    await life.run_some()
                    found = await life.healthy.batches.find(NAME)
        assert await life.counts() == counted(succeeded=1)

    await in_each_gap(given, before, act, after, least=20)


async def test_redrive_is_cut_and_repeated(given: Given) -> None:
    async def before(life: Life) -> None:
        await life.pushed(3)
        await life.healthy.batches.seal(NAME)
        for delivery in await life.healthy.receive(3, life.lease, life.lease):
            dead = delivery.id != f"{NAME}.0"
            life.runs[delivery.id] += 1
            await delivery.settle(MoveToDeadLetters("failed", "by the test") if dead else Complete(DONE))
        await life.drained()

    async def act(_: Life, process: LedgerQueue, __: Cut) -> None:
        await process.redrive([f"{NAME}.1", f"{NAME}.2"])

    async def after(life: Life, process: LedgerQueue, cut: Cut) -> None:
        again = life.healthy if cut.gap.ends_it else process
        async with asyncio.timeout(60):  # a reader that died holds what it looked through for a minute
            while (await life.healthy.stats()).dead:
                try:
                    await again.redrive([f"{NAME}.1", f"{NAME}.2"])
                except JobqError:
                    await asyncio.sleep(0.5)
        number = (await life.healthy.batches.find(NAME)).round
        assert number >= 2
        await life.drained(number)
        assert await life.counts() == counted(succeeded=3)
        assert await life.healthy.dead_letters(10) == []

    await in_each_gap(given, before, act, after, least=15)


async def _refused(call: Awaitable[object]) -> str:
    """Return how a call was refused; empty = it was not."""
    try:
        await call
    except BackendUnavailable as error:
        return str(error)
    return ""


async def test_purge_is_cut_and_repeated(given: Given) -> None:
    async def before(life: Life) -> None:
        await life.pushed(2)
        await life.healthy.batches.seal(NAME)
        for delivery in await life.healthy.receive(2, life.lease, life.lease):
            dead = delivery.id != f"{NAME}.0"
            life.runs[delivery.id] += 1
            await delivery.settle(MoveToDeadLetters("failed", "by the test") if dead else Complete(DONE))
        while not (await life.healthy.stats()).dead:  # on a slow machine the lock may be over before it is moved
            await life.run_some()

    async def act(_: Life, process: LedgerQueue, __: Cut) -> None:
        await process.purge_dead([f"{NAME}.1"])

    async def after(life: Life, process: LedgerQueue, cut: Cut) -> None:
        again = life.healthy if cut.gap.ends_it else process
        async with asyncio.timeout(60):
            while (await life.healthy.stats()).dead:
                try:
                    await again.purge_dead([f"{NAME}.1"])
                except JobqError:
                    await asyncio.sleep(0.5)
        await life.drained()
        assert await life.counts() == counted(succeeded=1, gone=1)

    await in_each_gap(given, before, act, after, least=4)


async def test_cancel_is_cut_and_left_to_the_next(given: Given) -> None:
    async def before(life: Life) -> None:
        await life.pushed(3)

    async def act(_: Life, process: LedgerQueue, __: Cut) -> None:
        await process.batches.cancel(NAME)

    async def after(life: Life, _process: LedgerQueue, _: Cut) -> None:
        if (await life.healthy.batches.find(NAME)).state is BatchState.OPEN:  # it has not come so far
            await life.healthy.batches.cancel(NAME)
        async with asyncio.timeout(30):
            while (await life.healthy.stats()).total:
                await life.run_some()
        found = await life.healthy.batches.find(NAME)
        assert (found.state, found.is_canceled) == (BatchState.FINISHED, True)
        assert await life.counts() == counted(canceled=3)
        assert {id_: life.runs[id_] for id_ in life.runs if id_.startswith(NAME)} == {}
        assert life.runs[f"jobq.then.{NAME}.1"] == 1

    await in_each_gap(given, before, act, after, least=20)


async def test_clear_is_cut_and_repeated(given: Given) -> None:
    async def before(life: Life) -> None:
        await life.pushed(3)
        (delivery,) = await life.healthy.receive(1, life.lease, life.lease)
        await delivery.settle(Complete(DONE))
        await life.healthy.batches.seal(NAME)

    async def act(_: Life, process: LedgerQueue, __: Cut) -> None:
        await process.clear()

    async def after(life: Life, process: LedgerQueue, cut: Cut) -> None:
        again = life.healthy if cut.gap.ends_it else process
        await again.clear()
        found = await life.healthy.batches.find(NAME)
        assert found.state is BatchState.FINISHED
        assert found.total == 3
        assert await life.counts() == counted(succeeded=1, gone=2)

    await in_each_gap(given, before, act, after, least=10)


async def test_a_name_used_again_is_cut_and_repeated(given: Given) -> None:
    # A message of the former batch of the name is left over, and comes among those of the next one.
    async def before(life: Life) -> None:
        await life.healthy.batches.begin(NAME, Plan())
        (former,) = life.tasks(1)
        due = time.time() + 2
        await life.healthy.push([former.copied({"command": "echo former", "not_before": due})])
        await life.healthy.batches.cancel(NAME)
        batches = life.healthy._heads
        await batches.replace(await batches.found(NAME), {"State": heads.FORGETTING})  # and who does so dies

    async def act(life: Life, process: LedgerQueue, _: Cut) -> None:
        await process.batches.begin(NAME, PLAN)
        life.acknowledged |= set(await process.push(life.tasks()))

    async def after(life: Life, process: LedgerQueue, cut: Cut) -> None:
        again = life.healthy if cut.gap.ends_it else process
        await again.batches.begin(NAME, PLAN)
        life.acknowledged |= set(await again.push(life.tasks()))
        await life.healthy.batches.seal(NAME)
        await life.drained()
        assert life.commands == {"true", "python merge.py", "python tell.py"}, "what was forgotten was run"
        assert await life.counts() == counted(succeeded=3)
        assert [(each.id, each.reason) for each in await life.healthy.dead_letters(9)] == [(f"{NAME}.0", "unknown")]

    await in_each_gap(given, before, act, after, least=40)


async def test_forgetting_is_cut_and_left_to_the_next(given: Given) -> None:
    # By the next sweep nothing is left of it but the mark that it was here, and its name and its ids are as new.
    async def before(life: Life) -> None:
        await life.pushed(3)
        await life.healthy.batches.seal(NAME)
        await life.drained()
        life.runs.clear()

    async def act(_: Life, process: LedgerQueue, __: Cut) -> None:
        await _forget(process)

    async def after(life: Life, process: LedgerQueue, cut: Cut) -> None:
        await _forget(life.healthy if cut.gap.ends_it else process)
        assert await life.healthy.batches.list("", 10) == []
        ledger = life.healthy._ledger
        left, _ = await life.healthy._wire.look(f"{ledger.queue}!b", "a", "z", behind=f'{ledger.queue}!b"')
        assert [str(row["RowKey"])[:2] for row in left] == ["f!"], "rows are left"
        await life.pushed(3)
        await life.healthy.batches.seal(NAME)
        await life.drained()
        assert await life.counts() == counted(succeeded=3)
        assert {id_: life.runs[id_] for id_ in life.acknowledged} == dict.fromkeys(life.acknowledged, 1)

    fewer = given if given.every == 1 else replace(given, every=_FEWER * given.every)
    await in_each_gap(fewer, before, act, after, least=20)


async def _forget(queue: LedgerQueue) -> None:
    # The date of a refusal, by which the service's clock is known, is that at which the proxy was imported.
    await LedgerRetention(queue._ledger, queue._heads, keep_seconds=-3600.0).once()
