"""Work specifications: every shape of method, side by side, bounded, and truthful when something fails."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from jobq.errors import PushUnknown
from jobq.submit.pusher import CHUNK_TASKS
from jobq.task import Task
from jobq.workspec import WAITING_TASKS, Counts, WorkSpecification, enqueue


class Taken:
    """Where tasks are pushed."""

    def __init__(self) -> None:
        self.batches: list[list[Task]] = []

    async def push(self, tasks: list[Task]) -> None:
        self.batches.append(tasks)

    @property
    def commands(self) -> list[str]:
        return sorted(str(task.command) for batch in self.batches for task in batch)


class Plain(WorkSpecification[int]):
    def task_seeds(self) -> list[int]:
        return [1, 2, 3]

    def list_tasks(self, seed: int) -> Iterator[Task | str]:
        yield f"echo {seed}"
        yield Task.new(command=f"echo {seed}{seed}")

    def already_done(self, task: Task) -> bool:
        return task.command == "echo 2"


class Asynchronous(WorkSpecification[int]):
    async def task_seeds(self) -> AsyncIterator[int]:
        for seed in (1, 2, 3):
            yield seed

    async def list_tasks(self, seed: int) -> AsyncIterator[Task | str]:
        yield f"echo {seed}"
        yield Task.new(command=f"echo {seed}{seed}")

    async def already_done(self, task: Task) -> bool:
        return task.command == "echo 2"


class Coroutine(Plain):
    async def list_tasks(self, seed: int) -> list[Task | str]:  # type: ignore[override] # as above
        return list(super().list_tasks(seed))


@pytest.mark.parametrize("kind", [Plain, Asynchronous, Coroutine])
async def test_every_shape_of_method(kind: type[WorkSpecification[int]]) -> None:
    taken = Taken()
    counts = await enqueue(taken.push, kind())
    assert counts == Counts(considered=6, skipped=1, queued=5)
    assert taken.commands == ["echo 1", "echo 11", "echo 22", "echo 3", "echo 33"]


async def test_a_function_is_a_specification() -> None:
    async def tasks() -> AsyncIterator[str]:
        yield "echo 1"

    taken = Taken()
    assert (await enqueue(taken.push, tasks)).queued == 1
    assert (await enqueue(taken.push, lambda: ["echo 2", "echo 3"])).queued == 2
    assert taken.commands == ["echo 1", "echo 2", "echo 3"]


async def test_seeds_are_listed_side_by_side_and_not_more_than_asked_for() -> None:
    running = most = 0
    both = asyncio.Event()

    class Seeds(WorkSpecification[int]):
        def task_seeds(self) -> range:
            return range(6)

        async def list_tasks(self, seed: int) -> AsyncIterator[str]:
            nonlocal running, most
            running += 1
            most = max(most, running)
            if running == 3:
                both.set()
            await both.wait()
            yield f"echo {seed}"
            running -= 1

    assert (await enqueue(Taken().push, Seeds(), seeds_at_once=3)).queued == 6
    assert most == 3


async def test_what_blocks_runs_on_threads() -> None:
    """The first checks wait for each other: on the loop's own thread they would wait for ever."""
    meeting = threading.Barrier(2, timeout=10)

    class Blocking(WorkSpecification[None]):
        def list_tasks(self, seed: None) -> Iterator[str]:
            yield from ("a", "b")

        def already_done(self, task: Task) -> bool:
            meeting.wait()
            return False

    assert (await enqueue(Taken().push, Blocking())).queued == 2


async def test_memory_stays_bounded_while_the_queue_is_slow() -> None:
    listed = 0
    go = asyncio.Event()
    seen: list[int] = []

    async def endless() -> AsyncIterator[str]:
        nonlocal listed
        for listed in range(1, 50_001):  # noqa: B007 - read outside
            yield "true"

    async def push(_tasks: list[Task]) -> None:
        if not seen:
            while listed < WAITING_TASKS:
                await asyncio.sleep(0)
            for _ in range(1000):  # far more turns than it would need to go on
                await asyncio.sleep(0)
            seen.append(listed)
            go.set()

    counts = await enqueue(push, endless)
    assert counts.queued == 50_000
    assert seen[0] <= 2 * WAITING_TASKS + CHUNK_TASKS + 64 + 2


async def test_the_first_task_does_not_wait_for_a_full_batch() -> None:
    pushed = asyncio.Event()

    async def slow() -> AsyncIterator[str]:
        yield "echo first"
        await asyncio.wait_for(pushed.wait(), 10)
        yield "echo second"

    async def push(_: list[Task]) -> None:
        pushed.set()

    began = time.monotonic()
    assert (await enqueue(push, slow)).queued == 2
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("where", ["task_seeds", "list_tasks", "already_done", "push"])
async def test_a_fault_is_raised_as_it_is_and_says_what_was_queued(where: str) -> None:
    class Faulty(WorkSpecification[int]):
        def task_seeds(self) -> Iterator[int]:
            yield 1
            if where == "task_seeds":
                raise ZeroDivisionError

        def list_tasks(self, seed: int) -> Iterator[str]:
            yield "echo 1"
            if where == "list_tasks":
                raise ZeroDivisionError

        def already_done(self, task: Task) -> bool:
            if where == "already_done":
                raise ZeroDivisionError
            return False

    async def push(_: list[Task]) -> None:
        if where == "push":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        await enqueue(push, Faulty())
    assert "0 tasks were queued before" in raised.value.__notes__[0]


async def test_s1_a_push_that_is_lost_while_the_listing_fails_leaves_its_tasks_in_doubt() -> None:
    """Of them nothing was said; who listed and pushed again had them twice."""
    begun = asyncio.Event()

    class Failing(WorkSpecification[int]):
        async def list_tasks(self, seed: int) -> AsyncIterator[Task | str]:
            yield Task.new(command="true", id="one")
            await begun.wait()
            raise ZeroDivisionError

    async def push(pushed: list[Task]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise PushUnknown("cancelled", [task.id for task in pushed]) from None

    with pytest.raises(ZeroDivisionError) as raised:
        await enqueue(push, Failing(), finish_seconds=0)
    assert raised.value.__notes__ == ["0 tasks were queued before", "in doubt: 1 tasks (one)"]


async def test_what_is_no_task_is_refused() -> None:
    with pytest.raises(TypeError, match="list_tasks gave a int"):
        await enqueue(Taken().push, lambda: [3])  # type: ignore[list-item] # the subject
    with pytest.raises(NotImplementedError, match="define list_tasks"):
        await enqueue(Taken().push, WorkSpecification())
