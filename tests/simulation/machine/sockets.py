"""A simulated pair of stream sockets between worker and guardian, in the place of two `socket.socket`."""

import array
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Any


class End:
    """One end of a pair.

    Args:
        number: what `fileno` returns.
        on_news: called when there is something to read, or the other end is closed.
        tap: given each frame that is sent.

    Attributes:
        other: the other end.
        is_closed: whether its holder has let go of it, or has died.
    """

    def __init__(
        self, number: int, on_news: Callable[[], None], tap: Callable[[bytes], None] = lambda _frame: None
    ) -> None:
        self.number = number
        self.other: End
        self.is_closed = False
        self._on_news, self._tap = on_news, tap
        self._unread: deque[tuple[bytes, int]] = deque()  # what came, and with how many descriptors

    def ready(self) -> int:
        """Return what `poll` returns."""
        found = select.POLLOUT
        if self._unread:
            found |= select.POLLIN
        if self.other.is_closed:
            found |= select.POLLIN | select.POLLHUP
        return found

    # What is asked of a socket

    def fileno(self) -> int:
        """See `socket.socket`."""
        return -1 if self.is_closed else self.number

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def recvmsg(self, size: int, *_: int) -> tuple[bytes, list[Any], int, None]:
        """Return what has come, up to the next that came with descriptors; nothing = the end."""
        unread = self._unread
        if not unread:
            if self.other.is_closed or self.is_closed:
                return b"", [], 0, None
            raise BlockingIOError
        data, count = unread.popleft()
        while unread and not unread[0][1]:
            data += unread.popleft()[0]
        if not count:
            return data, [], 0, None
        given = array.array("i", [os.dup(1) for _ in range(count)])  # real ones, since they are really closed
        return data, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given.tobytes())], 0, None

    def sendmsg(self, buffers: list[memoryview], ancillary: Any = (), *_: object) -> int:
        """Send one frame."""
        if self.other.is_closed:
            raise BrokenPipeError
        frame = bytes(buffers[0])
        self._tap(frame)
        self.other._unread.append((frame, sum(len(each) for _, _, each in ancillary)))
        self.other._on_news()
        return len(frame)

    def shutdown(self, how: int) -> None:
        """End the stream."""
        self.close()

    def close(self) -> None:
        """See `socket.socket`."""
        if not self.is_closed:
            self.is_closed = True
            self.other._on_news()


def pair(one: End, other: End) -> None:
    """Connect two ends."""
    one.other, other.other = other, one
