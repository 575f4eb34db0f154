"""Finds what a dead guardian left behind, by the worker's id in its environment (architecture 6).

A process that scrubbed its environment is not found: the stated gap.
"""

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

WORKER_ID_VARIABLE: Final = "JOBQ_WORKER_ID"
SECONDS: Final = 1.0
_PASSES_WITHOUT: Final = 2  # one may miss what was forked behind its back
_PAUSE_SECONDS: Final = 0.005
LOOKS_WITHOUT: Final = 50
_LOOK_BACK: Final = 6


class SurvivorPipe:
    """Watches for the guardian's death on a thread, so that a blocked event loop does not delay the kill (rule 7).

    Args:
        connection: the socket to the guardian; watched through a descriptor of its own.
        kill: kills what a dead guardian has left of its tasks.
        on_lost: called on that thread once the guardian is gone and all that was left of its tasks is killed.
    """

    def __init__(
        self, connection: socket.socket, kill: Callable[[], object], on_lost: Callable[[], None] | None
    ) -> None:
        self._socket = connection.dup()
        self._kill = kill
        self._on_lost = on_lost
        self._is_wanted = True
        self._thread = threading.Thread(target=self._watch, name="jobq guardian lifeline", daemon=True)
        self._thread.start()

    def let_go(self) -> None:
        """End the watch and the connection; the guardian, if it still lives, kills what it guards and ends."""
        self._is_wanted = False
        with contextlib.suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def join(self) -> None:
        """Wait, once the guardian is gone, until all that was left of its tasks is killed."""
        self._thread.join()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._socket, 0)  # POLLHUP alone: it is the loop that reads
        poll.poll()
        self._socket.close()
        if self._is_wanted:
            self._kill()
            if self._on_lost is not None:
                self._on_lost()


def kill_all_of(worker_id: str, seconds: float = SECONDS) -> int:
    """Kill every process that carries this worker's id, until none is found or the time is over; return how many.

    Args:
        worker_id: the value of JOBQ_WORKER_ID, random, of this worker alone.
        seconds: how long to look; what is killed may have forked meanwhile.
    """
    mark = f"{WORKER_ID_VARIABLE}={worker_id}".encode("ascii", "surrogateescape")
    end = time.monotonic() + seconds
    killed = passes_without = 0
    while passes_without < _PASSES_WITHOUT and time.monotonic() < end:
        found = _kill_once(mark)
        killed += found
        passes_without = 0 if found else passes_without + 1
        if not found:
            time.sleep(_PAUSE_SECONDS)  # a thread of the worker: its event loop wants to run too
    return killed + _hunt(mark, end)


def _hunt(mark: bytes, end: float) -> int:
    """Look at the newest processes alone: what forks and ends again and again moves on faster than /proc is read."""
    killed = looks_without = 0
    while looks_without < LOOKS_WITHOUT and time.monotonic() < end:
        found = sum(_kill_if_marked(number, mark) for number in newest_numbers())
        killed += found
        looks_without = 0 if found else looks_without + 1
    return killed


def newest_numbers() -> range:
    """Return the numbers of what may just have been forked, newest first."""
    newest = int(Path("/proc/loadavg").read_text(encoding="ascii").split()[-1])
    return range(newest + 2, max(newest - _LOOK_BACK, 1), -1)


def _kill_once(mark: bytes) -> int:
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - plain names, and quicker
    return sum(_kill_if_marked(number, mark) for number in numbers if _carries(number, mark))


def _kill_if_marked(number: int, mark: bytes) -> bool:
    try:
        pidfd = os.pidfd_open(number)
    except OSError:  # no such process, or it has ended meanwhile
        return False
    try:
        if not _carries(number, mark):  # the handle is open: the number now names what is looked at (P4)
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:  # ended meanwhile, or another user's
        return False
    finally:
        os.close(pidfd)
    return True


def _carries(number: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or another user's
        return False
