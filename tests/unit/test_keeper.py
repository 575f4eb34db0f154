"""rules.md 1.3 in virtual time: each edge of the timing rule, before, at and after."""

import asyncio
import gc
import itertools
import logging
import random

import pytest

from jobq.clock import Moment
from jobq.errors import BackendUnavailable, LockLost, SettlementUnknown
from jobq.lease.keeper import NUDGED_SECONDS, LeaseKeeper, answered_within
from jobq.lease.timing import LeaseTiming
from jobq.run.attempt.attempt_journal import AttemptJournal
from jobq.settlement import Release
from jobq.testing.clock import VirtualClock
from tests.unit.scripted_delivery import ScriptedDelivery

T0 = 1000.0
L = 60.0  # renew every 15 s, one attempt 5 s, hold 51 s


class StoresClock(VirtualClock):
    """The clock of a machine whose own file is the store."""

    is_stores = True


class Bench:
    def __init__(self, *, grace: float = 0.0, since: float = T0, clock: VirtualClock | None = None) -> None:
        self.clock = clock or VirtualClock(boottime=T0)
        self.delivery = ScriptedDelivery(self.clock, lease=L)
        self.deadlines: list[float] = []
        self.keeper = LeaseKeeper(
            AttemptJournal(self.delivery),
            since=Moment(since, since + self.clock.wall() - self.clock.boottime()),
            timing=LeaseTiming(lease=L, grace=grace),
            clock=self.clock,
            on_extended=self.deadlines.append,
        )

    async def release(self) -> None:
        await self.delivery.settle(Release())

    async def until(self, boottime: float) -> None:
        await self.clock.advance(boottime - self.clock.boottime())

    def lost(self) -> bool:
        return self.keeper.lock_lost_event.is_set()


async def test_renews_every_quarter_for_as_long_as_the_task_runs() -> None:
    """Rule 4; and no cap on the number: days."""
    bench = Bench()
    async with bench.keeper:
        await bench.until(T0 + 86400 / 4)
    assert not bench.lost()
    assert bench.delivery.renewed_at[:3] == [T0 + 15, T0 + 30, T0 + 45]
    assert bench.keeper.renewals == 86400 / 4 / 15


async def test_deadline_counts_from_before_the_request() -> None:
    """Rule 1: an answer that took 4 s extends from when the question was sent."""
    bench = Bench()
    bench.delivery.answers = [bench.delivery.after(4.0)]
    async with bench.keeper:
        await bench.until(T0 + 19.0)
        assert bench.keeper.deadline == T0 + 15 + 51
        assert bench.deadlines == [T0 + 15 + 51]
        await bench.until(T0 + 30.0)  # the next is due a period after the last was sent, not after its answer
        assert bench.delivery.renewed_at == [T0 + 15, T0 + 30]


@pytest.mark.parametrize("fault", ["refuse", "hang"])
async def test_unknown_never_extends_and_the_lock_is_lost_at_the_deadline(fault: str) -> None:
    """Rule 3 and architecture 5: whatever the network does, the event is set at the deadline at the latest."""
    bench = Bench()
    bench.delivery.always = getattr(bench.delivery, fault)
    async with bench.keeper:
        await bench.until(T0 + 50.999)
        assert not bench.lost()
        await bench.until(T0 + 51.0)
        assert bench.lost()
    loss = bench.keeper.loss
    assert loss is not None
    assert not loss.refused
    assert (loss.last_success, loss.deadline) == (T0, T0 + 51)
    assert len(bench.delivery.renewed_at) >= 3, "it tried again, and more than once"


async def test_a_refused_receipt_is_loss_at_once() -> None:
    """Rule 3: a stale receipt is lost now, long before the deadline."""
    bench = Bench()
    bench.delivery.answers = [bench.delivery.stale]
    async with bench.keeper:
        await bench.until(T0 + 15)
        assert bench.lost()
        assert bench.keeper.loss is not None
        assert bench.keeper.loss.refused
        await bench.until(T0 + 100)
    assert bench.delivery.renewed_at == [T0 + 15], "nothing is sent for a lease that is gone"


