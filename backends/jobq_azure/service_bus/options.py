"""What the settings say of a queue of Service Bus."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self

from jobq.errors import ConfigurationError
from jobq.settings import Settings

_LOCK: Final = timedelta(minutes=1)  # of a queue that jobq makes, unless set otherwise; the service's own default
_SHORTEST_LOCK: Final = timedelta(seconds=5)
_LONGEST_LOCK: Final = timedelta(minutes=5)
_DEDUP_WINDOW: Final = timedelta(minutes=10)  # as above
_STATS_SECONDS: Final = 5.0
NO_TABLES: Final = (
    "Service Bus keeps no journal and no batches; use a Storage Queue with JOBQ_JOURNAL=tables, SQLite or PostgreSQL"
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings, as far as they matter here.

    Attributes:
        lock: of a queue that is made; what is assumed of one that nobody may look at.
        shorter_lock: what bounds the length of a lock that was granted; None = nothing.
        dedup_window: of a queue that is made; zero = no duplicate detection.
        asserted_dedup_window: what the user says of a queue that this identity may not look at; zero = nothing.
        budgets: the most starts of a task that the settings allow.
        longest_poll_seconds: of a long poll.
        stats_seconds: for how long one look at the counts serves.
        websocket: AMQP goes over WebSockets.
    """

    lock: timedelta = _LOCK
    shorter_lock: timedelta | None = None
    dedup_window: timedelta = _DEDUP_WINDOW
    asserted_dedup_window: timedelta = timedelta(0)
    budgets: int = 107
    longest_poll_seconds: float = 10.0
    stats_seconds: float = _STATS_SECONDS
    websocket: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return what the settings say; raises ConfigurationError."""
        lock = settings.visibility_timeout or _LOCK
        if not timedelta(0) < lock <= _LONGEST_LOCK:
            raise ConfigurationError(
                "a lock of Service Bus lasts 5 minutes at most; change --visibility-timeout (JOBQ_VISIBILITY_TIMEOUT)"
            )
        window = settings.service_bus_dedup_window
        return cls(
            lock=max(lock, _SHORTEST_LOCK),
            shorter_lock=settings.service_bus_lock_duration,
            dedup_window=_DEDUP_WINDOW if window is None else window,
            asserted_dedup_window=window or timedelta(0),
            budgets=1 + settings.num_retries + settings.max_preemptions + settings.max_crashes,
            longest_poll_seconds=settings.poll_max.total_seconds(),
            websocket=settings.service_bus_websocket,
        )
