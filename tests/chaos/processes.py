"""Blows to the three processes of a `jobq worker`, and to the leaders of its tasks."""

import os
import signal
import threading
import time
from contextlib import suppress
from itertools import product
from typing import Final, NamedTuple

from tests.guardian.stage import children, guardian_below, state, worker_below

THREE: Final = ("worker", "guardian", "watcher")
BLOCK: Final = signal.SIGRTMIN  # to the worker of a campaign, see site/sitecustomize.py


class Blow(NamedTuple):
    """What befalls one of a worker's processes."""

    verb: str
    target: str

    def __str__(self) -> str:
        return f"{self.verb} {self.target}"


Case = tuple[Blow, ...]
SINGLES: Final[list[Case]] = [
    (Blow(*blow),)
    for blow in product(("kill", "stop", "stop and continue", "starve"), ("worker", "guardian", "leader"))
]
PAIRS: Final[list[Case]] = [
    (first, second) for (first,), (second,) in product(SINGLES, SINGLES) if first.target != second.target
]


class Processes:
    """Those of a `jobq worker` that was just started; waits until all three are there.

    Args:
        watcher: the number of the one that was started.
    """

    def __init__(self, watcher: int) -> None:
        self.watcher = watcher
        self.guardian = guardian_below(watcher)
        self.worker = worker_below(watcher)
        self._pidfds: dict[str, list[int]] = {}

    def leaders(self) -> list[int]:
        """Return the living leaders of its tasks; none when its guardian is gone."""
        try:
            below = children(self.guardian)
        except OSError:
            return []
        return [pid for pid in below if pid != self.worker and state(pid) not in "ZX"]

    def aim(self) -> None:
        """Open handles of all that live now: a blow hits these and nobody else, whatever their numbers become."""
        self.close()
        numbers = {"leader": self.leaders(), **{name: [getattr(self, name)] for name in THREE}}
        for name, pids in numbers.items():
            self._pidfds[name] = []
            for pid in pids:
                with suppress(ProcessLookupError):  # it ended meanwhile
                    self._pidfds[name].append(os.pidfd_open(pid))

    def strike(self, case: Case, seconds: float) -> list[threading.Thread]:
        """Strike one after the other, at once; the threads that are returned end with the blows that last `seconds`."""
        threads = []
        for verb, target in case:
            if verb in ("kill", "stop"):
                self.send(signal.SIGKILL if verb == "kill" else signal.SIGSTOP, target)
            else:
                threads.append(threading.Thread(target=self._last, args=(verb, target, seconds)))
                self.send(signal.SIGSTOP, target)
                threads[-1].start()
        return threads

    def _last(self, verb: str, target: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        if verb == "stop and continue":
            time.sleep(seconds)  # the time itself is the blow
        while time.monotonic() < end:  # starved: it gets a tenth of the time
            self.send(signal.SIGSTOP, target)
            time.sleep(0.09)
            self.send(signal.SIGCONT, target)
            time.sleep(0.01)
        self.send(signal.SIGCONT, target)

    def send(self, number: int, *targets: str) -> None:
        """Send a signal to all of a kind."""
        for pidfd in (pidfd for target in targets for pidfd in self._pidfds.get(target, ())):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)

    def resume(self) -> None:
        """Continue whoever is stopped."""
        self.send(signal.SIGCONT, *self._pidfds)

    def close(self) -> None:
        """Let the handles go."""
        for pidfd in (pidfd for pidfds in self._pidfds.values() for pidfd in pidfds):
            os.close(pidfd)
        self._pidfds = {}
