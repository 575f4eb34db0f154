"""A process as the loop knows it, and the handles of its callbacks."""

from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio

    from jobq.testing.simulation.machine.clocks import Machine

NODE: Final[ContextVar["Node"]] = ContextVar("node")


class Node:
    """A process: what runs on the loop in its context is its code. Pauses of several causes add up."""

    def __init__(self, machine: "Machine", name: str) -> None:
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
        """Return whether it will not run."""
        return self.is_canceled

    def when(self) -> float:
        """Return when it is due."""
        return self.due or 0.0