async def test_one_success_after_trouble_saves_the_lease() -> None:
    bench = Bench()
    delivery = bench.delivery
    delivery.answers = [delivery.refuse, delivery.hang, delivery.refuse]
    async with bench.keeper:
        await bench.until(T0 + 200)
    assert not bench.lost()


@pytest.mark.parametrize("answers", [True, False])
async def test_a_freeze_between_the_receive_and_the_first_look_is_seen(answers: bool) -> None:
    """Rule 8: the task would start on a lease that may be over; a renewal alone proves that it is not."""
    bench = Bench()
    if not answers:
        bench.delivery.always = bench.delivery.refuse
    bench.clock.jump_wall(50)
    assert await bench.keeper.confirm() is answers
    assert len(bench.delivery.renewed_at) == 1
    assert not bench.lost()


async def test_a_freeze_between_the_confirmation_and_the_watch_is_seen() -> None:
    bench = Bench()
    assert await bench.keeper.confirm()
    bench.clock.jump_wall(50)
    async with bench.keeper:
        await bench.until(T0 + 1)
        assert bench.lost()


async def test_a_freeze_during_the_confirmation_confirms_nothing() -> None:
    bench = Bench(since=T0 - 30)

    async def freeze() -> None:
        bench.clock.jump_wall(50)

    bench.delivery.answers = [freeze]
    assert not await bench.keeper.confirm()


async def test_an_outage_is_said_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    delivery = bench.delivery
    delivery.answers = [delivery.refuse, delivery.refuse, delivery.refuse, delivery.hang, delivery.refuse]
    async with bench.keeper:
        await bench.until(T0 + 200)
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 2, said
    assert said[0].startswith("renewal of task ")
    assert "answers again, after " in said[1]


async def test_a_wish_to_tell_renews_soon_and_hurries_no_service_in_trouble() -> None:
    """A task may tell of its progress a thousand times a second: one renewal in two seconds, also when they fail."""
    bench = Bench()

    async def tell_always(until: float) -> None:
        while bench.clock.boottime() < until:
            bench.keeper.nudge()
            await bench.until(bench.clock.boottime() + 0.05)

    async with bench.keeper:
        await tell_always(T0 + 10)
        sent = bench.delivery.renewed_at
        assert [round(at - T0) for at in sent[:3]] == [2, 4, 6]
        bench.delivery.always = bench.delivery.refuse
        await tell_always(T0 + 20)
    pauses = [later - before for before, later in itertools.pairwise(sent)]
    assert min(pauses) >= min(NUDGED_SECONDS, LeaseTiming(lease=L, grace=0).backoff) - 1e-6


async def test_an_answer_after_the_attempt_was_given_up_changes_nothing() -> None:
    """Rule 3: answered after we gave up. The old request may even ignore its cancellation."""
    bench = Bench()
    answered = asyncio.Event()

    async def deaf() -> None:
        end = bench.clock.boottime() + 30.0
        while bench.clock.boottime() < end:
            try:
                await bench.clock.sleep_until(end)
            except asyncio.CancelledError:
                continue
        answered.set()

    bench.delivery.answers = [deaf]
    bench.delivery.always = bench.delivery.refuse
    async with bench.keeper:
        await bench.until(T0 + 46)
        assert answered.is_set()
        assert bench.keeper.deadline == T0 + 51
        await bench.until(T0 + 51)
        assert bench.lost()


async def test_a_success_that_arrives_after_the_loss_does_not_undo_it() -> None:
    bench = Bench()
    bench.delivery.always = bench.delivery.refuse
    async with bench.keeper:
        await bench.until(T0 + 48)
        bench.delivery.always = bench.delivery.after(4.9)
        await bench.until(T0 + 60)
    assert bench.lost()
    assert bench.keeper.renewals == 0
    assert bench.deadlines == []


@pytest.mark.parametrize(("arrived", "asks"), [(7.5, False), (7.6, True)])
async def test_a_late_offer_is_confirmed_before_the_start(arrived: float, asks: bool) -> None:
    """Rule 5: over L/8 old when it arrives, so renewed once before anything is started."""
    bench = Bench(since=T0 - arrived)
    assert await bench.keeper.confirm()
    assert len(bench.delivery.renewed_at) == int(asks)


