"""One place of a run: its machine, the worker that runs there, and how that worker was stopped."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from signal import SIGTERM
from typing import Final

from jobq.run.stopping import Stopping
from tests.simulation.loop import Machine, Node
from tests.simulation.machine.guardian import GuardianProcess
from tests.simulation.network import NetworkLink

MOST_DRIFT: Final = 0.009  # of a clock's rate; the timing rule allows 1 %


@dataclass(eq=False)
class Crew:
    """One place where a worker runs, and is started again when it has ended.

    Attributes:
        excused_until: the true time until which the machine stands still or has just stood still.
        holder_excused_until: likewise, until which its holder may not have noticed that the machine stood still.
        trouble_until: until which its clocks may have looked so.
        stepped_at: the true time at which its wall clock was last stepped.
        holder: the process there that contends for a name.
        guardians: of all workers that ran there.
        asked_to_stop: the nodes of it that somebody asked to stop.
    """

    number: int
    machine: Machine
    link: NetworkLink
    chance: Random
    stands_still: bool = False
    excused_until: float = -1.0
    holder_excused_until: float = -1.0
    trouble_until: float = -1.0
    stepped_at: float = -math.inf
    starts: int = 0
    holder: Node | None = None
    guardians: dict[Node, GuardianProcess] = field(default_factory=dict)
    asked_to_stop: set[Node] = field(default_factory=set)
    stoppings: dict[Node, Stopping] = field(default_factory=dict)
    _running: Node | None = None

    @property
    def lives(self) -> bool:
        """Whether a worker runs there."""
        return self._running is not None and not self._running.dead

    @property
    def node(self) -> Node:
        """The worker's."""
        assert self._running is not None
        return self._running

    @property
    def guardian(self) -> GuardianProcess:
        """The worker's."""
        return self.guardians[self.node]

    def begin(self, node: Node, guardian: GuardianProcess) -> None:
        """Have another worker run there."""
        self._running, self.guardians[node] = node, guardian

    def excuses(self, node: Node) -> bool:
        """Return whether its machine, or what guards it, stands still, or has just done so as far as it knows."""
        if node is self.holder:
            return self.machine.loop.now <= max(self.excused_until, self.holder_excused_until)
        return self.machine.loop.now <= max(self.excused_until, self._guardian_excused_until(node))

    def has_clock_trouble(self, node: Node) -> bool:
        """Return whether its clocks may have looked as if its machine was frozen; a stopped guardian looks late."""
        is_stepped = node in self.guardians and self.guardians[node].blind_since <= self.stepped_at
        return self.machine.loop.now <= max(
            self.trouble_until, self._guardian_excused_until(node) if is_stepped else -1.0
        )

    def _guardian_excused_until(self, node: Node) -> float:
        return self.guardians[node].excused_until if node in self.guardians else -1.0

    def continue_holder(self, holder: Node, stopped: float, thaw: float) -> None:
        """Let a holder go on that was stopped at a true time.

        It notices a freeze within `thaw` seconds in which it runs: of these is left what was when it was stopped,
        or all where the machine stood still meanwhile.
        """
        holder.resume()
        left = max(self.excused_until, self.holder_excused_until) - stopped
        if holder is self.holder:
            self.holder_excused_until = self.machine.loop.now + min(thaw, left)

    def is_stopping(self, node: Node) -> bool:
        """Return whether a worker of it has a reason to end what runs."""
        return node in self.asked_to_stop or (node in self.stoppings and self.stoppings[node].interrupted.is_set())

    def term(self) -> None:
        """Send SIGTERM to its worker."""
        self.asked_to_stop.add(self.node)
        self.node.machine.loop.fire(self.node.signal_handlers.get(int(SIGTERM)))

    def hurry(self, node: Node) -> None:
        """Leave a worker of it no grace."""
        self._apply(node, 0.0, lambda stopping: stopping.now("interrupted twice"))

    def announce(self, grace: float) -> None:
        """Announce that the machine will be taken away."""
        self.asked_to_stop.add(self.node)
        self._apply(self.node, 0.0, lambda stopping: stopping.pause("a notice", grace))

    def call_off(self, seconds: float) -> None:
        """Call that off, so many seconds from now."""
        self._apply(self.node, seconds, lambda stopping: stopping.resume())

    def _apply(self, node: Node, seconds: float, change: Callable[[Stopping], None]) -> None:
        if not node.dead and node in self.stoppings:
            node.machine.loop.true_later(seconds, node, change, self.stoppings[node])
