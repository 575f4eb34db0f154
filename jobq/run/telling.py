"""What an attempt tells the subscribers of events: its start, its end with what it used, and what was settled."""

import logging
from typing import Final

from jobq.backend import Delivery
from jobq.events import Events
from jobq.lease.keeper import LeaseKeeper
from jobq.run.retry import Complete, DeadLetter, Leave, Requeue, SendOn, Verdict
from jobq.run.settlement import Settled
from jobq.task import Outcome, OutcomeKind, Usage

_EVENT_OF: Final = {
    OutcomeKind.SUCCEEDED: "task.succeeded",
    OutcomeKind.FAILED: "task.failed",
    OutcomeKind.TIMED_OUT: "task.timed_out",
    OutcomeKind.LOCK_LOST: "task.lock_lost",
    OutcomeKind.CANCELED: "task.canceled",
    OutcomeKind.PREEMPTED: "task.preempted",
    OutcomeKind.CRASHED: "task.crashed",
}
_QUIET: Final = (OutcomeKind.SUCCEEDED, OutcomeKind.PREEMPTED)


class Telling:
    """Tells of one attempt.

    Args:
        events: passes on what is told.
        delivery: whose.
        queue: its queue's name.
    """

    def __init__(self, events: Events, delivery: Delivery, queue: str) -> None:
        self._events = events
        self._delivery = delivery
        self._queue = queue

    def started(self) -> None:
        """Tell that its process runs."""
        self._emit("task.started", attempt=self._delivery.deliveries, fencing=str(self._delivery.fencing))

    def ended(self, outcome: Outcome, keeper: LeaseKeeper) -> None:
        """Tell how it ended; `keeper` knows what became of its lease."""
        lost = outcome.kind is OutcomeKind.LOCK_LOST
        loss = keeper.loss  # None when the guardian was quicker than the keeper
        self._emit(
            _EVENT_OF[outcome.kind],
            logging.INFO if outcome.kind in _QUIET else logging.WARNING,
            attempt=self._delivery.deliveries,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            duration_s=round(outcome.duration, 3),
            **_fields_of(outcome.usage),
            detail=outcome.detail,
            cause=(loss.cause if loss else outcome.detail) if lost else None,
            last_success=keeper.last_success if lost else None,
            deadline=keeper.deadline if lost else None,
        )

    def settled(self, verdict: Verdict, settled: Settled) -> None:
        """Tell what was decided, and whether the backend knows."""
        if settled is Settled.UNKNOWN:
            self._emit("task.settlement_unknown", logging.WARNING)
        elif settled is Settled.LOST and not isinstance(verdict, Leave):
            self._emit("task.not_settled", logging.WARNING)
        elif isinstance(verdict, Requeue):
            self._emit("task.retry_scheduled", delay_s=round(verdict.delay.total_seconds(), 3))
        elif isinstance(verdict, DeadLetter):
            self._emit("task.dead_lettered", logging.ERROR, reason=str(verdict.reason), detail=verdict.description)
        elif isinstance(verdict, SendOn):
            self._emit("task.sent_on", to_queue=verdict.queue, to_id=verdict.task.id)
        elif isinstance(verdict, Complete):
            self._emit("task.completed", logging.DEBUG)

    def released(self) -> None:
        """Tell that it was given back unstarted."""
        self._emit("task.released")

    def _emit(self, name: str, level: int = logging.INFO, **fields: object) -> None:
        self._events.emit(name, level, task_id=self._delivery.id, queue=self._queue, **fields)


def _fields_of(usage: Usage | None) -> dict[str, float | int | None]:
    if usage is None:
        return {}
    cpu = None if usage.cpu_seconds is None else round(usage.cpu_seconds, 3)
    return {"cpu_s": cpu, "max_rss_bytes": usage.max_rss_bytes, "processes": usage.processes}
