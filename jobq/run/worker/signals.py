"""Signals of the worker, through the event loop and restored afterwards (architecture 6, Stopping).

SIGTERM and SIGHUP stop; SIGINT stops, the second time at once; SIGUSR1 drains.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from jobq.run.process import OBEYED
from jobq.run.stopping import Stopping

_listeners: Final[list[Callable[[signal.Signals], None]]] = []  # of the main thread, whose loop all signals come to
_former: Final = ExitStack()  # gives them back


_before: Final[dict[int, "signal._HANDLER"]] = {}  # what was done with them before they were taken


def _forget() -> None:
    """In a forked child: signals are its own, and its workers take them anew.

    What it inherits tells our loop of each that it gets, through the socket that both have, and keeps it alive.
    """
    if _before:
        signal.set_wakeup_fd(-1)
        for number, handler in _before.items():
            signal.signal(number, handler)
    _before.clear()
    _listeners.clear()
    _former.pop_all()


os.register_at_fork(after_in_child=_forget)


class SignalHeard:
    """The first signal that asked the worker to stop working; None = none did."""

    def __init__(self) -> None:
        self.stopped_by: signal.Signals | None = None
        self.interrupts = 0


@contextmanager
def heard_by(stopping: Stopping) -> Iterator[SignalHeard]:
    """Pass signals on to `stopping` while entered; does nothing outside the main thread, where none arrive."""
    heard = SignalHeard()

    def on_signal(number: signal.Signals) -> None:
        if number is signal.SIGUSR1:
            stopping.drain("SIGUSR1: drain")
            return
        if number is signal.SIGINT:
            heard.interrupts += 1
        if heard.interrupts > 1:
            stopping.now("interrupted twice")
        else:
            heard.stopped_by = heard.stopped_by or number
            stopping.stop(f"the worker got {number.name}")

    with obeying(on_signal):
        yield heard


@contextmanager
def obeying(on_signal: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call this for each signal that a worker obeys, on the event loop; nothing arrives outside the main thread.

    Several workers of one program hear each signal; the last that leaves gives the signals back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _listeners:
        _former.callback(_take())
    _listeners.append(on_signal)
    try:
        yield
    finally:
        _listeners.remove(on_signal)
        if not _listeners:
            _former.close()


def _take() -> Callable[[], None]:
    """Have the signals called out to all listeners; return what gives them back."""
    loop = asyncio.get_running_loop()
    _before.update((number, signal.getsignal(number)) for number in OBEYED)
    for number in OBEYED:
        loop.add_signal_handler(number, _call_out, number)
    # The guardian starts us with these blocked; what came since then arrives now.
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, OBEYED)

    def give_back() -> None:
        # Blocked again where they were: what comes now is too late to change anything, the exit code least of all.
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number in OBEYED:
            loop.remove_signal_handler(number)
            signal.signal(number, _before.pop(number))

    return give_back


def _call_out(number: signal.Signals) -> None:
    for on_signal in _listeners:
        on_signal(number)