async def test_an_offer_that_is_too_late_is_let_go_unstarted() -> None:
    bench = Bench(since=T0 - 10)
    bench.delivery.always = bench.delivery.refuse
    assert not await bench.keeper.confirm()


async def test_an_offer_whose_renewal_is_late_too_is_let_go() -> None:
    """Rule 5: if even that is late."""
    bench = Bench(since=T0 - 10)
    bench.delivery.always = bench.delivery.hang
    confirming = asyncio.create_task(bench.keeper.confirm())
    await bench.until(T0 + 5)
    assert not await confirming


async def test_an_offer_whose_renewal_succeeds_and_is_old_again_by_then_is_let_go() -> None:
    """Rule 5: the loop was blocked while the answer waited to be read."""
    bench = Bench(since=T0 - 10)

    async def read_late() -> None:
        bench.clock._boottime += 8.0  # more than L/8, and no timer of the loop had its turn

    bench.delivery.answers = [read_late]
    assert not await bench.keeper.confirm()
    assert bench.keeper.renewals == 1


@pytest.mark.parametrize("waited", [51, 60, 86400])
async def test_a_receive_that_waited_longer_than_the_lease_may_still_start(waited: float) -> None:
    """Rule 5: the long poll began long before the grant; a renewal that succeeds says that the lease is ours."""
    bench = Bench(since=T0 - waited)
    assert await bench.keeper.confirm()
    async with bench.keeper:
        await bench.clock.advance(0)
        assert not bench.lost()
        assert bench.keeper.deadline == T0 + 51


async def test_the_grace_lies_inside_the_lease() -> None:
    """P6: in sigterm mode the lock counts as lost a grace before the deadline."""
    bench = Bench(grace=10)
    bench.delivery.always = bench.delivery.refuse
    async with bench.keeper:
        await bench.until(T0 + 40.999)
        assert not bench.lost()
        await bench.until(T0 + 41)
        assert bench.lost()
    assert bench.keeper.loss is not None
    assert bench.keeper.loss.deadline == T0 + 51


@pytest.mark.parametrize(("jump", "lost"), [(0.9, False), (1.2, True), (-3600.0, False), (3600.0, True)])
async def test_a_frozen_machine_knows_nothing_of_its_lease(jump: float, lost: bool) -> None:
    """Rule 8: the wall clock more than 1 s + 1 % ahead of BOOTTIME between two ticks: kill before anything else."""
    bench = Bench(grace=10)
    async with bench.keeper:
        await bench.until(T0 + 5)
        bench.clock.jump_wall(jump)
        await bench.clock.advance(1.0)
        assert bench.lost() is lost
    if lost:
        assert bench.keeper.loss is not None
        assert bench.keeper.loss.refused, "there is no time left for a SIGTERM"


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
@pytest.mark.parametrize("is_taken", [False, True])
async def test_where_the_clock_is_the_stores_that_says_what_a_jump_means(jump: float, is_taken: bool) -> None:
    """Rule 12: a laptop that slept, or whose clock was set, killed a job that nobody else could have taken."""
    bench = Bench(clock=StoresClock(boottime=T0))
    async with bench.keeper:
        await bench.until(T0 + 5)
        if is_taken:  # as by a clone of the machine, while its host froze this one
            bench.delivery.answers = [bench.delivery.stale]
        bench.clock.jump_wall(jump)
        await bench.clock.advance(1.0)
        assert bench.lost() is (is_taken and jump > 0)
        assert bool(bench.delivery.renewed_at) is (jump > 0), "it is asked at once"
        await bench.until(T0 + 40)
        assert bench.lost() is is_taken


async def test_where_the_clock_is_the_stores_no_jump_hides_the_deadline() -> None:
    bench = Bench(clock=StoresClock(boottime=T0))
    bench.delivery.always = bench.delivery.hang
    async with bench.keeper:
        for _ in range(51):
            bench.clock.jump_wall(5)
            await bench.clock.advance(1.0)
        assert bench.lost()


async def test_a_slow_drift_of_the_wall_clock_is_no_freeze() -> None:
    bench = Bench()
    async with bench.keeper:
        for _ in range(600):
            bench.clock.jump_wall(0.01)
            await bench.clock.advance(1.0)
        assert not bench.lost()


