"""Ctrl-C and SIGTERM for a command that has to say what it has done: they cancel its work, which then says it.

SIGTERM is what service managers, `timeout` and `kill` send; it ends such a command as Ctrl-C does, with its own exit
code (architecture 12).
"""

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Final

_GIVEN_UP_AFTER: Final = 3  # the first ends the work, the second what still has to end; then it is over


class Interrupted(Exception):
    """The command was asked to end.

    Args:
        message: what is done and what is in doubt; may be empty.
        ids: of tasks in doubt.
    """

    def __init__(self, message: str = "", ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.ids = tuple(ids)
        self.exit_code = 128 + signal.SIGINT


class InterruptHeard:
    """The first signal that asked for the end; None = none did."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.count = 0

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        return 128 + (self.signal or signal.SIGINT)


@contextmanager
def heard() -> Iterator[InterruptHeard]:
    """Cancel the task that enters this at SIGINT and SIGTERM; what is ignored stays ignored, as in `nohup`."""
    found = InterruptHeard()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def on_signal(number: int, _frame: FrameType | None) -> None:
        found.signal = found.signal or signal.Signals(number)
        found.count += 1
        if found.count >= _GIVEN_UP_AFTER:  # the loop itself is blocked, or somebody is out of patience
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(task.cancel)

    with ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                signal.signal(number, on_signal)
                stack.callback(signal.signal, number, before)
        yield found
