"""A named lease in virtual time, with answers that are lost, late or never come: nothing is ever guessed (S4, S10)."""

import asyncio
from datetime import timedelta

import pytest

from jobq.errors import BackendUnavailable, ConfigurationError, LeaseHeld, LockLost, SettlementUnknown
from jobq.lease.named import NamedLease, named_lease
from jobq.lease.store import LeaseState, store_of
from jobq.lease.timing import LeaseTiming
from jobq.settings import Settings
from jobq.testing.clock import VirtualClock
from jobq_memory import MemoryBackend, Router
from tests.leases.faulty import FaultyStore

L = 60.0  # renewed every 15 s, one attempt 5 s, held for 51 s
NAME = "nightly"


class Bench:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.backend = MemoryBackend(Router(self.clock), "q")
        self.store = FaultyStore(store_of(self.backend))
        self.other = store_of(self.backend)
        self.deadlines: list[float] = []

    def lease(self, wait: bool | timedelta = True) -> NamedLease:
        return NamedLease(
            self.store,
            NAME,
            timing=LeaseTiming(lease=L),
            wait=wait,
            clock=self.clock,
            on_extended=self.deadlines.append,
        )

    async def state(self) -> LeaseState:
        record = await self.other.read(NAME)
        assert record is not None
        return record.state

    async def drive(self, work: "asyncio.Task[object]", seconds: float = 600.0, step: float = 0.05) -> None:
        """Let time pass until it has ended."""
        end = self.clock.boottime() + seconds
        while not work.done():
            assert self.clock.boottime() < end, "it does not end"
            await self.clock.advance(step)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_it_is_renewed_for_as_long_as_it_is_held_and_then_free(bench: Bench) -> None:
    async with bench.lease() as lease:
        token = lease.token
        await bench.clock.advance(3600)
        lease.check()
        assert not lease.lost.is_set()
        assert await bench.state() is LeaseState.ACTIVE
    assert await bench.state() is LeaseState.RELEASED
    assert bench.deadlines[0] < bench.deadlines[-1]
    async with bench.lease(wait=False) as lease:
        assert lease.token == token + 1


@pytest.mark.parametrize("fault", ["lose", "lose_before", "hang", "hang_after", "refuse"])
async def test_an_acquire_without_an_answer_is_asked_again_and_gets_one_token(bench: Bench, fault: str) -> None:
    bench.store.strike("acquire", fault, fault)
    lease = bench.lease()
    entering = asyncio.create_task(lease.__aenter__())
    await bench.drive(entering)
    assert lease.token == 1, "the repetition was granted a second time"
    assert len(bench.store.keys) == 3
    assert lease.remaining() > 0.8 * L, "it counts from before the last request, not from the first"
    await lease.__aexit__(None, None, None)


async def test_an_acquire_whose_grant_ran_out_meanwhile_makes_a_new_request(bench: Bench) -> None:
    """Granted, the answer lost, and asked again only when others have held it and let it go."""
    bench.store.strike("acquire", "hang_after")
    lease = bench.lease()
    entering = asyncio.create_task(lease.__aenter__())
    await bench.store.begun.setdefault("acquire", asyncio.Event()).wait()
    key = bench.store.keys[0]
    await bench.other.withdraw(NAME, key)
    await bench.drive(entering)
    assert lease.token == 2
    assert bench.store.keys[-1] != key
    await lease.__aexit__(None, None, None)


@pytest.mark.parametrize(("fault", "error"), [("refuse", BackendUnavailable), ("lose_before", SettlementUnknown)])
async def test_without_waiting_trouble_is_told_and_nothing_stays_held(
    bench: Bench, fault: str, error: type[Exception]
) -> None:
    bench.store.always["acquire"] = fault
    entering = asyncio.create_task(bench.lease(wait=False).__aenter__())
    await bench.drive(entering)
    with pytest.raises(error):
        entering.result()
    assert bench.store.calls["withdraw"] == 1


async def test_what_was_granted_to_nobody_is_withdrawn(bench: Bench) -> None:
    bench.store.always["acquire"] = "lose"
    entering = asyncio.create_task(bench.lease(wait=False).__aenter__())
    await bench.drive(entering)
    with pytest.raises(SettlementUnknown):
        entering.result()
    assert await bench.state() is LeaseState.RELEASED


