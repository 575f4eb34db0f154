"""What the real guardian asks of Linux, answered by the simulated kernel; and what it may not ask."""

import errno
import resource
import select
from random import Random
from typing import Any, Final

from jobq.run.guardian.protocol import Message
from jobq.run.guardian.system import System
from tests.simulation.loop import Machine
from tests.simulation.machine.kernel import GUARDIAN, WORKER, Kernel
from tests.simulation.machine.process import SimulatedProcess
from tests.simulation.machine.sockets import End
from tests.simulation.rules.monitor import Monitor

_SIGNALS: Final = 3  # the descriptor of `SimulatedSignals`
_NOTHING_USED: Final = resource.struct_rusage([0] * 16)


class SimulatedSignals:
    """The guardian's signals, as its own object for them has it."""

    def __init__(self) -> None:
        self.came = b""

    def fileno(self) -> int:
        """Return what to poll."""
        return _SIGNALS

    def read(self) -> bytes:
        """Return the numbers of those that came since."""
        came, self.came = self.came, b""
        return came


class Poll:
    """Returns what is ready, at once: what drives the guardian has waited already."""

    def __init__(self, signals: SimulatedSignals, connection: End, kernel: Kernel) -> None:
        self._signals, self._connection, self._kernel = signals, connection, kernel
        self._interests: dict[int, int] = {}

    def register(self, what: Any, events: int) -> None:
        """See `select.poll`."""
        self._interests[what if isinstance(what, int) else what.fileno()] = events

    modify = register

    def unregister(self, what: Any) -> None:
        """See `select.poll`."""
        del self._interests[what if isinstance(what, int) else what.fileno()]

    def poll(self, timeout: float = 0.0) -> list[tuple[int, int]]:
        """Return what is ready."""
        return [(each, found) for each, wanted in self._interests.items() if (found := self._look(each, wanted))]

    def _look(self, descriptor: int, wanted: int) -> int:
        if descriptor == _SIGNALS:
            return select.POLLIN if self._signals.came else 0
        if descriptor == self._connection.number:
            return self._connection.ready() & (wanted | select.POLLHUP)
        pipe = self._kernel.pipes[descriptor]
        return select.POLLIN * bool(pipe.data) | select.POLLHUP * pipe.is_closed


class SimulatedSystem(System):
    """The kernel of one guardian; which reports to the monitor what no guardian may do.

    Args:
        kernel: has the processes.
        machine: has the clocks.
        monitor: gets the reports.
        connection: the guardian's end of its socket.
        chance: decides how much it gets done in a turn.

    Attributes:
        signals: the guardian's.
        work_seconds: what it takes it from one look at a clock to the next, at most: on a crowded machine it does not
            get everything done in one turn.
        main_poll: what it waits with.
    """

    # Turns in which there is nothing to see are left out; see `guardian` for those that follow a jump of the clocks.
    tick_seconds = 5.0

    def __init__(self, kernel: Kernel, machine: Machine, monitor: Monitor, connection: End, chance: Random) -> None:
        self._kernel, self._machine, self._monitor = kernel, machine, monitor
        self._connection, self._chance = connection, chance
        self.signals = SimulatedSignals()
        self.work_seconds = 0.0
        self._worked = 0.0

    def begin_turn(self) -> None:
        """What a turn takes does not add up over turns: no clock runs ahead of the machine's."""
        self._worked = 0.0

    def boottime(self) -> float:
        """See `System`."""
        return self._machine.boottime()

    def monotonic(self) -> float:
        """See `System`."""
        return self._machine.monotonic() + self.work_time()

    def wall(self) -> float:
        """See `System`."""
        return self._machine.wall()

    def work_time(self) -> float:
        """See `System`."""
        if self.work_seconds:
            self._worked += self._chance.uniform(0, self.work_seconds)
        return self._worked

    def poll(self) -> Any:
        """See `System`."""
        return Poll(self.signals, self._connection, self._kernel)

    def getpid(self) -> int:
        """See `System`."""
        return GUARDIAN

    def getsid(self, pid: int) -> int:
        """See `System`."""
        return GUARDIAN if pid in {0, WORKER} else self._child(pid).group

    def getpgid(self, pid: int) -> int:
        """See `System`."""
        return self._child(pid).group

    def fork_task(self, message: Message, *_: object) -> tuple[int, int]:
        """See `System`."""
        return self._kernel.start(message)

    def read(self, descriptor: int) -> bytes:
        """See `System`."""
        pipe = self._kernel.pipes[descriptor]
        if not pipe.data and not pipe.is_closed:
            raise BlockingIOError
        pipe.tree.is_seen = True
        return pipe.data

    def close(self, descriptor: int) -> None:
        """See `System`."""
        del self._kernel.pipes[descriptor]

    def open_process(self, pid: int) -> int:
        """No handles are simulated; the guardian does without where no descriptor is left."""
        raise OSError(errno.EMFILE, "no descriptor is left")

    def children(self) -> list[int]:
        """See `System`."""
        return [each.number for each in self._kernel.children()]

    def kill(self, pid: int, number: int) -> None:
        """See `System`."""
        process = self._child(pid)
        if process is self._kernel.worker:
            self._monitor.broken("L4", f"the guardian sends its worker signal {number}")
        self._kernel.strike(process, number)

    def killpg(self, group: int, number: int) -> None:
        """See `System`."""
        if group in {GUARDIAN, WORKER} or not self._kernel.strike_group(group, number):
            self._monitor.broken("P4", f"signal {number} goes to group {group}, which is no task's")
            raise ProcessLookupError

    def ended_child(self) -> int | None:
        """See `System`."""
        return next((each.number for each in self._kernel.children() if each.status is not None), None)

    def is_dead(self, pid: int) -> bool:
        """See `System`."""
        return self._child(pid).status is not None

    def is_held_up(self, pid: int) -> bool:
        """No worker holds a lock: its store is another machine's."""
        return False

    def reap(self, pid: int) -> tuple[int, resource.struct_rusage]:
        """See `System`."""
        return self._kernel.reap(self._child(pid)), _NOTHING_USED

    def peak_rss_kib(self) -> int:
        """See `System`."""
        return 0

    def remove_folders_of_the_dead(self) -> None:
        """There are none."""

    def say(self, text: str) -> None:
        """Have it in the trace."""
        self._monitor.note("guardian says", text)

    def _child(self, pid: int) -> SimulatedProcess:
        process = self._kernel.processes.get(pid)
        if process is None or process.parent is not self._kernel.guardian:
            self._monitor.broken("P4", f"the guardian takes {pid} for its child")
            raise ProcessLookupError
        return process