async def test_settle_and_renew_never_overlap() -> None:
    """architecture 5: pop receipts rotate, so one request at a time."""
    bench = Bench()
    bench.delivery.answers = [bench.delivery.after(4.0)]
    async with bench.keeper:
        await bench.until(T0 + 16)
        settling = asyncio.create_task(bench.keeper.settle(bench.release))
        await bench.until(T0 + 18.9)
        assert bench.delivery.settled == []
        await bench.until(T0 + 19)
        await settling
        assert bench.delivery.settled == ["release"]
        await bench.until(T0 + 200)
    assert bench.delivery.renewed_at == [T0 + 15], "a settled delivery is renewed no more"
    assert not bench.lost()


async def test_a_lost_lease_is_not_settled() -> None:
    """S4: what the service would refuse is not even sent."""
    bench = Bench()
    bench.delivery.always = bench.delivery.refuse
    async with bench.keeper:
        await bench.until(T0 + 51)
        with pytest.raises(LockLost):
            await bench.keeper.settle(bench.release)
    assert bench.delivery.settled == []


async def test_a_settle_without_an_answer_is_unknown() -> None:
    """S5: silence is neither yes nor no."""
    bench = Bench()
    bench.delivery.settle_answers = [bench.delivery.hang]
    async with bench.keeper:
        settling = asyncio.create_task(bench.keeper.settle(bench.release))
        await bench.until(T0 + 5)
        with pytest.raises(SettlementUnknown):
            await settling


async def test_a_settle_may_be_given_less_time_than_a_renewal_but_never_more() -> None:
    """Rule 4: while stopping one attempt is short; a generous caller does not hold up the renewals behind it."""
    for given, ends_after in ((2.0, 2.0), (1000.0, 5.0)):
        bench = Bench()
        bench.delivery.settle_answers = [bench.delivery.hang]
        async with bench.keeper:
            settling = asyncio.create_task(bench.keeper.settle(bench.release, attempt=given))
            await bench.until(T0 + ends_after - 0.1)
            assert not settling.done()
            await bench.until(T0 + ends_after)
            with pytest.raises(SettlementUnknown):
                await settling


async def test_a_checkpoint_without_an_answer_does_not_hold_up_the_renewals() -> None:
    """S9: one attempt, and nobody can say."""
    bench = Bench()
    bench.delivery.settle_answers = [bench.delivery.hang]
    async with bench.keeper:
        await bench.until(T0 + 12)
        saving = asyncio.create_task(bench.keeper.checkpoint("half"))
        await bench.until(T0 + 17)
        with pytest.raises(SettlementUnknown):
            await saving
        await bench.until(T0 + 18)
    assert bench.delivery.renewed_at == [T0 + 17]


async def test_the_lease_is_kept_while_a_refused_settle_is_repeated() -> None:
    bench = Bench()
    async with bench.keeper:
        for moment in range(5, 300, 5):
            bench.delivery.settle_answers = [bench.delivery.refuse]
            with pytest.raises(BackendUnavailable):
                await bench.keeper.settle(bench.release)
            await bench.until(T0 + moment)
        assert not bench.lost()
        assert bench.keeper.renewals > 0


async def test_a_delivery_whose_settle_is_in_doubt_is_renewed_no_more() -> None:
    """S5: the renewal of what may be settled is refused, and that would end the repetitions too early."""
    bench = Bench()
    async with bench.keeper:
        bench.delivery.settle_answers = [bench.delivery.hang]
        settling = asyncio.create_task(bench.keeper.settle(bench.release))
        await bench.until(T0 + 5)
        with pytest.raises(SettlementUnknown):
            await settling
        await bench.until(T0 + 50)
        assert bench.delivery.renewed_at == []
        assert not bench.lost()
        await bench.until(T0 + 51)
        assert bench.lost(), "but its deadline still ends it"


async def test_nothing_is_left_running() -> None:
    bench = Bench()
    before = asyncio.all_tasks()
    async with bench.keeper:
        await bench.until(T0 + 16)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("seed", range(60))
