"""What the guardian owes its watcher: a sign of life; and how it learns that there is no watcher any more."""

import contextlib
import os
import time

TYPE_CHECKING = False  # as in `typing`
if TYPE_CHECKING:
    import select

SECONDS = 0.5  # between two signs


class Heartbeat:
    """The guardian's end of a pipe to the watcher.

    Args:
        descriptor: to write to; -1 = nobody watches.
    """

    def __init__(self, descriptor: int = -1) -> None:
        self._descriptor = descriptor
        self._next = 0.0  # on CLOCK_MONOTONIC
        if descriptor >= 0:
            os.set_blocking(descriptor, False)
            os.set_inheritable(descriptor, False)

    def fileno(self) -> int:
        """Return what to poll."""
        return self._descriptor

    def register(self, poll: "select.poll") -> None:
        """Have the watcher's death, which is an error here, among the events."""
        if self._descriptor >= 0:
            poll.register(self._descriptor, 0)

    def beat(self) -> None:
        """Give a sign of life if one is due; a watcher that is stopped finds as many as the pipe holds."""
        now = time.monotonic()
        if self._descriptor >= 0 and now >= self._next:
            self._next = now + SECONDS
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._descriptor, b".")
