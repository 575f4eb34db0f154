"""A Ctrl-Z waits for the end of a transaction: who is stopped within one keeps the file's only write lock (S11).

All workers of the file would lose their leases, one after the other, until somebody continues or ends what is stopped.
SIGSTOP cannot be put off; nor can the freezer of a container.
"""

import os
import signal
import threading
import time
import weakref
from types import FrameType
from typing import Final

_PATIENCE_SECONDS: Final = 5.0  # for transactions that run on other threads; none takes that long
_STOP: Final = frozenset({signal.SIGTSTP})
_threaded: Final[weakref.WeakSet["Undisturbed"]] = weakref.WeakSet()


class Undisturbed:
    """What runs within this on a thread is not stopped by Ctrl-Z; that acts at its end.

    The kernel holds the signal back for as long as the thread that does the work blocks it, if that is the only one. A
    process with more of them needs `watch` as well.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._mask = set[int | signal.Signals]()

    def begin(self) -> None:
        """From here on."""
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
        self.lock.acquire()

    def end(self) -> None:
        """What came meanwhile acts now."""
        self.lock.release()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()


def watch(work: Undisturbed) -> None:
    """Have Ctrl-Z wait for this work on another thread too; called on the main one, else it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:  # who handles or ignores it knows why
        signal.signal(signal.SIGTSTP, _stop)
    _threaded.add(work)


def forget(work: Undisturbed) -> None:
    """Watch it no more; with the last one the signal is as it was."""
    _threaded.discard(work)
    is_main = threading.current_thread() is threading.main_thread()
    if not _threaded and is_main and signal.getsignal(signal.SIGTSTP) is _stop:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def _stop(number: int, frame: FrameType | None) -> None:
    """Stop this process once no transaction runs; returns when it is continued."""
    del frame
    give_up = time.monotonic() + _PATIENCE_SECONDS
    held = [work.lock for work in _threaded if work.lock.acquire(timeout=max(0.0, give_up - time.monotonic()))]
    try:
        signal.signal(number, signal.SIG_DFL)  # whether it stops anybody is the kernel's to say: not an orphaned group
        signal.raise_signal(number)
        signal.signal(number, _stop)
    finally:
        for lock in held:
            lock.release()


def _forked() -> None:
    _threaded.clear()  # their threads are the parent's, and so is who would release their locks


os.register_at_fork(after_in_child=_forked)
