"""A worker's receives through refusals: a moment's refusal ends nobody, a lasting one does (L4)."""

import asyncio
import contextlib
import math
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from jobq.backend import Capabilities, Delivery, QueueStats
from jobq.errors import AccessDenied, ConfigurationError, JobqError, QueueNotFound, StoreUnusable
from jobq.events import Events
from jobq.run.stopping import Stopping
from jobq.run.worker.receive import Receiving
from jobq.testing.clock import VirtualClock

_DENIED = AccessDenied("no")
_NOT_FOUND = QueueNotFound("no")
_NONE = timedelta(0)
_LEASE = timedelta(seconds=60)


class _Broker:
    """Answers a receive at once: with what stands next in the script, then with an error that lasts, or nothing."""

    capabilities = Capabilities(default_lease=timedelta(seconds=60))
    name = "queue"

    def __init__(self, *script: JobqError | None, lasting: JobqError | None = None) -> None:
        self.script = list(script)
        self.lasting = lasting
        self.asked = 0
        self.counts = QueueStats(visible=None, leased=None, scheduled=None, dead=0, total=None)

    async def receive(self, _most: int, _lease: timedelta, _wait: timedelta) -> list[Delivery]:
        self.asked += 1
        error = self.script.pop(0) if self.script else self.lasting
        if error is not None:
            raise error
        return []

    async def stats(self) -> QueueStats:
        return self.counts


def _receiving(
    broker: Any,
    clock: VirtualClock,
    attempts: "set[asyncio.Task[Any]] | None" = None,
    expected_until: float = -math.inf,
) -> Receiving:
    return Receiving(
        broker,
        broker.receive,
        clock=clock,
        stopping=Stopping(),
        events=Events(),
        free=lambda: 1,
        attempts=set() if attempts is None else attempts,
        expected_until=lambda: expected_until,
        chance=Random(18),
    )


async def _ended(receive: Callable[[], Any], clock: VirtualClock) -> Any:
    """Return what it returns; when all that is left of it is a pause, the pause is over."""
    receiving = asyncio.ensure_future(receive())
    while True:
        for _ in range(50):  # more turns of the loop than a receive that answers at once can need
            await asyncio.sleep(0)
        if receiving.done():
            return await receiving
        (due,) = clock.sleeping_until
        await clock.advance(due - clock.boottime())


@pytest.mark.parametrize("error", [_DENIED, _NOT_FOUND])
async def test_one_refusal_ends_no_worker_that_was_served(error: JobqError) -> None:
    clock, broker = VirtualClock(), _Broker(None, error, error, None)
    receiving = _receiving(broker, clock)
    for _ in range(2):
        assert await _ended(lambda: receiving.receive(_LEASE, _NONE), clock) == []
    assert broker.asked == 4


@pytest.mark.parametrize("error", [_DENIED, _NOT_FOUND, ConfigurationError("no")])
async def test_a_worker_that_was_never_served_ends_at_once(error: JobqError) -> None:
    clock, broker = VirtualClock(), _Broker(lasting=error)
    with pytest.raises(type(error)):
        await _ended(lambda: _receiving(broker, clock).receive(_LEASE, _NONE), clock)
    assert broker.asked == 1


@pytest.mark.parametrize("error", [_DENIED, _NOT_FOUND])
async def test_a_refusal_that_lasts_ends_it_after_some_minutes(error: JobqError) -> None:
    clock, broker = VirtualClock(), _Broker(None, lasting=error)
    receiving = _receiving(broker, clock)
    await _ended(lambda: receiving.receive(_LEASE, _NONE), clock)
    began = clock.boottime()
    with pytest.raises(type(error)):
        await _ended(lambda: receiving.receive(_LEASE, _NONE), clock)
    assert 300 <= clock.boottime() - began <= 330
    assert broker.asked < 40, "asked more and more seldom"


async def test_what_is_broken_stays_broken() -> None:
    clock, broker = VirtualClock(), _Broker(None, StoreUnusable("corrupt"))
    receiving = _receiving(broker, clock)
    await _ended(lambda: receiving.receive(_LEASE, _NONE), clock)
    with pytest.raises(StoreUnusable):
        await _ended(lambda: receiving.receive(_LEASE, _NONE), clock)


@pytest.mark.parametrize(("total", "bare"), [(0, True), (1, False)])
async def test_a_total_of_nothing_is_a_bare_queue(total: int, bare: bool) -> None:
    # A service that tells visible, leased and scheduled ones only together: hidden ones are among them.
    broker = _Broker()
    broker.counts = QueueStats(visible=None, leased=None, scheduled=None, dead=3, total=total)
    assert await _receiving(broker, VirtualClock()).is_bare() is bare


async def test_s1_a_receive_that_is_answered_as_it_is_cancelled_hands_its_tasks_over() -> None:
    """Else they would wait for the end of their leases, and cost a crash each."""
    granted: Any = object()

    class Late(_Broker):
        async def receive(self, _most: int, _lease: timedelta, _wait: timedelta) -> list[Delivery]:
            self.asked += 1
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return [granted]

    broker, clock = Late(), VirtualClock()
    receiving = _receiving(broker, clock)
    work = asyncio.create_task(receiving.receive(_LEASE, timedelta(seconds=60)))
    while not broker.asked:
        await asyncio.sleep(0)
    receiving._stopping.stop("the test says so")
    assert await work == [granted]


@pytest.mark.parametrize("seconds", [-1.0, 7.0])
async def test_a_long_receive_is_cut_short_once_nothing_is_to_come_back(seconds: float) -> None:
    """It went on to its end, and the idle time-out began only then, for a task whose lease was lost long before."""

    class Hanging(_Broker):
        async def receive(self, _most: int, _lease: timedelta, _wait: timedelta) -> list[Delivery]:
            self.asked += 1
            return await asyncio.Event().wait()  # type: ignore[return-value] # never

    clock, broker = VirtualClock(), Hanging()
    attempt = asyncio.create_task(asyncio.sleep(0))
    until = clock.boottime() + seconds
    receiving = _receiving(broker, clock, {attempt}, until)
    work = asyncio.create_task(receiving.receive(_LEASE, timedelta(seconds=20)))
    if seconds > 0:
        while until not in clock.sleeping_until:
            await asyncio.sleep(0)
        await clock.advance(seconds - 0.1)
        assert not work.done(), "what comes back now may be granted"
        await clock.advance(0.1)
    assert await work is None


async def test_what_nobody_counts_is_not_bare() -> None:
    assert await _receiving(_Broker(), VirtualClock()).is_bare() is False
