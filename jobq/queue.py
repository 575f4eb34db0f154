"""The library's face: `async with jobq.connect("demo") as queue`."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from jobq.backend import Backend, DeadLetter, Peeked, QueueStats
from jobq.clock import SystemClock
from jobq.errors import ConfigurationError, QueueNotFound
from jobq.events import Events
from jobq.run.running import Callback, CallbackRunner
from jobq.run.supervisor import Report, Supervisor
from jobq.run.tally import WorkerReport
from jobq.run.worker import Worker
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task


@asynccontextmanager
async def connect(spec: str | None = None, *, settings: Settings | None = None) -> AsyncIterator["Queue"]:
    """Connect to a queue.

    Args:
        spec: such as `demo` or `myaccount/myqueue`; JOBQ_QUEUE when it is None.
        settings: read from the environment when None.

    Raises:
        ConfigurationError: there is no spec, or it cannot be served.
    """
    settings = settings or Settings.from_environment()
    spec = spec or settings.queue
    if spec is None:
        raise ConfigurationError("no queue was named; pass a spec such as 'demo', or set JOBQ_QUEUE")
    async with resolve(spec, settings) as backend:
        yield Queue(backend, settings)


class Queue:
    """One queue, for programs.

    Args:
        backend: an entered backend.
        settings: leases, budgets, limits.
    """

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self.backend = backend
        self.settings = settings

    async def push(self, tasks: Task | Iterable[Task]) -> list[str]:
        """Durably add one task or many, all or none; the queue is made when it does not exist. Return the ids.

        Raises:
            DuplicateTask, PushUnknown, BackendUnavailable: see `Backend.push`.
        """
        batch = [tasks] if isinstance(tasks, Task) else list(tasks)
        try:
            return await self.backend.push(batch)
        except QueueNotFound:
            await self.backend.create()
            return await self.backend.push(batch)

    async def pull_and_execute(self, callback: Callback, *, wait: timedelta = timedelta(0)) -> Report | None:
        """Receive one task and run an asynchronous callback on it under its lease; None when there was no task.

        The callback is cancelled when the lease is lost; the delivery is then left unsettled. What it returns is the
        task's value; what it raises is a failure.

        Args:
            callback: takes the delivery.
            wait: how long to stay for a task.
        """
        supervisor = Supervisor(
            backend=self.backend,
            runner=CallbackRunner(callback),
            settings=self.settings,
            clock=SystemClock(),
            events=Events(),
        )
        return await supervisor.pull_and_execute(wait)

    async def work(self, callback: Callback | None = None) -> WorkerReport:
        """Run a worker, of commands or of an asynchronous callback, until the queue is worked off."""
        runner = CallbackRunner(callback) if callback is not None else None
        return await Worker(self.backend, self.settings, runner=runner).run()

    async def peek(self, limit: int = 10) -> list[Peeked]:
        """Look at waiting tasks."""
        return await self.backend.peek(limit)

    async def stats(self) -> QueueStats:
        """Count."""
        return await self.backend.stats()

    async def clear(self) -> int:
        """Delete what waits or is leased; return how many."""
        return await self.backend.clear()

    async def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        """Look at what jobq gave up on, oldest first."""
        return await self.backend.dead_letters(limit)

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back; return those found."""
        return await self.backend.redrive(ids)
