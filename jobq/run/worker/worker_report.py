"""What a worker did, counted, and the exit code that follows from it (architecture 12)."""

import signal
from collections import Counter
from dataclasses import dataclass

from jobq.run.attempt.allowed import MOST_REFUSED
from jobq.run.attempt.retry import Leave
from jobq.run.attempt.settle import Settled
from jobq.run.attempt.supervisor import DeliveryReport
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.task import OutcomeKind

_FAILURES = (OutcomeKind.FAILED, OutcomeKind.TIMED_OUT, OutcomeKind.CRASHED)


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """What a worker did.

    Attributes:
        succeeded: tasks done and acknowledged as such.
        failed: tasks that failed, timed out or crashed here, however often.
        dead_lettered: tasks it gave up on.
        given_back: attempts cut short by a stop and put back.
        lost: attempts whose lease was lost, or whose settlement nobody can vouch for.
        results_not_kept: tasks done whose result is not kept: too long, too deep, no JSON.
        exit_code: as architecture 12.
        stopped_by: the signal that asked it to stop working, such as SIGINT; None = none did.
    """

    succeeded: int
    failed: int
    dead_lettered: int
    given_back: int
    lost: int
    results_not_kept: int
    exit_code: int
    stopped_by: str | None = None


class ReportCounter:
    """Counts what becomes of deliveries; only what the backend acknowledged counts as done (S5)."""

    def __init__(self) -> None:
        self._done: Counter[str] = Counter()
        self._not_allowed: set[str] = set()  # in a row
        self._failed: set[str] = set()  # that may come again: counted once

    @property
    def is_misplaced(self) -> bool:
        """Whether so many different tasks in a row were none that this worker may run that others are to have them."""
        return len(self._not_allowed) >= MOST_REFUSED

    def fault(self) -> None:
        """Count an attempt that ended by a fault of ours."""
        self._done["lost"] += 1

    def count(self, report: DeliveryReport) -> None:
        """Count one delivery."""
        if self.is_misplaced:
            pass  # that stays
        elif report.not_allowed:
            self._not_allowed.add(report.task_id)
        else:
            self._not_allowed.clear()
        if report.settled is not Settled.YES or isinstance(report.verdict, Leave):
            self._done["lost"] += 1
        elif isinstance(report.verdict, Complete):
            self._done["succeeded"] += 1
            if report.outcome is not None and report.outcome.value_lost:
                self._done["results_not_kept"] += 1
        elif isinstance(report.verdict, MoveToDeadLetters):
            self._done["dead_lettered"] += 1
        if report.outcome is not None and report.outcome.kind in _FAILURES and report.task_id not in self._failed:
            self._done["failed"] += 1
            self._failed.add(report.task_id)
        if report.settled is Settled.YES and isinstance(report.verdict, Complete | MoveToDeadLetters):
            self._failed.discard(report.task_id)
        was_cut_short = report.outcome is not None and report.outcome.kind is OutcomeKind.PREEMPTED
        if was_cut_short and report.settled is Settled.YES:
            self._done["given_back"] += 1

    def counts(self, *names: str) -> dict[str, int]:
        """Return these counts, by the names that `WorkerReport` has for them."""
        return {name: self._done[name] for name in names}

    def report(
        self, *, stopped_by: signal.Signals | None, tripped: bool, unguarded: bool, misplaced: bool = False
    ) -> WorkerReport:
        """Return the counts, with the exit code of a worker that ended so.

        Args:
            stopped_by: the signal that stopped it.
            tripped: whether its breaker did.
            unguarded: whether its guardian is gone.
            misplaced: whether tasks were put back because its settings do not let it run them.
        """
        code = 0
        if tripped:
            code = 1
        elif self.is_misplaced:
            code = 3
        elif unguarded:
            code = 137  # as `jobq worker`, which is killed with its guardian
        elif stopped_by is not None and self._done["given_back"]:
            code = 130 if stopped_by is signal.SIGINT else 143
        elif misplaced:
            code = 3
        counts = self.counts("succeeded", "failed", "dead_lettered", "given_back", "lost", "results_not_kept")
        return WorkerReport(exit_code=code, stopped_by=stopped_by.name if stopped_by else None, **counts)
