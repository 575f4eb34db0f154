"""The virtual clock wakes sleepers at their own instant, in order, also those of other threads' loops."""

import asyncio
import threading

import pytest

from jobq.testing.clock import RealTime, VirtualClock


async def test_stands_still_until_advanced() -> None:
    clock = VirtualClock(boottime=5.0, wall=100.0)
    assert (clock.boottime(), clock.wall()) == (5.0, 100.0)
    await clock.advance(2.5)
    assert (clock.boottime(), clock.wall()) == (7.5, 102.5)


async def test_sleepers_wake_in_order_each_at_its_instant() -> None:
    clock = VirtualClock(boottime=0.0)
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, until: float) -> None:
        await clock.sleep_until(until)
        woken.append((name, clock.boottime()))

    async with asyncio.TaskGroup() as group:
        for name, until in (("c", 3.0), ("a", 1.0), ("b1", 2.0), ("b2", 2.0)):
            group.create_task(sleeper(name, until))
        await clock.advance(2.0)
        assert woken == [("a", 1.0), ("b1", 2.0), ("b2", 2.0)]
        assert clock.sleeping_until == [3.0]
        await clock.advance(10.0)
    assert woken[-1] == ("c", 3.0)
    assert clock.boottime() == 12.0


async def test_a_sleep_begun_on_waking_counts_too() -> None:
    clock = VirtualClock(boottime=0.0)
    ticks: list[float] = []

    async def ticking() -> None:
        for _ in range(4):
            await clock.sleep_until(clock.boottime() + 1.0)
            ticks.append(clock.boottime())

    async with asyncio.TaskGroup() as group:
        group.create_task(ticking())
        await clock.advance(3.5)
        assert ticks == [1.0, 2.0, 3.0]
        await clock.advance(0.5)
    assert ticks == [1.0, 2.0, 3.0, 4.0]


async def test_a_past_instant_does_not_wait_but_lets_others_run() -> None:
    clock = VirtualClock()
    ran = asyncio.Event()
    asyncio.get_running_loop().call_soon(ran.set)
    await clock.sleep_until(clock.boottime())
    assert ran.is_set()


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = VirtualClock(boottime=0.0)
    sleeping = asyncio.create_task(clock.sleep_until(1.0))
    await clock.advance(0.0)
    assert clock.sleeping_until == [1.0]
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    assert clock.sleeping_until == []
    await clock.advance(2.0)


async def test_the_wall_jumps_alone() -> None:
    clock = VirtualClock(boottime=10.0, wall=100.0)
    clock.jump_wall(-50.0)
    assert (clock.boottime(), clock.wall()) == (10.0, 50.0)


async def test_boottime_never_goes_back() -> None:
    with pytest.raises(ValueError, match="never goes back"):
        await VirtualClock().advance(-1.0)


async def test_sleepers_of_another_threads_loop_are_woken() -> None:
    clock = VirtualClock(boottime=0.0)
    woken: list[float] = []

    async def sleeper() -> None:
        await clock.sleep_until(1.0)
        woken.append(clock.boottime())

    thread = threading.Thread(target=lambda: asyncio.run(sleeper()))
    thread.start()
    while not clock.sleeping_until:  # the other thread registers in its own time
        await asyncio.sleep(0)
    await clock.advance(1.0)
    await asyncio.to_thread(thread.join)
    assert woken == [1.0]


async def test_real_time_really_passes() -> None:
    clock = RealTime()
    start = clock.boottime()
    await clock.advance(0.02)
    assert clock.boottime() - start >= 0.02
