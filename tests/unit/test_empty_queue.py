"""When a worker at an empty queue takes a lost answer for tasks that are leased to nobody."""

from datetime import timedelta
from typing import Any, cast

from jobq.backend import UNKNOWN_ID
from jobq.run.worker.empty_queue import EmptyQueue
from jobq.testing.clock import VirtualClock

LEASE = 10.0


class _Queue:
    """Holds something that nobody sees; nothing of it was left by others."""

    async def is_bare(self) -> bool:
        return False


async def _stays(queue: EmptyQueue, clock: VirtualClock) -> bool:
    await queue.is_worked_off(cast("Any", _Queue()), empty=True, looked_at=clock.boottime())
    return queue.expected_until > clock.boottime() + LEASE / 2


async def test_l1_a_doubt_that_is_over_does_not_hide_the_next_one() -> None:
    """Only the first one of a worker that stays for hours counted, as long as nothing came."""
    clock = VirtualClock()
    queue = EmptyQueue(timedelta(hours=8), clock, cast("Any", None), [], lambda _mark: None)
    queue.doubt(LEASE)
    assert await _stays(queue, clock)
    await clock.advance(3600)
    assert not await _stays(queue, clock)
    queue.doubt(LEASE)
    assert await _stays(queue, clock)


async def test_l3_answers_that_are_lost_again_and_again_are_waited_for_no_longer() -> None:
    """Each of a service that answers in between: it may do so for one message, for ever."""
    clock = VirtualClock()
    queue = EmptyQueue(timedelta(hours=8), clock, cast("Any", None), [], lambda _mark: None)
    queue.doubt(LEASE)
    for _ in range(5):
        await _stays(queue, clock)
        await clock.advance(LEASE * 0.6)
        queue.doubt(LEASE)
    assert not await _stays(queue, clock)


async def test_l1_what_a_doubt_has_hidden_may_be_lost_once_more() -> None:
    """It comes a lease later at the earliest, when no doubt counted any more."""
    clock = VirtualClock()
    queue = EmptyQueue(timedelta(hours=8), clock, cast("Any", None), [], lambda _mark: None)
    queue.doubt(LEASE)
    assert await _stays(queue, clock)
    await clock.advance(LEASE + 0.5)
    queue.doubt(LEASE)
    assert await _stays(queue, clock)


async def test_l1_an_outage_is_one_doubt_however_long_it_lasts() -> None:
    """Answers were lost for longer than a lease, and only the first ones counted: tasks were left with exit 0."""
    clock = VirtualClock()
    queue = EmptyQueue(timedelta(hours=8), clock, cast("Any", None), [], lambda _mark: None)
    for _ in range(5):
        queue.doubt(LEASE)
        await clock.advance(LEASE * 0.6)
    queue.doubt(LEASE)
    assert await _stays(queue, clock)


async def test_l1_of_what_may_be_leased_to_nobody_the_last_to_come_counts() -> None:
    """A later word of an older lease made the wait shorter."""
    clock = VirtualClock()
    queue = EmptyQueue(timedelta(hours=8), clock, cast("Any", None), [], lambda _mark: None)
    queue.doubt(LEASE)
    queue.expect(UNKNOWN_ID, LEASE / 4)
    assert await _stays(queue, clock)
