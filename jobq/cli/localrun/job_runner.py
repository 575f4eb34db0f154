"""What `jobq run` adds to the runner of commands: the number of the slot that a job runs in."""

import heapq
import itertools
from collections.abc import Awaitable, Callable

from jobq.backend import Delivery
from jobq.lease.keeper import LeaseKeeper
from jobq.run.attempt.runner import Runner, Running
from jobq.run.process.spawner import Deadline
from jobq.submit.argument_template import SLOT
from jobq.task import Outcome, Task


class JobRunner:
    """Starts jobs; see Runner.

    Args:
        runner: of commands.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._free: list[int] = []
        self._next = itertools.count(1)

    async def start(self, task: Task, delivery: Delivery, *, deadline: Deadline, keeper: LeaseKeeper) -> Running:
        """Start a job in the first slot that is free; raises StartFailed."""
        slot = heapq.heappop(self._free) if self._free else next(self._next)
        task = task.copied({"env": {**task.env, SLOT: str(slot)}})
        try:
            running = await self._runner.start(task, delivery, deadline=deadline, keeper=keeper)
        except BaseException:
            heapq.heappush(self._free, slot)
            raise
        return _RunningJob(running, lambda: heapq.heappush(self._free, slot))


class _RunningJob:
    """One started job; see Running."""

    def __init__(self, running: Running, on_close: Callable[[], None]) -> None:
        self.checkpoints = getattr(running, "checkpoints", None)
        self._running = running
        self._on_close: Callable[[], None] | None = on_close

    async def exited(self) -> None:
        await self._running.exited()

    def has_exited(self) -> bool:
        return self._running.has_exited()

    async def ended(self) -> Outcome:
        return await self._running.ended()

    def over_limit(self) -> Awaitable[str]:
        return self._running.over_limit()

    def terminate(self) -> None:
        self._running.terminate()

    def kill(self) -> None:
        self._running.kill()

    async def close(self) -> None:
        try:
            await self._running.close()
        finally:
            if (on_close := self._on_close) is not None:
                self._on_close = None
                on_close()
