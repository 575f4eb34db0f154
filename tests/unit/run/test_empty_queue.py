"""When a worker ends on an empty queue."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

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