@pytest.mark.parametrize("fault", ["hang", "hang_after"])
async def test_a_cancelled_acquire_leaves_nothing_held(bench: Bench, fault: str) -> None:
    bench.store.strike("acquire", fault)
    entering = asyncio.create_task(bench.lease().__aenter__())
    await bench.store.begun.setdefault("acquire", asyncio.Event()).wait()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert await bench.other.read(NAME) is None or await bench.state() is LeaseState.RELEASED


async def test_held_elsewhere_is_told_at_once_or_after_the_wait(bench: Bench) -> None:
    async with bench.lease():
        with pytest.raises(LeaseHeld, match=r"is held by .* under token 1"):
            await bench.lease(wait=False).__aenter__()
        waiting = asyncio.create_task(bench.lease(wait=timedelta(seconds=7)).__aenter__())
        began = bench.clock.boottime()
        await bench.drive(waiting)
        with pytest.raises(LeaseHeld):
            waiting.result()
        assert 7 <= bench.clock.boottime() - began < 8
    assert bench.store.calls["withdraw"] == 0, "nothing was granted, so there is nothing to withdraw"


async def test_who_waits_gets_it_soon_after_the_release(bench: Bench) -> None:
    async with bench.lease():
        second = bench.lease()
        waiting = asyncio.create_task(second.__aenter__())
        await bench.clock.advance(100)
        assert not waiting.done()
    released = bench.clock.boottime()
    await bench.drive(waiting)
    assert bench.clock.boottime() - released < 1
    assert second.token == 2
    await second.__aexit__(None, None, None)


async def test_who_waits_gets_it_when_the_holder_has_vanished(bench: Bench) -> None:
    first = bench.lease()
    await first.__aenter__()
    await first._kept.__aexit__(None, None, None)  # nobody renews it any more
    began = bench.clock.boottime()
    second = bench.lease()
    waiting = asyncio.create_task(second.__aenter__())
    await bench.drive(waiting)
    assert L <= bench.clock.boottime() - began < L + 1
    await second.__aexit__(None, None, None)


@pytest.mark.parametrize("fault", ["refuse", "hang", "lose", "lose_before"])
async def test_lost_is_set_at_the_local_deadline_and_before_anyone_else_can_have_it(bench: Bench, fault: str) -> None:
    """Whatever the network does; also if every renewal did take effect and only its answer was lost."""
    lease = bench.lease()
    await lease.__aenter__()
    bench.store.always["renew"] = fault
    began = bench.clock.boottime()
    await bench.clock.advance(50.9)
    assert not lease.lost.is_set()
    await bench.clock.advance(0.1)
    assert lease.lost.is_set()
    assert bench.clock.boottime() - began == pytest.approx(51)
    assert await bench.state() is LeaseState.ACTIVE, "it was lost here before it expired there"
    with pytest.raises(LockLost):
        lease.check()
    with pytest.raises(LockLost, match="no renewal succeeded in time"):
        await lease.__aexit__(None, None, None)
    assert bench.store.calls["release"] == 0, "what may be another's is not released"


async def test_a_stale_holder_learns_of_it_at_its_next_renewal(bench: Bench) -> None:
    lease = bench.lease()
    await lease.__aenter__()
    await bench.other.release(NAME, lease.token)
    await bench.clock.advance(15)
    assert lease.lost.is_set()
    with pytest.raises(LockLost):
        await lease.save("late")
    with pytest.raises(LockLost):
        await lease.__aexit__(None, None, None)


async def test_an_error_of_the_body_is_not_hidden_by_a_lost_lease(bench: Bench) -> None:
    lease = bench.lease()
    await lease.__aenter__()
    await bench.other.release(NAME, lease.token)
    await bench.clock.advance(15)
    await lease.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)  # raises nothing of its own


@pytest.mark.parametrize("fault", ["lose", "lose_before", "hang", "hang_after", "refuse"])
async def test_a_release_without_an_answer_is_repeated_until_it_is_certain(bench: Bench, fault: str) -> None:
    lease = bench.lease()
    await lease.__aenter__()
    bench.store.strike("release", fault, fault)
    leaving = asyncio.create_task(lease.__aexit__(None, None, None))
    await bench.drive(leaving)
    leaving.result()
    assert await bench.state() is LeaseState.RELEASED
    assert bench.store.calls["release"] == 3


async def test_a_release_whose_answer_is_lost_while_another_takes_the_name_is_answered_alike(bench: Bench) -> None:
    lease = bench.lease()
    await lease.__aenter__()
    bench.store.strike("release", "lose")
    leaving = asyncio.create_task(lease.__aexit__(None, None, None))
    while bench.store.calls["release"] < 1:
        await asyncio.sleep(0)
    async with bench.lease(wait=False) as second:
        await bench.drive(leaving)
        leaving.result()
        assert not second.lost.is_set()
        second.check()


