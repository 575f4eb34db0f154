"""A machine with clocks of its own, its processes as the loop knows them, and the handles of their callbacks."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, Protocol

from jobq.clock import SLICE_SECONDS

NODE: Final[ContextVar["Node"]] = ContextVar("node")
_ROUNDING_SECONDS: Final = 1e-9  # more than one step of a boottime of years


class _Loop(Protocol):
    now: float

    def create_future(self) -> asyncio.Future[Any]: ...
    def call_at(self, when: float, callback: Any, *args: Any) -> "LoopHandle": ...
    def true_later(self, delay: float, node: "Node | None", callback: Any, *args: Any) -> "LoopHandle": ...
    def again(self, handle: "LoopHandle") -> None: ...
    def fire(self, registered: "LoopHandle | None") -> None: ...


class Machine:
    """The clocks of one machine: they run at a rate of their own, stand still, jump, are set. A `jobq.clock.Clock`.

    Args:
        loop: whose time is the true one.
        name: in the trace.
        rate: seconds of CLOCK_BOOTTIME that pass in a true one.
        boottime: seconds since boot at the start.

    Attributes:
        on_jump: called when one of its clocks has jumped or stood still, by whom.
        is_stores: as of `jobq.clock.SystemClock`: `boottime` then stands in a suspend, too.
    """

    is_stores = False

    def __init__(self, loop: _Loop, name: str, rate: float = 1.0, boottime: float = 1000.0) -> None:
        self.loop, self.name, self.rate = loop, name, rate
        self._since, self._base = loop.now, boottime
        self.wall_ahead = 1_700_000_000.0 - boottime
        self._lost: list[tuple[float, float]] = []  # when it had stood still, and for how long
        self._suspended = 0.0  # seconds that CLOCK_MONOTONIC is behind for suspends
        self._sleepers: dict[asyncio.Future[None], Node] = {}
        self.on_jump: dict[object, Callable[[], None]] = {}

    def boottime(self) -> float:
        """Return seconds since boot."""
        return self._base + (self.loop.now - self._since) * self.rate

    def boottime_at(self, true: float) -> float:
        """Return its boottime at a true time."""
        return self._base + (true - self._since) * self.rate

    def true_at(self, boottime: float) -> float:
        """Return the true time of its boottime."""
        return self._since + (boottime - self._base) / self.rate

    def monotonic(self) -> float:
        """Return CLOCK_MONOTONIC, by which asyncio waits: it stands while the machine is suspended."""
        return self._base + (self.loop.now - self._since) * self.rate - self._suspended

    def true_at_monotonic(self, monotonic: float) -> float:
        """Return the true time of its CLOCK_MONOTONIC, unless it is suspended before."""
        return self.true_at(monotonic + self._suspended)

    def was_suspended(self, seconds: float) -> None:
        """Take in that it was suspended for so many true seconds, which its boottime has counted."""
        self._suspended += seconds * self.rate
        self._jumped()
        for woken, node in self._sleepers.items():  # as `SystemClock` does, which sleeps in slices
            self.loop.true_later(SLICE_SECONDS, node, _wake, woken)

    def monotonic_at(self, boottime: float) -> float:
        """Return its CLOCK_MONOTONIC at a boottime, unless it is suspended before."""
        return boottime - self._suspended

    def wall(self) -> float:
        """Return seconds since the epoch."""
        return self.boottime() + self.wall_ahead

    def lose_time(self, seconds: float) -> None:
        """Take in that the host froze it: its boottime stood still so long, and its wall clock is set right now."""
        self._since += seconds
        self.wall_ahead += seconds * self.rate
        self._lost.append((self.loop.now, seconds))
        self._jumped()

    def step_wall(self, seconds: float) -> None:
        """Take in that somebody set its wall clock."""
        self.wall_ahead += seconds
        self._jumped()

    def _jumped(self) -> None:
        for look in self.on_jump.values():
            look()

    def lost_since(self, true: float, most: float) -> float:
        """Return for how long it has stood still since then, without what was longer than `most` seconds at once."""
        return sum(seconds for thawed, seconds in self._lost if thawed >= true and seconds <= most)

    async def sleep_until(self, boottime: float) -> None:
        """Return once `boottime()` has reached the given value."""
        if boottime <= self.boottime():
            await asyncio.sleep(0)
        while boottime > self.boottime():
            woken = self.loop.create_future()
            self._sleepers[woken] = NODE.get()
            timer = self.loop.call_at(self.monotonic_at(boottime) + _ROUNDING_SECONDS, _wake, woken)
            try:
                await woken
            finally:
                timer.cancel()
                del self._sleepers[woken]


class StoreMachine(Machine):
    """A machine whose own file is the store: it and all workers are there, and stand still together (rule 12)."""

    is_stores = True
    _stands_since: float | None = None  # true time

    def stand(self) -> None:
        """Stand still until `lose_time`."""
        self._stands_since = self.loop.now

    def boottime(self) -> float:
        """As of `Machine`."""
        return super().boottime() if self._stands_since is None else self.boottime_at(self._stands_since)

    def lose_time(self, seconds: float) -> None:
        """As of `Machine`."""
        self._stands_since = None
        super().lose_time(seconds)


class Node:
    """A process: what runs on the loop in its context is its code. Pauses of several causes add up."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine, self.name = machine, name
        self.pauses = 0
        self.dead = False
        self.waiting: deque[LoopHandle] = deque()  # what fell due while it was paused
        self.tasks: list[asyncio.Task[Any]] = []
        self.signal_handlers: dict[int, LoopHandle] = {}
        self.context = copy_context()
        self.context.run(NODE.set, self)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function as code of this node, now."""
        return self.context.copy().run(function, *args)

    def pause(self) -> None:
        """Stop it, as by SIGSTOP."""
        self.pauses += 1

    def resume(self) -> None:
        """Undo one `pause`."""
        self.pauses -= 1
        if not self.pauses and not self.dead:
            waiting, self.waiting = self.waiting, deque()
            for handle in waiting:
                self.machine.loop.again(handle)

    def kill(self) -> None:
        """End it, as by SIGKILL: no callback of it runs any more, no `finally` either."""
        self.dead = True
        self.waiting.clear()


class LoopHandle:
    """What asyncio calls a handle; knows its node. `due` is its machine's monotonic time; None = true time."""

    __slots__ = ("args", "callback", "context", "due", "is_canceled", "node")

    def __init__(self, callback: Any, args: Any, context: Context, due: float | None = None) -> None:
        self.callback, self.args, self.context, self.due = callback, args, context, due
        self.node = context.get(NODE)
        self.is_canceled = False

    def cancel(self) -> None:
        """Do not run it."""
        self.is_canceled = True
        self.callback = self.args = None

    def cancelled(self) -> bool:
        """Return whether it will not run."""
        return self.is_canceled

    def when(self) -> float:
        """Return when it is due."""
        return self.due or 0.0


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
