"""The worker where it is the guardian's child: it gets our signals, and is killed when it is too blocked to obey."""

import math
import signal

from jobq.run.guardian.system import System
from jobq.run.guardian.tasks import Tasks
from jobq.run.process import kernel

SECOND_ASKING_SECONDS = 10.0  # how long the worker has after a second Ctrl-C: it kills, gives back, and ends
LOOK_SECONDS = (
    0.5  # between two looks whether it is held up; a lock is held for milliseconds, so two in a row are enough
)


class ChildWorker:
    """Our child until it is reaped, which `tasks` does and notes.

    Attributes:
        asked_to_stop: whether a signal has asked it to; no other worker is started then.
        has_said_why: whether we killed it, and have said why.
        end_by: boottime in seconds at which it is killed, once it was asked to end.

    Args:
        pid: its number.
        tasks: what is reaped.
        stop_within: seconds that it may take to end once a signal has asked it to.
        system: the kernel.
    """

    def __init__(self, pid: int, tasks: Tasks, stop_within: float, system: System) -> None:
        self._system = system
        self.asked_to_stop = self.has_said_why = False
        self.end_by = math.inf
        self._pid = pid
        self._tasks = tasks
        self._stop_within = stop_within
        self._interrupts = 0
        self._next_look = system.monotonic()
        self._was_held_up = False

    @property
    def is_there(self) -> bool:
        """Whether it is not reaped, so that its number is its own (P4)."""
        return self._tasks.worker_status is None

    def forward(self, numbers: bytes) -> None:
        """Pass each signal on to it exactly once; it alone knows what it means."""
        for number in numbers:
            if number not in kernel.FORWARDED:
                continue
            if number in kernel.STOPPING or number == signal.SIGUSR1:
                self.asked_to_stop = True  # also while a dead worker's trees are swept
            if not self.is_there:
                continue
            self._system.kill(self._pid, number)
            if number in kernel.STOPPING:
                self._system.kill(self._pid, signal.SIGCONT)  # a stopped worker could not obey
                self._interrupts += number == signal.SIGINT
                hurried = self._interrupts > 1  # only a second Ctrl-C ends the tasks' grace; a second SIGTERM does not
                within = min(self._stop_within, SECOND_ASKING_SECONDS if hurried else math.inf)
                self.end_by = min(self.end_by, self._system.boottime() + within)

    def kill_if_deaf(self) -> None:
        """Kill it when it was asked to end and is too blocked to: its tasks die too, and their leases run out."""
        if self.end_by <= self._system.boottime() and self.is_there:
            self._system.say(
                "the worker was asked to end and did not in time: killed; its tasks come back when their leases run out"
            )
            self.kill()

    def continue_if_held_up(self) -> None:
        """Let it go on when it was stopped with a database's lock: all workers of the file would lose their leases.

        As long as it holds none it stays stopped, and harms nobody: its tasks end with their leases.
        """
        now = self._system.monotonic()
        if now < self._next_look or not self.is_there:
            return
        self._next_look = now + LOOK_SECONDS
        was_held_up, self._was_held_up = self._was_held_up, self._system.is_held_up(self._pid)
        if was_held_up and self._was_held_up:
            self._system.say("the worker was stopped while it held the lock of its queue's file: it is continued")
            self._system.kill(self._pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, and let no other be started; the caller says why."""
        self.asked_to_stop = self.has_said_why = True
        self.end_by = math.inf
        if self.is_there:
            self._system.kill(self._pid, signal.SIGKILL)