async def test_a_release_that_is_never_answered_is_left_to_expire_and_said_so(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    lease = bench.lease()
    await lease.__aenter__()
    bench.store.always["release"] = "hang"
    leaving = asyncio.create_task(lease.__aexit__(None, None, None))
    await bench.drive(leaving)
    leaving.result()
    assert "may not have been released" in caplog.text
    await bench.clock.advance(L)
    assert await bench.state() is LeaseState.EXPIRED


@pytest.mark.parametrize("fault", ["lose", "lose_before", "hang", "hang_after", "refuse"])
async def test_a_cursor_without_an_answer_is_saved_again_and_once(bench: Bench, fault: str) -> None:
    async with bench.lease() as lease:
        bench.store.strike("save", fault, fault)
        saving = asyncio.create_task(lease.save("one"))
        await bench.drive(saving)
        saving.result()
        await lease.save("two")
        assert lease.cursor == "two"
        record = await bench.other.read(NAME)
        assert record is not None
        assert record.cursor == "two"


async def test_saves_at_once_keep_the_order_of_the_calls(bench: Bench) -> None:
    async with bench.lease() as lease:
        bench.store.strike("save", "hang_after")
        saves = [asyncio.create_task(lease.save(f"{number}")) for number in range(5)]
        await bench.drive(saves[-1])
        assert lease.cursor == "4"


async def test_a_cancelled_save_does_not_come_back_later(bench: Bench) -> None:
    async with bench.lease() as lease:
        bench.store.strike("save", "hang")
        cancelled = asyncio.create_task(lease.save("cancelled"))
        await bench.store.begun.setdefault("save", asyncio.Event()).wait()
        cancelled.cancel()
        second = asyncio.create_task(lease.save("second"))
        await bench.drive(second)
        record = await bench.other.read(NAME)
        assert record is not None
        assert record.cursor == lease.cursor == "second"


@pytest.mark.parametrize("fault", ["lose", "lose_before", "hang", "hang_after", "refuse"])
async def test_a_confirmation_without_an_answer_is_repeated_and_gets_one_answer(bench: Bench, fault: str) -> None:
    async with bench.lease() as lease:
        bench.store.strike("confirm", fault)
        confirming = asyncio.create_task(lease.confirm("seat 5"))
        await bench.drive(confirming)
        assert confirming.result() == await lease.confirm("seat 5")
    await bench.clock.advance(10 * L)
    assert await bench.state() is LeaseState.CONFIRMED, "leaving does not release what was confirmed"
    with pytest.raises(LeaseHeld, match="was confirmed"):
        await bench.lease(wait=False).__aenter__()


async def test_a_confirmation_after_the_reservation_ran_out_is_refused(bench: Bench) -> None:
    lease = bench.lease()
    await lease.__aenter__()
    await lease._kept.__aexit__(None, None, None)
    await bench.clock.advance(L)
    with pytest.raises(LockLost):
        await lease.confirm("seat 5")
    with pytest.raises(LockLost):
        await bench.other.confirm(NAME, lease.token, "seat 5")


async def test_a_store_without_leases_says_what_to_do() -> None:
    class Bare:
        name = "q"
        capabilities = object()

    with pytest.raises(ConfigurationError, match="keeps no named leases; name a queue of one that does"):
        store_of(Bare())


@pytest.mark.parametrize("name", ["", "-x", "x/", "a b", "a\n", "x" * 129, "ä"])
def test_names_that_not_every_store_takes_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no name for a lease"):
        named_lease(Bench().store, Settings(), name)


@pytest.mark.parametrize(("ttl", "message"), [(0.5, "this store grants 1s"), (5, "shorter than 10s; raise the ttl")])
def test_lengths_that_cannot_be_kept_are_refused(ttl: float, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        named_lease(Bench().store, Settings(), NAME, ttl=timedelta(seconds=ttl))


@pytest.mark.parametrize("text", ["\ud800", "x" * (64 * 1024 + 1)])
async def test_text_that_not_every_store_can_keep_is_refused(bench: Bench, text: str) -> None:
    async with bench.lease() as lease:
        for verb in (lease.save, lease.confirm):
            with pytest.raises(ConfigurationError):
                await verb(text)
        await lease.save("x" * (64 * 1024))
