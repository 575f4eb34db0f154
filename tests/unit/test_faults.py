"""Fault injection does what its script says: which call, which fault, done or not, and what the caller is told."""

import asyncio
from datetime import timedelta

import pytest

from jobq.backend import Backend, Delivery
from jobq.errors import BackendUnavailable, LockLost, PushUnknown, SettlementUnknown
from jobq.settlement import Complete
from jobq.task import Task, TaskResult
from jobq.testing.clock import VirtualClock
from jobq.testing.faults import BackendCall, Fault, Faults, FaultyBackend
from jobq_memory import MemoryBackend, Router, State

LEASE = timedelta(seconds=10)
NOW = timedelta(0)


class Stage:
    """A router on a virtual clock, one queue, a faulty handle."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.router = Router(self.clock)
        self.router.create("q")
        self.faults = Faults(self.clock)
        self.backend = FaultyBackend(MemoryBackend(self.router, "q"), self.faults)

    async def delivery(self) -> Delivery:
        await self.backend.push([Task.new(command="true", id="a")])
        (delivery,) = await self.backend.receive(1, LEASE, NOW)
        return delivery

    @property
    def state(self) -> State:
        return self.router.snapshot("q")["a"].state


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_wrappers_are_the_protocol(stage: Stage) -> None:
    backend: Backend = stage.backend
    assert isinstance(backend, Backend)
    assert isinstance(await stage.delivery(), Delivery)


async def test_without_faults_everything_passes(stage: Stage) -> None:
    async with stage.backend as backend:
        delivery = await stage.delivery()
        await delivery.renew(LEASE)
        await delivery.checkpoint("half")
        await delivery.settle(Complete(TaskResult()))
        await backend.create()
        assert (await backend.stats()).dead == 0
        assert await backend.peek(1) == []
        assert await backend.dead_letters(1) == []
        assert await backend.redrive(["x"]) == await backend.purge_dead(["x"]) == []
        assert await backend.clear() == 0
    assert [call.verb for call in stage.faults.calls[:4]] == ["push", "receive", "renew", "checkpoint"]


async def test_refuse_does_nothing_so_many_times(stage: Stage) -> None:
    delivery = await stage.delivery()
    stage.faults.next("complete", Fault.REFUSE, times=2)
    for _ in range(2):
        with pytest.raises(BackendUnavailable):
            await delivery.settle(Complete(TaskResult()))
        assert stage.state is State.LEASED
    await delivery.settle(Complete(TaskResult()))
    assert stage.state is State.DONE
    assert stage.faults.calls[-3:] == [
        BackendCall("complete", "a", Fault.REFUSE),
        BackendCall("complete", "a", Fault.REFUSE),
        BackendCall("complete", "a", None),
    ]


async def test_always_lasts_until_cleared_and_next_goes_first(stage: Stage) -> None:
    stage.faults.always("stats", Fault.REFUSE)
    stage.faults.next("stats", Fault.LOSE_ANSWER)
    for told in ("lost", "refused", "refused"):
        with pytest.raises(BackendUnavailable, match=told):
            await stage.backend.stats()
    stage.faults.clear("stats")
    await stage.backend.stats()


async def test_hang_does_nothing_until_released_or_cancelled(stage: Stage) -> None:
    delivery = await stage.delivery()
    stage.faults.next("complete", Fault.HANG, times=2)
    first, second = (asyncio.create_task(delivery.settle(Complete(TaskResult()))) for _ in range(2))
    await stage.faults.begun("complete", 2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not second.done()
    stage.faults.release()
    with pytest.raises(BackendUnavailable):
        await second
    assert stage.state is State.LEASED


async def test_answer_late_is_done_at_once_and_answers_after_the_event(stage: Stage) -> None:
    delivery = await stage.delivery()
    answer = asyncio.Event()
    stage.faults.next("complete", Fault.ANSWER_LATE, until=answer)
    completing = asyncio.create_task(delivery.settle(Complete(TaskResult())))
    await stage.clock.advance(100)
    assert stage.state is State.DONE
    assert not completing.done()
    answer.set()
    await completing


async def test_answer_late_by_the_clock(stage: Stage) -> None:
    delivery = await stage.delivery()
    stage.faults.next("renew", Fault.ANSWER_LATE, until=stage.clock.boottime() + 5)
    renewing = asyncio.create_task(delivery.renew(LEASE))
    await stage.clock.advance(4)
    assert not renewing.done()
    await stage.clock.advance(1)
    await renewing


async def test_lost_answers_say_what_the_protocol_says(stage: Stage) -> None:
    stage.faults.always("push", Fault.LOSE_ANSWER)
    with pytest.raises(PushUnknown) as lost:
        await stage.backend.push([Task.new(command="true", id="a")])
    assert lost.value.ids == ("a",)
    (delivery,) = await stage.backend.receive(1, LEASE, NOW)
    stage.faults.next("renew", Fault.LOSE_ANSWER)
    with pytest.raises(SettlementUnknown):
        await delivery.renew(LEASE)
    stage.faults.next("complete", Fault.LOSE_ANSWER)
    with pytest.raises(SettlementUnknown):
        await delivery.settle(Complete(TaskResult()))
    assert stage.state is State.DONE


async def test_a_lost_refusal_is_unknown_too(stage: Stage) -> None:
    delivery = await stage.delivery()
    await stage.backend.clear()
    stage.faults.next("complete", Fault.LOSE_ANSWER)
    with pytest.raises(SettlementUnknown) as lost:
        await delivery.settle(Complete(TaskResult()))
    assert isinstance(lost.value.__cause__, LockLost)


async def test_one_seed_is_one_run() -> None:
    def drawn(seed: int) -> list[Fault | None]:
        faults = Faults()
        faults.seeded(seed, {Fault.REFUSE: 0.3, Fault.LOSE_ANSWER: 0.3}, frozenset({"renew"}))
        return [faults.begin(verb, "a").fault for verb in ["renew"] * 50 + ["stats"] * 50]

    assert drawn(1) == drawn(1) != drawn(2)
    assert {*drawn(1)[:50]} == {None, Fault.REFUSE, Fault.LOSE_ANSWER}
    assert {*drawn(1)[50:]} == {None}


async def test_what_cannot_be_scripted_is_refused() -> None:
    with pytest.raises(ValueError, match="no verb"):
        Faults().next("fly", Fault.REFUSE)
    with pytest.raises(ValueError, match="more than 1"):
        Faults().seeded(1, {Fault.REFUSE: 0.7, Fault.HANG: 0.7})
