"""An event loop on virtual time whose callbacks belong to nodes: one can be paused, killed, or have clocks of its own.

Every callback carries the context that it was made in, and the context names the node. So the loop knows whose callback
it is about to run without any help of the code that runs on it.
"""

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Final

from tests.simulation.machine.node import NODE, LoopHandle, Machine, Node, StoreMachine

_GRAIN_SECONDS: Final = 1e-7  # by which a timer may fire early: clocks that run at other rates do not round alike

__all__ = ["NODE", "Loop", "LoopHandle", "Machine", "Node", "StoreMachine"]


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
        self.readers: dict[Any, LoopHandle] = {}
        self.before_time_moves: Callable[[], None] = lambda: None
        self.on_error: Callable[[dict[str, Any]], None] = lambda _context: None
        self.is_over = False
        self._numbers = 0
        self._sequence = 0
        self._due_now: deque[LoopHandle] = deque()
        self._timers: list[tuple[float, int, LoopHandle]] = []

    def next_number(self) -> int:
        """Return a number that was not given before."""
        self._numbers += 1
        return self._numbers

    # What asyncio asks of a loop

    def time(self) -> float:
        """Return the monotonic time of whose code asks."""
        node = NODE.get(None)
        return self.now if node is None else node.machine.monotonic()

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> LoopHandle:  # type: ignore[override]
        """See asyncio."""
        handle = LoopHandle(callback, args, context or copy_context())
        if not self.is_over:
            self._due_now.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> LoopHandle:  # type: ignore[override]
        """See asyncio."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> LoopHandle:  # type: ignore[override]
        """See asyncio."""
        handle = LoopHandle(callback, args, context or copy_context(), when)
        self._arm(handle)
        return handle

    def create_future(self) -> _Future:
        """See asyncio."""
        return _Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> _Task:  # type: ignore[override]
        """See asyncio. The tasks of a killed node are kept: what their destructors would run is not run."""
        task = _Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
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
        self.readers[fd] = handle = LoopHandle(callback, args, copy_context())
        self._due_now.append(LoopHandle(callback, args, handle.context))  # what has come before is there to be read

    def remove_reader(self, fd: Any) -> bool:
        """See asyncio."""
        return self.readers.pop(fd, None) is not None

    def add_writer(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Nothing here ever waits to be written."""

    def remove_writer(self, fd: Any) -> bool:
        """See `add_writer`."""
        return False

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Have it called when the node gets the signal."""
        NODE.get().signal_handlers[sig] = LoopHandle(callback, args, copy_context())

    def remove_signal_handler(self, sig: int) -> bool:
        """See asyncio."""
        return NODE.get().signal_handlers.pop(sig, None) is not None

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """See asyncio; nothing is counted here."""

    # What the simulation asks of it

    def fire(self, registered: LoopHandle | None) -> None:
        """Run what was registered for a reader or a signal: next, as a real loop looks there before at its timers."""
        if registered is not None and not self.is_over:
            self._due_now.appendleft(LoopHandle(registered.callback, registered.args, registered.context))

    def true_later(self, delay: float, node: Node | None, callback: Any, *args: Any) -> LoopHandle:
        """Call after so many true seconds, as code of a node."""
        handle = LoopHandle(callback, args, copy_context() if node is None else node.context)
        self._push(self.now + max(0.0, delay), handle)
        return handle

    def again(self, handle: LoopHandle) -> None:
        """Run what fell due while its node was paused; later, if its clock has stood still meanwhile."""
        if handle.due is not None and handle.due - self._time_of(handle) > _GRAIN_SECONDS:
            self._arm(handle)
        else:
            self._due_now.append(handle)

    def run_while(self, goes_on: Callable[[], bool], most_steps: int) -> bool:
        """Run; return False when nothing is left to run, or after so many steps in all."""
        events._set_running_loop(self)
        try:
            while goes_on():
                if not self._run_what_is_due(most_steps) or not self._advance():
                    return False
            return True
        finally:
            events._set_running_loop(None)

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

    def _time_of(self, handle: LoopHandle) -> float:
        return self.now if handle.node is None else handle.node.machine.monotonic()

    def _arm(self, handle: LoopHandle) -> None:
        due = handle.due or 0.0
        self._push(due if handle.node is None else handle.node.machine.true_at_monotonic(due), handle)

    def _push(self, when: float, handle: LoopHandle) -> None:
        self._sequence += 1
        heapq.heappush(self._timers, (max(when, self.now), self._sequence, handle))
