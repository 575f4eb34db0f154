"""When a worker ends on an empty queue."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import AsyncMock

from jobq.pausing import Pause
from jobq.run.worker.empty_queue import EmptyQueue


async def test_what_was_put_back_is_waited_for_in_whole_seconds() -> None:
    """A Storage Queue hides for whole seconds, rounded up: what is put back for 2.5 s is not there after 2.6 s."""
    now = 0.0
    clock: Any = SimpleNamespace(boottime=lambda: now)
    leftovers: Any = SimpleNamespace(
        end_leases_of_the_dead=AsyncMock(), abandoned=AsyncMock(return_value={}), last_ended=-1.0
    )
    receiving: Any = SimpleNamespace(is_bare=AsyncMock(return_value=False), paused=AsyncMock(return_value=None))
    queue = EmptyQueue(None, clock, leftovers, (), lambda _: None)
    queue.expect("a", 2.5)
    now = 2.6
    assert not await queue.is_worked_off(receiving, empty=True, looked_at=2.6)
    now = 4.1
    assert await queue.is_worked_off(receiving, empty=True, looked_at=4.1)


def test_what_has_not_come_when_it_was_due_is_expected_no_longer() -> None:
    """Somebody else has it: it was pushed anew, or deleted."""
    clock: Any = SimpleNamespace(boottime=lambda: 100.0)
    queue = EmptyQueue(None, clock, cast("Any", None), (), lambda _: None)
    assert queue.expected_until < 0
    queue.expect("lost", 10.0)
    queue.expect("put back", 0.0)
    assert queue.expected_until == 112.0
    queue.came("lost")
    assert queue.expected_until == 101.0


class _Paused:
    """A queue whose mark a test sets; "?" = nobody answers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.mark: Any = None
        self.told: list[Pause | None] = []
        leftovers: Any = SimpleNamespace(
            end_leases_of_the_dead=AsyncMock(), abandoned=AsyncMock(return_value={}), last_ended=-1.0
        )
        clock: Any = SimpleNamespace(boottime=lambda: self.now)
        self.queue = EmptyQueue(timedelta(seconds=30), clock, leftovers, (), self.told.append)

    async def paused(self, known: Pause | None) -> Pause | None:
        return known if self.mark == "?" else self.mark

    async def is_bare(self) -> bool:
        return False

    async def is_over(self, now: float) -> bool:
        self.now = now
        return await self.queue.is_worked_off(cast("Any", self), empty=True, looked_at=now)


MARK: Final = Pause(at=0.0, by="ada@host")


async def test_past_its_patience_with_a_pause_it_waits_for_what_comes_back_without_a_storm() -> None:
    """The time to stay was in the past, and each look followed the other at once."""
    stage = _Paused()
    stage.mark = MARK
    assert not await stage.is_over(0.0)
    assert not await stage.is_over(30.0)
    stage.queue.expect("a", 600.0)
    for now in (61.0, 66.0, 100.0):
        assert not await stage.is_over(now)
        assert stage.queue.wait() >= timedelta(seconds=1)


async def test_who_does_not_answer_does_not_end_a_pause() -> None:
    stage = _Paused()
    stage.mark = MARK
    assert not await stage.is_over(0.0)
    assert not await stage.is_over(30.0)
    stage.mark = "?"
    assert not await stage.is_over(35.0)
    assert stage.told == [MARK]


async def test_a_pause_that_ends_after_an_empty_look_is_followed_by_another_look() -> None:
    stage = _Paused()
    stage.mark = MARK
    assert not await stage.is_over(0.0)
    assert not await stage.is_over(30.0)
    stage.mark = None
    assert not await stage.is_over(35.0), "what the pause held back is there now"
    assert await stage.is_over(35.1)
    assert stage.told == [MARK, None]
