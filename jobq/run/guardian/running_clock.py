"""How long this process has waited: time in which it could not run does not count."""

from jobq.run.guardian.system import System

MOST_SECONDS = 0.1  # that a turn and the pause after it take while somebody waits; more, and it was stopped


class RunningClock:
    """CLOCK_MONOTONIC, which stands in suspend, and here also while this process is stopped or has no processor.

    Args:
        system: has the clock.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._looked, self._ran = system.monotonic(), 0.0

    def seconds(self) -> float:
        """Return the seconds so far; of the time since the last call `MOST_SECONDS` count at most."""
        now = self._system.monotonic()
        self._ran += min(now - self._looked, MOST_SECONDS)
        self._looked = now
        return self._ran
