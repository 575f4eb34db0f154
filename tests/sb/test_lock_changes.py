"""P1: an operator shortens the locks of a queue under its workers; what is renewed for less is kept for less."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.backend import Renewed
from jobq.clock import Moment
from jobq.lease.keeper import LeaseKeeper
from jobq.lease.timing import LeaseTiming
from jobq.run.attempt.attempt_journal import AttemptJournal
from jobq.settlement import Complete
from jobq.testing.clock import VirtualClock
from jobq.testing.harness import DONE
from jobq_azure.service_bus.lock_length import LockLength
from jobq_azure.service_bus.rest_client import Locked
from tests.emulators.service_bus.faults import Fault, Operation
from tests.emulators.service_bus.fidelity import Fidelity
from tests.emulators.service_bus.message import State
from tests.sb.stage import Stage, staged

LONG, SHORT = 60.0, 5.0
LOOK = 60.0  # seconds between two looks at the queue
STEP = 0.25


class Held:
    """A task that is kept on virtual time, and how long it was anybody's besides."""

    def __init__(self, stage: Stage, clock: VirtualClock, keeper: LeaseKeeper) -> None:
        self.stage, self.clock, self.keeper = stage, clock, keeper
        (self.number,) = [each.number for each in stage.queue.messages()]
        self.overlap = 0.0

    async def passes(self, seconds: float) -> None:
        """Let time pass; each renewal is answered within the instant."""
        for _ in range(int(seconds / STEP)):
            await self.clock.advance(STEP)
            while self.keeper._serial.locked():
                await asyncio.sleep(0.001)
            locked = [each.number for each in self.stage.queue.messages() if each.state is State.LOCKED]
            if self.number not in locked and not self.keeper.is_lost:
                self.overlap += STEP

    def shortens(self) -> None:
        self.stage.queue.description = replace(self.stage.queue.description, lock_duration=SHORT)


@asynccontextmanager
async def _held(folder: Path, *, tells: bool = False) -> AsyncIterator[Held]:
    clock = VirtualClock()
    fidelity = Fidelity(rest_renew_returns_properties=tells)
    async with staged(folder, clock=clock, fidelity=fidelity, lock_duration=LONG) as stage:
        await stage.pushed()
        since = Moment.of(clock)
        delivery = await stage.take()
        timing = LeaseTiming(lease=delivery.lease.total_seconds())
        async with LeaseKeeper(AttemptJournal(delivery), since=since, timing=timing, clock=clock) as keeper:
            yield Held(stage, clock, keeper)


async def test_the_answer_to_a_renewal_tells(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with _held(tmp_path, tells=True) as held:
        held.shortens()
        await held.passes(40)
        assert not held.keeper.is_lost
        assert held.overlap == 0
        assert held.keeper.renewals > 20, "a lease of four seconds is renewed each second"
        assert caplog.text.count("no more for") == 1


async def test_a_look_at_the_queue_tells(tmp_path: Path) -> None:
    async with _held(tmp_path) as held:
        await held.passes(LOOK)
        held.shortens()
        await held.passes(40)
        assert not held.keeper.is_lost
        assert held.overlap == 0


async def test_a_receive_tells(tmp_path: Path) -> None:
    async with _held(tmp_path) as held:
        held.shortens()
        await held.passes(5)
        await held.stage.pushed()
        await (await held.stage.take()).settle(Complete(DONE))
        await held.passes(30)
        assert not held.keeper.is_lost
        assert held.overlap == 0


async def test_what_is_left_where_nothing_tells(tmp_path: Path) -> None:
    """No right to manage, no receive, an answer as the reference has it: a quarter of the lease less the new lock."""
    async with _held(tmp_path) as held:
        held.stage.emulator.faults.plan(Fault(401), Operation.ADMIN, count=math.inf)
        await held.passes(LOOK)
        held.shortens()
        await held.passes(40)
        assert held.keeper.is_lost
        assert held.keeper.loss is not None
        assert held.keeper.loss.refused, "the next renewal is refused"
        assert 0 < held.overlap <= LONG / 4 - SHORT


async def test_two_tellings_of_one_length_shorten_nothing() -> None:
    """Dates have whole seconds, so of one length two answers may tell a second more and less."""

    async def look() -> timedelta:
        raise AssertionError

    length, lease = LockLength(look, VirtualClock().boottime), timedelta(seconds=59)
    for seconds, shorter in ((60.0, None), (58.0, None), (57.9, timedelta(seconds=57.9))):
        length.hear(seconds)
        assert length.shorter_than(lease) == shorter


@pytest.mark.parametrize("shown", [0.0, 30.0, 119.0], ids=["late, or a minute ahead", "half ahead", "behind"])
async def test_one_answer_with_an_odd_date_concerns_no_neighbour(tmp_path: Path, shown: float) -> None:
    """A receive told of a lock of 0 s: each neighbour's granted renewal counted as that, and the guardian killed it."""
    async with _held(tmp_path) as held:
        held.stage.emulator.faults.plan(Fault(401), Operation.ADMIN, count=math.inf)  # none else says how long it is
        wire = held.stage.backend._wire
        lock = wire.lock

        async def odd(wait_seconds: int) -> Locked | None:
            locked = await lock(wait_seconds)
            return None if locked is None else replace(locked, seconds=shown)

        wire.lock = odd  # type: ignore[method-assign]
        await held.stage.pushed()
        delivery = await held.stage.take()
        assert delivery.lease == timedelta(seconds=30 if shown == 30 else LONG - 1), "no more than is known, renewed"
        await delivery.settle(Complete(DONE))
        wire.lock = lock  # type: ignore[method-assign]
        await held.passes(40)
        assert not held.keeper.is_lost
        assert held.keeper.renewals < 5, "its lease is as long as it was"


async def test_a_length_that_differs_counts_when_a_second_answer_agrees() -> None:
    async def look() -> timedelta:
        raise AssertionError

    length, lease = LockLength(look, VirtualClock().boottime), timedelta(seconds=59)
    length.hear(59.0)
    for seconds, shorter in ((30.0, None), (59.0, None), (30.0, None), (29.0, timedelta(seconds=29.0))):
        length.hear(seconds)
        assert length.shorter_than(lease) == shorter
    assert length.shorter_than(lease, 12.0) == timedelta(seconds=12), "of its own renewal one answer is enough"
    length.hear(0.0)
    length.hear(0.0)
    assert length.shorter_than(lease) == timedelta(seconds=29.0), "no lock of the service is so short"


async def test_who_asks_for_more_hears_of_a_shorter_lock_each_time(tmp_path: Path) -> None:
    """A checkpoint renews, too, and drops the word: the keeper, which asks next, must hear it all the same."""
    clock = VirtualClock()
    fidelity = Fidelity(rest_renew_returns_properties=True)
    async with staged(tmp_path, clock=clock, fidelity=fidelity, lock_duration=LONG) as stage:
        await stage.pushed()
        delivery = await stage.take()
        kept = delivery.lease
        stage.queue.description = replace(stage.queue.description, lock_duration=SHORT)
        told = [await delivery.renew(delivery.lease), await delivery.renew(kept), await delivery.renew(kept)]
        assert told == [Renewed(lease=timedelta(seconds=SHORT - 1))] * 3
