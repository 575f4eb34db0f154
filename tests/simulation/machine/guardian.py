"""The real guardian as a process of a simulated machine: it takes a turn whenever its poll would return.

Simulated are the kernel (`kernel`, `system`) and the watcher, which kills what a guardian leaves when it is killed.
"""

import asyncio
import math
from random import Random
from signal import SIGCONT, SIGKILL
from typing import Any, Final

from jobq.run.guardian import protocol
from jobq.run.guardian.loop import Guardian
from tests.simulation.loop import Loop, Node
from tests.simulation.machine.kernel import WORKER, Kernel
from tests.simulation.machine.sockets import End, pair
from tests.simulation.machine.system import SimulatedSystem
from tests.simulation.machine.trees import TaskPlans
from tests.simulation.rules.monitor import Monitor

_WAKING_SECONDS: Final = 0.0002  # from news for a process until it runs
_NEXT_TURN_SECONDS: Final = 0.001  # between two turns when one was not enough
_ROUNDING_SECONDS: Final = 0.0005  # poll(2) has milliseconds, and rounds up
_TICK_SECONDS: Final = 0.5  # of the real one, which sees a jump of the clocks within that time
_WATCHER_SECONDS: Final = 0.05  # from a guardian's death until what it ran is killed, at most
_LATE_SECONDS: Final = 0.02  # a little is usual; see `be_late`


