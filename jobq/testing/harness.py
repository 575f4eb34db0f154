"""What a backend's author hands to the suite, and the bench that each case works on."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from jobq.backend import Backend, Capabilities, Delivery
from jobq.journal.records import TaskRecord
from jobq.journal.store import journal_of
from jobq.settlement import MoveToDeadLetters, Release
from jobq.task import Task, TaskResult, new_id
from jobq.testing.clock import SteppedClock
from jobq.testing.fault_script import Faults
from jobq.testing.faults import FaultyBackend

T = TypeVar("T")
Verb = Callable[[], Awaitable[object]]  # one call of a verb, ready to be made
NOW = timedelta(0)
DONE = TaskResult(exit_code=0, duration=1.5, output_tail="ok")
_STEP_SECONDS = 0.5
_STEP_REAL_SECONDS = 0.05


def _fresh_queue() -> str:
    return f"q-{new_id()[-12:]}"


@dataclass(kw_only=True)
class Harness:
    """How the suite reaches a backend.

    Attributes:
        connect: makes a new handle, not yet entered, onto the one store for a queue name.
        clock: the time that the backend runs on; `VirtualClock` where it can be injected, else `RealTime`.
        inject: adds raw bytes as a message to a queue and returns the service's id; None skips the poison cases.
        lease: what the cases ask for; None = 2 s, or the backend's shortest where that is more.
        patience: how long a receive may look for a task that must be there; zero where pushes show at once.
        case_timeout: real time after which a case has failed.
        queue_name: makes a name that is fresh for each case.
        counts_at_once: whether counts show at once what was done; else they are not compared.
        close: frees the store; called by the one who made the harness, the state machine after each example.
    """

    connect: Callable[[str], Backend]
    clock: SteppedClock
    inject: Callable[[str, bytes], Awaitable[str]] | None = None
    lease: timedelta | None = None
    patience: timedelta = NOW
    case_timeout: timedelta = timedelta(seconds=60)
    queue_name: Callable[[], str] = field(default=_fresh_queue)
    counts_at_once: bool = True
    close: Callable[[], None] = field(default=lambda: None)

    @property
    def capabilities(self) -> Capabilities:
        """What the backend declares."""
        return self.connect("capabilities").capabilities


class Bench:
    """One case's queue, fresh and created, and the steps that cases share.

    Args:
        harness: reaches the backend.
        stack: closes every handle at the end of the case.

    Attributes:
        lease: the length that cases ask for.
    """

    backend: Backend

    def __init__(self, harness: Harness, stack: AsyncExitStack) -> None:
        self.harness = harness
        self.clock = harness.clock
        self.queue = harness.queue_name()
        self._stack = stack

    async def open(self) -> None:
        """Create the queue."""
        self.backend = await self.handle()
        await self.backend.create()
        self.capabilities = self.backend.capabilities
        shortest = max(self.capabilities.min_lease, timedelta(seconds=2))
        self.lease = self.harness.lease or min(shortest, self.capabilities.max_lease or shortest)

    async def handle(self, queue: str | None = None) -> Backend:
        """Return another open handle, onto the same queue unless one is named."""
        return await self._stack.enter_async_context(self.harness.connect(queue or self.queue))

    async def entered(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enter what is to be left at the end of the case."""
        return await self._stack.enter_async_context(context)

    async def faulty(self) -> tuple[FaultyBackend, Faults]:
        """Return another open handle under faults, and their script."""
        faults = Faults(self.clock)
        backend = FaultyBackend(self.harness.connect(self.queue), faults)
        return await self._stack.enter_async_context(backend), faults

    async def inject(self, body: bytes) -> str:
        """Add raw bytes as a message."""
        assert self.harness.inject is not None
        return await self.harness.inject(self.queue, body)

    async def pushed(self, count: int = 1, **fields: Any) -> list[Task]:
        """Push this many new tasks."""
        tasks = [task(**fields) for _ in range(count)]
        ids = await self.backend.push(tasks)
        assert ids == [each.id for each in tasks], "push must return the ids in order"
        return tasks

    async def take(self, backend: Backend | None = None, *, lease: timedelta | None = None) -> Delivery:
        """Receive the one task that must be there."""
        found = await (backend or self.backend).receive(1, lease or self.lease, self.harness.patience)
        assert len(found) == 1, "a task that must be visible was not received"
        return found[0]

    async def take_id(self, task_id: str, *, lease: timedelta | None = None, gives_back: bool = False) -> Delivery:
        """Receive until this task comes; whatever else comes stays leased, or is given back once it has come."""
        others: list[Delivery] = []
        for _ in range(100):
            delivery = await self.take(lease=lease)
            if delivery.id == task_id:
                for other in others if gives_back else ():
                    await other.settle(Release())
                return delivery
            others.append(delivery)
        raise AssertionError(f"task {task_id} was not received among 100")

    async def take_all(self, count: int) -> list[Delivery]:
        """Receive this many, in as many calls as the service needs, and see that no more are there."""
        found: list[Delivery] = []
        while len(found) < count:
            more = await self.backend.receive(count - len(found), self.lease, self.harness.patience)
            assert more, f"received {len(found)} tasks of {count}"
            found += more
        await self.nothing()
        return found

    async def nothing(self) -> None:
        """See that nothing can be received."""
        found = await self.backend.receive(1, self.lease, NOW)
        assert found == [], f"received task {found[0].id}, which should not be visible"

    async def recorded(self) -> None:
        """Wait until what is written beside the queue is there (`journal_lags`)."""
        if self.capabilities.journal_lags:
            await self.clock.advance(1.0)

    async def heard(self) -> None:
        """Wait until what runs has looked for requests that are written beside the queue (`journal_lags`)."""
        if self.capabilities.journal_lags:
            await self.clock.advance(self.lease.total_seconds() / 4 + 0.5)  # as often as it is renewed

    async def record(self, task_id: str) -> TaskRecord:
        """Return where a task is, as another handle sees it."""
        await self.recorded()
        (found,) = await journal_of(await self.handle()).find([task_id])
        return found

    @property
    def long_lease(self) -> timedelta:
        """One that outlasts whatever is looked at meanwhile on a slow machine."""
        return min(timedelta(minutes=1), self.capabilities.max_lease or timedelta.max)

    async def peeks_none(self, *, leased: int = 0) -> None:
        """See that nothing is shown that could be received; some services show what is leased, too."""
        shown = await self.backend.peek(100)
        expected = leased if self.capabilities.peeks_leased else 0
        assert len(shown) == expected, f"peek shows {len(shown)} tasks, {leased} of them leased"

    async def expire(self) -> None:
        """Let every lease of `lease` run out."""
        await self.clock.advance(self.lease.total_seconds() + 1)

    async def bury(self, reason: str = "failures", **fields: Any) -> Task:
        """Push a task, receive it and dead-letter it."""
        (buried,) = await self.pushed(**fields)
        await (await self.take_id(buried.id)).settle(MoveToDeadLetters(reason, "by the suite"))
        return buried

    async def seen(self) -> tuple[Any, ...]:
        """Return all that can be seen of the queue without changing it."""
        backend = self.backend
        waiting = sorted((each.id, each.body, each.deliveries) for each in await backend.peek(100))
        dead = sorted((each.id, each.body, each.reason, each.description) for each in await backend.dead_letters(100))
        return await backend.stats(), waiting, dead

    async def counts(self, **expected: int) -> None:
        """Compare those counts that the service declares."""
        stats = await self.backend.stats()
        if not self.harness.counts_at_once:
            return
        expected["total"] = sum(expected.get(name, 0) for name in ("visible", "leased", "scheduled"))
        for name in ("visible", "leased", "scheduled", "dead", "total"):
            found = getattr(stats, name)
            if name not in self.capabilities.counts:
                continue
            assert found == expected.get(name, 0), f"{name} is {found}, expected {expected.get(name, 0)} ({stats})"

    async def finish(self, waiting: "asyncio.Task[T]", limit_seconds: float) -> T:
        """Move the clock on until the task is done; fails when that takes longer than the limit."""
        until = self.clock.boottime() + limit_seconds
        while not waiting.done():
            assert self.clock.boottime() < until, f"still waiting after {limit_seconds} s"
            await self.clock.advance(_STEP_SECONDS)
            await asyncio.wait({waiting}, timeout=_STEP_REAL_SECONDS)  # for backends with threads of their own
        return await waiting


def task(**fields: Any) -> Task:
    """Return a new task; a harmless command unless the fields say otherwise."""
    if not fields.keys() & {"command", "argv", "call", "kwargs"}:
        fields["command"] = "true"
    return Task.new(**fields)


def stored(pushed: Task, body: bytes) -> bytes:
    """Return the bytes of a task as its store keeps them: as pushed, in the epoch that the store shows (S3)."""
    return pushed.in_epoch(Task.decode(body).epoch).encode()


def crashes(delivery: Delivery) -> int:
    """Return the ends of this task that nobody recorded (S7)."""
    return delivery.deliveries - 1 - delivery.task.counters.ends


class Caught:
    """What `raises` has caught."""

    error: Exception


@contextmanager
def raises(kind: type[Exception], what: str = "") -> Iterator[Caught]:
    """Expect this error; pytest is not needed to run the suite."""
    caught = Caught()
    try:
        yield caught
    except kind as error:
        caught.error = error
    else:
        raise AssertionError(f"{what or 'this'} should have raised {kind.__name__}")
