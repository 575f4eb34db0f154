"""What one push knows when answers were lost: whose ids are in doubt, and when a repetition is no way out (S1, S8)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from jobq.backend import Capabilities
from jobq.errors import JobqError, PushUnknown
from jobq.formats import task_bounds
from jobq.server import schemas
from jobq.submit.pusher import CHUNK_BYTES, CHUNK_TASKS, CHUNK_VALUES, Pusher, chunks
from jobq.task import Task
from jobq.testing.clock import VirtualClock
from jobq.testing.faults import Fault, FaultyBackend
from jobq_memory import MemoryBackend, Router


class Service(FaultyBackend):
    """A queue whose service remembers ids for so long."""

    def __init__(self, window: timedelta | None = None, *, knows_ids: bool = True) -> None:
        self.router = Router(VirtualClock())
        self.router.create("q")
        super().__init__(MemoryBackend(self.router, "q"))
        self._window = window
        self._knows_ids = knows_ids

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, dedup_window=self._window, idempotent_push=self._knows_ids)


class InParts(Service):
    """A service that takes a push in several requests: what was lost may be any part of it."""

    doubtful: Sequence[Sequence[int]] = ()

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        lost, *self.doubtful = self.doubtful
        raise PushUnknown("lost", [tasks[number].id for number in lost])


def some(count: int) -> list[Task]:
    return [Task.new(command="true") for _ in range(count)]


@pytest.mark.parametrize(
    ("service", "pushes"),
    [
        (Service(), 2),
        (Service(timedelta(hours=1)), 2),
        (Service(timedelta(0)), 1),  # it may have forgotten the first by now
        (Service(knows_ids=False), 1),
    ],
    ids=["for ever", "an hour", "no time", "not at all"],
)
async def test_s8_a_push_is_repeated_only_while_its_ids_are_known(service: Service, pushes: int) -> None:
    service.faults.next("push", Fault.LOSE_ANSWER, times=1)
    pusher = Pusher(service)
    if pushes == 2:
        await pusher.push(some(3))
    else:
        with pytest.raises(PushUnknown) as caught:
            await pusher.push(some(3))
        assert "in doubt: 3 tasks (" in caught.value.__notes__[0]
    assert service.faults.count("push") == pushes
    assert pusher.count == (3 if pushes == 2 else 0)
    assert (await service.stats()).visible == 3


async def test_s8_a_repetition_that_is_refused_says_nothing_of_the_first() -> None:
    service = Service()
    service.faults.next("push", Fault.LOSE_ANSWER)
    service.faults.next("push", Fault.REFUSE)
    (task,) = some(1)
    with pytest.raises(PushUnknown) as caught:
        await Pusher(service).push([task])
    assert caught.value.ids == (task.id,)
    assert "asked again: " in caught.value.__notes__[0]


async def test_s8_what_either_try_may_have_queued_is_in_doubt() -> None:
    service, tasks = InParts(), some(3)
    service.doubtful = [(0, 1), (1, 2)]
    with pytest.raises(PushUnknown) as caught:
        await Pusher(service).push(tasks)
    assert caught.value.ids == tuple(task.id for task in tasks)


async def test_s1_a_refused_push_is_not_counted_and_not_in_doubt() -> None:
    service = Service()
    pusher = Pusher(service)
    await pusher.push(some(2))
    service.faults.next("push", Fault.REFUSE)
    with pytest.raises(JobqError):
        await pusher.push(some(2))
    assert (pusher.count, pusher.doubtful, pusher.summary()) == (2, (), "queued 2 tasks on q")


def test_a_chunk_is_bounded_by_tasks_and_bytes() -> None:
    assert [len(chunk) for chunk in chunks(some(CHUNK_TASKS + 1))] == [CHUNK_TASKS, 1]
    large = [Task.new(call="m:f", kwargs={"text": "x" * 1_000_000}) for _ in range(9)]
    assert [len(chunk) for chunk in chunks(large)] == [5, 4]
    assert CHUNK_BYTES < 5 * 1_000_000
    many = [Task.new(call="m:f", kwargs={"values": [0] * 300_000}) for _ in range(3)]
    assert [len(chunk) for chunk in chunks(many)] == [2, 1]
    assert CHUNK_VALUES + task_bounds.MAX_VALUES + CHUNK_TASKS < schemas.MAX_VALUES
    assert list(chunks([])) == []


class Slow(Service):
    """A service that does not answer; who cancels the push hears what may be queued, as of Service Bus."""

    pushes = 0

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        self.pushes += 1
        if self.pushes > 1:
            return [task.id for task in tasks]
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise PushUnknown("cancelled", [task.id for task in tasks]) from None
        raise AssertionError


async def test_s8_what_is_cancelled_is_not_pushed_again() -> None:
    """It was taken for a lost answer: the push went on, and no time-out was heard of."""
    service = Slow()
    with pytest.raises((PushUnknown, TimeoutError)):
        async with asyncio.timeout(0.05):
            await Pusher(service).push(some(3))
    assert service.pushes == 1
