"""Exit rules: which end does what; whatever they say, retries stay bounded (S7)."""

from datetime import timedelta

import pytest

from jobq.errors import MalformedTask
from jobq.run.attempt.exit_action import action_for
from jobq.run.attempt.retry import Backoff, Reason, verdict
from jobq.settlement import MoveToDeadLetters, Requeue
from jobq.task import Outcome, OutcomeKind, Task

RULES = ("3=fail", "4=delay:10m", "SIGSEGV=retry", "oom=fail", "timeout=delay:1h")
FAILED = OutcomeKind.FAILED


def judged(outcome: Outcome, **counters: int) -> object:
    task = Task.new(command="x", on_exit=RULES, budgets={"retries": 1})
    task = task.copied({"counters": task.counters.copied(counters)})
    return verdict(task, 1, outcome, Backoff())


def test_a_rule_comes_before_the_budgets() -> None:
    dead = judged(Outcome(kind=FAILED, exit_code=3, detail="exit code 3"))
    assert isinstance(dead, MoveToDeadLetters)
    assert dead.reason is Reason.FAILED
    later = judged(Outcome(kind=FAILED, exit_code=4))
    assert isinstance(later, Requeue)
    assert (later.delay, later.counters.failures) == (timedelta(minutes=10), 1)
    later = judged(Outcome(kind=OutcomeKind.TIMED_OUT, signal=9))
    assert isinstance(later, Requeue)
    assert later.delay == timedelta(hours=1)
    crash = judged(Outcome(kind=OutcomeKind.CRASHED, signal=11))
    assert isinstance(crash, Requeue)
    assert crash.counters.failures == 1, "a rule makes a crash a failure"
    for killed in (
        Outcome(kind=OutcomeKind.CRASHED, signal=9, out_of_memory=True),
        Outcome(kind=FAILED, over_memory_limit=True),
    ):
        assert isinstance(judged(killed), MoveToDeadLetters)
    assert isinstance(judged(Outcome(kind=FAILED, exit_code=5)), Requeue), "no rule: the budgets decide"
    assert isinstance(judged(Outcome(kind=OutcomeKind.PREEMPTED, exit_code=3)), Requeue), "not the task's own end"


@pytest.mark.parametrize("outcome", [Outcome(kind=FAILED, exit_code=4), Outcome(kind=OutcomeKind.CRASHED, signal=11)])
def test_retries_stay_bounded(outcome: Outcome) -> None:
    dead = judged(outcome, failures=1)
    assert isinstance(dead, MoveToDeadLetters)
    assert dead.reason is Reason.FAILED


@pytest.mark.parametrize("rule", ["", "3", "0=fail", "256=fail", "x=fail", "3=delay:soon", "3=queue:x", "3="])
def test_what_is_no_rule(rule: str) -> None:
    with pytest.raises(MalformedTask):
        Task.new(command="x", on_exit=[rule])


def test_a_signal_without_a_name_is_no_exit_code() -> None:
    """A real-time signal's number alone would match the rule for the exit code of that number."""
    task = Task.new(command="true", on_exit=("50=fail",))
    assert action_for(task, Outcome(kind=FAILED, signal=50)) is None
    assert action_for(task, Outcome(kind=FAILED, exit_code=50)) is not None


def test_rules_travel_with_the_task() -> None:
    task = Task.new(command="x", on_exit=list(RULES))
    assert Task.decode(task.encode()) == task
    assert task.fingerprint() != Task.new(command="x", id=task.id).fingerprint()
    assert b"on_exit" not in Task.new(command="x").encode()
