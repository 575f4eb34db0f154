"""Ctrl-C and SIGTERM for a command that has to say what it has done: they cancel its work, which then says it.

SIGTERM is what service managers, `timeout` and `kill` send; it ends such a command as Ctrl-C does, with its own exit
code (architecture 12).
"""

import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Final, TypeVar

from jobq.errors import JobqError, PushUnknown

T = TypeVar("T")
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
        self._count = 0

    def hear(self, number: int) -> None:
        """Note a signal; the third raises KeyboardInterrupt: something is blocked, or somebody is out of patience."""
        self.signal = self.signal or signal.Signals(number)
        self._count += 1
        if self._count >= _GIVEN_UP_AFTER:
            raise KeyboardInterrupt

    def interrupted(self, message: str = "", ids: Sequence[str] = ()) -> Interrupted:
        """Return what to raise, with the signal's exit code."""
        error = Interrupted(message, ids)
        error.exit_code = self.exit_code
        return error

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        return 128 + (self.signal or signal.SIGINT)


@contextmanager
def heard() -> Iterator[InterruptHeard]:
    """Cancel the task that enters this at SIGINT and SIGTERM; what is ignored stays ignored, as in `nohup`."""
    import asyncio  # noqa: PLC0415 - short commands start without it

    found = InterruptHeard()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def on_signal(number: int, _frame: FrameType | None) -> None:
        found.hear(number)
        loop.call_soon_threadsafe(task.cancel)

    with _handled(on_signal):
        yield found


async def or_interrupted(work: Awaitable[T]) -> T:
    """Await it; raises `Interrupted` where a signal cancelled it, as the work may do, with what it has to say."""
    import asyncio  # noqa: PLC0415 - as above

    with heard() as end:
        try:
            return await work
        except Interrupted as interrupted:
            interrupted.exit_code = end.exit_code
            raise
        except asyncio.CancelledError:
            if end.signal is None:
                raise
            raise end.interrupted() from None


def is_cancellation(error: BaseException) -> bool:
    """Return whether this is asyncio's, for what may run without it."""
    import asyncio  # noqa: PLC0415 - as above

    return isinstance(error, asyncio.CancelledError)


@contextmanager
def put_off() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait for what takes seconds at most, and says what it has done; the third ends it.

    Raises:
        Interrupted: it failed after one, and this is why.
    """
    found = InterruptHeard()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        found.hear(number)

    with _handled(on_signal):
        try:
            yield
        except JobqError as error:
            if found.signal is None:
                raise
            message = "; ".join([str(error), *getattr(error, "__notes__", [])])
            raise found.interrupted(message, error.ids if isinstance(error, PushUnknown) else ()) from error


@contextmanager
def _handled(on_signal: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    with ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                signal.signal(number, on_signal)
                stack.callback(signal.signal, number, before)
        yield
