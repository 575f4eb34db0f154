"""`queue.get`: a program takes a task, and says itself what becomes of it; its lease is kept meanwhile."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import jobq
from jobq.clock import SystemClock
from jobq.errors import LockLost, SettlementUnknown
from jobq.settings import Settings
from jobq.testing.faults import Fault, Faults, FaultyBackend
from jobq_memory import MemoryBackend, Router
from tests.process.stage import QUICK


def settings(folder: Path, **own: Any) -> Settings:
    return Settings(home=folder, **{**QUICK, **own})


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[jobq.Queue]:
    async with jobq.connect("demo", settings=settings(tmp_path)) as found:
        yield found


@pytest.fixture
def plain(tmp_path: Path) -> "Iterator[jobq.sync.Queue]":
    with jobq.sync.connect("demo", settings=settings(tmp_path)) as found:
        yield found


async def test_complete_is_acknowledged_and_keeps_the_value(queue: jobq.Queue) -> None:
    handle = await queue.push(jobq.Task.new(kwargs={"n": 2}))
    async with queue.get() as delivery:
        assert delivery is not None
        assert (delivery.id, delivery.attempt, delivery.task.kwargs) == (handle, 1, {"n": 2})
        assert str(delivery.fencing_number) == "0.0.1"
        await delivery.complete({"half": 1})
        assert (await handle.status()).state == "succeeded", "not before it is acknowledged"
    assert (await handle.result()).value == {"half": 1}
    async with queue.get() as delivery:
        assert delivery is None


async def test_fail_is_retried_and_then_a_dead_letter(queue: jobq.Queue) -> None:
    await queue.push(jobq.Task.new(command="true", budgets={"retries": 1}))
    async with queue.get() as delivery:
        assert delivery is not None
        await delivery.save_checkpoint("step 7")
        await delivery.fail(ValueError("a secret"))
    assert (await queue.stats()).unfinished == 1
    async with queue.get(wait=timedelta(seconds=5)) as delivery:
        assert delivery is not None
        assert (delivery.attempt, delivery.checkpoint) == (2, "step 7")
        await delivery.fail("no such sample")
    (letter,) = await queue.dead_letters()
    assert "no such sample" in letter.description
    assert "secret" not in letter.description


async def test_left_by_an_exception_or_without_a_word_it_has_failed(queue: jobq.Queue) -> None:
    """Silence is no success."""
    await queue.push([jobq.Task.new(command="true", budgets={"retries": 0}) for _ in range(3)])

    async def left_by(error: Exception) -> None:
        async with queue.get():
            raise error

    with pytest.raises(KeyError):
        await left_by(KeyError("a secret"))
    async with queue.get():
        pass
    async with queue.get() as delivery:
        assert delivery is not None
        await delivery.fail(StopIteration())  # which asyncio would take for an end of its own
    told = sorted(letter.description for letter in await queue.dead_letters())
    assert ["KeyError" in told[0], "StopIteration" in told[1], "without complete() or fail()" in told[2]] == [True] * 3
    assert "secret" not in told[0]


async def test_cancelled_it_is_given_back_and_costs_no_retry(queue: jobq.Queue) -> None:
    handle = await queue.push(jobq.Task.new(command="true", budgets={"retries": 0}))
    held = asyncio.Event()

    async def work() -> None:
        async with queue.get():
            held.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await held.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert (await queue.stats()).visible == 1
    async with queue.get() as delivery:
        assert delivery is not None
        assert (delivery.id, delivery.attempt) == (handle, 2)
        assert delivery.task.counters.preemptions == 1
        await delivery.complete()


async def test_a_wait_that_is_cancelled_takes_nothing_along(queue: jobq.Queue) -> None:
    async def work() -> None:
        async with queue.get(wait=timedelta(seconds=60)):
            raise AssertionError

    await queue.backend.create()
    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    await queue.push("true")
    async with queue.get() as delivery:
        assert delivery is not None
        assert delivery.attempt == 1
        await delivery.complete()


async def test_its_lease_is_kept_for_as_long_as_it_takes(queue: jobq.Queue) -> None:
    await queue.push("true")
    async with queue.get() as delivery:
        assert delivery is not None
        first = time.monotonic() + delivery.remaining()
        async with asyncio.timeout(10):
            while time.monotonic() + delivery.remaining() < first + 0.8:  # renewals move the deadline
                await asyncio.sleep(0.02)
        assert not delivery.lock_lost
        await delivery.complete()


@pytest.mark.parametrize("verb", ["complete", "fail", "leave"])
async def test_too_late_is_lock_lost(queue: jobq.Queue, verb: str) -> None:
    """S4: the store gave the task to nobody else, but it is gone; nothing that is said of it counts."""
    await queue.push("true")

    async def work() -> None:
        async with queue.get() as delivery:
            assert delivery is not None
            await queue.clear()
            if verb == "complete":
                await delivery.complete()
            elif verb == "fail":
                await delivery.fail("broken")

    with pytest.raises(LockLost):
        await work()
    assert (await queue.stats()).unfinished == 0
    assert await queue.dead_letters() == []


async def test_an_end_whose_answer_is_lost_is_unknown(tmp_path: Path) -> None:
    """S5: where the store cannot tell either; the lease ends meanwhile, for the answers stay lost."""
    faults = Faults()
    async with FaultyBackend(MemoryBackend(Router(SystemClock()), "demo"), faults) as backend:
        queue = jobq.Queue(backend, settings(tmp_path))
        await queue.push("true")
        async with queue.get() as delivery:
            assert delivery is not None
            faults.next("complete", Fault.LOSE_ANSWER, times=1000)
            with pytest.raises(SettlementUnknown):
                await delivery.complete()
        assert (await queue.stats()).unfinished == 0


async def test_its_end_is_told_once(queue: jobq.Queue) -> None:
    await queue.push("true")
    async with queue.get() as delivery:
        assert delivery is not None
        await delivery.complete()
        with pytest.raises(LockLost):
            await delivery.complete()
        with pytest.raises(LockLost):
            await delivery.fail("x")
    assert (await queue.stats()).unfinished == 0


async def test_over_its_time_limit_it_is_asked_to_end_and_left_to_its_lease(tmp_path: Path) -> None:
    """Nothing can end the code of this program: nobody may say that nothing of it runs (P1)."""

    async def work(queue: jobq.Queue) -> None:
        async with queue.get() as delivery:
            assert delivery is not None
            await delivery.stop_requested.wait()
            await asyncio.wait_for(asyncio.shield(delivery.reported), 10)
            await delivery.complete()

    async with jobq.connect("demo", settings=settings(tmp_path, stop_grace=timedelta(seconds=0.1))) as queue:
        await queue.push(jobq.Task.new(command="true", timeout=0.05))
        with pytest.raises(LockLost):
            await work(queue)
        assert (await queue.stats()).leased == 1


async def test_what_cannot_be_handed_out_is_passed_by(tmp_path: Path) -> None:
    router = Router(SystemClock())
    async with MemoryBackend(router, "demo") as backend:
        queue = jobq.Queue(backend, settings(tmp_path))
        await backend.create()
        router.inject("demo", b"no task")
        await queue.push("true")
        async with queue.get() as delivery:
            assert delivery is not None
            await delivery.complete()
        assert [letter.reason for letter in await queue.dead_letters()] == ["malformed"]
        async with queue.get() as delivery:
            assert delivery is None


def test_without_async_the_queues_own_thread_keeps_it(plain: "jobq.sync.Queue") -> None:
    plain.push(jobq.Task.new(command="true", budgets={"retries": 0}))
    with plain.get() as delivery:
        assert delivery is not None
        first = time.monotonic() + delivery.remaining()
        while time.monotonic() + delivery.remaining() < first + 0.8:
            time.sleep(0.02)  # as a program that computes
        assert (delivery.attempt, delivery.checkpoint, delivery.task.command) == (1, None, "true")
        assert (delivery.lock_lost, delivery.stop_requested) == (False, False)
        delivery.save_checkpoint("half")
        delivery.complete(7)
    with plain.get() as delivery:
        assert delivery is None


def test_without_async_a_failure_a_loss_and_a_ctrl_c(plain: "jobq.sync.Queue") -> None:
    plain.push(jobq.Task.new(command="true", budgets={"retries": 0}))
    with pytest.raises(KeyboardInterrupt), plain.get():
        raise KeyboardInterrupt
    assert plain.stats().visible == 1, "given back"
    with pytest.raises(KeyError), plain.get():
        raise KeyError
    assert "KeyError" in plain.dead_letters()[0].description
    plain.push("true")
    with plain.get() as delivery:
        assert delivery is not None
        plain.clear()
        with pytest.raises(LockLost):
            delivery.fail("late")
