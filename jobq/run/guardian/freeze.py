"""Whether the host froze this machine: its own clocks stood still then, and nobody knows how long leases are over."""

from jobq.run.guardian.system import System

AHEAD_SECONDS = 1.0  # rules.md 1.3 rule 8, as the keeper has it: how far the wall clock may get ahead between looks,
AHEAD_RATE = 0.01  # and for each second between them


class FreezeWatch:
    """Compares the wall clock, which somebody sets right after a freeze, with CLOCK_BOOTTIME.

    Args:
        system: has both.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._boottime, self._wall = system.boottime(), system.wall()

    def jump(self) -> float:
        """Return by how many seconds the wall clock got ahead since the last look; 0 = by no more than it may."""
        boottime, wall = self._system.boottime(), self._system.wall()
        passed = boottime - self._boottime
        ahead = wall - self._wall - passed
        self._boottime, self._wall = boottime, wall
        return ahead if ahead > AHEAD_SECONDS + AHEAD_RATE * passed else 0.0
