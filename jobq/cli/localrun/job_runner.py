"""What `jobq run` adds to the runner of commands: the number of a slot, and results that are whole before it ends."""

import heapq
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from jobq.backend import Delivery
from jobq.cli.localrun.input_feed import line_of
from jobq.cli.localrun.result_folder import ResultFolder
from jobq.lease.keeper import LeaseKeeper
from jobq.run.attempt.runner import Runner, Running
from jobq.run.process.spawner import Deadline
from jobq.submit.argument_template import SLOT, SLOT_PLACES, with_slot
from jobq.task import Outcome, Task


class JobRunner:
    """Starts jobs; see Runner.

    Args:
        runner: of commands.
        results: where what they print is kept; None = nowhere.
        number_of: returns the number of a task in the input, by its id; 0 = unknown.
    """

    def __init__(self, runner: Runner, results: ResultFolder | None, number_of: Callable[[str], int]) -> None:
        self._runner = runner
        self._results = results
        self._number_of = number_of
        self._free: list[int] = []
        self._next = itertools.count(1)

    async def start(self, task: Task, delivery: Delivery, *, deadline: Deadline, keeper: LeaseKeeper) -> Running:
        """Start a job in the first slot that is free; raises StartFailed."""
        if self._results is not None:
            self._results.begin(task.id, folder_of(self._number_of(task.id), task.id))
        slot = heapq.heappop(self._free) if self._free else next(self._next)
        try:
            running = await self._runner.start(_in_slot(task, slot), delivery, deadline=deadline, keeper=keeper)
        except BaseException:
            heapq.heappush(self._free, slot)
            if self._results is not None:
                await self._results.written(task.id)
            raise
        return _RunningJob(running, self._results, task.id, lambda: heapq.heappush(self._free, slot))


class _RunningJob:
    """One started job; see Running."""

    def __init__(self, running: Running, results: ResultFolder | None, id_: str, on_close: Callable[[], None]) -> None:
        self.checkpoints = getattr(running, "checkpoints", None)
        self._running = running
        self._results = results
        self._id = id_
        self._on_close: Callable[[], None] | None = on_close

    async def exited(self) -> None:
        await self._running.exited()

    def has_exited(self) -> bool:
        return self._running.has_exited()

    async def ended(self) -> Outcome:
        outcome = await self._running.ended()
        if self._results is not None:
            await self._results.written(self._id)
        return outcome

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


def _in_slot(task: Task, slot: int) -> Task:
    env = {**task.env, SLOT: str(slot)}
    places = env.pop(SLOT_PLACES, None)
    if places is None or task.argv is None:
        return task.copied({"env": env})
    return task.copied({"env": env, "argv": tuple(with_slot(task.argv, places, slot))})


def folder_of(number: int, id_: str) -> str:
    """Return the name of the folder of a job's results, which a resumed run finds again without the input.

    Args:
        number: of the job in the input; 0 = unknown.
        id_: of its task: one that the input has brought is its name, apart from all numbers.
    """
    return str(number) if number and line_of(id_) == number else f"id={id_}"


def meta_of(task: Task, attempt: int, number: int, outcome: Outcome) -> dict[str, Any]:
    """Return what a job's meta.json says.

    Args:
        task: what ran.
        attempt: the number of its last attempt.
        number: of the job in the input; 0 = unknown.
        outcome: of that attempt.
    """
    words = with_slot(task.argv or (), task.env.get(SLOT_PLACES, ""), "{%}")
    ran = {"command": task.command} if task.command is not None else {"argv": words}
    return {
        "number": number or None, "id": task.id, **ran, "attempt": attempt, "outcome": outcome.kind.value,
        "exit_code": outcome.exit_code, "signal": outcome.signal, "detail": outcome.detail,
        "ended": round(time.time(), 3), "seconds": round(outcome.duration, 3),
    }  # fmt: skip
