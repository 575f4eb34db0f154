"""The events of one attempt: its start, its end with what it used, and what was settled."""

import logging
import time
from datetime import timedelta
from typing import Any, Final

from jobq.backend import Delivery
from jobq.events import Events
from jobq.formats.trace_context import ids_of
from jobq.lease.keeper import LeaseKeeper
from jobq.run.attempt.retry import Cancel, Leave, Verdict
from jobq.run.attempt.settle import Settled
from jobq.run.attempt.time_to_start import waited_seconds
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.task import Outcome, OutcomeKind, Task, Usage

# The names are the public ones of the log (docs/observing.md); the journal has words of its own.
_EVENT_OF: Final = {
    OutcomeKind.SUCCEEDED: "task.succeeded",
    OutcomeKind.FAILED: "task.failed",
    OutcomeKind.TIMED_OUT: "task.timeout",
    OutcomeKind.LOCK_LOST: "task.lease_lost",
    OutcomeKind.CANCELED: "task.cancelled",
    OutcomeKind.PREEMPTED: "task.preempted",
    OutcomeKind.CRASHED: "task.crashed",
}
_BLAMELESS: Final = (OutcomeKind.SUCCEEDED, OutcomeKind.CANCELED, OutcomeKind.PREEMPTED)
_ERROR_OF: Final = {OutcomeKind.TIMED_OUT: "timeout", OutcomeKind.LOCK_LOST: "lease_lost"}
_QUIET: Final = (OutcomeKind.SUCCEEDED, OutcomeKind.PREEMPTED)


class AttemptEvents:
    """Publishes the events of one attempt.

    Args:
        events: where to publish them.
        delivery: whose.
        queue: its queue's name.
    """

    def __init__(self, events: Events, delivery: Delivery, queue: str) -> None:
        self._events = events
        self._delivery = delivery
        self._known: dict[str, Any] = {"task_id": delivery.id, "queue": queue, "attempt": delivery.deliveries}
        self._has_ended = False
        self._task: Task | None = None

    def leased(self, task: Task | None = None) -> None:
        """Publish that a lease on it was granted; what is known of its task goes with all later events.

        Args:
            task: as delivered; None = it is malformed, or was not read.
        """
        if task is not None:
            self._known["max_attempts"] = task.budgets.retries + 1
            self._task = task
            if (ids := ids_of(task.trace_context)) is not None:  # of its push; a traced attempt has its own
                self._known |= {"trace_id": ids.trace_id, "span_id": ids.span_id}
        self._emit("task.leased")

    def started(self) -> None:
        """Publish that its process runs."""
        self._emit("task.started", fencing=str(self._delivery.fencing), waited_s=self._waited())

    def renewed(self, result: str) -> None:
        """Publish what came of a renewal of its lease."""
        self._emit("task.lease_renewed", logging.DEBUG, result=result)

    def ended(self, outcome: Outcome, keeper: LeaseKeeper) -> None:
        """Publish how it ended; `keeper` knows what became of its lease."""
        lost = outcome.kind is OutcomeKind.LOCK_LOST
        loss = keeper.loss  # None when the guardian was quicker than the keeper
        self._has_ended = True
        self._emit(
            _EVENT_OF[outcome.kind],
            logging.INFO if outcome.kind in _QUIET and not outcome.start_failed else logging.WARNING,
            error_type=_error_type(outcome),
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            duration_s=round(outcome.duration, 3),
            **_fields_of(outcome.usage),
            detail=outcome.detail,
            cause=(loss.cause if loss else outcome.detail) if lost else None,
            last_success=keeper.last_success if lost else None,
            deadline=keeper.deadline if lost else None,
        )
        if outcome.value_lost:
            self._emit("task.result_not_kept", logging.WARNING, detail=outcome.value_lost)

    def settled(self, verdict: Verdict, settled: Settled) -> None:
        """Publish what was decided, and whether the backend knows."""
        if settled is Settled.UNKNOWN:
            self._emit("task.settlement_unknown", logging.WARNING)
        elif settled is Settled.LOST and not isinstance(verdict, Leave):
            self._emit("task.not_settled", logging.WARNING)
        elif isinstance(verdict, Requeue):
            self._emit("task.retry_scheduled", delay_s=round(verdict.delay.total_seconds(), 3))
        elif isinstance(verdict, MoveToDeadLetters):
            self._emit(
                "task.dead_lettered",
                logging.ERROR,
                error_type=str(verdict.reason),
                reason=str(verdict.reason),
                detail=verdict.description,
            )
        elif isinstance(verdict, Complete):
            self._emit("task.completed", logging.DEBUG)
        elif isinstance(verdict, Cancel) and not self._has_ended:
            self._emit("task.cancelled", detail="it was canceled before it started")

    def released(self, delay: timedelta | None = None) -> None:
        """Publish that it was given back unstarted; `delay` is for how long, None = it is there at once."""
        self._emit("task.released", delay_s=None if delay is None else round(delay.total_seconds(), 3))

    def not_allowed(self, why: str) -> None:
        """Publish that this worker may not run it."""
        self._emit("task.not_allowed", logging.WARNING, detail=why)

    def misfit(self, why: str) -> None:
        """Publish that this worker does not offer what it asks for, or has no room for it now."""
        self._emit("task.misfit", detail=why)

    def reserved(self) -> None:
        """Publish that the worker makes room for it, and takes nothing else until it has."""
        self._emit("task.reserved")

    def alone(self) -> None:
        """Publish that it is started when nothing else runs here, and nothing beside it."""
        self._emit("task.runs_alone")

    def _waited(self) -> float | None:
        return None if self._task is None else waited_seconds(self._task, self._delivery.deliveries, time.time())

    def _emit(self, name: str, level: int = logging.INFO, **fields: object) -> None:
        self._events.emit(name, level, **self._known, **fields)


def _error_type(outcome: Outcome) -> str | None:
    """Return one word for why an attempt did not do its work; None = it did, or was not let."""
    if outcome.kind in _BLAMELESS:
        return None
    if outcome.kind in _ERROR_OF:
        return _ERROR_OF[outcome.kind]
    if outcome.over_memory_limit:
        return "memory_limit"
    if outcome.start_failed:
        return "start_failed"
    return "signal" if outcome.signal is not None else "error" if outcome.exit_code is None else "exit_code"


def _fields_of(usage: Usage | None) -> dict[str, float | int | None]:
    if usage is None:
        return {}
    cpu = None if usage.cpu_seconds is None else round(usage.cpu_seconds, 3)
    return {"cpu_s": cpu, "max_rss_bytes": usage.max_rss_bytes, "processes": usage.processes}
