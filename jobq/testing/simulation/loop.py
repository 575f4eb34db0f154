"""An event loop on virtual time whose callbacks belong to nodes: one can be paused, killed, or have clocks of its own.

Every callback carries the context that it was made in, and the context names the node. So the loop knows whose callback
it is about to run without any help of the code that runs on it.
"""

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final

from jobq.clock import SLICE_SECONDS

NODE: Final[ContextVar["Node"]] = ContextVar("node")
_GRAIN_SECONDS: Final = 1e-7  # by which a timer may fire early: clocks that run at other rates do not round alike
_ROUNDING_SECONDS: Final = 1e-9  # more than one step of a boottime of years


class Machine:
    """The clocks of one machine; a `jobq.clock.Clock`.

    Args:
        loop: whose time is the true one.
        name: in the trace.
        rate: seconds of CLOCK_BOOTTIME that pass in a true one.
        boottime: seconds since boot at the start.

    Attributes:
        on_jump: called when one of its clocks has jumped or stood still, by whom.
    """

    def __init__(self, loop: "Loop", name: str, rate: float = 1.0, boottime: float = 1000.0) -> None:
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


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Node:
    """A process: what runs on the loop in its context is its code. Pauses of several causes add up."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine, self.name = machine, name
        self.pauses = 0
        self.dead = False
        self.waiting: deque[Handle] = deque()  # what fell due while it was paused
        self.tasks: list[asyncio.Task[Any]] = []
        self.signal_handlers: dict[int, Handle] = {}
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


class Handle:
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
        """Tell whether it will not run."""
        return self.is_canceled

    def when(self) -> float:
        """Return when it is due."""
        return self.due or 0.0


class _Future(asyncio.Future[Any]):
    """Its hash is no address: sets of futures are walked in the same order in every process."""

    def __init__(self, *, loop: "Loop") -> None:
        super().__init__(loop=loop)
        self._number = loop.next_number()

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    """As `_Future`; asked for its hash before it is initialised."""

    _number = 0

    def __hash__(self) -> int:
        if not self._number:
            loop = self.get_loop()
            assert isinstance(loop, Loop)
            self._number = loop.next_number()
        return self._number


class Loop(asyncio.BaseEventLoop):
    """Runs one callback a step; time moves on only when nothing is ready.

    Attributes:
        now: true seconds since the start.
        steps: callbacks that were run.
        readers: what is called when something is readable, by the object that was registered.
        before_time_moves: called when all callbacks of an instant have run.
        on_error: given what asyncio would log.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_debug(False)
        self.now = 0.0
        self.steps = 0
        self.readers: dict[Any, Handle] = {}
        self.before_time_moves: Callable[[], None] = lambda: None
        self.on_error: Callable[[dict[str, Any]], None] = lambda _context: None
        self.is_over = False
        self._numbers = 0
        self._sequence = 0
        self._due_now: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []

    def next_number(self) -> int:
        """Return a number that was not given before."""
        self._numbers += 1
        return self._numbers

    # What asyncio asks of a loop

    def time(self) -> float:
        """Return the monotonic time of whose code asks."""
        node = NODE.get(None)
        return self.now if node is None else node.machine.monotonic()

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        """See asyncio."""
        handle = Handle(callback, args, context or copy_context())
        if not self.is_over:
            self._due_now.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        """See asyncio."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        """See asyncio."""
        handle = Handle(callback, args, context or copy_context(), when)
        self._arm(handle)
        return handle

    def create_future(self) -> _Future:
        """See asyncio."""
        return _Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> _Task:  # type: ignore[override]
        """See asyncio. The tasks of a killed node are kept: what their destructors would run is not run."""
        task = _Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - asyncio's own switch for it
        node = NODE.get(None) if context is None else context.get(NODE)
        if node is not None:
            if len(node.tasks) > 200:
                node.tasks = [each for each in node.tasks if not each.done()]
            node.tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """See asyncio."""
        if not self.is_over:
            self.on_error(context)

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """See asyncio; `fd` is any object, and who makes it readable calls `fire`."""
        self.readers[fd] = handle = Handle(callback, args, copy_context())
        self._due_now.append(Handle(callback, args, handle.context))  # what has come before is there to be read

    def remove_reader(self, fd: Any) -> bool:
        """See asyncio."""
        return self.readers.pop(fd, None) is not None

    def add_writer(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Nothing here ever waits to be written."""

    def remove_writer(self, fd: Any) -> bool:  # noqa: ARG002 - asyncio's signature
        """See `add_writer`."""
        return False

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Have it called when the node gets the signal."""
        NODE.get().signal_handlers[sig] = Handle(callback, args, copy_context())

    def remove_signal_handler(self, sig: int) -> bool:
        """See asyncio."""
        return NODE.get().signal_handlers.pop(sig, None) is not None

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """See asyncio; nothing is counted here."""

    # What the simulation asks of it

    def fire(self, registered: Handle | None) -> None:
        """Run what was registered for a reader or a signal: next, as a real loop looks there before at its timers."""
        if registered is not None and not self.is_over:
            self._due_now.appendleft(Handle(registered.callback, registered.args, registered.context))

    def true_later(self, delay: float, node: Node | None, callback: Any, *args: Any) -> Handle:
        """Call after so many true seconds, as code of a node."""
        handle = Handle(callback, args, copy_context() if node is None else node.context)
        self._push(self.now + max(0.0, delay), handle)
        return handle

    def again(self, handle: Handle) -> None:
        """Run what fell due while its node was paused; later, if its clock has stood still meanwhile."""
        if handle.due is not None and handle.due - self._time_of(handle) > _GRAIN_SECONDS:
            self._arm(handle)
        else:
            self._due_now.append(handle)

    def run_while(self, goes_on: Callable[[], bool], most_steps: int) -> bool:
        """Run; return False when nothing is left to run, or after so many steps in all."""
        events._set_running_loop(self)  # noqa: SLF001 - as asyncio's own loops do
        try:
            while goes_on():
                if not self._run_what_is_due(most_steps) or not self._advance():
                    return False
            return True
        finally:
            events._set_running_loop(None)  # noqa: SLF001

    def finish(self) -> None:
        """Let nothing that is still pending run any more."""
        self.is_over = True
        self._due_now.clear()
        self._timers.clear()

    def _run_what_is_due(self, most_steps: int) -> bool:
        due = self._due_now
        while due:
            handle = due.popleft()
            node = handle.node
            if handle.is_canceled or (node is not None and node.dead):
                continue
            if node is not None and node.pauses:
                node.waiting.append(handle)
                continue
            self.steps += 1
            if self.steps > most_steps:
                return False
            try:
                handle.context.run(handle.callback, *handle.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio's own loops do
                self.call_exception_handler({"message": "a callback failed", "exception": error})
        return True

    def _advance(self) -> bool:
        self.before_time_moves()
        timers = self._timers
        while timers and timers[0][2].is_canceled:
            heapq.heappop(timers)
        if not timers:
            return False
        self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            handle = heapq.heappop(timers)[2]
            if handle.is_canceled:
                continue
            if handle.node is not None and handle.node.pauses:
                handle.node.waiting.append(handle)
            else:
                self.again(handle)
        return True

    def _time_of(self, handle: Handle) -> float:
        return self.now if handle.node is None else handle.node.machine.monotonic()

    def _arm(self, handle: Handle) -> None:
        due = handle.due or 0.0
        self._push(due if handle.node is None else handle.node.machine.true_at_monotonic(due), handle)

    def _push(self, when: float, handle: Handle) -> None:
        self._sequence += 1
        heapq.heappush(self._timers, (max(when, self.now), self._sequence, handle))