async def test_whatever_the_answers_the_event_comes_in_time(seed: int) -> None:
    """P1 in the model: at no instant is the task allowed to run past the last grant that certainly happened."""
    chance = random.Random(seed)
    bench = Bench()
    granted = [T0]

    async def answer() -> None:
        sent = bench.clock.boottime()
        what = chance.choice(["accept", "accept", "refuse", "hang", "late", "lost"])
        if what == "hang":
            await asyncio.Event().wait()
        if what == "late":
            await bench.clock.sleep_until(sent + chance.uniform(0.1, 10))
        if what in ("accept", "late", "lost"):
            granted.append(sent)  # the server counts from when it got the request: never before it was sent
        if what in ("refuse", "lost"):
            await bench.delivery.refuse()

    bench.delivery.always = answer
    async with bench.keeper:
        for _ in range(200):
            await bench.clock.advance(chance.uniform(0.1, 5))
            now = bench.clock.boottime()
            assert bench.lost() or now < granted[-1] + 0.85 * L or now < bench.keeper.deadline
            assert bench.keeper.deadline - 51 in granted, "the deadline stands on a grant that happened"
            if bench.lost():
                break
        else:
            assert bench.keeper.renewals > 0


async def test_a_checkpoint_whose_caller_was_cancelled_is_still_waited_for() -> None:
    """architecture 5: its answer may bring a new receipt, which the settle that follows needs."""
    bench = Bench()
    answer, sent = asyncio.Event(), asyncio.Event()

    async def checkpoint(_: str, __: int) -> None:
        sent.set()
        await answer.wait()
        bench.delivery.settled.append("checkpoint")

    async def complete() -> None:
        bench.delivery.settled.append("complete")

    bench.delivery.checkpoint = checkpoint  # type: ignore[method-assign, assignment] # scripted
    async with bench.keeper:
        caller = asyncio.create_task(bench.keeper.checkpoint("a"))
        await sent.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        settle = asyncio.create_task(bench.keeper.settle(complete))
        for _ in range(5):
            await asyncio.sleep(0)
        assert bench.delivery.settled == []
        answer.set()
        await settle
    assert bench.delivery.settled == ["checkpoint", "complete"]


async def test_a_checkpoint_after_the_settle_is_refused() -> None:
    """S9: the next attempt may be running with what it found."""
    bench = Bench()
    async with bench.keeper:
        await bench.keeper.settle(bench.delivery.accept)
        with pytest.raises(LockLost):
            await bench.keeper.checkpoint("late")


async def test_a_checkpoint_that_nobody_answers_is_unknown_and_one_after_the_attempt_is_lost() -> None:
    bench = Bench()

    async def checkpoint(_: str, __: int) -> None:
        await asyncio.Event().wait()

    bench.delivery.checkpoint = checkpoint  # type: ignore[method-assign, assignment] # scripted
    async with bench.keeper:
        first = asyncio.create_task(bench.keeper.checkpoint("a"))
        await bench.until(T0 + 5)
        with pytest.raises(SettlementUnknown):
            await first
        second = asyncio.create_task(bench.keeper.checkpoint("b"))
        await asyncio.sleep(0)
    with pytest.raises(LockLost):
        await second


async def test_checkpoints_are_numbered_so_that_a_late_one_undoes_no_newer_one() -> None:
    """S9: the first was given up, and may arrive after the second was acknowledged."""
    bench = Bench()
    numbers = []

    async def checkpoint(value: str, number: int) -> None:
        numbers.append((value, number))
        if value == "a":
            await asyncio.Event().wait()

    bench.delivery.checkpoint = checkpoint  # type: ignore[method-assign, assignment] # scripted
    async with bench.keeper:
        first = asyncio.create_task(bench.keeper.checkpoint("a"))
        await bench.until(T0 + 5)
        with pytest.raises(SettlementUnknown):
            await first
        await bench.keeper.checkpoint("b")
    assert numbers == [("a", 1), ("b", 2)]


async def test_who_is_cancelled_in_the_instant_in_which_a_request_fails_leaves_no_error_unseen() -> None:
    """Seed 427253073 of the simulation: asyncio told of an exception that nobody had retrieved."""
    unseen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unseen.append(context))
    answer = asyncio.get_running_loop().create_future()
    asking = asyncio.create_task(answered_within(VirtualClock(), 10.0, answer))
    await asyncio.sleep(0)
    answer.set_exception(SettlementUnknown("reset"))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    del answer, asking
    gc.collect()
    assert not unseen
