"""What becomes of a task after an attempt: pure arithmetic over its three budgets, the same on every backend (S7).

    crashes = deliveries by the service's count - ends that the envelope records

so whatever nobody could record (the worker died, the lock was lost, the answer was lost) counts as a crash, and so
does an end that was not the task's own doing (a signal from outside, a start that failed).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Final

from jobq.errors import MalformedTask
from jobq.formats.exit_rules import Action
from jobq.resources.request import described
from jobq.run.attempt.exit_action import action_for
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue, Settlement
from jobq.task import Outcome, OutcomeKind, Task

MOST_MISFITS: Final = 1000  # with their delays about a week
_MOST_RESTARTS: Final = 1  # of what could not be started: a program that is missing here may be elsewhere
_BURIED_LATER: Final = timedelta(minutes=1)  # until what cannot be buried is tried again


class Reason(StrEnum):
    """Why a task is in the dead-letter place."""

    FAILED = "failed"
    TIMED_OUT = "timed_out"
    MEMORY_LIMIT = "memory_limit"
    CRASHED = "crashed"
    PREEMPTED = "preempted"
    CANCELED = "canceled"
    MALFORMED = "malformed"
    UNSIGNED = "unsigned"
    BAD_SIGNATURE = "bad_signature"
    REVOKED_KEY = "revoked_key"
    WRONG_QUEUE = "wrong_queue"
    EXPIRED = "expired"
    REPLAYED = "replayed"
    UNPLACEABLE = "unplaceable"


@dataclass(frozen=True)
class Cancel:
    """Settle: the task has ended, because somebody wanted it to; its journal says so."""


@dataclass(frozen=True)
class Leave:
    """Do not settle: the lease is not ours any more."""


# What becomes of a task: a settlement, or what is left to be made one.
Verdict = Settlement | Cancel | Leave


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff with full jitter.

    Args:
        first: the longest delay after the first failure.
        longest: the bound that doubling stops at.
        jitter: returns a number in [0, 1); replaced in tests.
    """

    first: timedelta = timedelta(seconds=5)
    longest: timedelta = timedelta(minutes=10)
    jitter: random.Random = field(default_factory=random.Random)

    def delay(self, failures: int) -> timedelta:
        """Return the delay after this many failures, >= 1."""
        exponent = min(failures - 1, 32)  # 2 ** 32 first delays are beyond any bound
        bound = min(self.first * 2**exponent, self.longest) if self.first < self.longest else self.longest
        return bound * self.jitter.random()


# What `verdict` is: decides what becomes of a task after an attempt.
Judge = Callable[[Task, int, Outcome, Backoff], Verdict]


def crashes_before(task: Task, deliveries: int) -> int:
    """Return how many earlier deliveries ended without a record; `deliveries` includes the present one."""
    return max(0, deliveries - 1 - task.counters.ends)


def check_counters(task: Task, deliveries: int) -> None:
    """Refuse an envelope that records more ends than there were deliveries: its crashes would never be counted.

    Raises:
        MalformedTask: names the counter.
    """
    if task.counters.ends > deliveries - 1:
        raise MalformedTask(f"records {task.counters.ends} ends before delivery {deliveries}", "counters.ends")


def is_one_crash_from_its_end(task: Task, deliveries: int) -> bool:
    """Return whether the task has crashed before, and one more crash would use up its budget."""
    crashes = crashes_before(task, deliveries)
    return crashes > 0 and crashes == task.budgets.crashes


def refusal(task: Task, deliveries: int) -> MoveToDeadLetters | None:
    """Return why a delivery must not even start: it was given up before, or its crashes are used up."""
    if _is_given_up(task):
        why = "given up before, and it could not be written to the dead letters then; the worker's log says why"
        return MoveToDeadLetters(Reason.FAILED, why)
    crashes = crashes_before(task, deliveries)
    if crashes <= task.budgets.crashes:
        return None
    return MoveToDeadLetters(
        Reason.CRASHED,
        f"{crashes} deliveries ended without a word: the worker died, or lost the lease; at most"
        f" {task.budgets.crashes} are forgiven (--max-crashes)",
    )


def may_wait(task: Task) -> bool:
    """Return whether a task that cannot be started now may go back uncharged: not for ever (S7)."""
    return task.counters.given_back < MOST_MISFITS


def misplaced(task: Task, delay: timedelta) -> Release | MoveToDeadLetters:
    """Return what becomes of a task that its worker can never run: it waits for one that can, but not for ever.

    No budget pays for it (S7). Where it asks for nothing, the worker has lost what it offers, and that is not counted.

    Args:
        task: as delivered.
        delay: until it is there again.
    """
    asks = described(task.resources, task.needs)
    if not asks or task.counters.misfits + 1 < MOST_MISFITS:
        return Release(delay, misfits=int(bool(asks)))
    return MoveToDeadLetters(
        Reason.UNPLACEABLE,
        f"{MOST_MISFITS} times it came to a worker without what it asks for ({asks}). Start one that offers that, or"
        " give such tasks a queue and workers of their own (`jobq help resources`); then `dead retry` puts it back",
    )


