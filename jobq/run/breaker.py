"""The breaker: failures of different tasks in a row blame the machine, not the tasks (DESIGN section 11).

A task that failed is not settled at once: its lease is kept a little, so that, should the breaker trip, it goes back
with its budgets whole. The wait is part of its backoff and costs it nothing.
"""

import asyncio
from typing import Final

HOLD_SECONDS: Final = 30.0  # the longest that a failed task waits for the verdict on the machine


class Breaker:
    """Counts failures of different tasks in a row.

    Args:
        limit: how many trip it; 0 = never.
    """

    def __init__(self, limit: int) -> None:
        self.tripped = asyncio.Event()
        self._limit = limit
        self._streak: dict[str, asyncio.Future[bool]] = {}
        self._nothing_to_compare = False

    async def blames_machine(self, task_id: str) -> bool:
        """Count a failure; return, once it is known, whether the machine is to blame and the task keeps its budgets."""
        if self._limit == 0:
            return False
        if self.tripped.is_set():
            return True
        before = self._streak.pop(task_id, None)
        if before is not None and not before.done():
            before.set_result(False)
        verdict: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._streak[task_id] = verdict
        if len(self._streak) >= self._limit:
            self.tripped.set()
            self._tell(blamed=True)
        elif self._nothing_to_compare:
            self._tell(blamed=False)
        try:
            return await asyncio.wait_for(asyncio.shield(verdict), HOLD_SECONDS)
        except TimeoutError:
            if not verdict.done():
                verdict.set_result(False)
            return False

    def succeeded(self) -> None:
        """End the streak: a task succeeded here."""
        self._tell(blamed=False)
        self._streak.clear()

    def queue_is_empty(self, *, empty: bool) -> None:
        """Let failed tasks go while no other task is there to clear or blame the machine; the streak goes on."""
        self._nothing_to_compare = empty
        if empty:
            self._tell(blamed=False)

    def _tell(self, *, blamed: bool) -> None:
        for verdict in self._streak.values():
            if not verdict.done():
                verdict.set_result(blamed)
