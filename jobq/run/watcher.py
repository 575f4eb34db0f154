"""`python -P -m jobq.run.watcher`: the outermost of a worker's three processes. Internal; `jobq worker` becomes it.

    OPTIONS -- FD GUARDIAN STRANGER ...   watch a child, pass signals on to it, and end as it ends

    FD                         a pipe, from which its signs of life are read
    GUARDIAN                   its number
    STRANGER                   children that were there before, which are left alone
    --group PATH               a control group that guardian and tasks are in, and nobody else
    --tick SECONDS             between two looks whether the guardian lives, for tests

It is the process that users see and signal, and PID 1 of a container. The guardian keeps the leases' deadlines; this
one is there for the guardian's end. It is a subreaper: whatever guardian and worker leave behind when both are killed
falls to it, and it kills its own children, without a number from anywhere else (P4) and whatever their environment is.
It continues a guardian that was stopped, and kills one that gives no sign of life.

It shows neither the command line nor the name that it was started by: `pkill -9 -f jobq`, or with any other word of
the worker's command, leaves it alive to clean up. The guardian is in a process group of its own for the same reason.
"""

import contextlib
import os
import select
import signal
import sys
import time

from jobq.run.guardian.control_group import ControlGroup
from jobq.run.process import kernel
from jobq.run.process.kernel import SignalPipe

TITLE = "watcher"
TICK_SECONDS = 2.0
SILENT_TICKS = 5  # in a row; counted, not timed: after a suspend the guardian has as much time as ever
ENDING_SECONDS = 5.0  # how long it stays for what will not die
SWEEP_TICK_SECONDS = 0.02
USAGE = 2  # architecture 12


class Watcher:
    """Watches one guardian.

    Args:
        signals: those of this process.
        pulse: what it reads its signs of life from.
        guardian: its number.
        strangers: children that this process had before.
        tick: seconds between two looks.
        group: that of guardian and tasks.
    """

    def __init__(
        self, signals: SignalPipe, pulse: int, guardian: int, strangers: set[int], tick: float, group: ControlGroup
    ) -> None:
        self._signals = signals
        self._tick = tick
        self._group = group
        self._strangers = strangers & set(kernel.children())  # un-reaped, so ours (P4)
        self._newcomers = set[int]()  # came since, and may be the guardian's, should it be about to end
        self._is_asked_to_stop = False
        self._silent_ticks = 0
        self._has_spoken = False  # imports may take long
        self._pulse = pulse
        self._guardian = guardian

    def run(self) -> int:
        """Watch until the guardian has ended and nothing is left; return its code, 128+n when signal n killed it."""
        try:
            self._watch()
        finally:  # also of an error of ours: whatever it was, nothing may live on unwatched
            os.kill(self._guardian, signal.SIGKILL)  # our un-reaped child (P4), mostly dead
            code = os.waitstatus_to_exitcode(os.waitpid(self._guardian, 0)[1])
            self._kill_what_is_left()
        if code >= 0:
            return code
        with contextlib.suppress(ImportError):  # jobq or Python was replaced meanwhile: the next worker's start sweeps
            from jobq.run.process import task_folder  # noqa: PLC0415 - only what was killed leaves one

            task_folder.sweep()
        kernel.say(
            f"the guardian died by signal {-code}: so did the worker and what it ran; its tasks come back when their"
            " leases run out",
            TITLE,
        )
        return 128 - code

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        next_tick = time.monotonic() + self._tick
        while not kernel.is_dead(self._guardian):
            poll.poll(max(0.0, next_tick - time.monotonic()) * 1000)
            numbers = self._signals.read()
            self._reap_strangers()
            self._forward(numbers)
            self._continue()
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + self._tick
                self._listen()

    def _forward(self, numbers: bytes) -> None:
        """Pass each signal on exactly once."""
        for number in numbers:
            if number in kernel.FORWARDED:
                os.kill(self._guardian, number)  # our un-reaped child (P4)
                self._is_asked_to_stop |= number in kernel.STOPPING

    def _continue(self) -> None:
        """Let a stopped guardian go on at once: any task may send it SIGSTOP, and nobody would keep the deadlines."""
        with contextlib.suppress(ChildProcessError):  # it has ended, so it can stop no more
            if os.waitid(os.P_PID, self._guardian, os.WSTOPPED | os.WNOHANG) is not None:
                os.kill(self._guardian, signal.SIGCONT)  # our un-reaped child (P4)

    def _reap_strangers(self) -> None:
        """Reap what is not the guardian's; as PID 1, and below a shell that became jobq, there is such."""
        found = kernel.children()
        if kernel.is_dead(self._guardian):  # then these may be what it left
            return
        for pid in found:
            if pid != self._guardian and kernel.is_dead(pid):
                os.waitpid(pid, 0)
                self._strangers.discard(pid)
                self._newcomers.discard(pid)

    def _listen(self) -> None:
        try:
            is_silent = not os.read(self._pulse, 65536)
        except BlockingIOError:
            is_silent = True
        if not is_silent:
            # It spoke after they had come, so it lived: what its tasks leave fell to it, and these are nobody's task.
            # One that is being killed is passed over long before it shows as dead: only its next word proves it alive.
            self._strangers |= self._newcomers
        self._newcomers = set(kernel.children()) - self._strangers - {self._guardian}
        self._has_spoken = self._has_spoken or not is_silent
        self._silent_ticks = self._silent_ticks + 1 if is_silent else 0
        if self._silent_ticks == SILENT_TICKS and (self._has_spoken or self._is_asked_to_stop):
            kernel.say("the guardian gives no sign of life: it is killed", TITLE)
            os.kill(self._guardian, signal.SIGKILL)  # our un-reaped child (P4)

    def _kill_what_is_left(self) -> None:
        """Kill our children, and those that fall to us when they die, until there are none."""
        give_up = kernel.boottime() + ENDING_SECONDS
        session = os.getsid(0)
        self._group.kill()
        while (
            left := [pid for pid in kernel.children() if pid not in self._strangers]
        ) and kernel.boottime() < give_up:
            groups = set[int]()
            for pid in reversed(left):  # newest first: what forks and ends again is caught only as its newest self
                kernel.kill_stray(pid, groups, (session,))
            dead = [pid for pid in left if kernel.is_dead(pid)]
            for pid in dead:
                os.waitpid(pid, 0)
            if not dead:
                select.select([self._signals], [], [], SWEEP_TICK_SECONDS)
                self._signals.read()
        self._group.end(0)


def main(arguments: list[str]) -> int:
    """Watch; return the exit code to end with."""
    kernel.rename(TITLE)
    kernel.open_standard_descriptors()
    kernel.become_subreaper()
    kernel.hide_from_same_user()
    options = {"--group": "", "--tick": str(TICK_SECONDS)}
    while len(arguments) > 1 and arguments[0] in options:
        options[arguments[0]] = arguments[1]
        arguments = arguments[2:]
    if arguments[:1] != ["--"] or not all(map(str.isdecimal, arguments[1:])) or len(arguments) < 3:  # noqa: PLR2004
        kernel.say("usage: python -P -m jobq.run.watcher [OPTIONS] -- FD GUARDIAN [STRANGER ...]", TITLE)
        return USAGE
    pulse, guardian, *strangers = map(int, arguments[1:])
    os.set_inheritable(pulse, False)
    group = ControlGroup(options["--group"])
    return Watcher(SignalPipe(), pulse, guardian, set(strangers), float(options["--tick"]), group).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