def unburied(task: Task, deliveries: int, verdict: MoveToDeadLetters) -> Requeue | None:
    """Return the verdict that puts back a task which cannot be buried: its next delivery only buries it (S7).

    Without a record each such end would count as a crash, and the task would run again, without a retry of its own.
    None where there is nothing to record: it is no task, it was recorded before, or its crashes refuse it already.
    """
    if verdict.reason == Reason.MALFORMED or refusal(task, deliveries + 1) is not None:
        return None
    beyond = task.budgets.retries + 1 - task.counters.failures
    return Requeue(task.counters.raised(failures=beyond), _BURIED_LATER)


def _is_given_up(task: Task) -> bool:
    return task.counters.failures > task.budgets.retries


def verdict(task: Task, deliveries: int, outcome: Outcome, backoff: Backoff) -> Verdict:  # noqa: C901, PLR0911 - one row a kind
    """Return what becomes of the task.

    Args:
        task: as delivered.
        deliveries: the service's count, this delivery included.
        outcome: how the attempt ended.
        backoff: spaces the retries.
    """
    counters, budgets = task.counters, task.budgets
    if (action := action_for(task, outcome)) is not None:
        return _by_rule(task, outcome, action, backoff)
    match outcome.kind:
        case OutcomeKind.SUCCEEDED:
            return Complete()
        case OutcomeKind.LOCK_LOST:
            return Leave()
        case OutcomeKind.CANCELED:
            return MoveToDeadLetters(Reason.CANCELED, _description("canceled", 1, outcome))
        case OutcomeKind.PREEMPTED:
            if counters.preemptions >= budgets.preemptions:
                return MoveToDeadLetters(
                    Reason.PREEMPTED, _description("given back", counters.preemptions + 1, outcome)
                )
            return Requeue(task.counters.raised(preemptions=1))
        case OutcomeKind.FAILED | OutcomeKind.TIMED_OUT:
            if counters.failures >= budgets.retries:
                return MoveToDeadLetters(_failure(outcome), _description("failed", counters.failures + 1, outcome))
            return Requeue(counters.raised(failures=1), backoff.delay(counters.failures + 1))
        case OutcomeKind.CRASHED:
            crashes = crashes_before(task, deliveries) + 1
            most, what = budgets.crashes, "crashed"
            if outcome.start_failed:
                most, what = min(most, _MOST_RESTARTS), "tried"
            if crashes > most:
                return MoveToDeadLetters(Reason.CRASHED, _description(what, crashes, outcome))
            return Requeue(counters.raised(ends=0), backoff.delay(crashes))


def _by_rule(task: Task, outcome: Outcome, action: Action, backoff: Backoff) -> Verdict:
    """Return what an exit rule makes of the task; its retries stay bounded (S7)."""
    failures = task.counters.failures
    if action.kind == "fail" or failures >= task.budgets.retries:
        return MoveToDeadLetters(_failure(outcome), _description("failed", failures + 1, outcome))
    delay = backoff.delay(failures + 1) if action.delay is None else action.delay
    return Requeue(task.counters.raised(failures=1), delay)


def verdict_of_caller(task: Task, deliveries: int, outcome: Outcome, backoff: Backoff) -> Verdict:
    """As `verdict`, but every end of its own is the task's doing: a signal or a failed start is a failure like a code.

    For a user who sits in front of it and would rather see it than have it repeated, as with `xargs`.
    """
    if outcome.kind is OutcomeKind.CRASHED:
        outcome = replace(outcome, kind=OutcomeKind.FAILED)
    return verdict(task, deliveries, outcome, backoff)


def outgrown(outcome: Outcome | None, fault: MalformedTask) -> MoveToDeadLetters | Leave:
    """Return the verdict on a task that cannot be put back, since its message has no room for one more count.

    One that failed ends so: its retries could not be counted (S7). Any other is left to its lease, and counts a crash.
    """
    if outcome is None or outcome.kind not in {OutcomeKind.FAILED, OutcomeKind.TIMED_OUT}:
        return Leave()
    return MoveToDeadLetters(_failure(outcome), f"{outcome.detail}; it cannot be put back: it {fault}")


def unspent(task: Task) -> Requeue:
    """Return the verdict that gives a failed task back with its retries whole: the breaker blames the machine.

    It counts as given back by the machine, as a preemption does, so that no failure is free for ever (S7).
    """
    return Requeue(task.counters.raised(preemptions=1))


def is_unspent(task: Task, outcome: Outcome | None, verdict: Verdict) -> bool:
    """Return whether a task, as delivered, has failed and is given back with its retries whole, as by `unspent`."""
    is_blamed = isinstance(verdict, Requeue) and verdict.counters == unspent(task).counters
    return is_blamed and outcome is not None and outcome.kind is not OutcomeKind.PREEMPTED


def _failure(outcome: Outcome) -> Reason:
    if outcome.over_memory_limit:
        return Reason.MEMORY_LIMIT
    return Reason.TIMED_OUT if outcome.kind is OutcomeKind.TIMED_OUT else Reason.FAILED


def _description(what: str, times: int, outcome: Outcome) -> str:
    text = what if times == 1 else f"{what} {times} times"
    return f"{text}; last: {outcome.detail}" if outcome.detail else text
