"""The breaker: failures of different tasks in a row blame the machine, not the tasks (architecture 6).

It judges first failures alone: a task that has failed before, or was given back too often, pays for itself, so that one
that always fails ends as a dead letter on whatever machines (S7, L1). What succeeded lately speaks for the machine.

A task that cannot be started counts as one that failed. Where a worker has started nothing yet, no task pays for that:
it goes back uncharged, and when it comes again and again, or so many different programs are missing, the worker ends.
One program that is missing in many tasks says more of them than of the machine. What has come back so twenty times
pays: workers that are started again and again must not try it for ever.

A start that fails since the machine is short of something (descriptors, processes, a temporary folder) is charged to no
task. The worker takes nothing for a while, longer each time; when that goes on and nothing runs here, it ends.

A task that failed is not settled at once: its lease is kept a little, so that, should the breaker trip, it goes back
with its retries whole. The wait is part of its backoff and costs it nothing.
"""

import asyncio
from collections import Counter, deque
from typing import Final

from jobq.clock import Clock
from jobq.task import Task

HOLD_SECONDS: Final = 30.0  # the longest that a failed task waits for the verdict on the machine
LATELY_SECONDS: Final = 600.0  # for so long a success speaks for the machine
_MOST_SUCCESSES: Final = 4  # so many times the limit of them count: a machine that breaks is blamed all the same
_MOST_TRIES: Final = 3  # of one task, while others come that may be started
MOST_RESTARTS: Final = 20  # so often what cannot be started goes back at no cost: then no machine has it (S7, L1)
SHORT_SECONDS: Final = 15.0  # of a machine that is short of what a start needs, until its worker ends
_LONGEST_PAUSE: Final = 8.0  # until it looks again
MOST_BLAMES: Final = 3  # so often a task is given back at no cost: then it has failed on several machines


class Breaker:
    """Counts failures of different tasks in a row.

    Args:
        limit: how many trip it where nothing succeeded lately; 0 = never.
        clock: for what is lately.

    Attributes:
        tripped: the machine is to blame.
        failures: how many different tasks said so.
        cause: what they said, in plain words.
        pause_until: nothing may be taken until then; boottime in seconds.
        shortage: what the machine is short of, in plain words.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        self.tripped = asyncio.Event()
        self.failures = 0
        self.cause = ""
        self._not_started: Counter[str] | None = Counter()  # by the ids of tasks; None = one was started
        self._why_not: set[str] = set()
        self._limit = limit
        self._clock = clock
        self._successes: deque[float] = deque(maxlen=_MOST_SUCCESSES * limit)  # boottime in seconds, oldest first
        self._streak: dict[str, asyncio.Future[bool]] = {}
        self._nothing_to_compare = False
        self._running = 0
        self._pauses = 0
        self._short_since = 0.0
        self.pause_until = 0.0
        self.shortage = ""

    def started(self) -> None:
        """Note that a task was started: another that cannot be pays for itself."""
        self._not_started = None
        self._running += 1
        self._pauses = 0

    def ended(self) -> None:
        """Note that nothing runs any more of a task that was started."""
        self._running -= 1

    def falls_short(self, why: str) -> None:
        """Note that a start failed for want of something of the machine's.

        Args:
            why: in plain words.
        """
        now = self._clock.boottime()
        if self._pauses and now < self.pause_until:
            return  # it was tried together with the one before
        if not self._pauses:
            self._short_since = now
        self.shortage = why
        self.pause_until = now + min(2.0**self._pauses, _LONGEST_PAUSE)
        self._pauses += 1
        if not self._running and now - self._short_since >= SHORT_SECONDS:
            self._trip(self._pauses, f"nothing could be started here for {now - self._short_since:.0f} s: {why}")

    def blames_for_start(self, task: Task, why: str) -> bool:
        """Count a start that failed; return whether the task is to go back uncharged, since nothing was started here.

        Args:
            task: that cannot be started.
            why: in plain words.
        """
        if self._limit == 0 or self._not_started is None or task.counters.given_back >= MOST_RESTARTS:
            return False
        self._not_started[task.id] += 1
        self._why_not.add(why)
        if self._not_started[task.id] >= _MOST_TRIES or len(self._why_not) >= self._limit:
            self._trip(len(self._not_started), f"nothing can be started here, so what was tried goes back: {why}")
        return True

    async def blames_machine(self, task: Task) -> bool:
        """Count a failure; return, once it is known, whether the machine is to blame and the task keeps its retries."""
        if self._limit == 0 or not may_blame(task):
            return False
        if self.tripped.is_set():
            return True
        before = self._streak.pop(task.id, None)
        if before is not None and not before.done():
            before.set_result(False)
        verdict: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._streak[task.id] = verdict
        if len(self._streak) >= self._limit + self._succeeded_lately():
            failures = len(self._streak)
            self._trip(
                failures,
                f"{failures} different tasks, none of which had failed before, failed in a row: this machine is to"
                " blame, and they keep their retries (--max-consecutive-failures; 0 = never)",
            )
            self._report(blamed=True)
        elif self._nothing_to_compare:
            self._report(blamed=False)
        try:
            return await asyncio.wait_for(asyncio.shield(verdict), HOLD_SECONDS)
        except TimeoutError:
            if not verdict.done():
                verdict.set_result(False)
            return False

    def _trip(self, failures: int, cause: str) -> None:
        if not self.tripped.is_set():
            self.failures, self.cause = failures, cause
            self.tripped.set()

    def succeeded(self) -> None:
        """End the streak: a task succeeded here."""
        self._successes.append(self._clock.boottime())
        self._report(blamed=False)
        self._streak.clear()

    def queue_is_empty(self, *, empty: bool) -> None:
        """Let failed tasks go while no other task is there to clear or blame the machine; the streak goes on."""
        self._nothing_to_compare = empty
        if empty:
            self._report(blamed=False)

    def _succeeded_lately(self) -> int:
        while self._successes and self._successes[0] < self._clock.boottime() - LATELY_SECONDS:
            self._successes.popleft()
        return len(self._successes)

    def _report(self, *, blamed: bool) -> None:
        for verdict in self._streak.values():
            if not verdict.done():
                verdict.set_result(blamed)


def may_blame(task: Task) -> bool:
    """Return whether a failure of the task can say anything of this machine."""
    given_back = task.counters.preemptions  # what a blamed machine costs counts among these (S7)
    return task.counters.failures == 0 and given_back < min(MOST_BLAMES, task.budgets.preemptions)
