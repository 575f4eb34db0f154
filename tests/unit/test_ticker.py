"""Calls at moments of a clock: in their order, none after its cancellation, and one that fails harms no other."""

import asyncio

from jobq.lease.ticker import Ticker
from jobq.testing.clock import VirtualClock


async def _let_it_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_calls_come_in_time_and_in_order() -> None:
    before, clock, called = asyncio.all_tasks(), VirtualClock(), list[str]()
    start = clock.boottime()
    ticker = Ticker(clock)
    ticker.at(start + 5, lambda: called.append("late"))
    await _let_it_run()
    ticker.at(start + 1, lambda: called.append("sooner than what was waited for"))
    ticker.at(start + 1, lambda: called.append("of the same moment"))
    never = ticker.at(start + 2, lambda: called.append("never"))
    await _let_it_run()
    assert called == []
    await clock.advance(1.5)
    await _let_it_run()
    assert called == ["sooner than what was waited for", "of the same moment"]
    never.cancel()
    await clock.advance(10)
    await _let_it_run()
    assert called[2:] == ["late"]
    assert asyncio.all_tasks() == before, "it ends when nothing is to come"
    ticker.at(start + 20, lambda: called.append("again"))
    await clock.advance(10)
    await _let_it_run()
    assert called[3:] == ["again"]


async def test_s11_a_call_that_fails_is_no_others_trouble() -> None:
    clock, called = VirtualClock(), list[int]()
    start = clock.boottime()
    ticker = Ticker(clock)
    ticker.at(start + 1, asyncio.Event.set)  # type: ignore[arg-type] # wants what to set
    ticker.at(start + 1, lambda: called.append(1))
    ticker.at(start + 2, lambda: called.append(2))
    for _ in range(3):
        await _let_it_run()
        await clock.advance(1)
    await _let_it_run()
    assert called == [1, 2]


async def test_a_call_may_ask_for_the_next() -> None:
    clock, called = VirtualClock(), list[float]()
    ticker = Ticker(clock)

    def call() -> None:
        called.append(clock.boottime())
        if len(called) < 3:
            ticker.at(clock.boottime() + 1, call)

    ticker.at(clock.boottime() + 1, call)
    for _ in range(4):
        await _let_it_run()
        await clock.advance(1)
    assert len(called) == 3


async def test_closed_it_calls_nothing_and_leaves_nothing_running() -> None:
    before, clock, called = asyncio.all_tasks(), VirtualClock(), list[int]()
    ticker = Ticker(clock)
    ticker.at(clock.boottime() + 1, lambda: called.append(1))
    await _let_it_run()
    ticker.close()
    await clock.advance(2)
    await _let_it_run()
    assert called == []
    assert asyncio.all_tasks() == before
    ticker.at(clock.boottime() + 1, lambda: called.append(2))
    ticker.close()
    ticker.at(clock.boottime() + 1, lambda: called.append(3))
    await clock.advance(2)
    assert called == [3], "what is asked for after that is called, before its task has ended too"
