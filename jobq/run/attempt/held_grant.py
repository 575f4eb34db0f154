"""What one attempt holds of what its worker offers: free once it is over, and nothing of its tree lives."""

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from jobq.clock import Clock
from jobq.flag import Flag
from jobq.racing import first_of
from jobq.resources.request import Resources
from jobq.task import Task

if TYPE_CHECKING:
    from jobq.resources.grants import ResourceGrant

_log: Final = logging.getLogger(__name__)


class HeldGrant:
    """What one attempt holds, or waits for.

    Args:
        task: whose.
        asked: what it takes.
        forget: called once, when it holds nothing any more.

    Attributes:
        grant: None = there was no room yet.
        settled: set when it is granted, or is not waited for any more.
    """

    def __init__(self, task: Task, asked: Resources, forget: Callable[["HeldGrant"], None]) -> None:
        self.task = task
        self.asked = asked
        self.grant: ResourceGrant | None = None
        self.settled = Flag()
        self.is_over = False
        self._until = math.inf  # boottime in seconds
        self._moved = Flag()
        self._forget = forget
        self._trees = 0

    def wait_until(self, boottime: float) -> None:
        """Note by when it is to have room, in seconds; never later than was said before."""
        self._until = min(self._until, boottime)
        self._moved.set()

    async def waited(self, clock: Clock) -> None:
        """Wait until it is settled, or has waited for as long as it may."""
        while not self.settled.is_set() and clock.boottime() < self._until:
            self._moved.clear()
            await first_of(self.settled.future(), self._moved.future(), clock.sleep_until(self._until))

    def launching(self) -> Callable[[], None]:
        """Note that a process is about to be started; return what is called once its tree is surely gone."""
        self._trees += 1
        return self._is_gone

    def over(self) -> None:
        """Note that the attempt is over; what it holds is free now, or once nothing of it lives."""
        self.is_over = True
        self.settled.set()
        if self._trees and self.grant is not None and self.grant.gpus:
            _log.warning(
                "task %s is over, and something of it may live: its GPUs are withheld until nothing does", self.task.id
            )
        self._look()

    def _is_gone(self) -> None:
        self._trees -= 1
        self._look()

    def _look(self) -> None:
        if self.is_over and not self._trees:
            self._forget(self)