class GuardianProcess:
    """The parent of one worker and its tasks; a node of its own, so it runs while the worker is stopped.

    Args:
        loop: the run's.
        monitor: sees all that happens to trees.
        tasks: knows what they do.
        worker: for whom.
        chance: decides how late it is.

    Attributes:
        connection: the worker's end of the socket.
        node: itself; nodes: what stands still with its machine.
        blind_since: the true time since which it may not have looked at its clocks when it was last stopped.
        excused_until: until which it is stopped or has just been: the leases of what it guards it cannot see to.
    """

    def __init__(self, loop: Loop, monitor: Monitor, tasks: TaskPlans, worker: Node, chance: Random) -> None:
        self._loop, self._worker, self._chance, self._machine = loop, worker, chance, worker.machine
        self.node = Node(worker.machine, f"guardian of {worker.name}")
        self._kernel = Kernel(loop, monitor, tasks, worker, self._notify)
        self.nodes = [self.node, self._kernel.node]
        self.connection = End(4, self._wake_worker, self._hear)
        self._end = End(4, self._wake, self._overhear)
        pair(self.connection, self._end)
        self._system = SimulatedSystem(self._kernel, self._machine, monitor, self._end, chance)
        self._guardian: Guardian | None = None
        self._nothing_lives = asyncio.Event()
        self._late_seconds = _LATE_SECONDS
        self.blind_since = self.excused_until = -1.0
        self._thaw_seconds = 0.0
        self._is_waking = self._is_worker_waking = False
        self._timer: Any = None
        self._sleeps_until = 0.0  # by CLOCK_MONOTONIC
        self._machine.on_jump[self] = self._see_jump
        loop.true_later(chance.uniform(0.02, 0.5), self.node, self._begin)

    # What befalls it

    def worker_is_gone(self, status: int) -> None:
        """Its worker has ended: the kernel closes its socket, and the guardian sees it."""
        self.connection.close()
        self._kernel.exit(self._kernel.worker, status)

    def signal(self, number: int) -> None:
        """It gets a signal."""
        if number == SIGCONT and self._kernel.is_guardian_stopped:
            self._kernel.is_guardian_stopped = False
            self.excused_until = self._loop.now + self._thaw_seconds
            self.node.resume()
            self._kernel.look_for_orphans()
        elif number == SIGKILL:
            self.die()

    def stop(self, thaw_seconds: float) -> bool:
        """It gets SIGSTOP, and so many seconds to get done what is due once it is continued; return whether it ran."""
        if self.node.dead or self._kernel.is_guardian_stopped:
            return False
        self._kernel.is_guardian_stopped = True
        self.blind_since, self.excused_until, self._thaw_seconds = self._loop.now - thaw_seconds, math.inf, thaw_seconds
        self.node.pause()
        return True

    def be_late(self) -> None:
        """From now on it lacks a processor: it wakes late, and gets little done in a turn."""
        self._late_seconds, self._system.work_seconds = 0.4, 0.008

    def die(self) -> None:
        """It is killed: its worker hears of it, and what it left falls to the watcher, which kills that (P2)."""
        if not self.node.dead:
            self.node.kill()
            self.excused_until = min(self.excused_until, self._loop.now + self._thaw_seconds)
            self._machine.on_jump.pop(self, None)
            self._end.close()
            self._kernel.guardian_dies()
            seconds = self._chance.uniform(0.01, 1.0) * _WATCHER_SECONDS
            self._loop.true_later(seconds, self._kernel.node, self._watcher_kills)

    async def nothing_lives(self) -> None:
        """Return once it has died and all that it left is dead."""
        await self._nothing_lives.wait()

    def power_is_gone(self) -> None:
        """So is every process, in this instant."""
        self.node.kill()
        self._machine.on_jump.pop(self, None)
        self._kernel.power_is_gone()

    def _watcher_kills(self) -> None:
        if self._kernel.is_empty:
            self._nothing_lives.set()
            return
        for process in list(self._kernel.processes.values()):
            self._kernel.strike(process, SIGKILL)
        self._loop.true_later(_NEXT_TURN_SECONDS, self._kernel.node, self._watcher_kills)

    # What it does

    def _begin(self) -> None:
        self._guardian = Guardian(self._end, self._system.signals, WORKER, system=self._system)  # type: ignore[arg-type] # in their place
        self._guardian.begin()
        self._go_on()

    def _turn(self) -> None:
        self._is_waking = False
        if self._guardian is not None:
            self._system.begin_turn()
            self._guardian.step(self._guardian.wait(0.0))
            self._go_on()

    def _go_on(self) -> None:
        guardian = self._guardian
        assert guardian is not None
        if not guardian.goes_on():
            guardian.end()
            self.die()
            return
        patience = guardian.patience()
        if patience <= 0.0 or guardian.wait(0.0):
            self._wake(_NEXT_TURN_SECONDS)
            return
        self._sleeps_until = self._machine.monotonic() + patience + _ROUNDING_SECONDS
        if self._timer is None or self._timer.due > self._sleeps_until + self._late_seconds:
            self._sleep()

    def _sleep(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        most = self._late_seconds
        late = (
            min(self._chance.expovariate(1.0) * 0.002, most) if most == _LATE_SECONDS else self._chance.uniform(0, most)
        )
        self._timer = self.node.run(self._loop.call_at, self._sleeps_until + late, self._time_is_over)

    def _time_is_over(self) -> None:
        self._timer = None
        if self._is_waking:
            return
        if self._machine.monotonic() < self._sleeps_until - _ROUNDING_SECONDS:  # it has slept again since
            self._sleep()
        else:
            self._turn()

    def _wake(self, seconds: float = _WAKING_SECONDS) -> None:
        if not self._is_waking:
            self._is_waking = True
            if self._late_seconds > _LATE_SECONDS:
                seconds += self._chance.uniform(0, 0.1 * self._late_seconds)
            self._loop.true_later(seconds, self.node, self._turn)

    def _see_jump(self) -> None:
        """Ticks at which there is nothing to see are left out, but the one after a jump of the clocks is not."""
        self._loop.true_later(self._chance.uniform(0, _TICK_SECONDS), self.node, self._turn)

    # What reaches it, and its worker

    def _notify(self, signal: int) -> None:
        if signal:
            self._system.signals.came += bytes([signal])
        self._wake()

    def _wake_worker(self) -> None:
        if not self._is_worker_waking:
            self._is_worker_waking = True
            self._loop.true_later(_WAKING_SECONDS, self._worker, self._worker_wakes)

    def _worker_wakes(self) -> None:
        self._is_worker_waking = False
        self._loop.fire(self._loop.readers.get(self.connection))

    def _overhear(self, frame: bytes) -> None:
        if frame.startswith(b'{"op":"ended"', protocol.HEADER_BYTES):
            self._kernel.end_reported(protocol.decode(frame[protocol.HEADER_BYTES :]))

    def _hear(self, frame: bytes) -> None:
        """Listen in when the worker sends deadlines, for the monitor."""
        if frame.startswith(b'{"op":"extend"', protocol.HEADER_BYTES):
            message = protocol.decode(frame[protocol.HEADER_BYTES :])
            self._kernel.deadline_sent(message["id"], message["deadline"])
