"""The timing rule (rules.md 1.3) as numbers: when a lease is renewed, and when its task must be dead."""

import bisect
import math
import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from jobq.errors import ConfigurationError
from jobq.formats import durations
from jobq.settings import Settings

SHORTEST_SECONDS = 10.0
_HOUR_SECONDS: Final = 3600
_LEAST_PAUSE_SECONDS: Final = 0.01  # whatever length a service says: no keeper asks without end


@dataclass(frozen=True, kw_only=True)
class LeaseTiming:
    """What follows from the length of a lease; all in seconds.

    Attributes:
        lease: the length L as sent.
        kill_margin: K, to kill and confirm.
        schedule_margin: J, for the scheduler.
        grace: from SIGTERM to SIGKILL when the lease cannot be kept; 0 in sigkill mode.
    """

    lease: float
    kill_margin: float = 1.0
    schedule_margin: float = 0.5
    grace: float = 0.0

    @property
    def hold(self) -> float:
        """From before the request until the tree must be dead (rule 2: 1 % clock drift, K and J)."""
        return min(0.85 * self.lease, 0.99 * self.lease - self.kill_margin - self.schedule_margin)

    @property
    def stop_after(self) -> float:
        """From before the request until the task is asked to stop: SIGTERM lies inside the lease (P6)."""
        return self.hold - self.grace

    @property
    def period(self) -> float:
        """Between renewals (rule 4)."""
        return max(self.lease / 4, _LEAST_PAUSE_SECONDS)

    @property
    def attempt(self) -> float:
        """How long one renewal may take (rule 4)."""
        return min(self.lease / 8, 5.0)

    @property
    def backoff(self) -> float:
        """Between a renewal that failed and the next."""
        return max(min(self.lease / 40, 1.0), _LEAST_PAUSE_SECONDS)

    @property
    def stale(self) -> float:
        """A receive that took longer than this is renewed before its task starts (rule 5)."""
        return self.lease / 8

    def check(self, *, allow_short: bool = False, option: str = "--visibility-timeout") -> None:
        """Refuse a configuration under which two failed renewals would already lose the lease (rule 4).

        Args:
            allow_short: permits leases that are only for tests.
            option: what sets the length, for messages.

        Raises:
            ConfigurationError: names the number to change.
        """
        if self.lease < SHORTEST_SECONDS and not allow_short:
            raise ConfigurationError(
                f"a lease of {durations.show(self.lease)} is shorter than {durations.show(SHORTEST_SECONDS)};"
                f" raise {option} to {self._enough()} (JOBQ_ALLOW_SHORT_LEASE=1 permits it, for tests)"
            )
        if self.needed >= self.hold:
            spare = self.grace - (self.needed - self.hold)
            lower = f"lower JOBQ_LOCK_LOST_GRACE below {durations.show(spare)}, or " if self.grace and spare > 0 else ""
            raise ConfigurationError(
                f"a lease of {durations.show(self.lease)} cannot be kept: a renewal, two more tries and the grace take"
                f" {durations.show(self.needed)} of the {durations.show(max(0.0, self.hold))} that it may be held;"
                f" {lower}raise {option} to {self._enough()} (`jobq help lease-too-short`)"
            )

    @property
    def needed(self) -> float:
        """What a renewal, two that fail and the grace take, which has to be less than `hold` (rule 4)."""
        return self.period + 2 * (self.attempt + self.backoff) + self.grace

    def _enough(self) -> str:
        """Return the shortest lease of whole seconds, all else being the same, that is not refused."""

        def is_enough(seconds: int) -> bool:  # and then each longer one is: `hold` grows faster than `needed`
            longer = replace(self, lease=seconds)
            return longer.needed < longer.hold

        lengths = range(max(int(SHORTEST_SECONDS), math.floor(self.lease) + 1), sys.maxsize)
        enough = lengths[bisect.bisect_left(lengths, True, key=is_enough)]
        return durations.show(enough if enough < _HOUR_SECONDS else math.ceil(enough / 60) * 60)  # as it is shown


def timing_for(lease: timedelta, settings: Settings) -> LeaseTiming:
    """Return the timing of a lease of this length under these settings."""
    return LeaseTiming(
        lease=lease.total_seconds(),
        kill_margin=settings.kill_margin.total_seconds(),
        schedule_margin=settings.schedule_margin.total_seconds(),
        grace=settings.lock_lost_grace.total_seconds() if settings.lock_lost_behavior == "sigterm" else 0.0,
    )
